"""Correct rounding of float64 arrays to every element type, in one step."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.ir.dtypes import DType

Array = NDArray[np.float64]

# (precision in bits, smallest normal exponent, largest finite value); IEEE 754-2019 table 3.5
# for binary16/32, bfloat16 as binary32 with an 8-bit significand.
_FORMATS: dict[DType, tuple[int, int, float]] = {
    DType.F64: (53, -1022, float(np.finfo(np.float64).max)),
    DType.F32: (24, -126, float(np.finfo(np.float32).max)),
    DType.F16: (11, -14, 65504.0),
    DType.BF16: (8, -126, float.fromhex("0x1.fep+127")),
}
_INTEGERS: dict[DType, tuple[int, int]] = {
    DType.I8: (-128, 127),
    DType.I32: (-(2**31), 2**31 - 1),
}


def largest_finite(dtype: DType) -> float:
    """The largest finite value of an element type."""
    return float(_INTEGERS[dtype][1]) if dtype in _INTEGERS else _FORMATS[dtype][2]


def smallest_subnormal(dtype: DType) -> float:
    """The smallest positive value of a float type."""
    precision, exponent, _ = _FORMATS[dtype]
    return 2.0 ** (exponent - precision + 1)


def smallest_normal(dtype: DType) -> float:
    """The smallest positive normal value of a float type."""
    return 2.0 ** _FORMATS[dtype][1]


def integer_range(dtype: DType) -> tuple[int, int]:
    """Smallest and largest value of an integer type."""
    return _INTEGERS[dtype]


def exact_integers(dtype: DType) -> int:
    """The largest n such that every integer of magnitude ≤ n is a value of the type."""
    if dtype is DType.BOOL:
        return 1
    return _INTEGERS[dtype][1] if dtype in _INTEGERS else 2 ** _FORMATS[dtype][0]


def round_values(dtype: DType, values: Array) -> Array:
    """Values rounded to ``dtype`` (nearest, ties to even), kept as float64; any shape.

    Floats overflow to infinity and underflow gradually. Integers saturate and NaN becomes 0.
    The rounding is done once, at the position of the last bit of the result: a conversion by
    way of float32 would round bf16 twice.
    """
    if dtype is DType.F64:
        return values
    if dtype is DType.BOOL:
        return (values != 0).astype(np.float64)
    if dtype in _INTEGERS:
        low, high = _INTEGERS[dtype]
        whole = np.clip(np.rint(values), low, high)
        return np.where(np.isnan(whole), 0.0, whole)
    if dtype is DType.F32:
        with np.errstate(over="ignore", under="ignore"):
            return values.astype(np.float32).astype(np.float64)
    precision, minimum, limit = _FORMATS[dtype]
    _, exponent = np.frexp(values)
    shift = np.maximum(exponent - 1, minimum) - (precision - 1)
    with np.errstate(over="ignore", under="ignore"):
        rounded = np.ldexp(np.rint(np.ldexp(values, -shift)), shift)
    return np.where(np.abs(rounded) > limit, np.copysign(np.inf, values), rounded)


def round_to(dtype: DType, values: Array) -> NDArray[Any]:
    """Values rounded to ``dtype`` as an array of its NumPy type; see :func:`round_values`."""
    rounded = round_values(dtype, np.asarray(values, dtype=np.float64))
    with np.errstate(over="ignore", invalid="ignore"):
        return rounded.astype(dtype.numpy)
