"""How well one order agrees with another."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def spearman(a: Floats, b: Floats) -> float:
    """Spearman's rank correlation, ties at their mean rank; 0 where either is constant."""
    ranks = [_ranks(np.asarray(x, np.float64)) for x in (a, b)]
    spread = [float(np.std(rank)) for rank in ranks]
    if len(ranks[0]) < 2 or min(spread) == 0.0:
        return 0.0
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _ranks(values: Floats) -> Any:
    _, place, count = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(count)
    return (last - (count - 1) / 2.0)[place]


def recall(predicted: Floats, measured: Floats, first: int) -> float:
    """Share of the ``first`` least measured among the ``first`` least predicted, ties in order."""
    a, b = (set(np.argsort(x, kind="stable")[:first].tolist()) for x in (predicted, measured))
    return len(a & b) / max(len(b), 1)
