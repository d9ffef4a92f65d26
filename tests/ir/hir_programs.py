"""Random programs for Hypothesis, and the flags that tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tfsearch.ir.dtypes import DATA_TYPES, DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.trace import Tensor, trace
from tfsearch.ir.hir.types import Range, TensorType

FLOATS = (DType.F64, DType.F32, DType.F16, DType.BF16)
SMOOTH = (lang.tanh, lang.sigmoid, lang.abs, lang.erf, lang.sin, lang.silu, lang.relu, lang.gelu)


@st.composite
def types(draw: st.DrawFn, ranges: bool = True) -> TensorType:
    """A type with static or ranged dimensions, dense, transposed or padded."""
    dtype = draw(st.sampled_from([d for d in DATA_TYPES if d is not DType.BOOL]))
    sizes = draw(st.lists(st.integers(1, 6), max_size=4))
    kind = draw(st.sampled_from(["dense", "col", "padded", "range" if ranges else "dense"]))
    if kind == "col" and len(sizes) >= 2:
        from tfsearch.ir.hir.types import column_major

        return TensorType(dtype, tuple(sizes), column_major(tuple(sizes)))
    if kind == "padded" and sizes:
        strides = [1]
        for size in reversed(sizes[1:]):
            strides.append(strides[-1] * size + draw(st.integers(0, 3)))
        return TensorType(dtype, tuple(sizes), tuple(reversed(strides)))
    if kind == "range" and sizes:
        multiple = draw(st.integers(1, 8))
        low = draw(st.integers(1, 20))
        high = (low // multiple + 1) * multiple + draw(st.integers(0, 20))
        return TensorType(dtype, (Range("m", low, high, multiple), *sizes[1:]))
    return TensorType(dtype, tuple(sizes))


@st.composite
def programs(draw: st.DrawFn, dtypes: tuple[DType, ...] = FLOATS, steps: int = 8) -> Program:
    """A program of random ops over inputs that share their dimensions."""
    dtype = draw(st.sampled_from(dtypes))
    m, n, k = (draw(st.integers(1, 5)) for _ in range(3))
    inputs = {
        "a": TensorType(dtype, (m, k)),
        "b": TensorType(dtype, (k, n)),
        "v": TensorType(dtype, (n,)),
        "s": TensorType(dtype, ()),
    }
    count = draw(st.integers(1, steps))
    plan = [
        (draw(st.integers(0, 8)), draw(st.integers(0, 99)), draw(st.integers(0, 99)))
        for _ in range(count)
    ]

    def body(**given: Tensor) -> dict[str, Tensor]:
        pool = list(given.values())
        for step in plan:
            pool.append(_apply(step, pool, given))
        return {"y": pool[-1], "z": pool[-1 - plan[0][1] % 3]} if count > 3 else {"y": pool[-1]}

    return trace(body, inputs, draw(st.sampled_from(["p", "main", "kernel_1"])))


def _apply(step: tuple[int, int, int], pool: list[Tensor], given: dict[str, Tensor]) -> Tensor:
    what, first, second = step
    x = pool[first % len(pool)]
    same = [t for t in pool if t.shape == x.shape and t.dtype is x.dtype]
    other = same[second % len(same)]
    match what:
        case 0:
            return SMOOTH[second % len(SMOOTH)](x)
        case 1:
            return (x + other, x - other, x * other, lang.maximum(x, other))[second % 4]
        case 2:
            return x * (0.5, -1.25, 3.0)[second % 3] + 1
        case 3:
            return x.T if x.rank >= 2 else x.reshape((1, *x.shape))
        case 4:
            axis = second % x.rank if x.rank else 0
            return (
                (x.sum(axis), x.max(axis, keepdims=True), x.mean(axis))[second % 3] if x.rank else x
            )
        case 5:
            return lang.matmul(given["a"], given["b"])
        case 6:
            return x.broadcast_to((2, *x.shape)) if x.rank < 4 else x
        case 7:
            return lang.where(x > other, x, other * 0.5)
        case _:
            return x.cast((DType.F32, DType.F16)[second % 2]).cast(x.dtype)


def random_inputs(program: Program, seed: int = 0, scale: float = 1.0) -> dict[str, Any]:
    """Normal floats, or integers over the whole range of i8, for each input."""
    rng = np.random.default_rng(seed)
    out: dict[str, Any] = {}
    for item in program.inputs:
        shape, dtype = item.type.sizes, item.type.dtype
        if dtype.is_integer:
            out[item.name] = rng.integers(-128, 128, shape).astype(dtype.numpy)
        else:
            out[item.name] = np.asarray(rng.standard_normal(shape) * scale).astype(dtype.numpy)
    return out


def integer_inputs(program: Program, limit: int, seed: int = 0) -> dict[str, Any]:
    """Whole numbers of magnitude ≤ limit for each input."""
    rng = np.random.default_rng(seed)
    return {
        i.name: rng.integers(-limit, limit + 1, i.type.sizes).astype(i.type.dtype.numpy)
        for i in program.inputs
    }
