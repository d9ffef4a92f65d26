"""Interval arithmetic around a reference, element by element, for the running error analysis."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfsearch.ir.hir import numeric
from tfsearch.ir.hir.budgets import Budget
from tfsearch.ir.hir.ops import BinaryFn, CompareFn, UnaryFn
from tfsearch.ir.hir.rounding import Array


@dataclass(frozen=True)
class Interval:
    """lo ≤ ref ≤ hi, three float64 arrays of one shape; one array three times when exact.

    (-inf, inf) says that nothing is known: overflow on the way may even have given NaN.
    """

    ref: Array
    lo: Array
    hi: Array

    @staticmethod
    def exact(ref: Array) -> Interval:
        """An interval without width."""
        return Interval(ref, ref, ref)

    @property
    def is_exact(self) -> bool:
        """True when the interval is known to have no width."""
        return self.lo is self.ref and self.hi is self.ref

    @property
    def magnitude(self) -> Array:
        """The largest magnitude in the interval."""
        if self.is_exact:
            return np.abs(self.ref)
        return np.maximum(np.abs(self.lo), np.abs(self.hi))

    @property
    def unbounded(self) -> NDArray[np.bool_] | None:
        """True where nothing is known, so that even NaN is possible; None when nowhere."""
        if self.is_exact or self.lo.min() > -np.inf:
            return None
        return np.isneginf(self.lo) & np.isposinf(self.hi)

    @property
    def radius(self) -> Array:
        """The largest distance from the reference."""
        return np.maximum(self.hi - self.ref, self.ref - self.lo)


def forget(x: Interval, where: NDArray[np.bool_] | None) -> Interval:
    """The interval without bounds at the given places, except where the reference is NaN."""
    if where is None or not where.any():
        return x
    where = where & ~np.isnan(x.ref)
    return Interval(x.ref, np.where(where, -np.inf, x.lo), np.where(where, np.inf, x.hi))


def widen(x: Interval, budget: Budget) -> Interval:
    """The interval with each end moved out by ``relative·|end| + absolute``."""
    if budget.relative == 0.0 and budget.absolute == 0.0:
        return x
    lo = x.lo - (budget.relative * np.abs(x.lo) + budget.absolute)
    hi = x.hi + (budget.relative * np.abs(x.hi) + budget.absolute)
    if not (np.isfinite(lo.min()) and np.isfinite(hi.max())):
        lo = np.where(np.isinf(x.lo), x.lo, lo)
        hi = np.where(np.isinf(x.hi), x.hi, hi)
    return Interval(x.ref, lo, hi)


_DECREASING = frozenset({UnaryFn.NEG, UnaryFn.RSQRT})


def unary(fn: UnaryFn, x: Interval) -> Interval:
    """The exact function of an interval."""
    f = numeric.UNARY[fn]
    ref = f(x.ref)
    if x.is_exact:
        return Interval.exact(ref)
    if fn is UnaryFn.ABS:
        return _abs(x, ref)
    if fn in (UnaryFn.SIN, UnaryFn.COS):
        # Their slope is at most one.
        radius = x.radius
        low, high = np.maximum(ref - radius, -1.0), np.minimum(ref + radius, 1.0)
        lost = np.isinf(radius)
        return Interval(ref, np.where(lost, -np.inf, low), np.where(lost, np.inf, high))
    if fn is UnaryFn.RECIP:
        return _quotient(Interval.exact(np.ones_like(x.ref)), x)
    low, high = (x.hi, x.lo) if fn in _DECREASING else (x.lo, x.hi)
    if fn in (UnaryFn.LOG, UnaryFn.SQRT, UnaryFn.RSQRT):
        # An argument that rounding may push below zero gives NaN; its bound is that of zero.
        inside = x.ref >= 0
        low = np.where(inside, np.maximum(low, 0.0), low)
        high = np.where(inside, np.maximum(high, 0.0), high)
    return Interval(ref, f(low), f(high))


def _abs(x: Interval, ref: Array) -> Interval:
    a, b = np.abs(x.lo), np.abs(x.hi)
    straddles = (x.lo < 0) & (x.hi > 0)
    return Interval(ref, np.where(straddles, 0.0, np.minimum(a, b)), np.maximum(a, b))


def binary(fn: BinaryFn, a: Interval, b: Interval, same: bool = False) -> Interval:
    """The exact function of two intervals; ``same`` says that both are one value."""
    f = numeric.BINARY[fn]
    ref = f(a.ref, b.ref)
    if a.is_exact and b.is_exact:
        return Interval.exact(ref)
    if fn is BinaryFn.SUB:
        return Interval.exact(ref) if same else Interval(ref, a.lo - b.hi, a.hi - b.lo)
    if fn is BinaryFn.MUL:
        if same:
            return _square(a, ref)
        if a.is_exact or b.is_exact:
            ends = (a.ref * b.lo, a.ref * b.hi) if a.is_exact else (a.lo * b.ref, a.hi * b.ref)
            return Interval(ref, np.minimum(*ends), np.maximum(*ends))
        return _corners(ref, [p * q for p in (a.lo, a.hi) for q in (b.lo, b.hi)])
    if fn is BinaryFn.DIV:
        return _quotient(a, b)
    return Interval(ref, f(a.lo, b.lo), f(a.hi, b.hi))


def _square(a: Interval, ref: Array) -> Interval:
    magnitude = _abs(a, np.abs(a.ref))
    return Interval(ref, magnitude.lo * magnitude.lo, magnitude.hi * magnitude.hi)


def _corners(ref: Array, corners: list[Array]) -> Interval:
    lo = np.minimum(np.minimum(corners[0], corners[1]), np.minimum(corners[2], corners[3]))
    hi = np.maximum(np.maximum(corners[0], corners[1]), np.maximum(corners[2], corners[3]))
    return Interval(ref, lo, hi)


def _quotient(a: Interval, b: Interval) -> Interval:
    ref = a.ref / b.ref
    if b.lo.min() > 0:
        lo = a.lo / np.where(a.lo >= 0, b.hi, b.lo)
        return Interval(ref, lo, a.hi / np.where(a.hi >= 0, b.lo, b.hi))
    found = _corners(ref, [p / q for p in (a.lo, a.hi) for q in (b.lo, b.hi)])
    unbounded = (b.lo <= 0) & (b.hi >= 0) & ~((b.lo == 0) & (b.hi == 0))
    return Interval(
        ref, np.where(unbounded, -np.inf, found.lo), np.where(unbounded, np.inf, found.hi)
    )


def compare(fn: CompareFn, a: Interval, b: Interval) -> Interval:
    """A comparison: [1, 1] certain, [0, 0] impossible, [0, 1] undecided."""
    ref = numeric.compare(fn, a.ref, b.ref)
    if a.is_exact and b.is_exact:
        return Interval.exact(ref)
    if fn in (CompareFn.GT, CompareFn.GE):
        a, b = b, a
        fn = CompareFn.LT if fn is CompareFn.GT else CompareFn.LE
    if fn in (CompareFn.LT, CompareFn.LE):
        lo = numeric.compare(fn, a.hi, b.lo)
        return Interval(ref, lo, numeric.compare(fn, a.lo, b.hi))
    always = ((a.lo == a.hi) & (b.lo == b.hi) & (a.lo == b.lo)).astype(np.float64)
    possible = ((a.lo <= b.hi) & (b.lo <= a.hi)).astype(np.float64)
    if fn is CompareFn.EQ:
        return Interval(ref, always, possible)
    return Interval(ref, 1.0 - possible, 1.0 - always)


def select(condition: Interval, a: Interval, b: Interval) -> Interval:
    """The chosen interval; both together where the condition is undecided."""
    ref = np.where(condition.ref != 0, a.ref, b.ref)
    if condition.is_exact and a.is_exact and b.is_exact:
        return Interval.exact(ref)
    yes, no = condition.lo == 1, condition.hi == 0
    lo = np.where(yes, a.lo, np.where(no, b.lo, np.minimum(a.lo, b.lo)))
    hi = np.where(yes, a.hi, np.where(no, b.hi, np.maximum(a.hi, b.hi)))
    return Interval(ref, lo, hi)


def product(x: Interval, axes: tuple[int, ...], budget: Budget, largest: float) -> Interval:
    """The product over axes, each multiplication rounded; pairs are multiplied first.

    A kernel may multiply in any order: what one step loses near zero, later factors enlarge, and
    where factors above one exceed ``largest`` together, a step may overflow on the way.
    """
    kept = [i for i in range(x.ref.ndim) if i not in axes]
    shape = [x.ref.shape[i] for i in kept]

    def flat(a: Array) -> Array:
        return a.transpose([*kept, *axes]).reshape([*shape, -1])

    count = flat(x.ref).shape[-1]
    now = Interval(flat(x.ref), flat(x.lo), flat(x.hi))
    while (size := now.ref.shape[-1]) > 1:
        odd = [Interval(now.ref[..., -1:], now.lo[..., -1:], now.hi[..., -1:])] * (size % 2)
        half = size // 2
        first, second = (
            Interval(now.ref[..., s], now.lo[..., s], now.hi[..., s])
            for s in (slice(0, half), slice(half, 2 * half))
        )
        parts = [binary(BinaryFn.MUL, first, second), *odd]
        now = Interval(
            np.concatenate([p.ref for p in parts], axis=-1),
            np.concatenate([p.lo for p in parts], axis=-1),
            np.concatenate([p.hi for p in parts], axis=-1),
        )
    whole = Interval(now.ref[..., 0], now.lo[..., 0], now.hi[..., 0])
    if budget.absolute == 0.0:
        return widen(whole, Budget(budget.relative * count, 0.0))
    growth = np.prod(np.maximum(flat(x.magnitude), 1.0), axis=-1)
    widened = widen(whole, Budget(budget.relative * count, 0.0))
    lost = budget.absolute * count * growth
    return forget(Interval(widened.ref, widened.lo - lost, widened.hi + lost), growth > largest)
