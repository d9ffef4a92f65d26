"""Float64 arithmetic of each op on NumPy arrays, shared by the evaluator and the bounds.

Every array here is float64, whatever the element type of its value: integers below 2**53 and
comparisons (0 and 1) are exact in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import cast

import numpy as np

from tfsearch.ir.hir.ops import (
    BinaryFn,
    BroadcastAttrs,
    CompareFn,
    ContractAttrs,
    ReduceFn,
    UnaryFn,
)
from tfsearch.ir.hir.rounding import Array

_ERF_CHUNK = 1 << 16


def erf(x: Array) -> Array:
    """Error function by the C library's ``erf`` (below one ulp), in chunks of bounded memory.

    An array of another library that speaks NumPy's protocols brings its own.
    """
    own: Callable[[], Array] | None = getattr(x, "erf", None)
    if own is not None:
        return own()
    flat = np.ascontiguousarray(x).reshape(-1)
    out = np.empty_like(flat)
    for start in range(0, flat.size, _ERF_CHUNK):
        part = flat[start : start + _ERF_CHUNK]
        out[start : start + part.size] = np.fromiter(
            map(math.erf, part.tolist()), dtype=np.float64, count=part.size
        )
    return out.reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)) without overflow."""
    e = np.exp(-np.abs(x))
    return np.where(x >= 0, 1.0, e) / (1.0 + e)


def _rsqrt(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


def _recip(x: Array) -> Array:
    return 1.0 / x


UNARY: dict[UnaryFn, Callable[[Array], Array]] = {
    UnaryFn.NEG: np.negative,
    UnaryFn.ABS: np.abs,
    UnaryFn.EXP: np.exp,
    UnaryFn.LOG: np.log,
    UnaryFn.SQRT: np.sqrt,
    UnaryFn.RSQRT: _rsqrt,
    UnaryFn.RECIP: _recip,
    UnaryFn.TANH: np.tanh,
    UnaryFn.SIN: np.sin,
    UnaryFn.COS: np.cos,
    UnaryFn.ERF: erf,
    UnaryFn.SIGMOID: sigmoid,
    UnaryFn.FLOOR: np.floor,
    UnaryFn.CEIL: np.ceil,
    UnaryFn.ROUND: np.rint,
    UnaryFn.SIGN: np.sign,
}
BINARY: dict[BinaryFn, Callable[[Array, Array], Array]] = {
    BinaryFn.ADD: np.add,
    BinaryFn.SUB: np.subtract,
    BinaryFn.MUL: np.multiply,
    BinaryFn.DIV: np.divide,
    BinaryFn.MAX: np.maximum,
    BinaryFn.MIN: np.minimum,
}
COMPARE: dict[CompareFn, Callable[[Array, Array], object]] = {
    CompareFn.LT: np.less,
    CompareFn.LE: np.less_equal,
    CompareFn.GT: np.greater,
    CompareFn.GE: np.greater_equal,
    CompareFn.EQ: np.equal,
    CompareFn.NE: np.not_equal,
}
REDUCE: dict[ReduceFn, Callable[..., Array]] = {
    ReduceFn.SUM: np.sum,
    ReduceFn.MAX: np.max,
    ReduceFn.MIN: np.min,
    ReduceFn.PROD: np.prod,
}


def compare(fn: CompareFn, a: Array, b: Array) -> Array:
    """A comparison as 0.0 and 1.0."""
    return cast("Array", COMPARE[fn](a, b)).astype(np.float64)


def broadcast(attrs: BroadcastAttrs, a: Array, shape: tuple[int, ...]) -> Array:
    """A read-only view of ``a`` repeated into ``shape``."""
    spread = [1] * len(shape)
    for i, dim in enumerate(attrs.dims):
        spread[dim] = a.shape[i]
    return np.broadcast_to(a.reshape(spread), shape)


def contract(attrs: ContractAttrs, a: Array, b: Array) -> Array:
    """The contraction as one batched float64 matrix product."""
    batch, rows, columns, summed = attrs.batch, attrs.lhs_free, attrs.rhs_free, attrs.contracted
    sizes = dict(zip(attrs.lhs, a.shape, strict=True)) | dict(zip(attrs.rhs, b.shape, strict=True))

    def arranged(array: Array, labels: str, groups: tuple[str, str, str]) -> Array:
        order = [labels.index(c) for group in groups for c in group]
        shape = [math.prod(sizes[c] for c in group) for group in groups]
        return array.transpose(order).reshape(shape)

    left = arranged(a, attrs.lhs, (batch, rows, summed))
    right = arranged(b, attrs.rhs, (batch, summed, columns))
    product = np.matmul(left, right)
    labels = batch + rows + columns
    full = product.reshape([sizes[c] for c in labels])
    return full.transpose([labels.index(c) for c in attrs.out])
