"""Interval arithmetic on the values an expression can take.

Ranges decide that an integer expression cannot overflow, which integer width it needs, and
whether a divisor can be zero. They are closed and never too narrow.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

Number = int | float


@dataclass(frozen=True)
class Range:
    """All values lie in ``[lo, hi]``; infinite ends mean unknown (floats only)."""

    lo: Number
    hi: Number

    @property
    def has_zero(self) -> bool:
        """Whether 0 lies in the range."""
        return self.lo <= 0 <= self.hi

    def join(self, other: Range) -> Range:
        """The smallest range that holds both."""
        return Range(min(self.lo, other.lo), max(self.hi, other.hi))


UNKNOWN = Range(-math.inf, math.inf)


def _hull(values: Iterable[Number]) -> Range:
    items = list(values)
    if not items or any(isinstance(v, float) and math.isnan(v) for v in items):
        return UNKNOWN
    return Range(min(items), max(items))


def _corners(a: Range, b: Range, apply: Callable[[Number, Number], Number]) -> Range:
    try:
        return _hull(apply(x, y) for x in (a.lo, a.hi) for y in (b.lo, b.hi))
    except (OverflowError, ZeroDivisionError):
        return UNKNOWN


def add(a: Range, b: Range) -> Range:
    """Range of a + b."""
    return _corners(a, b, lambda x, y: x + y)


def subtract(a: Range, b: Range) -> Range:
    """Range of a - b."""
    return _corners(a, b, lambda x, y: x - y)


def multiply(a: Range, b: Range) -> Range:
    """Range of a * b."""
    return _corners(a, b, lambda x, y: x * y)


def _nonzero_ends(b: Range, integer: bool) -> list[Range]:
    """The parts of ``b`` on either side of zero (empty parts left out)."""
    if not b.has_zero:
        return [b]
    if not integer:
        return [UNKNOWN]
    parts: list[Range] = []
    if b.lo < 0:
        parts.append(Range(b.lo, -1))
    if b.hi > 0:
        parts.append(Range(1, b.hi))
    return parts


def _quotient(
    a: Range, b: Range, integer: bool, apply: Callable[[Number, Number], Number]
) -> Range:
    """Range over non-zero divisors, and 0, which stands for an undefined result."""
    out = Range(0, 0) if b.has_zero else None
    for part in _nonzero_ends(b, integer):
        value = UNKNOWN if part is UNKNOWN else _corners(a, part, apply)
        out = value if out is None else out.join(value)
    return out if out is not None else Range(0, 0)


def floor_divide(a: Range, b: Range, integer: bool) -> Range:
    """Range of a // b where b is not zero, and 0 where it can be."""
    return _quotient(a, b, integer, lambda x, y: x // y)


def divide(a: Range, b: Range, integer: bool) -> Range:
    """Range of a / b where b is not zero, and 0 where it can be."""
    return _quotient(a, b, integer, lambda x, y: x / y)


def modulo(a: Range, b: Range, integer: bool) -> Range:
    """Range of a % b (sign of b, as in Python) where b is not zero, and 0 where it can be."""
    step = 1 if integer else 0
    hi = max(0, b.hi - step)
    if a.lo >= 0 and b.lo >= 0:
        hi = min(hi, a.hi)
    return Range(min(0, b.lo + step), hi)


def power(a: Range, b: Range, most: int) -> Range:
    """Range of a ** b for integer exponents 0 … ``most``; unknown for others."""
    if not (isinstance(b.lo, int) and isinstance(b.hi, int) and b.lo >= 0 and b.hi <= most):
        return UNKNOWN
    bases: set[Number] = {a.lo, a.hi}
    if a.has_zero:
        bases.add(0)
    exponents = {b.lo, b.hi, max(b.lo, b.hi - 1), min(b.hi, b.lo + 1)}
    try:
        return _hull(x**y for x in bases for y in exponents)
    except OverflowError:
        return UNKNOWN


def bitwise(a: Range, b: Range) -> Range:
    """Range of a & b, a | b and a ^ b, over integers: what their bits can make."""
    ends = [int(end) for end in (a.lo, a.hi, b.lo, b.hi)]
    reach = 1 << max((end if end >= 0 else ~end).bit_length() for end in ends)
    return Range(-reach if min(ends) < 0 else 0, reach - 1)
