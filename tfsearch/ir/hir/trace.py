"""Tracing: ordinary Python functions over tensor proxies become programs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, cast

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DTYPE_NAMES, DType
from tfsearch.ir.hir.build import Builder
from tfsearch.ir.hir.ops import (
    BinaryAttrs,
    BinaryFn,
    BroadcastAttrs,
    CompareAttrs,
    CompareFn,
    ConstAttrs,
    NoAttrs,
    OpKind,
    ReduceAttrs,
    ReduceFn,
    TransposeAttrs,
    UnaryAttrs,
    UnaryFn,
)
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.types import Shape, TensorType, is_name, shape_text

Scalar = int | float
Axis = int | Sequence[int] | None


class Tensor:
    """A value of the program being traced; operators append ops and broadcast as NumPy does.

    Operands of one operator must share their element type (Python numbers adapt).
    """

    __array_ufunc__ = None
    __hash__ = object.__hash__

    def __init__(self, builder: Builder, index: int) -> None:
        self.builder = builder
        self.index = index

    @property
    def type(self) -> TensorType:
        """Type of the value."""
        return self.builder.type_of(self.index)

    @property
    def shape(self) -> Shape:
        """Shape of the value."""
        return self.type.shape

    @property
    def dtype(self) -> DType:
        """Element type of the value."""
        return self.type.dtype

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return self.type.rank

    @property
    def T(self) -> Tensor:
        """The last two dimensions swapped."""
        if self.rank < 2:
            raise RequestError("hir.transpose", f".T needs two dimensions, not {self.rank}")
        order = list(range(self.rank))
        order[-2:] = [order[-1], order[-2]]
        return self.transpose(order)

    def add_op(
        self, kind: OpKind, *others: Tensor, attrs: Any = None, declared: Any = None
    ) -> Tensor:
        """Append an op on this value and ``others``; for the functions of ``lang``."""
        operands = [self.index, *(o.index for o in others)]
        return Tensor(self.builder, self.builder.add(kind, operands, attrs, declared))

    def unary(self, fn: UnaryFn) -> Tensor:
        """A function applied to every element."""
        return self.add_op(OpKind.UNARY, attrs=UnaryAttrs(fn))

    def binary(self, fn: BinaryFn, other: Tensor | Scalar, swapped: bool = False) -> Tensor:
        """A function of two operands, broadcast against each other."""
        a, b = broadcast_together(self, as_tensor(other, self))
        if swapped:
            a, b = b, a
        return a.add_op(OpKind.BINARY, b, attrs=BinaryAttrs(fn))

    def compare(self, fn: CompareFn, other: Tensor | Scalar) -> Tensor:
        """A comparison, element by element; the result is for ``lang.where``."""
        a, b = broadcast_together(self, as_tensor(other, self))
        return a.add_op(OpKind.COMPARE, b, attrs=CompareAttrs(fn))

    def cast(self, dtype: DType | str) -> Tensor:
        """Conversion: to floats rounds once, ties to even; to integers so too, and saturates."""
        declared = self.type.with_dtype(as_dtype(dtype))
        return self.add_op(OpKind.CAST, attrs=NoAttrs(), declared=declared)

    def transpose(self, perm: Sequence[int]) -> Tensor:
        """Dimensions permuted: result dimension ``i`` is ``perm[i]``."""
        return self.add_op(OpKind.TRANSPOSE, attrs=TransposeAttrs(tuple(perm)))

    def reshape(self, *shape: Any) -> Tensor:
        """The same elements in row-major order under another shape."""
        nested = len(shape) == 1 and isinstance(shape[0], (tuple, list))
        dims = cast("Sequence[Any]", shape[0]) if nested else shape
        declared = self.type.with_shape(tuple(dims))
        return self.add_op(OpKind.RESHAPE, attrs=NoAttrs(), declared=declared)

    def broadcast_to(self, shape: Sequence[Any]) -> Tensor:
        """NumPy broadcasting: sizes of one are repeated, dimensions are added in front."""
        target = tuple(shape)
        offset = len(target) - self.rank
        kept = [
            i
            for i, d in enumerate(self.shape)
            if offset >= 0 and (d != 1 or target[offset + i] == 1)
        ]
        if offset < 0 or any(self.shape[i] != target[offset + i] for i in kept):
            raise RequestError(
                "hir.broadcast",
                f"{shape_text(self.shape)} does not broadcast to {shape_text(target)}",
            )
        squeezed = (
            self.reshape(tuple(self.shape[i] for i in kept)) if len(kept) < self.rank else self
        )
        return squeezed.broadcast_in_dim(target, [offset + i for i in kept])

    def broadcast_in_dim(self, shape: Sequence[Any], dims: Sequence[int]) -> Tensor:
        """Repeat into ``shape``: operand dimension ``i`` becomes dimension ``dims[i]``."""
        return self.add_op(
            OpKind.BROADCAST,
            attrs=BroadcastAttrs(tuple(dims)),
            declared=self.type.with_shape(tuple(shape)),
        )

    def reduce(self, fn: ReduceFn, axis: Axis, keepdims: bool = False) -> Tensor:
        """Reduce over axes (``None``: all). Sums and products of f16 and bf16 are taken in f32 and
        cast back; those of i8 are i32.
        """
        axes = self.axes(axis)
        summing = fn in (ReduceFn.SUM, ReduceFn.PROD)
        narrow = self.dtype in (DType.F16, DType.BF16) and summing
        source = self.cast(DType.F32) if narrow else self
        acc = DType.I32 if source.dtype is DType.I8 and summing else source.dtype
        result = source.add_op(OpKind.REDUCE, attrs=ReduceAttrs(fn, axes, acc))
        if narrow:
            result = result.cast(self.dtype)
        if keepdims:
            result = result.reshape(tuple(1 if i in axes else d for i, d in enumerate(self.shape)))
        return result

    def axes(self, axis: Axis) -> tuple[int, ...]:
        """Axes as increasing non-negative integers; ``RequestError`` when one is not there."""
        wanted = range(self.rank) if axis is None else (axis,) if isinstance(axis, int) else axis
        for item in wanted:
            if not -self.rank <= item < self.rank:
                raise RequestError(
                    "hir.reduce-axes", f"axis {item} of {shape_text(self.shape)} is not there"
                )
        return tuple(sorted({item % self.rank for item in wanted}))

    def sum(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over axes."""
        return self.reduce(ReduceFn.SUM, axis, keepdims)

    def max(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Maximum over axes."""
        return self.reduce(ReduceFn.MAX, axis, keepdims)

    def min(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Minimum over axes."""
        return self.reduce(ReduceFn.MIN, axis, keepdims)

    def prod(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Product over axes."""
        return self.reduce(ReduceFn.PROD, axis, keepdims)

    def mean(self, axis: Axis = None, keepdims: bool = False) -> Tensor:
        """Sum over axes divided by the number of elements (which must be a constant)."""
        count = 1
        for i in self.axes(axis):
            size = self.shape[i]
            if not isinstance(size, int):
                raise RequestError(
                    "hir.mean", f"the mean over dimension {size.name} needs a constant size"
                )
            count *= size
        narrow = self.dtype in (DType.F16, DType.BF16)
        source = self.cast(DType.F32) if narrow else self
        return (source.sum(axis, keepdims) / float(count)).cast(self.dtype)

    def __add__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary(BinaryFn.ADD, other)

    def __radd__(self, other: Scalar) -> Tensor:
        return self.binary(BinaryFn.ADD, other, swapped=True)

    def __sub__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary(BinaryFn.SUB, other)

    def __rsub__(self, other: Scalar) -> Tensor:
        return self.binary(BinaryFn.SUB, other, swapped=True)

    def __mul__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary(BinaryFn.MUL, other)

    def __rmul__(self, other: Scalar) -> Tensor:
        return self.binary(BinaryFn.MUL, other, swapped=True)

    def __truediv__(self, other: Tensor | Scalar) -> Tensor:
        return self.binary(BinaryFn.DIV, other)

    def __rtruediv__(self, other: Scalar) -> Tensor:
        return self.binary(BinaryFn.DIV, other, swapped=True)

    def __matmul__(self, other: Tensor) -> Tensor:
        from tfsearch.ir.hir.lang import matmul

        return matmul(self, other)

    def __pow__(self, exponent: object) -> Tensor:
        if not isinstance(exponent, int) or isinstance(exponent, bool) or not 1 <= exponent <= 8:
            raise RequestError("hir.power", f"power {exponent!r}: only whole powers 1 to 8")
        result = self
        for _ in range(exponent - 1):
            result = result * self
        return result

    def __neg__(self) -> Tensor:
        return self.unary(UnaryFn.NEG)

    def __abs__(self) -> Tensor:
        return self.unary(UnaryFn.ABS)

    def __lt__(self, other: Tensor | Scalar) -> Tensor:
        return self.compare(CompareFn.LT, other)

    def __le__(self, other: Tensor | Scalar) -> Tensor:
        return self.compare(CompareFn.LE, other)

    def __gt__(self, other: Tensor | Scalar) -> Tensor:
        return self.compare(CompareFn.GT, other)

    def __ge__(self, other: Tensor | Scalar) -> Tensor:
        return self.compare(CompareFn.GE, other)

    def __eq__(self, other: object) -> Tensor:  # type: ignore[override]
        return self.compare(CompareFn.EQ, cast("Tensor | Scalar", other))

    def __ne__(self, other: object) -> Tensor:  # type: ignore[override]
        return self.compare(CompareFn.NE, cast("Tensor | Scalar", other))

    def __bool__(self) -> NoReturn:
        raise RequestError(
            "hir.control-flow",
            "the truth of a tensor is not known while tracing: Python's if, while, and, or cannot "
            "depend on tensor data; use where(condition, a, b)",
        )

    def __iter__(self) -> NoReturn:
        raise RequestError("hir.control-flow", "a tensor cannot be iterated over while tracing")

    def __float__(self) -> NoReturn:
        raise RequestError("hir.control-flow", "a tensor has no number while tracing")

    def __repr__(self) -> str:
        return f"Tensor(%{self.index}: {self.dtype.value}{shape_text(self.shape)})"


def as_dtype(dtype: object) -> DType:
    """An element type from a :class:`DType`, its text (``f32``, ``float32``) or a NumPy dtype.

    ``RequestError`` (``hir.dtype``) lists the known ones.
    """
    try:
        return DType.named(dtype)
    except ValueError:
        known = ", ".join(DTYPE_NAMES)
        raise RequestError("hir.dtype", f"unknown dtype {dtype!r}; known dtypes: {known}") from None


def as_tensor(value: object, like: Tensor) -> Tensor:
    """A tensor as it is, or a Python number as a constant of the element type of ``like``."""
    if isinstance(value, Tensor):
        if value.builder is not like.builder:
            raise RequestError("hir.trace", "a tensor of another trace was used")
        return value
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise RequestError(
            "hir.operand",
            f"a {type(value).__name__} cannot be an operand: pass arrays as inputs of the function",
        )
    attrs = ConstAttrs.of(value, like.dtype)
    return Tensor(like.builder, like.builder.add(OpKind.CONST, (), attrs, TensorType(like.dtype)))


def broadcast_shape(*shapes: Shape) -> Shape:
    """The NumPy broadcast of shapes; ``RequestError`` when they do not agree."""
    rank = max(len(s) for s in shapes)
    out: list[Any] = [1] * rank
    for shape in shapes:
        for i, dim in enumerate(shape, start=rank - len(shape)):
            if dim == 1:
                continue
            if out[i] not in (1, dim):
                raise RequestError(
                    "hir.broadcast",
                    "shapes " + " and ".join(shape_text(s) for s in shapes) + " do not broadcast",
                )
            out[i] = dim
    return tuple(out)


def broadcast_together(*tensors: Tensor) -> list[Tensor]:
    """Tensors broadcast to their common shape."""
    shape = broadcast_shape(*(t.shape for t in tensors))
    return [t if t.shape == shape else t.broadcast_to(shape) for t in tensors]


def trace(
    fn: Callable[..., Any], inputs: Mapping[str, TensorType], name: str | None = None
) -> Program:
    """The program that ``fn`` computes.

    ``fn`` receives one :class:`Tensor` per input by keyword and returns a tensor, a tuple or list
    of tensors, or a mapping from output name to tensor. Outputs without a name are ``out`` (one)
    or ``out0, out1, …``. Raises ``RequestError`` for what cannot be traced.
    """
    label = name or getattr(fn, "__name__", "program")
    builder = Builder(label if is_name(label) else "program", inputs)
    tensors = {n: Tensor(builder, i) for i, n in enumerate(inputs)}
    return builder.finish([(n, t.index) for n, t in _outputs(fn(**tensors), builder)])


def _outputs(returned: object, builder: Builder) -> list[tuple[str, Tensor]]:
    if isinstance(returned, Mapping):
        named = list(cast("Mapping[str, object]", returned).items())
    elif isinstance(returned, (tuple, list)):
        several = cast("Sequence[object]", returned)
        named = [(f"out{i}", t) for i, t in enumerate(several)]
    else:
        named = [("out", returned)]
    out: list[tuple[str, Tensor]] = []
    for name, value in named:
        if not isinstance(value, Tensor) or value.builder is not builder:
            raise RequestError(
                "hir.trace", f"output {name} is a {type(value).__name__}, not a traced tensor"
            )
        out.append((str(name), value))
    return out
