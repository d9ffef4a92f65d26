"""Host memory at aligned addresses, in large pages where it is large.

Packed operands and workspaces are read in an order that touches many pages; with pages of 2 MiB
their addresses stay in the first-level TLB.
"""

from __future__ import annotations

import contextlib
import mmap
from typing import Any

import numpy as np
from numpy.typing import NDArray

WORKSPACE_ALIGNMENT = 4096
"""Bytes to which the working memory of a kernel is aligned."""
LARGE_PAGE = 2 << 20
LARGE_FROM = 1 << 20
"""Bytes from which memory gets large pages; half of one may stay unused."""


def aligned_bytes(size: int, alignment: int) -> NDArray[np.uint8]:
    """Uninitialised bytes at a multiple of ``alignment``, a power of two.

    From :data:`LARGE_FROM` bytes they lie in pages that the system is asked to make large; a
    system without large pages, or that refuses, gives ordinary ones. Raises ``MemoryError``.
    """
    if size >= LARGE_FROM and alignment <= LARGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        return _large(size)
    raw = np.empty(size + alignment, dtype=np.uint8)
    return raw[-raw.ctypes.data % alignment :][:size]


def _large(size: int) -> NDArray[np.uint8]:
    whole = -(-size // LARGE_PAGE) * LARGE_PAGE
    try:
        pages = mmap.mmap(-1, whole + LARGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    except OSError as error:
        raise MemoryError(f"no {size} bytes: {error}") from None
    with contextlib.suppress(OSError):
        pages.madvise(mmap.MADV_HUGEPAGE)
    raw: NDArray[Any] = np.frombuffer(pages, dtype=np.uint8)
    return raw[-raw.ctypes.data % LARGE_PAGE :][:size]
