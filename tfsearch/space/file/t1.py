"""T1 definitions, the JSON that Kernel Tuner, KTT and others read.

The schema says little of what its texts mean; where readers differ, Kernel Tuner's reading is
taken: conditions are Python, their ``Parameters`` lists are hints and may be incomplete, ``Values``
is a Python expression, blocks of threads have at most 1024 threads, and ``ProblemSize`` with
``GridDivX`` decides the grid before ``GlobalSize`` does.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue
from tfsearch.ir.dtypes import DType
from tfsearch.space.expr import Expr, parse
from tfsearch.space.file import parts
from tfsearch.space.file.model import (
    CONDITION,
    RECIPE,
    Argument,
    Fill,
    Init,
    KernelSpec,
    Launch,
)
from tfsearch.space.file.parts import Place
from tfsearch.space.file.toml import reason_of
from tfsearch.space.file.values import evaluate_values
from tfsearch.space.grammar import shorten
from tfsearch.space.parameters import Constraint, Kind, Parameter
from tfsearch.space.recipe import RecipeSpace

TYPES = ("int", "uint", "float", "bool", "string")
BLOCK_NAMES = ("block_size_x", "block_size_y", "block_size_z")
MAX_THREADS = 1024
AXES = ("X", "Y", "Z")
OWN = "tfsearch"
"""Key of what T1 has no place for: ``{"reference": …, "terms": …, "flops": …, "exact": …}``."""
_DTYPES = {
    "float": DType.F32, "double": DType.F64, "half": DType.F16, "int32": DType.I32,
    "int8": DType.I8,
}  # fmt: skip
_IO = {"ReadOnly": "in", "WriteOnly": "out", "ReadWrite": "inout"}


class T1File:
    """A parsed T1 document as a space and a kernel. Methods raise ``RequestError``."""

    def __init__(self, path: Path, document: Mapping[str, Any], given: Mapping[str, str]) -> None:
        self.path = path
        if given:
            name = shorten(next(iter(given)))
            raise RequestError(
                "kernel.constant", f"a T1 definition has no constants; {name!r} cannot be set"
            )
        if "results" in document and "ConfigurationSpace" not in document:
            raise RequestError(
                "kernel.file-key", "holds T4 results, not a T1 definition of a space"
            )
        self.document = parts.table(dict(document), None, required=("ConfigurationSpace",))
        self.constants: dict[str, ParamValue] = {}
        with Place("ConfigurationSpace"):
            fields = parts.table(document["ConfigurationSpace"], None, ("TuningParameters",))
            self.parameters = self._parameters(fields["TuningParameters"])
            self.conditions = self._conditions(fields.get("Conditions") or [])

    def recipe(self) -> RecipeSpace:
        """Parameters and conditions, with Kernel Tuner's limit on the threads of a block."""
        constraints = list(self.conditions)
        limited = [p.name for p in self.parameters if p.name in BLOCK_NAMES]
        if limited:
            text = f"{' * '.join(limited)} <= {MAX_THREADS}"
            if all(_squeezed(text) != _squeezed(c.expression.text) for c in constraints):
                limit = parse(text)
                reason = f"{reason_of(limit)}: a block of a T1 definition has {MAX_THREADS} threads"
                constraints.append(Constraint("kernel.block-threads", limit, reason))
        return RecipeSpace(RECIPE, 1, self.parameters, (), tuple(constraints))

    def kernel(self) -> KernelSpec:
        """Entry, arguments, launch and flags; the reference where the file has ``tfsearch``."""
        if "KernelSpecification" not in self.document:
            raise RequestError("kernel.file-key", "lacks 'KernelSpecification', which tuning needs")
        with Place(OWN):
            known = ("reference", "terms", "flops", "exact")
            own = parts.table(self.document.get(OWN, {}), known)
            exact = own.get("exact")
            if exact is not None and not isinstance(exact, bool):
                raise parts.wrong("exact: must be true or false")
        with Place("KernelSpecification"):
            spec = parts.table(self.document["KernelSpecification"], None, ("KernelName",))
            problem = self._problem_size(spec.get("ProblemSize"))
            arguments = self._arguments(spec.get("Arguments") or [], problem)
            with Place("CompilerOptions"):
                flags = tuple(
                    str(flag) for flag in parts.sequence(spec.get("CompilerOptions") or []) if flag
                )
            file = spec.get("KernelFile")
            return KernelSpec(
                entry=parts.text(spec["KernelName"]),
                language=str(spec.get("Language", "")).lower(),
                file=(self.path.parent / parts.text(file)).resolve() if file else None,
                arguments=arguments,
                launch=self._launch(spec, problem),
                flags=flags,
                reference=parts.text(own["reference"]) if "reference" in own else "",
                terms=parts.evaluated(parts.expression(own.get("terms", 1)), {}),
                flops=parts.evaluated(parts.expression(own["flops"]), {})
                if "flops" in own
                else None,
                exact=exact,
            )

    def _parameters(self, items: object) -> tuple[Parameter, ...]:
        with Place("TuningParameters"):
            listed = parts.items(items)
        found: list[Parameter] = []
        for position, item in enumerate(listed):
            with Place(f"TuningParameters[{position}]"):
                fields = parts.table(item, None, ("Name", "Values"))
                name = parts.text(fields["Name"])
                with Place(name):
                    kind = fields.get("Type", "int")
                    if kind not in TYPES:
                        raise parts.wrong(
                            f"Type {shorten(repr(kind), 40)} is none of {', '.join(TYPES)}"
                        )
                    found.append(_parameter(name, str(kind), _values(fields["Values"])))
        if not found:
            raise parts.wrong("TuningParameters: has no parameter")
        return tuple(found)

    def _conditions(self, items: object) -> tuple[Constraint, ...]:
        with Place("Conditions"):
            listed = parts.items(items)
        found: list[Constraint] = []
        for position, item in enumerate(listed):
            with Place(f"Conditions[{position}]"):
                code = f"{CONDITION}-{position + 1}"
                found.extend(Constraint(code, expr, reason_of(expr)) for expr in _condition(item))
        return tuple(found)

    def _problem_size(self, value: object) -> list[int | str]:
        """Numbers and expressions; [] where the file has none."""
        if value is None:
            return []
        items = cast("list[int | str]", value if isinstance(value, list) else [value])
        for item in items:
            if isinstance(item, bool) or not isinstance(cast("object", item), (int, str)):
                raise parts.wrong(f"ProblemSize: {shorten(repr(item), 40)} is no number or text")
        return items

    def _arguments(self, items: object, problem: list[int | str]) -> tuple[Argument, ...]:
        names: dict[str, Any] = {"ProblemSize": problem}
        for parameter in self.parameters:
            names[parameter.name] = list(parameter.seen)
        found: list[Argument] = []
        with Place("Arguments"):
            listed = parts.items(items)
        for position, item in enumerate(listed):
            with Place(f"Arguments[{position}]"):
                fields = parts.table(item, None, ("Type", "MemoryType"))
                name = str(fields.get("Name") or f"arg{position}")
                with Place(name):
                    found.append(_argument(name, fields, names))
        return tuple(found)

    def _launch(self, spec: Mapping[str, Any], problem: list[int | str]) -> Launch:
        block = self._sizes(spec, "LocalSize")
        if problem:
            grid = tuple(
                parse(f"ceil({_bracketed(size)} / ({self._divisor(spec, axis, name)}))")
                for size, axis, name in zip(problem, AXES, BLOCK_NAMES, strict=False)
            )
        else:
            grid = self._sizes(spec, "GlobalSize")
            default = "OpenCL" if spec.get("Language") in ("OpenCL", "Vulkan") else "CUDA"
            if spec.get("GlobalSizeType", default) != "CUDA":
                grid = tuple(
                    parse(f"({g.text}) // ({b.text})") for g, b in zip(grid, block, strict=False)
                )
        smem = spec.get("SharedMemory") or None
        return Launch(grid, block, (), None if smem is None else parts.expression(smem))

    def _sizes(self, spec: Mapping[str, Any], key: str) -> tuple[Expr, ...]:
        with Place(key):
            fields = parts.table(spec.get(key, {}), None)
            return tuple(parts.expression(fields[axis]) for axis in AXES if axis in fields)

    def _divisor(self, spec: Mapping[str, Any], axis: str, name: str) -> str:
        """What the problem size is divided by: ``GridDiv``, else the block's size, else 1."""
        with Place(f"GridDiv{axis}"):
            items = parts.sequence(spec.get(f"GridDiv{axis}") or [])
            if items:
                return " * ".join(_bracketed(item) for item in items)
        return name if any(p.name == name for p in self.parameters) else "1"


