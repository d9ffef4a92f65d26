"""Hardware documents: TOML files in which every number has a unit, an origin and a source.

A table with a ``unit`` is a fact::

    [clock]
    value = 3.7
    unit = "GHz"
    origin = "measured"        # vendor | reference | derived | measured
    source = "tfsearch calibrate"
    conditions = "one core busy"

A number that is not known says ``unavailable = "why"`` instead of ``value``; asking for it is
then an error that says so, and what rests on it is labelled uncalibrated. Units are those of
:data:`UNITS`: a number in another scale would be taken for one in the usual scale.
"""

from __future__ import annotations

import json
import math
import os
import tempfile
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, cast

from tfsearch.core import keys
from tfsearch.core.errors import InternalError, NotSavedError, RequestError

UNITS = frozenset(
    {
        "B",
        "B/cycle",
        "FLOP/cycle",
        "GB/s",
        "GHz",
        "W",
        "count",
        "cycles",
        "instructions/cycle",
        "results/cycle",
        "us",
    }
)
"""Units of facts. A result is what one lane of an instruction gives; a GB is 1e9 bytes."""
_FACT_KEYS = frozenset({"value", "unit", "origin", "source", "conditions", "unavailable"})


class Origin(Enum):
    """Where a number comes from."""

    VENDOR = "vendor"
    REFERENCE = "reference"
    DERIVED = "derived"
    MEASURED = "measured"


@dataclass(frozen=True)
class Fact:
    """One number with its provenance; ``value`` is None when it is unavailable."""

    value: float | None
    unit: str
    origin: Origin | None
    source: str
    conditions: str = ""


@dataclass(frozen=True)
class Document:
    """A parsed hardware document. ``digest`` is over its text."""

    name: str
    facts: Mapping[str, Fact]
    settings: Mapping[str, Any]
    digest: str
    texts: Mapping[str, str] = field(default_factory=dict[str, str])

    def number(self, name: str) -> float:
        """The value of a fact; ``RequestError`` when the document has none."""
        fact = self.facts.get(name)
        if fact is None or fact.value is None:
            why = fact.source if fact else "it is not in the document"
            raise RequestError("document.unavailable", f"{self.name} has no {name}: {why}")
        return fact.value

    def get(self, name: str) -> float | None:
        """The value of a fact, or None when it is unavailable."""
        fact = self.facts.get(name)
        return None if fact is None else fact.value

    def measured(self, name: str) -> bool:
        """True when a fact was measured on the device itself."""
        fact = self.facts.get(name)
        return fact is not None and fact.origin is Origin.MEASURED


def parse(text: str, name: str) -> Document:
    """Parse a document; ``RequestError`` with the place of what is malformed."""
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RequestError("document.toml", f"document {name}: {error}") from error
    facts: dict[str, Fact] = {}
    settings: dict[str, Any] = {}
    _walk(data, "", facts, settings, name)
    return Document(name, facts, settings, keys.digest_bytes(text.encode()))


def load(path: Path) -> Document:
    """Read a document from a file."""
    try:
        return parse(path.read_text(encoding="utf-8"), path.stem)
    except OSError as error:
        raise InternalError("document.read", f"cannot read {path}: {error}") from error


def render(facts: Mapping[str, Fact], settings: Mapping[str, str | int]) -> str:
    """A document's text, which :func:`parse` reads back: settings first, then facts by name."""
    lines = [f"{name} = {_toml(value)}" for name, value in settings.items()]
    for name, fact in facts.items():
        lines += ["", f"[{name}]"]
        if fact.value is None:
            lines += [f"unit = {_toml(fact.unit)}", f"unavailable = {_toml(fact.source)}"]
            continue
        lines += [f"value = {fact.value!r}", f"unit = {_toml(fact.unit)}"]
        if fact.origin is not None:
            lines.append(f"origin = {_toml(fact.origin.value)}")
        lines.append(f"source = {_toml(fact.source)}")
        if fact.conditions:
            lines.append(f"conditions = {_toml(fact.conditions)}")
    return "\n".join(lines) + "\n"


def _toml(value: str | int) -> str:
    # Strings of JSON without characters beyond ASCII are strings of TOML.
    return json.dumps(value)


def write(path: Path, text: str) -> None:
    """Put a document in place, whole or not at all; ``NotSavedError`` where that fails."""
    partial: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, partial = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        with os.fdopen(handle, "w", encoding="utf-8") as stream:
            stream.write(text)
        os.replace(partial, path)
    except OSError as error:
        if partial is not None:
            Path(partial).unlink(missing_ok=True)
        raise NotSavedError(
            "document.write", f"cannot write {path}: {error.strerror or error}"
        ) from error


def _walk(
    table: Mapping[str, Any],
    prefix: str,
    facts: dict[str, Fact],
    settings: dict[str, Any],
    doc: str,
) -> None:
    for key, value in table.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict):
            inner = cast("dict[str, Any]", value)
            if any(k in _FACT_KEYS and not isinstance(v, dict) for k, v in inner.items()):
                facts[name] = _fact(inner, name, doc)
            else:
                _walk(inner, f"{name}.", facts, settings, doc)
        else:
            settings[name] = value


def _fact(data: Mapping[str, Any], name: str, doc: str) -> Fact:
    unknown = sorted(set(data) - _FACT_KEYS)
    if unknown:
        raise _malformed(doc, name, f"has unknown key {unknown[0]!r}")
    unit, conditions = data.get("unit"), str(data.get("conditions", ""))
    if unit not in UNITS:
        known = ", ".join(sorted(UNITS))
        raise _malformed(doc, name, f"has the unit {unit!r}; it must be one of {known}")
    if "unavailable" in data:
        if "value" in data:
            raise _malformed(doc, name, "is both available and not")
        if not data["unavailable"]:
            raise _malformed(doc, name, "does not say why it is unavailable")
        return Fact(None, unit, None, str(data["unavailable"]), conditions)
    value = data.get("value")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise _malformed(doc, name, "has no number as its value")
    if value <= 0:
        raise _malformed(doc, name, f"is {value}; every number of hardware is above 0")
    try:
        origin = Origin(data.get("origin"))
    except ValueError:
        names = ", ".join(o.value for o in Origin)
        raise _malformed(doc, name, f"needs an origin, one of {names}") from None
    if not data.get("source"):
        raise _malformed(doc, name, "names no source")
    return Fact(float(value), unit, origin, str(data["source"]), conditions)


def _malformed(doc: str, name: str, why: str) -> RequestError:
    return RequestError("document.malformed", f"document {doc}: {name} {why}")
