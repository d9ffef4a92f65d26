"""The reference: any program evaluated in float64 with NumPy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import numeric
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
from tfsearch.ir.hir.rounding import Array, integer_range, round_values
from tfsearch.ir.hir.types import Range, TensorType, shape_text


def evaluate(
    program: Program,
    inputs: Mapping[str, NDArray[Any]],
    dims: Mapping[str, int] | None = None,
    *,
    round_casts: bool = False,
) -> tuple[NDArray[Any], ...]:
    """The outputs of a program in exact arithmetic rounded to float64.

    ``inputs`` are arrays of each input's NumPy element type and logical shape; arrays of another
    library that speaks NumPy's protocols give outputs of that library. Float outputs are
    float64 arrays, integer ones have their own type. Float casts keep the float64 value (the
    reference for error checks) unless ``round_casts``, which rounds at every cast to its type;
    casts to integers always round half to even and saturate. Integers are exact: a result
    that its type cannot hold is a ``RequestError`` ``hir.integer-overflow``, never a wrap.
    """
    bound, arrays = bind_inputs(program, inputs, dims)
    last = last_uses(bound)
    values: dict[int, Array] = {}
    with np.errstate(all="ignore"):
        for index, op in enumerate(bound.ops):
            operands = [values[o] for o in op.operands]
            result = arrays[index] if op.kind is OpKind.INPUT else apply(op, operands)
            values[index] = _settle(index, op, result, round_casts)
            for operand in {*op.operands, index}:
                if last[operand] == index:
                    del values[operand]
    return tuple(_finish(values[i], bound.ops[i].type) for _, i in bound.outputs)


def _settle(index: int, op: Op, result: Array, round_casts: bool) -> Array:
    dtype = op.type.dtype
    if op.kind is OpKind.CAST and (dtype.is_integer or round_casts):
        return round_values(dtype, result)
    if dtype.is_integer and op.kind in _CAN_OVERFLOW and result.size:
        low, high = integer_range(dtype)
        if result.min() < low or result.max() > high:
            raise RequestError(
                "hir.integer-overflow",
                f"value %{index} ({op.kind.value}) reaches {result.min():.0f}..{result.max():.0f}, "
                f"outside of {dtype.value}",
            )
    return result


_CAN_OVERFLOW = frozenset({OpKind.UNARY, OpKind.BINARY, OpKind.REDUCE, OpKind.CONTRACT})


def _finish(value: Array, type_: TensorType) -> NDArray[Any]:
    if type_.dtype.is_integer:
        return value.astype(type_.dtype.numpy)
    return np.copy(value, order="C")


def apply(op: Op, operands: Sequence[Array]) -> Array:
    """One op on float64 arrays, without rounding; inputs have no meaning here."""
    attrs = op.attrs
    if op.kind is OpKind.CAST:
        return operands[0]
    if op.kind is OpKind.RESHAPE:
        return operands[0].reshape(op.type.sizes)
    if op.kind is OpKind.SELECT:
        return np.where(operands[0] != 0, operands[1], operands[2])
    match attrs:
        case ConstAttrs():
            return np.array(float(attrs.value))
        case UnaryAttrs(fn):
            return numeric.UNARY[fn](operands[0])
        case BinaryAttrs(fn):
            return numeric.BINARY[fn](operands[0], operands[1])
        case CompareAttrs(fn):
            return numeric.compare(fn, operands[0], operands[1])
        case BroadcastAttrs():
            return numeric.broadcast(attrs, operands[0], op.type.sizes)
        case TransposeAttrs(perm):
            return operands[0].transpose(perm)
        case ReduceAttrs(fn, axes, _):
            return numeric.REDUCE[fn](operands[0], axis=axes)
        case ContractAttrs():
            return numeric.contract(attrs, operands[0], operands[1])
        case _:
            raise AssertionError(f"{op.kind} is no computation")


def last_uses(program: Program) -> list[int]:
    """For each value the index of the last op that needs it (one past the end for outputs)."""
    last = list(range(len(program.ops)))
    for index, op in enumerate(program.ops):
        for operand in op.operands:
            last[operand] = index
    for _, index in program.outputs:
        last[index] = len(program.ops)
    return last


def bind_inputs(
    program: Program, inputs: Mapping[str, NDArray[Any]], dims: Mapping[str, int] | None = None
) -> tuple[Program, list[Array]]:
    """The program with its ranges bound by the arrays' shapes, and the arrays as float64.

    Raises ``RequestError`` for a missing or unknown name, a wrong element type or shape.
    """
    for name in inputs:
        if name not in program.input_names:
            raise RequestError(
                "hir.unknown-input",
                f"{program.name} has no input {name!r}; it has {', '.join(program.input_names)}",
            )
    sizes = dict(dims or {})
    for item in program.inputs:
        if item.name not in inputs:
            raise RequestError(
                "hir.missing-input", f"input {item.name!r} of {program.name} is missing"
            )
        array = inputs[item.name]
        if array.dtype != item.type.dtype.numpy:
            raise RequestError(
                "hir.input-dtype",
                f"input {item.name!r} has dtype {array.dtype}, not {item.type.dtype.value}",
            )
        if array.ndim == item.type.rank:
            for dim, size in zip(item.type.shape, array.shape, strict=True):
                if isinstance(dim, Range):
                    sizes.setdefault(dim.name, size)
    bound = program.bind(sizes)
    for item in bound.inputs:
        if inputs[item.name].shape != item.type.sizes:
            raise RequestError(
                "hir.input-shape",
                f"input {item.name!r} has shape {list(inputs[item.name].shape)}, not "
                f"{shape_text(item.type.shape)}",
            )
    return bound, [inputs[i.name].astype(np.float64) for i in bound.inputs]
