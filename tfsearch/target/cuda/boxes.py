"""Descriptors that the host encodes for copies of boxes of an argument."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tfsearch.core.launch import ArgumentSpec
from tfsearch.ir.dtypes import DType
from tfsearch.target.cuda.driver import Driver

BYTES = 128
_TYPES = {"bf16": "BFLOAT16", "f16": "FLOAT16", "f32": "FLOAT32"}


@dataclass(frozen=True)
class Descriptor:
    """A box of an argument: its shape in elements, outermost first, and the bytes of a row that
    the swizzle of shared memory permutes (0: none)."""

    argument: str
    shape: tuple[int, ...]
    swizzle: int

    @staticmethod
    def of(data: Mapping[str, Any]) -> Descriptor:
        """Inverse of :meth:`to_json`."""
        shape = tuple(int(n) for n in data["shape"])
        return Descriptor(str(data["argument"]), shape, int(data["swizzle"]))

    def to_json(self) -> dict[str, Any]:
        """As ``launch.attributes`` hold it."""
        return {"argument": self.argument, "shape": list(self.shape), "swizzle": self.swizzle}


def encoded(driver: Driver, box: Descriptor, argument: ArgumentSpec, address: int) -> bytes:
    """The descriptor's 128 bytes for an argument at an address; what hangs over reads as 0.

    ``OSError`` when the driver refuses it.
    """
    api = driver.api
    size = DType(argument.dtype).bytes
    rank = len(argument.shape)
    element = getattr(api.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{_TYPES[argument.dtype]}")
    swizzle = f"SWIZZLE_{box.swizzle}B" if box.swizzle else "SWIZZLE_NONE"
    strides = [s * size for s in reversed(argument.strides[:-1])]
    found = driver.cuTensorMapEncodeTiled(
        element,
        rank,
        address,
        [api.cuuint64_t(n) for n in reversed(argument.shape)],
        [api.cuuint64_t(n) for n in strides],
        [api.cuuint32_t(n) for n in reversed(box.shape)],
        [api.cuuint32_t(1)] * rank,
        api.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
        getattr(api.CUtensorMapSwizzle, f"CU_TENSOR_MAP_{swizzle}"),
        api.CUtensorMapL2promotion.CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        api.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
    )
    return ctypes.string_at(int(found.getPtr()), BYTES)
