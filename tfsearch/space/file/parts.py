"""What both readers share: places in messages, parameters from values, numbers from texts."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any, cast

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue
from tfsearch.ir.dtypes import DATA_TYPES, DType
from tfsearch.space.expr import Expr, parse
from tfsearch.space.file.model import Fill, Init
from tfsearch.space.grammar import INT_MAX, INT_MIN, shorten
from tfsearch.space.parameters import Kind, Parameter

MAX_RANK = 8
MAX_ITEMS = 512
"""Parameters, conditions or arguments of a file: what plans the search is cubic in their number."""
MAX_MACRO = 8192
"""Characters of a text that becomes a macro: compilers take it as an argument."""
IO = ("in", "out", "inout")


class Place:
    """Where in a file something stands; errors that pass through are prefixed with it."""

    def __init__(self, *parts: object) -> None:
        self.text = ": ".join(str(part) for part in parts)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RequestError):
            raise RequestError(error.code, f"{self.text}: {error.message}") from None


def wrong(what: str) -> RequestError:
    """The error for a part of a space file that is not as it must be."""
    return RequestError("kernel.file-value", what)


def table(
    value: object, known: Iterable[str] | None, required: Iterable[str] = ()
) -> dict[str, Any]:
    """A mapping with known keys only (None: any), and the required ones."""
    if not isinstance(value, dict):
        raise wrong(f"must be a table of named values, not {shorten(repr(value), 40)}")
    found = cast("dict[str, Any]", value)
    for name in required:
        if name not in found:
            raise RequestError("kernel.file-key", f"lacks {name!r}")
    if known is not None:
        names = list(known)
        for name in found:
            if name not in names:
                raise RequestError(
                    "kernel.file-key", f"unknown key {shorten(name)!r}; known: {', '.join(names)}"
                )
    return found


def sequence(value: object) -> list[Any]:
    """A list."""
    if not isinstance(value, list):
        raise wrong(f"must be a list, not {shorten(repr(value), 40)}")
    return cast("list[Any]", value)


def items(value: object) -> list[Any]:
    """A list of parameters, conditions or arguments: at most ``MAX_ITEMS``."""
    found = sequence(value)
    if len(found) > MAX_ITEMS:
        raise wrong(f"has {len(found)} entries, more than {MAX_ITEMS}")
    return found


def text(value: object) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value.strip():
        raise wrong(f"must be a text, not {shorten(repr(value), 40)}")
    return value


def texts(value: object) -> tuple[str, ...]:
    """A list of texts."""
    return tuple(text(item) for item in sequence(value))


def expression(value: object) -> Expr:
    """A number or the text of an expression, parsed."""
    if isinstance(value, int) and not isinstance(value, bool):
        return parse(str(value))
    return parse(text(value))


def parameter(name: str, values: list[Any]) -> Parameter:
    """A parameter over these values, which decide its kind.

    Booleans; whole numbers; numbers some of which are not whole: decimals; texts. Others are a
    ``RequestError``.
    """
    if values and all(isinstance(value, bool) for value in values):
        return Parameter(name, tuple(values), Kind.BOOLEAN)
    if values and all(_is_number(value) for value in values):
        if all(isinstance(value, int) for value in values):
            return Parameter(name, tuple(values), Kind.ORDINAL)
        return Parameter(name, tuple(decimal(value) for value in values), Kind.DECIMAL)
    if all(isinstance(value, str) for value in values):
        for value in values:
            macro(value)
        return Parameter(name, tuple(values), Kind.CATEGORICAL)
    kinds = ", ".join(sorted({type(value).__name__ for value in values}))
    raise wrong(f"mixes values of types {kinds}; all must be numbers, all texts or all booleans")


def macro(value: str) -> str:
    """A text that a compiler takes as the value of a macro: printable, and not too long."""
    if not value.isprintable():
        raise wrong(f"value {shorten(repr(value), 40)} holds a character that cannot be printed")
    if len(value) > MAX_MACRO:
        raise wrong(f"value {shorten(repr(value), 40)} has more than {MAX_MACRO} characters")
    return value


def decimal(value: float) -> str:
    """A finite number as the shortest text that gives it back."""
    if not math.isfinite(value):
        raise wrong(f"{value} is not a finite number")
    return repr(float(value))


def number(value: object) -> str:
    """A number as text: whole numbers without a point."""
    if not _is_number(value):
        raise wrong(f"must be a number, not {shorten(repr(value), 40)}")
    return str(value) if isinstance(value, int) else decimal(cast("float", value))


def evaluated(expr: Expr, constants: Mapping[str, ParamValue]) -> int:
    """A whole number that depends on constants alone."""
    value = expr.evaluate(constants)
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise wrong(f"{shorten(expr.text)!r} must be a whole number, not {value!r}")
    return value


def dtype(value: object) -> DType:
    """An element type by name."""
    try:
        return DType.named(value)
    except ValueError:
        known = ", ".join(item.value for item in DATA_TYPES if item is not DType.BOOL)
        raise wrong(f"unknown element type {shorten(repr(value), 40)}; known: {known}") from None


def init(value: object, constants: Mapping[str, ParamValue]) -> Init:
    """``random``, ``positive``, ``LOW..HIGH``, a number, or an expression over constants."""
    if value is None or value == Fill.RANDOM.value:
        return Init()
    if value == Fill.POSITIVE.value:
        return Init(Fill.POSITIVE)
    if not isinstance(value, str):
        return Init(Fill.VALUE, number(value))
    low, dots, high = value.partition("..")
    if not dots:
        return Init(Fill.VALUE, _computed(low, constants))
    found = Init(Fill.RANGE, _computed(low, constants), _computed(high, constants))
    if float(found.low) > float(found.high):
        raise wrong(f"the range {value!r} is empty")
    return found


def _computed(value: str, constants: Mapping[str, ParamValue]) -> str:
    found = parse(value).evaluate(constants)
    return number(int(found) if isinstance(found, bool) else found)


def whole(value: int) -> int:
    """The number itself, if it fits 64 bits."""
    if not INT_MIN <= value <= INT_MAX:
        raise wrong(f"{value} does not fit 64-bit integers")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)
