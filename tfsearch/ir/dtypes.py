"""Element types and their NumPy counterparts."""

from __future__ import annotations

import contextlib
from enum import Enum
from typing import Any, cast

import numpy as np


class DType(Enum):
    """Element type; the value is its canonical text.

    ``BOOL`` is the type of comparisons inside a program; arguments never have it. ``BARRIER`` is
    an opaque object in the memory of a kernel; tensors never have it.
    """

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    I8 = "i8"
    BOOL = "bool"
    BARRIER = "barrier"

    @property
    def bits(self) -> int:
        """Width in bits (of storage)."""
        return _BITS[self.value]

    @property
    def bytes(self) -> int:
        """Width in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True for floating-point types."""
        return self not in (DType.I32, DType.I8, DType.BOOL, DType.BARRIER)

    @property
    def is_integer(self) -> bool:
        """True for integer types."""
        return self in (DType.I32, DType.I8)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (bf16 through ``ml_dtypes``)."""
        if self is DType.BF16:
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(_NUMPY[self.value])

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number; 0 for integers (exact)."""
        bits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(self.value)
        return 0.0 if bits is None else 2.0**-bits

    def widens_to(self, other: DType) -> bool:
        """True when ``other`` is wider and holds every number of this type."""
        return other in _WIDER.get(self, ())

    @staticmethod
    def named(value: object) -> DType:
        """The element type that a user names: ``"f32"``, ``"float32"``, or a NumPy dtype or type.

        ``ValueError`` for anything else, ``bool`` included: arguments never have it.
        """
        found: DType | None = None
        if isinstance(value, DType):
            found = value
        elif isinstance(value, str):
            found = DTYPE_NAMES.get(value)
        elif isinstance(value, np.dtype) or (
            isinstance(value, type) and issubclass(value, np.generic)
        ):
            with contextlib.suppress(KeyError):
                found = DType.of_numpy(np.dtype(cast("Any", value)))
        if found is None or found in (DType.BOOL, DType.BARRIER):
            raise ValueError(f"unknown dtype {value!r}")
        return found

    @staticmethod
    def of_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype; ``KeyError`` if there is none."""
        for candidate in DATA_TYPES:
            if candidate.numpy == dtype:
                return candidate
        raise KeyError(str(dtype))


_BITS = {
    "f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i8": 8, "bool": 8, "barrier": 64,
}  # fmt: skip
_NUMPY = {
    "f64": "f8", "f32": "f4", "f16": "f2", "i32": "i4", "i8": "i1", "bool": "?", "barrier": "u8",
}  # fmt: skip

DATA_TYPES = tuple(d for d in DType if d is not DType.BARRIER)
"""What the elements of tensors are."""

_WIDER: dict[DType, tuple[DType, ...]] = {
    DType.BF16: (DType.F32, DType.F64),
    DType.F16: (DType.F32, DType.F64),
    DType.F32: (DType.F64,),
    DType.I8: (DType.I32,),
}

DTYPE_NAMES: dict[str, DType] = {
    **{d.value: d for d in DATA_TYPES if d is not DType.BOOL},
    "float64": DType.F64,
    "float32": DType.F32,
    "float16": DType.F16,
    "bfloat16": DType.BF16,
    "int32": DType.I32,
    "int8": DType.I8,
}
"""What users may call the element types of arguments: the canonical texts and NumPy's names."""
