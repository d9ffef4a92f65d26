"""Our own space files, in TOML. ``docs/spaces.md`` describes them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tfsearch.core.errors import RequestError
from tfsearch.core.records import NUMPY_ALIGNMENT, ParamValue
from tfsearch.ir.workload import MAX_ALIGNMENT
from tfsearch.space.file import parts
from tfsearch.space.file.model import CONDITION, RECIPE, Argument, KernelSpec, Launch
from tfsearch.space.file.parts import Place
from tfsearch.space.file.values import evaluate_values
from tfsearch.space.grammar import shorten
from tfsearch.space.parameters import Constraint, Definition
from tfsearch.space.recipe import RecipeSpace

SPACE_KEYS = ("constants", "parameters", "definitions", "constraints")
KERNEL_KEYS = (
    "entry", "kernel", "language", "reference", "terms", "exact", "flops", "flags", "args",
    "launch", "reproducible", "alignment",
)  # fmt: skip
ARGUMENT_KEYS = ("name", "dtype", "shape", "io", "init")
LAUNCH_KEYS = ("grid", "block", "cluster", "smem")
_IDENTIFIER = re.compile(r"[A-Za-z_]\w*", re.ASCII)


class TomlFile:
    """A parsed TOML document as a space and a kernel. Methods raise ``RequestError``.

    ``given`` replaces values of the constants.
    """

    def __init__(self, path: Path, document: Mapping[str, Any], given: Mapping[str, str]) -> None:
        self.path = path
        self.document = parts.table(
            dict(document), (*KERNEL_KEYS, *SPACE_KEYS), required=("parameters",)
        )
        self.constants = self._constants(given)

    def recipe(self) -> RecipeSpace:
        """Parameters, definitions and constraints."""
        stated = self._table("parameters")
        with Place("parameters"):
            parts.items(list(stated))
        parameters = [self._parameter(name, value) for name, value in stated.items()]
        definitions: list[Definition] = []
        for name, value in self._table("definitions").items():
            with Place(f"definitions.{name}"):
                definitions.append(Definition(name, parts.expression(value)))
        items = self.document.get("constraints", [])
        with Place("constraints"):
            items = parts.items(items)
        constraints: list[Constraint] = []
        for position, item in enumerate(items, 1):
            with Place(f"constraints[{position}]"):
                constraints.append(_constraint(item, f"{CONDITION}-{position}"))
        return RecipeSpace(
            RECIPE, 1, tuple(parameters), tuple(definitions), tuple(constraints), self.constants
        )

    def kernel(self) -> KernelSpec:
        """Entry, arguments, launch, reference and flags."""
        document = self.document
        for name in ("entry", "args"):
            if name not in document:
                raise RequestError("kernel.file-key", f"lacks {name!r}, which tuning needs")
        with Place("args"):
            items = parts.items(document["args"])
        arguments: list[Argument] = []
        for position, item in enumerate(items, 1):
            with Place(f"args[{position}]"):
                arguments.append(self._argument(item))
        names = [argument.name for argument in arguments]
        for name in names:
            if names.count(name) > 1:
                raise parts.wrong(f"args: {name!r} is declared twice")
        file = self._text("kernel")
        return KernelSpec(
            entry=_identifier("entry", self._text("entry")),
            language=self._text("language"),
            file=(self.path.parent / file).resolve() if file else None,
            arguments=tuple(arguments),
            launch=self._launch(),
            flags=self._flags(),
            reference=self._text("reference"),
            terms=self._number("terms", 1, least=1) or 1,
            flops=self._number("flops", None, least=0),
            exact=self._boolean("exact", None),
            reproducible=self._boolean("reproducible", True) is not False,
            alignment=self._alignment(),
        )

    def _constants(self, given: Mapping[str, str]) -> dict[str, ParamValue]:
        found = dict(self._table("constants"))
        for name, value in given.items():
            if name not in found:
                known = ", ".join(found) or "none"
                raise RequestError(
                    "kernel.constant", f"has no constant {shorten(name)!r}; known: {known}"
                )
            with Place(f"constants.{name}"):
                found[name] = _given(value, found[name])
        for name, value in found.items():
            with Place(f"constants.{name}"):
                if not isinstance(value, (int, str)):
                    raise parts.wrong(
                        f"must be a whole number, a text or a boolean, not {shorten(repr(value))}"
                    )
                if isinstance(value, str):
                    parts.macro(value)
        return found

    def _parameter(self, name: str, value: Any) -> Any:
        with Place(f"parameters.{name}"):
            if isinstance(value, str):
                value = evaluate_values(value, dict(self.constants))
            return parts.parameter(name, parts.sequence(value))

    def _argument(self, item: object) -> Argument:
        fields = parts.table(item, ARGUMENT_KEYS, required=("name", "dtype"))
        name = _identifier("name", parts.text(fields["name"]))
        with Place(name):
            shape: list[int] = []
            for size in parts.sequence(fields.get("shape", [])):
                value = parts.evaluated(parts.expression(size), self.constants)
                if value < 1:
                    raise parts.wrong(f"shape: a dimension is {value}; it must be at least 1")
                shape.append(value)
            if len(shape) > parts.MAX_RANK:
                raise parts.wrong(f"shape: more than {parts.MAX_RANK} dimensions")
            io = fields.get("io", "in")
            if io not in parts.IO:
                raise parts.wrong(f"io is {shorten(repr(io), 40)}; it must be in, out or inout")
            if not shape and io != "in":
                raise parts.wrong(f"a scalar is passed by value: io cannot be {io!r}")
            with Place("init"):
                filled = parts.init(fields.get("init"), self.constants)
            return Argument(name, parts.dtype(fields["dtype"]), tuple(shape), io, filled)

    def _launch(self) -> Launch:
        with Place("launch"):
            fields = parts.table(self.document.get("launch", {}), LAUNCH_KEYS)
            sizes: dict[str, Any] = {}
            for name in ("grid", "block", "cluster"):
                with Place(name):
                    stated: object = fields.get(name, [])
                    one = isinstance(stated, (int, str))
                    items = [stated] if one else parts.sequence(stated)
                    if len(items) > 3:
                        raise parts.wrong("has at most three dimensions")
                    sizes[name] = tuple(parts.expression(item) for item in items)
            smem = fields.get("smem")
            return Launch(**sizes, smem=None if smem is None else parts.expression(smem))

    def _flags(self) -> tuple[str, ...]:
        with Place("flags"):
            return parts.texts(self.document.get("flags", []))

    def _number(self, name: str, default: int | None, *, least: int) -> int | None:
        if name not in self.document:
            return default
        with Place(name):
            value = parts.evaluated(parts.expression(self.document[name]), self.constants)
            if value < least:
                raise parts.wrong(f"is {value}; it must be at least {least}")
            return value

    def _boolean(self, name: str, default: bool | None) -> bool | None:
        value = self.document.get(name, default)
        if value is not None and not isinstance(value, bool):
            raise parts.wrong(f"{name}: must be true or false, not {shorten(repr(value), 40)}")
        return value

    def _alignment(self) -> int:
        value = self._number("alignment", NUMPY_ALIGNMENT, least=1) or NUMPY_ALIGNMENT
        if value & (value - 1) or value > MAX_ALIGNMENT:
            raise parts.wrong(f"alignment: {value} is no power of two up to {MAX_ALIGNMENT}")
        return value

    def _table(self, name: str) -> dict[str, Any]:
        with Place(name):
            return parts.table(self.document.get(name, {}), None)

    def _text(self, name: str) -> str:
        if name not in self.document:
            return ""
        with Place(name):
            return parts.text(self.document[name])


def _constraint(item: object, code: str) -> Constraint:
    if isinstance(item, str):
        fields: dict[str, Any] = {"expr": item}
    else:
        fields = parts.table(item, ("expr", "reason"), required=("expr",))
    expr = parts.expression(fields["expr"])
    reason = parts.text(fields["reason"]) if "reason" in fields else reason_of(expr)
    return Constraint(code, expr, reason)


def reason_of(expr: Any) -> str:
    """The condition itself, and the values of the names that it reads."""
    shown = ", ".join(f"{name} = {{{name}}}" for name in sorted(expr.names))
    plain = expr.text.replace("{", "{{").replace("}", "}}")
    return f"{plain} does not hold for {shown}" if shown else f"{plain} does not hold"


def _identifier(what: str, name: str) -> str:
    if not _IDENTIFIER.fullmatch(name):
        raise parts.wrong(f"{what} {shorten(name)!r} must be an identifier of the language")
    return name


def _given(value: str, before: Any) -> ParamValue:
    """A constant from a command line, of the type that the file gives it."""
    if isinstance(before, bool):
        words = {"true": True, "1": True, "false": False, "0": False}
        if value.lower() not in words:
            raise parts.wrong(f"{shorten(value)!r} must be true or false")
        return words[value.lower()]
    if isinstance(before, int):
        if not re.fullmatch(r"-?\d{1,19}", value, re.ASCII):
            raise parts.wrong(f"{shorten(value)!r} must be a whole number")
        return parts.whole(int(value))
    return value
