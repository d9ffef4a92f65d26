"""Which of NumPy's functions run on device arrays, and how."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from tfsearch.target.cuda.arrays import (
    BOOL,
    F64,
    WRITTEN,
    DeviceArray,
    Engine,
    folded,
    mapped,
    uploaded,
)

_NUMBER, _FLAG, _SAME = "number", "bool", "same"
UFUNCS: dict[Any, tuple[str, str]] = {
    np.negative: ("neg", _SAME),
    np.absolute: ("abs", _SAME),
    np.exp: ("exp", _NUMBER),
    np.log: ("log", _NUMBER),
    np.sqrt: ("sqrt", _NUMBER),
    np.tanh: ("tanh", _NUMBER),
    np.sin: ("sin", _NUMBER),
    np.cos: ("cos", _NUMBER),
    np.floor: ("floor", _NUMBER),
    np.ceil: ("ceil", _NUMBER),
    np.rint: ("rint", _NUMBER),
    np.sign: ("sign", _SAME),
    np.isnan: ("isnan", _FLAG),
    np.isinf: ("isinf", _FLAG),
    np.isfinite: ("isfinite", _FLAG),
    np.signbit: ("signbit", _FLAG),
    np.invert: ("not", _FLAG),
    np.logical_not: ("not", _FLAG),
    np.add: ("add", _SAME),
    np.subtract: ("sub", _SAME),
    np.multiply: ("mul", _SAME),
    np.divide: ("div", _NUMBER),
    np.maximum: ("max", _SAME),
    np.minimum: ("min", _SAME),
    np.less: ("lt", _FLAG),
    np.less_equal: ("le", _FLAG),
    np.greater: ("gt", _FLAG),
    np.greater_equal: ("ge", _FLAG),
    np.equal: ("eq", _FLAG),
    np.not_equal: ("ne", _FLAG),
    np.bitwise_and: ("and", _FLAG),
    np.bitwise_or: ("or", _FLAG),
    np.logical_and: ("and", _FLAG),
    np.logical_or: ("or", _FLAG),
    np.copysign: ("copysign", _NUMBER),
    np.ldexp: ("ldexp", _NUMBER),
}


def _where(engine: Engine, condition: Any, a: Any, b: Any) -> Any:
    kinds = [x.dtype for x in (a, b) if isinstance(x, (DeviceArray, np.ndarray))]
    kind = kinds[0] if kinds and all(k == kinds[0] and k in WRITTEN for k in kinds) else F64
    numbers = [x for x in (a, b) if not isinstance(x, (DeviceArray, np.ndarray))]
    return mapped(engine, "where", F64 if numbers and kind != BOOL else kind, (condition, a, b))


def _clip(engine: Engine, x: Any, low: Any, high: Any) -> Any:
    return mapped(engine, "min", F64, (mapped(engine, "max", F64, (x, low)), high))


def _sided(positive: bool) -> Callable[..., Any]:
    def test(engine: Engine, x: DeviceArray) -> DeviceArray:
        return mapped(engine, "eq", BOOL, (x, math.inf if positive else -math.inf))

    return test


def _reduction(fold: str) -> Callable[..., Any]:
    def reduce(engine: Engine, x: Any, axis: Any = None, **options: Any) -> Any:
        del engine
        extra = set(options) - {"initial"}
        return NotImplemented if extra else folded(fold, x, axis, options.get("initial"))

    return reduce


def _count(engine: Engine, x: DeviceArray) -> int:
    del engine
    flags = x if x.dtype == BOOL else x != 0
    return int(folded("sum", flags))


def _flatnonzero(engine: Engine, x: DeviceArray) -> Any:
    if not _count(engine, x):
        return np.empty(0, np.int64)
    return np.flatnonzero(x.host())


def _argmax(engine: Engine, x: DeviceArray, axis: Any = None) -> Any:
    if x.dtype != BOOL or axis is not None or not x.dense:
        return NotImplemented
    first = engine.first(x)
    return 0 if first == x.size else first


def _array_equal(engine: Engine, a: Any, b: Any, equal_nan: bool = False) -> Any:
    if a.shape != b.shape:
        return False
    same = mapped(engine, "eq", BOOL, (a, b))
    if equal_nan:
        both = mapped(engine, "and", BOOL, (np.isnan(a), np.isnan(b)))
        same = mapped(engine, "or", BOOL, (same, both))
    return _count(engine, same) == same.size


def _ones_like(engine: Engine, x: Any) -> Any:
    host = np.broadcast_to(np.ones((1,) * len(x.shape)), x.shape)
    return uploaded(engine, host).copy()


FUNCTIONS: dict[Any, Callable[..., Any]] = {
    np.where: _where,
    np.clip: _clip,
    np.sum: _reduction("sum"),
    np.prod: _reduction("prod"),
    np.max: _reduction("max"),
    np.min: _reduction("min"),
    np.amax: _reduction("max"),
    np.amin: _reduction("min"),
    np.any: _reduction("any"),
    np.all: lambda _, x, axis=None: x.all(axis),
    np.isneginf: _sided(positive=False),
    np.isposinf: _sided(positive=True),
    np.broadcast_to: lambda _, x, shape: x.broadcast_to(shape),
    np.copy: lambda _, x, order="C": x.copy(order),
    np.ones_like: _ones_like,
    np.count_nonzero: _count,
    np.flatnonzero: _flatnonzero,
    np.argmax: _argmax,
    np.array_equal: _array_equal,
    np.shape: lambda _, x: x.shape,
    np.ndim: lambda _, x: x.ndim,
    np.size: lambda _, x: x.size,
}
