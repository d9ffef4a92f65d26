"""Functions over traced tensors. Composites trace to primitive ops.

Composites on f16 and bf16 (softmax, norms, gelu, silu) compute in f32 and cast the result back
to the element type of their first argument.
"""

from __future__ import annotations

import math

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.ops import BinaryFn, ContractAttrs, NoAttrs, OpKind, UnaryFn
from tfsearch.ir.hir.trace import Scalar, Tensor, as_dtype, as_tensor, broadcast_shape
from tfsearch.ir.hir.trace import broadcast_together as _together
from tfsearch.ir.hir.types import shape_text

__all__ = [
    "abs",
    "ceil",
    "clip",
    "cos",
    "erf",
    "exp",
    "floor",
    "gelu",
    "layer_norm",
    "log",
    "matmul",
    "maximum",
    "minimum",
    "recip",
    "relu",
    "rms_norm",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "silu",
    "sin",
    "softmax",
    "sqrt",
    "tanh",
    "where",
]


def exp(x: Tensor) -> Tensor:
    """e to the power x."""
    return x.unary(UnaryFn.EXP)


def log(x: Tensor) -> Tensor:
    """Natural logarithm."""
    return x.unary(UnaryFn.LOG)


def tanh(x: Tensor) -> Tensor:
    """Hyperbolic tangent."""
    return x.unary(UnaryFn.TANH)


def sin(x: Tensor) -> Tensor:
    """Sine of radians."""
    return x.unary(UnaryFn.SIN)


def cos(x: Tensor) -> Tensor:
    """Cosine of radians."""
    return x.unary(UnaryFn.COS)


def erf(x: Tensor) -> Tensor:
    """Error function."""
    return x.unary(UnaryFn.ERF)


def sqrt(x: Tensor) -> Tensor:
    """Square root."""
    return x.unary(UnaryFn.SQRT)


def rsqrt(x: Tensor) -> Tensor:
    """1 / sqrt(x)."""
    return x.unary(UnaryFn.RSQRT)


