"""Records for people: the fields of a document as aligned, indented lines."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tfsearch.cli.output import microseconds, plain, table

STEP = "  "
LISTED = 8
"""Values of a list that are shown; of a longer one only their number is."""

DIGEST = 16
"""Characters of a digest that are shown; commands take a key's beginning."""


def record_lines(document: Mapping[str, Any]) -> list[str]:
    """A document without what it does not have: names, then values, nested ones below.

    Times under a name that ends with ``_us`` get a unit; a list of records is a table.
    """
    return _lines(plain(document), "")


def _lines(fields: Mapping[str, Any], indent: str) -> list[str]:
    simple = {name: _text(name, value) for name, value in fields.items()}
    width = max((len(name) for name, text in simple.items() if text), default=0)
    out: list[str] = []
    for name, value in fields.items():
        text = simple[name]
        if text:
            out.append(f"{indent}{name.ljust(width)}  {text}")
        elif isinstance(value, Mapping) and value:
            out += [f"{indent}{name}", *_lines(value, indent + STEP)]
        elif isinstance(value, str) and value:
            out += [f"{indent}{name}", *(indent + STEP + line for line in value.splitlines())]
        elif isinstance(value, Sequence) and value and isinstance(value[0], Mapping):
            rows = [tuple(_text(key, item) or "" for key, item in row.items()) for row in value]
            out += [f"{indent}{name}", *table([tuple(value[0]), *rows], indent + STEP)]
    return out


def _text(name: str, value: Any) -> str:
    """A value that fits on its name's line; "" for others, and for what there is not."""
    if value is None:
        return ""
    if isinstance(value, Mapping):
        many = len(value) > LISTED and all(_is_digest(item) for item in value.values())
        return f"{len(value)} digests" if many else ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (int, float)):
        return microseconds(value) if name.endswith("_us") else _number(value)
    if isinstance(value, str):
        return "" if "\n" in value else f"{value[:DIGEST]}…" if _is_digest(value) else value
    if not value or isinstance(value[0], Mapping):
        return ""
    if len(value) > LISTED:
        return f"{len(value)} values"
    return ", ".join(_text(name, item) for item in value)


def _is_digest(value: object) -> bool:
    return isinstance(value, str) and re.fullmatch(r"[0-9a-f]{64}", value) is not None


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
