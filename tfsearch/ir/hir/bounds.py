"""Running error analysis: for each output element an interval that a correct kernel stays in.

Every value is an interval [lo, hi] around the float64 reference. Each op maps the intervals of
its operands and widens the result by what :mod:`tfsearch.ir.hir.budgets` allows. A kernel may
round less than the program says (keep f32 where the program casts to bf16 and back): a cast
widens the interval to hold both the rounded and the unrounded value.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import budgets, intervals
from tfsearch.ir.hir.evaluate import apply, bind_inputs, last_uses
from tfsearch.ir.hir.intervals import Interval
from tfsearch.ir.hir.numeric import contract
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    CompareAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    UnaryAttrs,
)
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.rounding import Array, largest_finite, round_values


@dataclass(frozen=True)
class Bounds:
    """One output: float64 reference and the interval [lo, hi] of correct results."""

    ref: Array
    lo: Array
    hi: Array

    def contains(self, actual: NDArray[Any]) -> NDArray[np.bool_]:
        """Element by element: is ``actual`` (same shape) acceptable? NaN only where expected."""
        values = np.asarray(actual).astype(np.float64)
        inside = (values >= self.lo) & (values <= self.hi)
        nothing_known = np.isneginf(self.lo) & np.isposinf(self.hi)
        return inside | (np.isnan(values) & (np.isnan(self.ref) | nothing_known))

    def excess(self, actual: NDArray[Any]) -> Array:
        """|error| / allowed error per element: ≤ 1 inside, 0 for the reference, inf for NaN."""
        values = np.asarray(actual).astype(np.float64)
        with np.errstate(all="ignore"):
            error = values - self.ref
            room = np.where(error >= 0, self.hi - self.ref, self.ref - self.lo)
            ratio = np.abs(error) / room
        ratio = np.where((values == self.ref) | (np.isnan(values) & np.isnan(self.ref)), 0.0, ratio)
        inside = self.contains(actual)
        ratio = np.where(inside, np.minimum(np.nan_to_num(ratio, nan=0.0), 1.0), ratio)
        return np.where(~inside & ~(ratio > 1.0), np.inf, ratio)


def evaluate_bounds(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    accuracy: Accuracy = Accuracy.PRECISE,
    dims: Mapping[str, int] | None = None,
) -> tuple[Bounds, ...]:
    """Reference and interval of every output; inputs as for :func:`evaluate.evaluate`.

    Where an interval cannot be bounded (a divisor that may be zero, an overflow on the way) it is
    (-inf, inf), which holds NaN too.
    """
    bound, arrays = bind_inputs(program, inputs, dims)
    last = last_uses(bound)
    values: dict[int, Interval] = {}
    with np.errstate(all="ignore"):
        for index, op in enumerate(bound.ops):
            if op.kind is OpKind.INPUT:
                values[index] = Interval.exact(arrays[index])
            else:
                operands = [values[o] for o in op.operands]
                values[index] = _sound(_step(bound, op, operands, accuracy), op.type.dtype)
            for operand in {*op.operands, index}:
                if last[operand] == index:
                    del values[operand]
    return tuple(
        Bounds(*(np.copy(a, order="C") for a in (v.ref, v.lo, v.hi)))
        for v in (values[i] for _, i in bound.outputs)
    )


_EXACT_MOVES = frozenset({OpKind.CONST, OpKind.BROADCAST, OpKind.TRANSPOSE, OpKind.RESHAPE})


def _step(program: Program, op: Op, operands: list[Interval], accuracy: Accuracy) -> Interval:
    dtype = op.type.dtype
    if op.kind in _EXACT_MOVES:
        return _moved(op, operands)
    if op.kind is OpKind.SELECT:
        return intervals.select(*operands)
    if op.kind is OpKind.CAST:
        return _cast(operands[0], dtype)
    match op.attrs:
        case UnaryAttrs(fn):
            budget = budgets.unary_budget(fn, dtype, accuracy)
            result = intervals.widen(intervals.unary(fn, operands[0]), budget)
            return intervals.forget(result, operands[0].unbounded)
        case BinaryAttrs(fn):
            same = op.operands[0] == op.operands[1]
            budget = budgets.binary_budget(fn, dtype, accuracy)
            pair = intervals.binary(fn, operands[0], operands[1], same)
            result = intervals.widen(pair, budget)
            for operand in operands:
                result = intervals.forget(result, operand.unbounded)
            return result
        case CompareAttrs(fn):
            return intervals.compare(fn, *operands)
        case ReduceAttrs():
            return _reduce(op.attrs, operands[0])
        case ContractAttrs():
            return _contract(op.attrs, *operands)
        case _:
            raise AssertionError(f"{op.kind} is no computation of {program.name}")


def _moved(op: Op, operands: list[Interval]) -> Interval:
    def move(pick: int) -> Array:
        return apply(op, [(o.ref, o.lo, o.hi)[pick] for o in operands])

    ref = move(0)
    if all(o.is_exact for o in operands):
        return Interval.exact(ref)
    return Interval(ref, move(1), move(2))


def _cast(x: Interval, dtype: DType) -> Interval:
    if dtype.is_integer:
        if x.is_exact:
            return Interval.exact(round_values(dtype, x.ref))
        return Interval(*(round_values(dtype, a) for a in (x.ref, x.lo, x.hi)))
    lo, hi = round_values(dtype, x.lo), round_values(dtype, x.hi)
    if x.is_exact and np.array_equal(lo, x.ref, equal_nan=True):
        return x
    floor = budgets.floor_of(dtype)
    flushed_lo = np.where(np.abs(lo) < floor, np.minimum(lo, 0.0), lo)
    flushed_hi = np.where(np.abs(hi) < floor, np.maximum(hi, 0.0), hi)
    return Interval(x.ref, np.minimum(x.lo, flushed_lo), np.maximum(x.hi, flushed_hi))


def _reduce(attrs: ReduceAttrs, x: Interval) -> Interval:
    axes = attrs.axes
    if attrs.fn in (ReduceFn.MAX, ReduceFn.MIN):
        pick = np.max if attrs.fn is ReduceFn.MAX else np.min
        ends = (pick(x.ref, axis=axes), pick(x.lo, axis=axes), pick(x.hi, axis=axes))
        unbounded = x.unbounded
        lost = None if unbounded is None else np.any(unbounded, axis=axes)
        return intervals.forget(Interval(*ends), lost)
    count = math.prod(x.ref.shape[a] for a in axes)
    if attrs.fn is ReduceFn.PROD:
        largest = largest_finite(attrs.acc)
        return intervals.product(x, axes, budgets.rounding(attrs.acc), largest)
    ref = np.sum(x.ref, axis=axes)
    lo = ref if x.is_exact else np.sum(x.lo, axis=axes)
    hi = ref if x.is_exact else np.sum(x.hi, axis=axes)
    if count == 1 or attrs.acc.is_integer:
        return Interval(ref, lo, hi)
    radius = _sum_radius(count, attrs.acc, np.sum(x.magnitude, axis=axes))
    return Interval(ref, lo - radius, hi + radius)


def _sum_radius(count: int, acc: DType, magnitude: Array) -> Array:
    budget = budgets.rounding(acc)
    factor = budgets.LAMBDA * math.sqrt(count) * budget.relative
    return factor * magnitude + count * budget.absolute


def _contract(attrs: ContractAttrs, a: Interval, b: Interval) -> Interval:
    ref = contract(attrs, a.ref, b.ref)
    sizes = dict(zip(attrs.lhs, a.ref.shape, strict=True))
    count = math.prod(sizes[c] for c in attrs.contracted)
    if a.is_exact and b.is_exact and not attrs.acc.is_float:
        return Interval.exact(ref)
    radius: Array | float = 0.0
    if attrs.acc.is_float:
        magnitude = contract(attrs, a.magnitude, b.magnitude)
        radius = _sum_radius(count, attrs.acc, magnitude)
    if not b.is_exact:
        radius = radius + contract(attrs, np.abs(a.ref), b.radius)
    if not a.is_exact:
        right = np.abs(b.ref) if b.is_exact else np.abs(b.ref) + b.radius
        radius = radius + contract(attrs, a.radius, right)
    return Interval(ref, ref - radius, ref + radius)


def _sound(x: Interval, dtype: DType) -> Interval:
    """Overflow to infinity beyond the largest finite value, and no NaN ends around a number."""
    if x.is_exact:
        return x
    lo, hi = x.lo, x.hi
    limit = largest_finite(dtype) if dtype.is_float else math.inf
    least, most = lo.min(), hi.max()
    if least >= -limit and most <= limit and math.isfinite(least) and math.isfinite(most):
        return Interval(x.ref, np.minimum(lo, x.ref), np.maximum(hi, x.ref))
    lo = np.where(lo < -limit, -np.inf, lo)
    hi = np.where(hi > limit, np.inf, hi)
    known = Interval(x.ref, np.minimum(lo, x.ref), np.maximum(hi, x.ref))
    return intervals.forget(known, np.isnan(lo) | np.isnan(hi))