def _squeezed(text: str) -> str:
    return text.replace(" ", "")


def _bracketed(value: object) -> str:
    return f"({parts.expression(value).text})"


def _values(value: object) -> list[Any]:
    """``Values``: the text of a Python expression, or a list as JSON has it."""
    with Place("Values"):
        found = evaluate_values(value) if isinstance(value, str) else value
        if isinstance(found, (bool, int, float, str)):
            return [found]
        return parts.sequence(found)


def _parameter(name: str, kind: str, values: list[Any]) -> Parameter:
    """A parameter of the values as its T1 type has them."""
    if kind == "string":
        return parts.parameter(name, [str(value) for value in values])
    for value in values:
        if isinstance(value, str) or not isinstance(value, (bool, int, float)):
            raise parts.wrong(f"value {shorten(repr(value), 40)} is not of type {kind}")
    if kind == "bool":
        if any(value not in (0, 1) for value in values):
            raise parts.wrong("values of type bool are True and False, or 1 and 0")
        return Parameter(name, tuple(bool(value) for value in values), Kind.BOOLEAN)
    if kind == "float":
        return parts.parameter(name, [float(value) for value in values])
    numbers = [int(value) for value in values]
    for number, value in zip(numbers, values, strict=True):
        if number != value:
            raise parts.wrong(f"value {value} is not of type {kind}")
        if kind == "uint" and number < 0:
            raise parts.wrong(f"value {value} of type uint is negative")
    return parts.parameter(name, numbers)


