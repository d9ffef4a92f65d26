"""A stand-in for kernels: programs run op by op in the arithmetic of each element type."""

from __future__ import annotations

from typing import Any

import numpy as np

from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import numeric
from tfsearch.ir.hir.evaluate import apply
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    ConstAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    UnaryAttrs,
)
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.rounding import round_to


def simulate(program: Program, inputs: dict[str, Any], keep_f32: bool = False) -> list[Any]:
    """Outputs as arrays of their own types; ``keep_f32`` skips inner casts to f16 and bf16."""
    values: list[Any] = []
    users: list[int] = [0] * len(program.ops)
    for op in program.ops:
        for operand in op.operands:
            users[operand] += 1
    with np.errstate(all="ignore"):
        for index, op in enumerate(program.ops):
            dtype = op.type.dtype
            if op.kind is OpKind.INPUT:
                values.append(inputs[program.inputs[index].name])
                continue
            operands = [values[o] for o in op.operands]
            inner = op.kind is OpKind.CAST and users[index] and keep_f32
            result = _step(op, operands)
            narrow = dtype in (DType.F16, DType.BF16)
            values.append(result if inner and narrow else _typed(result, dtype))
    return [_typed(values[i], program.ops[i].type.dtype) for _, i in program.outputs]


def _typed(value: Any, dtype: DType) -> Any:
    array = np.asarray(value)
    if array.dtype == dtype.numpy:
        return array
    return round_to(dtype, array.astype(np.float64))


def _step(op: Any, operands: list[Any]) -> Any:
    acc = op.type.dtype.numpy
    match op.attrs:
        case ConstAttrs():
            return np.asarray(op.attrs.value).astype(acc)
        case UnaryAttrs(fn):
            wide = operands[0].astype(np.float64)
            return round_to(op.type.dtype, numeric.UNARY[fn](wide))
        case BinaryAttrs(fn):
            return numeric.BINARY[fn](*operands)
        case ReduceAttrs(ReduceFn.SUM, axes, _):
            moved = np.moveaxis(operands[0], axes, range(len(axes)))
            total = np.zeros(moved.shape[len(axes) :], acc)
            for row in moved.reshape(-1, *total.shape):
                total = (total + row).astype(acc)
            return total
        case ContractAttrs():
            return contract_in(op.attrs, *operands, acc)
        case _:
            return apply(op, operands)


def contract_in(attrs: ContractAttrs, a: Any, b: Any, acc: Any) -> Any:
    """The contraction summed one product after the other in ``acc``."""
    k = attrs.contracted
    a = np.moveaxis(a, [attrs.lhs.index(c) for c in k], range(len(k)))
    b = np.moveaxis(b, [attrs.rhs.index(c) for c in k], range(len(k)))
    lhs = "".join(c for c in attrs.lhs if c not in k)
    rhs = "".join(c for c in attrs.rhs if c not in k)
    count = int(np.prod(a.shape[: len(k)]))
    a, b = a.reshape(count, *a.shape[len(k) :]), b.reshape(count, *b.shape[len(k) :])
    spread = []
    for labels, array in ((lhs, a), (rhs, b)):
        order = sorted(range(len(labels)), key=lambda i: attrs.out.index(labels[i]))
        shape = [array.shape[1 + labels.index(c)] if c in labels else 1 for c in attrs.out]
        spread.append(array.transpose([0, *(1 + i for i in order)]).reshape(count, *shape))
    total = np.zeros(np.broadcast_shapes(spread[0].shape[1:], spread[1].shape[1:]), acc)
    for x, y in zip(*spread, strict=True):
        total = (total + (x.astype(acc) * y.astype(acc)).astype(acc)).astype(acc)
    return total
