"""Element types and their NumPy counterparts."""

from __future__ import annotations

from enum import Enum
from typing import Any

import numpy as np


class DType(Enum):
    """Element type; the value is its canonical text."""

    F64 = "f64"
    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    I32 = "i32"
    I8 = "i8"

    @property
    def bits(self) -> int:
        """Width in bits."""
        return {"f64": 64, "f32": 32, "f16": 16, "bf16": 16, "i32": 32, "i8": 8}[self.value]

    @property
    def bytes(self) -> int:
        """Width in bytes."""
        return self.bits // 8

    @property
    def is_float(self) -> bool:
        """True for floating-point types."""
        return self not in (DType.I32, DType.I8)

    @property
    def numpy(self) -> np.dtype[Any]:
        """The NumPy dtype (bf16 through ``ml_dtypes``)."""
        if self is DType.BF16:
            import ml_dtypes

            return np.dtype(ml_dtypes.bfloat16)
        return np.dtype(
            {"f64": "f8", "f32": "f4", "f16": "f2", "i32": "i4", "i8": "i1"}[self.value]
        )

    @property
    def unit_roundoff(self) -> float:
        """Half the distance from 1 to the next number; 0 for integers (exact)."""
        bits = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}.get(self.value)
        return 0.0 if bits is None else 2.0**-bits

    @staticmethod
    def of_numpy(dtype: np.dtype[Any]) -> DType:
        """The element type of a NumPy dtype; ``KeyError`` if there is none."""
        for candidate in DType:
            if candidate.numpy == dtype:
                return candidate
        raise KeyError(str(dtype))
