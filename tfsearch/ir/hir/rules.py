"""Type rules: what each op demands of its operands and of its result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import (
    ARITY,
    ATTRS_OF,
    INTEGER_UNARY,
    Attrs,
    BinaryAttrs,
    BinaryFn,
    BroadcastAttrs,
    ConstAttrs,
    ContractAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    TransposeAttrs,
    UnaryAttrs,
)
from tfsearch.ir.hir.types import Dim, Range, Shape, TensorType, shape_text

Operands = Sequence[TensorType]


def _fail(code: str, message: str) -> RequestError:
    return RequestError(f"hir.{code}", message)


def _same_shape(what: str, operands: Operands) -> Shape:
    for other in operands[1:]:
        if other.shape != operands[0].shape:
            raise _fail(
                "shape",
                f"{what} of {shape_text(operands[0].shape)} and {shape_text(other.shape)}: "
                "shapes must be equal, broadcast first",
            )
    return operands[0].shape


def _same_dtype(what: str, operands: Operands) -> DType:
    first = operands[0].dtype
    for other in operands[1:]:
        if other.dtype is not first:
            raise _fail(
                "mixed-dtypes",
                f"{what} of {first.value} and {other.dtype.value}: cast one operand, "
                f"for example .cast('{_wider(first, other.dtype).value}')",
            )
    return first


def _wider(a: DType, b: DType) -> DType:
    return max(a, b, key=lambda d: (d.is_float, d.bits, d is DType.BF16))


def _numeric(what: str, dtype: DType) -> None:
    if dtype is DType.BOOL:
        raise _fail("dtype", f"{what} needs numbers, not bool: use where(...)")


def _input(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del attrs, operands
    if declared.dtype is DType.BOOL:
        raise _fail("dtype", "an input cannot be bool: pass numbers and compare them")
    return declared


def _const(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del operands
    assert isinstance(attrs, ConstAttrs)
    if declared.rank:
        raise _fail("constant", "a constant is a scalar: broadcast it to a shape")
    try:
        value = attrs.value
    except ValueError:
        raise _fail("constant", f"constant {attrs.literal!r} is no number") from None
    if ConstAttrs.of(value, declared.dtype) != attrs:
        raise _fail(
            "constant",
            f"constant {attrs.literal} is not the exact text of a value of {declared.dtype.value}: "
            f"that is {ConstAttrs.of(value, declared.dtype).literal}",
        )
    return declared


def _unary(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del declared
    assert isinstance(attrs, UnaryAttrs)
    dtype = operands[0].dtype
    _numeric(attrs.fn.value, dtype)
    if dtype.is_integer and attrs.fn not in INTEGER_UNARY:
        raise _fail("dtype", f"{attrs.fn.value} needs a float type, not {dtype.value}: cast first")
    return operands[0].with_dtype(dtype)


def _binary(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del declared
    assert isinstance(attrs, BinaryAttrs)
    dtype = _same_dtype(attrs.fn.value, operands)
    _numeric(attrs.fn.value, dtype)
    if dtype.is_integer and attrs.fn is BinaryFn.DIV:
        raise _fail("dtype", f"div needs a float type, not {dtype.value}: cast first")
    return TensorType(dtype, _same_shape(attrs.fn.value, operands))


def _compare(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del attrs, declared
    _numeric("a comparison", _same_dtype("a comparison", operands))
    return TensorType(DType.BOOL, _same_shape("a comparison", operands))


def _select(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del attrs, declared
    if operands[0].dtype is not DType.BOOL:
        raise _fail(
            "dtype", f"the condition of select is bool, not {operands[0].dtype.value}: compare"
        )
    dtype = _same_dtype("select", operands[1:])
    _numeric("select", dtype)
    return TensorType(dtype, _same_shape("select", operands))


def _cast(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del attrs
    if declared.dtype is DType.BOOL:
        raise _fail("dtype", "a cast to bool is a comparison with zero: use x != 0")
    return operands[0].with_dtype(declared.dtype)


def _broadcast(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    assert isinstance(attrs, BroadcastAttrs)
    operand, dims = operands[0], attrs.dims
    increasing = all(a < b for a, b in pairwise(dims))
    if len(dims) != operand.rank or not increasing or not _within(dims, declared.rank):
        raise _fail(
            "broadcast",
            f"broadcast of {shape_text(operand.shape)} to {shape_text(declared.shape)}: dims "
            f"{list(dims)} must name one result dimension per operand dimension, increasing",
        )
    for size, dim in zip(operand.shape, dims, strict=True):
        if declared.shape[dim] != size:
            raise _fail(
                "broadcast",
                f"broadcast of {shape_text(operand.shape)} to {shape_text(declared.shape)}: "
                f"result dimension {dim} has another size",
            )
    return TensorType(operand.dtype, declared.shape)


def _within(dims: Sequence[int], rank: int) -> bool:
    return all(0 <= d < rank for d in dims)


def _transpose(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del declared
    assert isinstance(attrs, TransposeAttrs)
    operand = operands[0]
    if sorted(attrs.perm) != list(range(operand.rank)):
        raise _fail(
            "transpose", f"perm {list(attrs.perm)} is no permutation of {operand.rank} dimensions"
        )
    return TensorType(operand.dtype, tuple(operand.shape[p] for p in attrs.perm))


def product_of(shape: Shape) -> tuple[int, tuple[str, ...]]:
    """Number of elements as (constant factor, sorted names of ranged factors)."""
    constant = 1
    names: list[str] = []
    for dim in shape:
        if isinstance(dim, Range):
            names.append(dim.name)
        else:
            constant *= dim
    return constant, tuple(sorted(names))


def _reshape(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del attrs
    operand = operands[0]
    if not operand.is_dense:
        raise _fail("reshape", "reshape needs a dense operand: this one has strides")
    if product_of(operand.shape) != product_of(declared.shape):
        raise _fail(
            "reshape",
            f"reshape of {shape_text(operand.shape)} to {shape_text(declared.shape)}: the numbers "
            "of elements differ",
        )
    return TensorType(operand.dtype, declared.shape)


def _reduce(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del declared
    assert isinstance(attrs, ReduceAttrs)
    operand, axes, fn = operands[0], attrs.axes, attrs.fn
    _numeric(f"reduce {fn.value}", operand.dtype)
    increasing = all(a < b for a, b in pairwise(axes))
    if not axes or not increasing or not _within(axes, operand.rank):
        raise _fail(
            "reduce-axes",
            f"axes {list(axes)} of a reduction of {shape_text(operand.shape)} must be increasing "
            f"and below {operand.rank}",
        )
    if not _accumulates(operand.dtype, attrs.acc, exact=fn in (ReduceFn.MAX, ReduceFn.MIN)):
        raise _fail(
            "acc",
            f"reduce {fn.value} of {operand.dtype.value} cannot accumulate in {attrs.acc.value}",
        )
    kept = tuple(d for i, d in enumerate(operand.shape) if i not in axes)
    return TensorType(attrs.acc, kept)


def _accumulates(dtype: DType, acc: DType, exact: bool) -> bool:
    if exact or acc is dtype:
        return acc is dtype
    if dtype.is_integer:
        return acc is DType.I32
    return acc.is_float and acc.bits > dtype.bits


def _contract(attrs: Attrs, operands: Operands, declared: TensorType) -> TensorType:
    del declared
    assert isinstance(attrs, ContractAttrs)
    dtype = _same_dtype("contract", operands)
    _numeric("contract", dtype)
    if dtype is DType.I32 or (dtype is DType.I8 and attrs.acc is not DType.I32):
        raise _fail("dtype", "an integer contraction takes i8 operands and accumulates in i32")
    if not _accumulates(dtype, attrs.acc, exact=False):
        raise _fail("acc", f"contract of {dtype.value} cannot accumulate in {attrs.acc.value}")
    sizes: dict[str, Dim] = {}
    for labels, operand in zip((attrs.lhs, attrs.rhs), operands, strict=True):
        if len(labels) != operand.rank:
            raise _fail(
                "contract-dims",
                f"contraction {attrs.dims!r}: {len(labels)} labels for {shape_text(operand.shape)}",
            )
        for label, dim in zip(labels, operand.shape, strict=True):
            if sizes.setdefault(label, dim) != dim:
                raise _fail(
                    "shape",
                    f"contraction {attrs.dims!r} of {shape_text(operands[0].shape)} and "
                    f"{shape_text(operands[1].shape)}: label {label} has two sizes",
                )
    return TensorType(attrs.acc, tuple(sizes[label] for label in attrs.out))


_RULES: dict[OpKind, Callable[[Attrs, Operands, TensorType], TensorType]] = {
    OpKind.INPUT: _input,
    OpKind.CONST: _const,
    OpKind.UNARY: _unary,
    OpKind.BINARY: _binary,
    OpKind.COMPARE: _compare,
    OpKind.SELECT: _select,
    OpKind.CAST: _cast,
    OpKind.BROADCAST: _broadcast,
    OpKind.TRANSPOSE: _transpose,
    OpKind.RESHAPE: _reshape,
    OpKind.REDUCE: _reduce,
    OpKind.CONTRACT: _contract,
}


def result_type(
    kind: OpKind, attrs: Attrs, operands: Operands, declared: TensorType | None = None
) -> TensorType:
    """The type of an op's result.

    ``declared`` supplies what attributes and operands leave open: the element type of CAST and
    CONST, the shape of BROADCAST and RESHAPE, everything of INPUT. Raises ``RequestError``
    (``hir.*``) for operands the op does not take.
    """
    if not isinstance(attrs, ATTRS_OF[kind]):
        raise _fail("attributes", f"{kind.value} takes {ATTRS_OF[kind].__name__} attributes")
    if len(operands) != ARITY[kind]:
        raise _fail("operands", f"{kind.value} takes {ARITY[kind]} operands, not {len(operands)}")
    return _RULES[kind](attrs, operands, declared if declared is not None else operands[0])
