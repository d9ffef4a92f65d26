"""Inputs of the three verification passes, from a program's signature and a seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import Enum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.rounding import integer_range
from tfsearch.ir.hir.types import TensorType
from tfsearch.measure.buffers import strided_empty

Array = NDArray[Any]

LARGEST_INTEGER = 8
"""Larger values find no more errors in pass A, and small sums survive a narrow output type."""

# Offset of whole rows and spread of exponents (base 2) in pass C, by element type: the products
# of two such numbers summed over 65,536 terms stay finite in f32 and bf16; f16 outputs are
# brought into range by ``scale``.
_OFFSET = {DType.F16: 16.0}
_EXPONENTS = {DType.F16: (-8, 2)}


class Pass(Enum):
    """A verification pass."""

    INTEGERS = "integers"
    NORMAL = "normal"
    RANGE = "range"


def make_inputs(
    program: Program, which: Pass, seed: int, *, limit: int = LARGEST_INTEGER, scale: float = 1.0
) -> dict[str, Array]:
    """Inputs by name, each with the shape, strides and dtype of the program's signature.

    ``limit`` bounds the integers of pass A; ``scale`` multiplies the floats of pass C and the
    range of integer types, which is the whole one at scale 1. Equal arguments give equal inputs
    in every process.
    """
    out: dict[str, Array] = {}
    for index, item in enumerate(program.inputs):
        generator = np.random.Generator(np.random.SFC64([seed & (2**63 - 1), index, _TAG[which]]))
        values = random_values(item.type, which, generator, limit, scale)
        out[item.name] = in_layout(item.type, values)
    return out


EXCHANGE_TRIES = 16


def exchange(arrays: Mapping[str, Array], keep: Sequence[str], seed: int) -> None:
    """Let two unequal elements of each array that is not in ``keep`` change places, in the array.

    Arrays that have no two unequal elements stay as they are.
    """
    for index, (name, array) in enumerate(arrays.items()):
        if name in keep or array.size < 2:
            continue
        generator = np.random.Generator(np.random.SFC64([seed & (2**63 - 1), index, 7]))
        for _ in range(EXCHANGE_TRIES):
            p, q = (
                np.unravel_index(int(i), array.shape)
                for i in generator.integers(array.size, size=2)
            )
            if array[p].tobytes() != array[q].tobytes():
                kept = array[p].copy()
                array[p] = array[q]
                array[q] = kept
                break


_TAG = {Pass.INTEGERS: 1, Pass.NORMAL: 2, Pass.RANGE: 3}


def pass_a_limit(program: Program, exact_limit: int) -> int:
    """Magnitude of the integers of pass A.

    At most ``exact_limit``, so that every partial sum is exact. Small enough that one missing
    element shows after rounding to the narrowest output: ±1 for 8-bit significands and
    saturating bytes, ±2 for f16.
    """
    widest = LARGEST_INTEGER
    for type_ in program.output_types:
        if type_.dtype in (DType.BF16, DType.I8):
            widest = 1
        elif type_.dtype is DType.F16:
            widest = min(widest, 2)
    return max(1, min(widest, exact_limit))


def in_layout(type_: TensorType, values: Array) -> Array:
    """The values in an array with the strides of the type (a copy only when they differ)."""
    if type_.is_dense:
        return np.asarray(values, order="C")  # ascontiguousarray gives scalars a dimension
    array = strided_empty(type_.sizes, type_.element_strides, values.dtype)
    array[...] = values
    return array


def signature(program: Program) -> Mapping[str, TensorType]:
    """Types of the outputs by name."""
    names = [name for name, _ in program.outputs]
    return dict(zip(names, program.output_types, strict=True))


def random_values(
    type_: TensorType, which: Pass, generator: np.random.Generator, limit: int, scale: float
) -> Array:
    """Dense contents of one input for a pass; ``limit`` and ``scale`` as in :func:`make_inputs`."""
    shape, dtype = type_.sizes, type_.dtype
    if which is Pass.INTEGERS:
        return _small_integers(shape, dtype, generator, limit)
    if not dtype.is_float:
        low, high = (int(end * scale) for end in integer_range(dtype))
        return generator.integers(low, high, size=shape, endpoint=True, dtype=dtype.numpy.type)
    if which is Pass.NORMAL:
        return _cast(dtype, generator.standard_normal(shape, dtype=np.float32))
    return _wide(shape, dtype, generator, scale)


def _small_integers(
    shape: Sequence[int], dtype: DType, generator: np.random.Generator, limit: int
) -> Array:
    """Non-zero integers: a zero would hide that its element was skipped."""
    if not dtype.is_float:
        limit = min(limit, integer_range(dtype)[1])
    magnitude = generator.integers(1, limit, size=tuple(shape), endpoint=True, dtype=np.int32)
    sign = generator.integers(0, 1, size=tuple(shape), endpoint=True, dtype=np.int32)
    return (magnitude * (2 * sign - 1)).astype(dtype.numpy)


def _wide(
    shape: Sequence[int], dtype: DType, generator: np.random.Generator, scale: float
) -> Array:
    """Normals over a wide range of exponents; two rows of three carry a large offset (±)."""
    low, high = _EXPONENTS.get(dtype, (-12, 6))
    values = generator.standard_normal(tuple(shape), dtype=np.float32)
    exponents = generator.integers(low, high, size=tuple(shape), endpoint=True, dtype=np.int32)
    values = np.ldexp(values, exponents)
    if len(shape) > 0:
        rows = (*shape[:-1], 1) if len(shape) > 1 else tuple(shape)
        which = generator.integers(-1, 1, size=rows, endpoint=True).astype(np.float32)
        values += which * np.float32(_OFFSET.get(dtype, 256.0))
    return _cast(dtype, values * np.float32(scale))


def _cast(dtype: DType, values: NDArray[np.float32]) -> Array:
    """Narrow (one rounding, to nearest even) or widen the float32 values."""
    with np.errstate(over="ignore"):
        return values.astype(dtype.numpy)
