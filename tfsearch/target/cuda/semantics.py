"""What reductions over the threads of a unit mean on NumPy arrays."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Semantics

WARP = 32


def reduce(fn: Callable[[Any, Any], Any], warps: int, each: int) -> Semantics:
    """All lanes into one value: pieces by halves, warps by butterflies, then the warps in order."""

    def semantics(views: Sequence[Any]) -> None:
        dst, src = views
        pieces = np.array(src).reshape(warps, WARP, each)
        with np.errstate(all="ignore"):
            while pieces.shape[2] > 1:
                half = pieces.shape[2] // 2
                pieces = fn(pieces[:, :, :half], pieces[:, :, half:])
            lanes = pieces[:, :, 0]
            while lanes.shape[1] > 1:
                half = lanes.shape[1] // 2
                lanes = fn(lanes[:, :half], lanes[:, half:])
            total = lanes[0, 0]
            for warp in range(1, warps):
                total = fn(total, lanes[warp, 0])
        dst[...] = total

    return semantics
