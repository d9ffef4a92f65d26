"""The baseline on this target: the program in NumPy, in the types a NumPy user would use."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from tfsearch.atoms.semantics import BINARY, COMPARE, UNARY
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import WorkloadRecord
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.numeric import erf
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BroadcastAttrs,
    CompareAttrs,
    ConstAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    TransposeAttrs,
    UnaryAttrs,
)
from tfsearch.ir.hir.program import Op, Program
from tfsearch.ir.hir.text import parse_program

Array = np.ndarray[Any, np.dtype[Any]]
HostFunction = Callable[[Mapping[str, Array], Mapping[str, Array]], None]

_UNARY: dict[str, Callable[[Array], Array]] = {
    **UNARY,
    "erf": lambda x: erf(x.astype(np.float64)).astype(x.dtype),
}
_REDUCE: dict[str, Callable[..., Array]] = {
    "sum": np.sum,
    "max": np.max,
    "min": np.min,
    "prod": np.prod,
}


def make(workload: WorkloadRecord, launch: LaunchSpec) -> HostFunction:
    """A host function that computes a workload's program with NumPy."""
    del launch
    program = parse_program(workload.program)

    def run(inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
        with np.errstate(all="ignore"):
            _run(program, inputs, outputs)

    return run


def _run(program: Program, inputs: Mapping[str, Array], outputs: Mapping[str, Array]) -> None:
    named = {index: name for name, index in program.outputs}
    values: list[Array] = [inputs[item.name] for item in program.inputs]
    for index, op in enumerate(program.ops[len(values) :], start=len(values)):
        out = outputs[named[index]] if index in named else None
        operands = [values[o] for o in op.operands]
        if isinstance(op.attrs, ContractAttrs):
            value = _contract(op, op.attrs, operands, out)
        else:
            value = _evaluate(op, operands)
        values.append(value)
    for name, index in program.outputs:
        if values[index] is not outputs[name]:
            outputs[name][...] = values[index]


def _contract(op: Op, attrs: ContractAttrs, operands: list[Array], out: Array | None) -> Array:
    """A matrix product where the labels say so, in the accumulator's type."""
    wide = DType.F32 if attrs.acc is DType.F32 else attrs.acc
    a, b = (x if x.dtype == wide.numpy else x.astype(wide.numpy) for x in operands)
    batch = attrs.batch
    plain = attrs.out == batch + attrs.lhs_free + attrs.rhs_free
    if plain and len(attrs.lhs_free) == len(attrs.rhs_free) == len(attrs.contracted) == 1:
        a = np.transpose(a, [attrs.lhs.index(c) for c in batch + attrs.lhs_free + attrs.contracted])
        b = np.transpose(b, [attrs.rhs.index(c) for c in batch + attrs.contracted + attrs.rhs_free])
        if out is not None and out.dtype == wide.numpy:
            return np.matmul(a, b, out=out)
        product = np.matmul(a, b)
    else:
        product = np.einsum(attrs.dims, a, b, optimize=True)
    return product.astype(op.type.dtype.numpy, copy=False)


def _evaluate(op: Op, operands: list[Array]) -> Array:
    dtype = op.type.dtype
    match op.attrs:
        case ConstAttrs():
            return np.asarray(op.attrs.value, dtype=dtype.numpy)
        case UnaryAttrs(fn):
            return _UNARY[fn.value](operands[0])
        case BinaryAttrs(fn):
            return BINARY[fn.value](operands[0], operands[1])
        case CompareAttrs(fn):
            return COMPARE[fn.value](operands[0], operands[1])
        case ReduceAttrs(fn, axes, acc):
            return _REDUCE[fn.value](operands[0].astype(acc.numpy, copy=False), axis=axes)
        case TransposeAttrs(perm):
            return np.transpose(operands[0], perm)
        case BroadcastAttrs(dims):
            shape = [1] * len(op.type.shape)
            for dim, extent in zip(dims, operands[0].shape, strict=True):
                shape[dim] = extent
            return np.broadcast_to(operands[0].reshape(shape), op.type.sizes)
        case _:
            pass
    if op.kind is OpKind.SELECT:
        return np.where(operands[0], operands[1], operands[2])
    if op.kind is OpKind.RESHAPE:
        return operands[0].reshape(op.type.sizes)
    return _cast(operands[0], dtype)


def _cast(value: Array, dtype: DType) -> Array:
    if dtype.is_integer and not np.issubdtype(value.dtype, np.integer):
        info = np.iinfo(dtype.numpy)
        value = np.clip(np.rint(value), info.min, info.max)
    return value.astype(dtype.numpy)