def recip(x: Tensor) -> Tensor:
    """1 / x."""
    return x.unary(UnaryFn.RECIP)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + exp(-x))."""
    return x.unary(UnaryFn.SIGMOID)


def abs(x: Tensor) -> Tensor:
    """Magnitude."""
    return x.unary(UnaryFn.ABS)


def floor(x: Tensor) -> Tensor:
    """Largest whole number not above x."""
    return x.unary(UnaryFn.FLOOR)


def ceil(x: Tensor) -> Tensor:
    """Smallest whole number not below x."""
    return x.unary(UnaryFn.CEIL)


def round(x: Tensor) -> Tensor:
    """Nearest whole number, ties to even."""
    return x.unary(UnaryFn.ROUND)


def sign(x: Tensor) -> Tensor:
    """-1, 0 or 1."""
    return x.unary(UnaryFn.SIGN)


def maximum(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
    """The larger, element by element; NaN when either is."""
    first, second = _pair(a, b)
    return first.binary(BinaryFn.MAX, second)


def minimum(a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
    """The smaller, element by element; NaN when either is."""
    first, second = _pair(a, b)
    return first.binary(BinaryFn.MIN, second)


def _pair(a: Tensor | Scalar, b: Tensor | Scalar) -> tuple[Tensor, Tensor]:
    if isinstance(a, Tensor):
        return a, as_tensor(b, a)
    if isinstance(b, Tensor):
        return as_tensor(a, b), b
    raise RequestError("hir.operand", "one of two operands must be a tensor")


def where(condition: Tensor, a: Tensor | Scalar, b: Tensor | Scalar) -> Tensor:
    """``a`` where the condition holds, ``b`` elsewhere."""
    first, second = _pair(a, b)
    chosen, first, second = _together(condition, first, second)
    return chosen.add_op(OpKind.SELECT, first, second, attrs=NoAttrs())


def clip(x: Tensor, low: Tensor | Scalar, high: Tensor | Scalar) -> Tensor:
    """min(max(x, low), high)."""
    return minimum(maximum(x, low), high)


def relu(x: Tensor) -> Tensor:
    """max(x, 0)."""
    return maximum(x, 0)


def _wide(x: Tensor) -> Tensor:
    return x.cast(DType.F32) if x.dtype in (DType.F16, DType.BF16) else x


def gelu(x: Tensor, approximate: str = "tanh") -> Tensor:
    """Gaussian error linear unit (Hendrycks and Gimpel 2016): with ``"tanh"``
    0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), with ``"none"`` 0.5·x·(1 + erf(x/√2)).
    """
    v = _wide(x)
    if approximate == "tanh":
        inner = tanh((v + v * v * v * 0.044715) * math.sqrt(2.0 / math.pi))
    elif approximate == "none":
        inner = erf(v * math.sqrt(0.5))
    else:
        raise RequestError(
            "hir.option", f"gelu approximate is 'tanh' or 'none', not {approximate!r}"
        )
    return (v * 0.5 * (inner + 1.0)).cast(x.dtype)


def silu(x: Tensor) -> Tensor:
    """x · sigmoid(x)."""
    v = _wide(x)
    return (v * sigmoid(v)).cast(x.dtype)


def softmax(x: Tensor, axis: int = -1) -> Tensor:
    """exp(x - max) / sum(exp(x - max)) along an axis."""
    v = _wide(x)
    e = exp(v - v.max(axis, keepdims=True))
    return (e / e.sum(axis, keepdims=True)).cast(x.dtype)


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float = 1e-6) -> Tensor:
    """x / sqrt(mean(x²) + eps) over the last axis, times ``weight`` (Zhang and Sennrich 2019)."""
    v = _wide(x)
    y = v * rsqrt((v * v).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * _wide(weight)
    return y.cast(x.dtype)


def layer_norm(
    x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> Tensor:
    """(x - mean) / sqrt(variance + eps) over the last axis, times ``weight``, plus ``bias``
    (Ba, Kiros and Hinton 2016; the variance divides by the number of elements).
    """
    v = _wide(x)
    d = v - v.mean(-1, keepdims=True)
    y = d * rsqrt((d * d).mean(-1, keepdims=True) + eps)
    if weight is not None:
        y = y * _wide(weight)
    if bias is not None:
        y = y + _wide(bias)
    return y.cast(x.dtype)


def matmul(
    a: Tensor,
    b: Tensor,
    trans_a: bool = False,
    trans_b: bool = False,
    *,
    acc: DType | str | None = None,
    out_dtype: DType | str | None = None,
) -> Tensor:
    """a[…,m,k] · b[…,k,n]; ``trans_a`` takes a as […,k,m], ``trans_b`` takes b as […,n,k].

    Batch dimensions broadcast; a vector stands for one row (a) or one column (b) and its
    dimension is dropped. Accumulates in ``acc`` (default: f32 for f16 and bf16, i32 for i8,
    otherwise the element type) and casts to ``out_dtype`` (default: the element type; i32 for i8).
    """
    if a.rank < 1 or b.rank < 1:
        raise RequestError("hir.shape", "matmul needs at least one dimension in each operand")
    wide = {DType.F16: DType.F32, DType.BF16: DType.F32, DType.I8: DType.I32}
    acc_type = as_dtype(acc) if acc is not None else wide.get(a.dtype, a.dtype)
    plain = DType.I32 if a.dtype is DType.I8 else a.dtype
    out_type = as_dtype(out_dtype) if out_dtype is not None else plain
    a, b = _batched(a, b)
    batch = "bcdefg"[: max(a.rank, b.rank, 2) - 2]
    rows = "k" if a.rank == 1 else "km" if trans_a else "mk"
    columns = "k" if b.rank == 1 else "nk" if trans_b else "kn"
    lhs = batch[len(batch) - max(a.rank - 2, 0) :] + rows
    rhs = batch[len(batch) - max(b.rank - 2, 0) :] + columns
    out = batch + ("m" if a.rank > 1 else "") + ("n" if b.rank > 1 else "")
    left, right = a.shape[lhs.index("k")], b.shape[rhs.index("k")]
    if left != right:
        raise RequestError(
            "hir.shape",
            f"matmul of {shape_text(a.shape)} and {shape_text(b.shape)}: the contracted sizes "
            "differ (see trans_a and trans_b)",
        )
    return a.add_op(OpKind.CONTRACT, b, attrs=ContractAttrs(f"{lhs},{rhs}->{out}", acc_type)).cast(
        out_type
    )


def _batched(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Operands whose batch dimensions are equal, or of which one has none."""
    if a.rank <= 2 or b.rank <= 2:
        return a, b
    batch = broadcast_shape(a.shape[:-2], b.shape[:-2])
    return (
        a.broadcast_to((*batch, *a.shape[-2:])),
        b.broadcast_to((*batch, *b.shape[-2:])),
    )
