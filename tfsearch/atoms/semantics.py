"""What lane-wise instructions of any target mean on NumPy arrays: whole fragments at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Semantics
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.numeric import erf
from tfsearch.ir.hir.rounding import round_values


def nothing(_views: Sequence[Any]) -> None:
    """Synchronisation and hints compute nothing."""


def converted(values: Any, dtype: DType) -> Any:
    """Values as an instruction converts them: rounded once, integers saturated."""
    array = np.asarray(values)
    if array.dtype == dtype.numpy:
        return values
    return round_values(dtype, array.astype(np.float64)).astype(dtype.numpy)


def load(views: Sequence[Any]) -> None:
    """Memory into a fragment; lanes that are not there become 0."""
    dst, src = views
    dst[...] = 0
    dst[: src.shape[-1]] = src.reshape(-1).astype(dst.dtype)


def splat(views: Sequence[Any]) -> None:
    """One element into every lane."""
    dst, src = views
    dst[...] = src.reshape(-1)[0].astype(dst.dtype)


def fill(views: Sequence[Any]) -> None:
    """A literal into every lane."""
    dst, value = views
    dst[...] = value


def store(dtype: DType) -> Semantics:
    """A fragment, or its first lanes, into memory."""

    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        flat = src.reshape(-1)[: dst.size]
        dst[...] = converted(flat, dtype).reshape(dst.shape)

    return semantics


UNARY: dict[str, Callable[[Any], Any]] = {
    "neg": np.negative,
    "abs": np.abs,
    "sqrt": np.sqrt,
    "floor": np.floor,
    "ceil": np.ceil,
    "round": np.rint,
    "sign": np.sign,
    "exp": np.exp,
    "log": np.log,
    "tanh": np.tanh,
    "sin": np.sin,
    "cos": np.cos,
    "erf": erf,
    "sigmoid": lambda x: 1.0 / (1.0 + np.exp(-x)),
    "rsqrt": lambda x: 1.0 / np.sqrt(x),
    "recip": lambda x: 1.0 / x,
}
BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": np.maximum,
    "min": np.minimum,
}
COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "lt": np.less,
    "le": np.less_equal,
    "gt": np.greater,
    "ge": np.greater_equal,
    "eq": np.equal,
    "ne": np.not_equal,
}
FOLD: dict[str, Callable[[Any, Any], Any]] = {
    "sum": np.add,
    "prod": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


def lane_wise(fn: Callable[..., Any]) -> Semantics:
    """A function lane by lane, rounded once to the register's type."""

    def semantics(views: Sequence[Any]) -> None:
        dst, *sources = views
        with np.errstate(all="ignore"):
            if np.issubdtype(dst.dtype, np.floating):
                dst[...] = fn(*(np.asarray(s, dtype=np.float64) for s in sources))
            else:
                dst[...] = fn(*sources)

    return semantics


def first_lanes(fn: Callable[..., Any]) -> Semantics:
    """A function in the first lanes only."""

    def semantics(views: Sequence[Any]) -> None:
        dst, a, b = views
        count = dst.shape[-1]
        with np.errstate(all="ignore"):
            dst[...] = fn(a[:count], b[:count])

    return semantics


def select(test: Callable[[Any, Any], Any]) -> Semantics:
    """One of two fragments by a comparison of two others."""
    return lane_wise(lambda p, q, x, y: np.where(test(p, q), x, y))


def multiply_add(views: Sequence[Any]) -> None:
    """``acc += a · b``, rounded once."""
    acc, a, b = views
    if np.issubdtype(acc.dtype, np.integer):
        acc[...] = acc + a * b
    else:
        wide = np.longdouble if acc.dtype == np.float64 else np.float64
        acc[...] = (a.astype(wide) * b.astype(wide) + acc).astype(acc.dtype)


def convert(target: DType) -> Semantics:
    """A fragment of one type into one of another."""

    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        dst[...] = converted(src, target).astype(dst.dtype)

    return semantics
