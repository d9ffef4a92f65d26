"""Which programs are exact on small integers, and how small: for the bit-exact pass.

On integers of magnitude up to :func:`exact_integer_limit` every partial sum is exact in its
accumulator whatever the order of summation, and every value that feeds another op is exact in
its type. Casts that only feed an output may round: one rounding of an exact value is unique.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.facts import facts_of
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BinaryFn,
    ConstAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    UnaryAttrs,
    UnaryFn,
)
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.rounding import exact_integers

_EXACT_UNARY = frozenset(
    {UnaryFn.NEG, UnaryFn.ABS, UnaryFn.FLOOR, UnaryFn.CEIL, UnaryFn.ROUND, UnaryFn.SIGN}
)


def is_exact_on_integers(program: Program) -> bool:
    """True when integer inputs keep every value of the program an integer."""
    return all(_keeps_integers(op) for op in program.ops)


def _keeps_integers(op: Op) -> bool:
    match op.attrs:
        case UnaryAttrs(fn):
            return fn in _EXACT_UNARY
        case BinaryAttrs(fn):
            return fn is not BinaryFn.DIV
        case ConstAttrs():
            value = op.attrs.value
            return math.isfinite(value) and value == int(value)
        case _:
            return True


def exact_integer_limit(program: Program) -> int:
    """The largest L such that inputs of integers of magnitude ≤ L are computed exactly.

    0 when there is none (the program is not exact on integers, or its sums are too long for the
    accumulator). Every dimension must be bound.
    """
    if not is_exact_on_integers(program) or not program.inputs:
        return 0
    high = min(exact_integers(i.type.dtype) for i in program.inputs)
    low = 0
    while low < high:
        middle = (low + high + 1) // 2
        if _fits(program, middle):
            low = middle
        else:
            high = middle - 1
    return low


def _fits(program: Program, limit: int) -> bool:
    users = facts_of(program).users
    reach: list[int] = []
    for index, op in enumerate(program.ops):
        magnitude = _magnitude(program, op, reach, limit)
        dtype = op.type.dtype
        last_cast = op.kind is OpKind.CAST and not users[index]
        if op.kind is OpKind.CAST and dtype.is_integer:
            magnitude = min(magnitude, exact_integers(dtype) + 1)
        elif not last_cast and magnitude > exact_integers(dtype):
            return False
        reach.append(magnitude)
    return True


def _magnitude(program: Program, op: Op, reach: Sequence[int], limit: int) -> int:
    """A bound of the result's magnitude, and of every partial sum's or product's."""
    below = [reach[o] for o in op.operands]
    types = [program.ops[o].type for o in op.operands]
    match op.attrs:
        case ConstAttrs():
            size = abs(int(op.attrs.value))
        case UnaryAttrs(fn):
            size = 1 if fn is UnaryFn.SIGN else below[0]
        case BinaryAttrs(fn):
            sums = {BinaryFn.ADD: sum(below), BinaryFn.SUB: sum(below)}
            size = sums.get(fn, math.prod(below) if fn is BinaryFn.MUL else max(below))
        case ReduceAttrs(fn, axes, _):
            count = math.prod(types[0].sizes[a] for a in axes)
            size = below[0]
            if fn is ReduceFn.SUM:
                size *= count
            elif fn is ReduceFn.PROD and size > 1:
                size = size**count if count * size.bit_length() < 4096 else 1 << 4096
        case ContractAttrs():
            labels = dict(zip(op.attrs.lhs, types[0].sizes, strict=True))
            size = below[0] * below[1] * math.prod(labels[c] for c in op.attrs.contracted)
        case _:
            if op.kind is OpKind.INPUT:
                size = limit
            elif op.type.dtype is DType.BOOL:
                size = 1
            else:
                size = max(below[1:] if op.kind is OpKind.SELECT else below)
    return size
