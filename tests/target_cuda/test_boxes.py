"""Descriptors of the host: what the driver is asked to encode, and when it is asked again."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import pytest

from tfsearch.core.errors import InternalError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.target.cuda.boxes import BYTES, Descriptor, encoded
from tfsearch.target.cuda.launching import Configuration, Packed

A = ArgumentSpec("a", "bf16", (100, 72), (80, 1), "in", 16)
C = ArgumentSpec("c", "bf16", (100, 8), (8, 1), "out", 16)
ENTRY = EntrySpec("main", (A, C), 4, 0)
BOX = Descriptor("a", (64, 64), 128)


class _Names:
    def __getattr__(self, name: str) -> str:
        return name


class _Map:
    def __init__(self, address: int) -> None:
        self.words = (ctypes.c_uint64 * 16)(*([address] * 16))

    def getPtr(self) -> int:
        return ctypes.addressof(self.words)


class Encoder:
    """The part of a driver that encodes, with what it was asked for."""

    def __init__(self) -> None:
        names = _Names()
        self.asked: list[tuple[Any, ...]] = []
        self.launched: list[Any] = []
        self.error = OSError
        self.api = SimpleNamespace(
            CUtensorMapDataType=names, CUtensorMapInterleave=names, CUtensorMapSwizzle=names,
            CUtensorMapL2promotion=names, CUtensorMapFloatOOBfill=names, cuuint64_t=int,
            cuuint32_t=int, CUlaunchConfig=SimpleNamespace, cuLaunchKernelEx=self.launch,
        )  # fmt: skip

    def launch(self, config: Any, handle: Any, place: int, extra: int) -> tuple[int]:
        del config, handle, extra
        slots = ctypes.cast(place, ctypes.POINTER(ctypes.c_void_p))
        assert slots[2] % 64 == 0
        words = ctypes.cast(slots[2], ctypes.POINTER(ctypes.c_uint64))
        self.launched.append(list(words[:16]))
        return (0,)

    def cuTensorMapEncodeTiled(self, *given: Any) -> _Map:
        self.asked.append(given)
        return _Map(given[2])


def packed(found: Encoder, words: list[int], entry: EntrySpec | None = ENTRY) -> Packed:
    how = Configuration((4, 1, 1), (384, 1, 1), shared=4096, boxes=(BOX,))
    function: Any = SimpleNamespace(handle="main", configuration=how)
    driver: Any = found
    return Packed(driver, function, words, 0, entry)


def test_a_box_is_encoded_innermost_dimension_first_in_bytes() -> None:
    found = Encoder()
    driver: Any = found
    assert len(encoded(driver, BOX, A, 4096)) == BYTES
    (given,) = found.asked
    assert given[:7] == (
        "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16", 2, 4096, [72, 100], [160], [64, 64], [1, 1],
    )  # fmt: skip
    assert given[8] == "CU_TENSOR_MAP_SWIZZLE_128B"


def test_a_descriptor_follows_its_argument() -> None:
    found = Encoder()
    one = packed(found, [4096, 512])
    one.launch()
    one.set(1, 1024)
    one.set(0, 4096)
    assert len(found.asked) == 1
    one.set(0, 8192)
    one.launch()
    assert [given[2] for given in found.asked] == [4096, 8192]
    assert found.launched == [[4096] * 16, [8192] * 16]


def test_addresses_that_come_later_are_encoded_when_they_are_known() -> None:
    found = Encoder()
    one = packed(found, [0, 0])
    assert found.asked == []
    one.set(0, 256)
    one.launch()
    assert found.launched == [[256] * 16]


def test_a_launch_with_boxes_needs_its_entry() -> None:
    with pytest.raises(InternalError, match="descriptors"):
        packed(Encoder(), [4096, 512], None)


def test_a_configuration_with_boxes_comes_back() -> None:
    how = Configuration((4, 1, 1), (384, 1, 1), (2, 1, 1), 4096, (BOX,))
    launch = LaunchSpec.from_json(LaunchSpec(ENTRY, (), {"main": how.to_json()}).to_json())
    assert Configuration.of(launch, launch.main) == how
