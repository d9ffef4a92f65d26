"""Aligned host memory."""

from __future__ import annotations

import gc

import numpy as np
import pytest

from tfsearch.core.memory import LARGE_FROM, LARGE_PAGE, aligned_bytes


@pytest.mark.parametrize("alignment", [1, 64, 4096])
@pytest.mark.parametrize("size", [0, 1, 4095, LARGE_FROM - 1, LARGE_FROM, 3 * LARGE_PAGE + 5])
def test_memory_is_aligned_writable_and_as_long_as_asked(size: int, alignment: int):
    memory = aligned_bytes(size, alignment)
    assert memory.shape == (size,)
    assert memory.dtype == np.uint8
    if size:
        assert memory.ctypes.data % alignment == 0
        memory[:] = 7
        assert int(memory.sum(dtype=np.int64)) == 7 * size


def test_large_memory_starts_at_a_large_page():
    assert aligned_bytes(LARGE_FROM, 64).ctypes.data % LARGE_PAGE == 0


def test_a_view_keeps_the_memory_alive():
    part = aligned_bytes(LARGE_PAGE, 64)[100:200]
    part[:] = 9
    gc.collect()
    assert set(part.tolist()) == {9}


def test_memory_that_is_not_there_is_a_memory_error():
    with pytest.raises(MemoryError):
        aligned_bytes(1 << 60, 64)
