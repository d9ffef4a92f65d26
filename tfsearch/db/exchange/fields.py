"""Taking an object from outside apart, field by field; whatever is not as it has to be is told."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

T = TypeVar("T")
INT32 = 2**31 - 1
INT64 = 2**63 - 1
NUMBER = "$number"
"""What is not finite is no number in JSON: it is an object with this one name."""
_NOT_FINITE = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


class Malformed(ValueError):
    """One line about what is wrong with a record."""


class Fields:
    """The fields of one object; each is taken once, and :meth:`end` refuses what is left."""

    def __init__(self, data: object, what: str) -> None:
        if not isinstance(data, dict):
            raise Malformed(f"{what} is no JSON object")
        self._left = dict(cast("dict[str, Any]", data))
        self._what = what

    def take(self, name: str, check: Callable[[Any], T]) -> T:
        """A field's value as ``check`` gives it; it raises :class:`Malformed` for others."""
        if name not in self._left:
            raise Malformed(f"{self._what} lacks {name!r}")
        try:
            return check(self._left.pop(name))
        except Malformed as error:
            raise Malformed(f"{self._what}: {name}: {error}") from None

    def end(self) -> None:
        """Nothing else may be there."""
        if self._left:
            raise Malformed(f"{self._what} has an unknown field {min(self._left)[:60]!r}")


def text(value: Any) -> str:
    """A string that can be written as UTF-8."""
    if not isinstance(value, str):
        raise Malformed("it must be a string")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Malformed("it has half a surrogate pair") from None
    return value


def whole(most: int, least: int = 0) -> Callable[[Any], int]:
    """An integer from ``least`` to ``most``."""

    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
            raise Malformed(f"it must be an integer from {least} to {most}")
        return value

    return check


def flag(value: Any) -> bool:
    """A boolean."""
    if not isinstance(value, bool):
        raise Malformed("it must be true or false")
    return value


def real(value: Any) -> float:
    """A float, finite or not."""
    if isinstance(value, dict) and list(cast("dict[str, Any]", value)) == [NUMBER]:
        found = _NOT_FINITE.get(str(cast("dict[str, Any]", value)[NUMBER]))
        if found is not None:
            return found
    return finite(value)


def finite(value: Any) -> float:
    """A finite float."""
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        pass  # an integer beyond the range
    raise Malformed("it must be a number")


def optional(check: Callable[[Any], T]) -> Callable[[Any], T | None]:
    """What ``check`` gives, or None for null."""
    return lambda value: None if value is None else check(value)


def listed(check: Callable[[Any], T]) -> Callable[[Any], tuple[T, ...]]:
    """A list of what ``check`` takes."""

    def each(value: Any) -> tuple[T, ...]:
        if not isinstance(value, list):
            raise Malformed("it must be a list")
        return tuple(check(one) for one in cast("list[Any]", value))

    return each


def mapped(check: Callable[[Any], T]) -> Callable[[Any], dict[str, T]]:
    """An object whose values ``check`` takes."""

    def each(value: Any) -> dict[str, T]:
        if not isinstance(value, dict):
            raise Malformed("it must be an object")
        return {text(n): check(v) for n, v in cast("dict[str, Any]", value).items()}

    return each


def pair(value: Any) -> tuple[float, float]:
    """Two finite numbers."""
    found = listed(finite)(value)
    if len(found) != 2:
        raise Malformed("it must be two numbers")
    return found[0], found[1]


def anything(value: Any) -> Any:
    """Any JSON value, with the numbers that JSON has not."""
    if isinstance(value, dict):
        held = cast("dict[str, Any]", value)
        if list(held) == [NUMBER]:
            return real(held)
        return {name: anything(one) for name, one in held.items()}
    return [anything(one) for one in cast("list[Any]", value)] if isinstance(value, list) else value


def strict(value: Any) -> Any:
    """Inverse of :func:`anything`: a value that is JSON."""
    if isinstance(value, float) and not math.isfinite(value):
        return {NUMBER: "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"}
    if isinstance(value, Mapping):
        return {n: strict(v) for n, v in cast("Mapping[str, Any]", value).items()}
    if isinstance(value, (list, tuple)):
        return [strict(v) for v in cast("list[Any]", value)]
    return value