def _condition(item: object) -> list[Expr]:
    """One entry of ``Conditions``: an object with ``Expression``, or the expression itself.

    A list of expressions stands for all of them.
    """
    if isinstance(item, dict):
        fields = parts.table(cast("object", item), None, ("Expression",))
        with Place("Expression"):
            return _condition(fields["Expression"])
    if isinstance(item, list):
        return [expr for one in cast("list[object]", item) for expr in _condition(one)]
    return [parse(parts.text(item))]


def _argument(name: str, fields: Mapping[str, Any], names: Mapping[str, Any]) -> Argument:
    kind, memory = fields["Type"], fields["MemoryType"]
    if kind not in _DTYPES:
        raise parts.wrong(f"Type {kind!r} cannot be tuned; known: {', '.join(_DTYPES)}")
    if memory not in ("Vector", "Scalar"):
        raise parts.wrong(f"MemoryType {memory!r} cannot be tuned; known: Vector, Scalar")
    if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
        raise parts.wrong("Name must be an identifier")
    access = fields.get("AccessType", "ReadOnly" if memory == "Scalar" else "ReadWrite")
    if access not in _IO:
        raise parts.wrong(f"AccessType {access!r} is none of {', '.join(_IO)}")
    fill = fields.get("FillType", "Constant")
    if fill not in ("Constant", "Random"):
        raise parts.wrong(f"FillType {fill!r} cannot be tuned; known: Constant, Random")
    value = parts.number(fields.get("FillValue", 0))
    init = Init() if fill == "Random" else Init(Fill.VALUE, value)
    if memory == "Scalar":
        return Argument(name, _DTYPES[kind], (), "in", init)
    return Argument(name, _DTYPES[kind], (_size(fields.get("Size"), names),), _IO[access], init)


def _size(value: object, names: Mapping[str, Any]) -> int:
    """``Size``: a number or an expression in which parameters stand for all of their values."""
    with Place("Size"):
        found = evaluate_values(value, names) if isinstance(value, str) else value
        if isinstance(found, float) and found.is_integer():
            found = int(found)
        if isinstance(found, bool) or not isinstance(found, int) or found < 1:
            raise parts.wrong(f"must be a whole number from 1, not {shorten(repr(found), 40)}")
        return found
