"""Medians with intervals, paired ratios, when to stop, and which samples are from a slow mode.

Every interval here is distribution-free: it is made of order statistics, because times are
skewed, have outliers, and on some units two modes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

CONFIDENCE = 0.95
SLOW_BELOW = 0.6
"""A probe below this share of its reference says that the unit is in its slow mode.

The modes seen on hosts with a bimodal matrix unit are a factor of four apart, and everything
drifts by 10–30 %: 0.6 lies between the two.
"""
DRIFT_GROUPS = 3

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Interval:
    """A median and the 95 % interval around it, in the unit of the samples."""

    median: float
    low: float
    high: float
    count: int

    @property
    def half_width(self) -> float:
        """Half the width of the interval, relative to the median (infinite for no median)."""
        if self.count == 0 or self.median <= 0:
            return math.inf
        return (self.high - self.low) / (2 * self.median)


class Verdict(Enum):
    """What the stopping rule says."""

    CONTINUE = "continue"
    CONVERGED = "converged"
    LOST = "lost"


@lru_cache(maxsize=4096)
def interval_rank(count: int) -> int:
    """The largest r ≥ 1 for which [x₍r₎, x₍n+1−r₎] covers the median with ≥ 95 %; else 1.

    The number of samples below the median is binomial(n, ½), so the interval misses with
    probability 2·P(binomial ≤ r − 1) for any continuous distribution (H. A. David, *Order
    Statistics*, section 7.1). Below six samples even the extremes cover with less than 95 %
    (1 − 2^(1−n)); the extremes are then the answer.
    """
    miss = 0.0
    probability = math.exp(-count * math.log(2)) if count < 1000 else 0.0
    if count >= 1000:
        half = 1.959964 * math.sqrt(count) / 2
        return max(1, math.floor(count / 2 - half))
    rank = 0
    for below in range(count):
        miss += 2 * probability
        if miss > 1 - CONFIDENCE:
            break
        rank = below + 1
        probability *= (count - below) / (below + 1)
    return max(1, rank)


def median_interval(samples: ArrayLike) -> Interval:
    """Median and 95 % interval of finite samples; raises ``ValueError`` when there is none."""
    values = np.sort(np.asarray(samples, dtype=np.float64).ravel())
    if values.size == 0:
        raise ValueError("no samples")
    rank = interval_rank(int(values.size))
    return Interval(
        float(np.median(values)), float(values[rank - 1]), float(values[-rank]), int(values.size)
    )


def ratio_interval(times: ArrayLike, reference: ArrayLike) -> Interval:
    """Median of ``times / reference`` over pairs taken in the same round, with its interval.

    Both have one value a round; a pair with a NaN (not measured in that round) is left out.
    Drift cancels because both sides of a pair saw the same machine. Raises ``ValueError``
    when no pair is left.
    """
    a = np.asarray(times, dtype=np.float64)
    b = np.asarray(reference, dtype=np.float64)
    if a.shape != b.shape:
        raise ValueError(f"pairs need equal shapes, not {a.shape} and {b.shape}")
    ratios = a / b
    return median_interval(ratios[np.isfinite(ratios)])


@dataclass(frozen=True)
class StoppingRule:
    """When a measurement has enough samples.

    ``share``: the wanted relative half width of the interval. ``least`` and ``most`` bound the
    number of samples. With an ``incumbent`` (same unit as the samples) a candidate has lost once
    the whole interval lies above ``incumbent · lost_ratio``; the ratio leaves room for the
    machine's drift since the incumbent was measured.
    """

    share: float = 0.01
    least: int = 15
    most: int = 300
    incumbent: float | None = None
    lost_ratio: float = 1.3
    lost_least: int = 6

    def judge(self, samples: Sequence[float] | Floats) -> Verdict:
        """The verdict on the samples so far."""
        if len(samples) == 0:
            return Verdict.CONTINUE
        found = median_interval(samples)
        if (
            self.incumbent is not None
            and found.count >= self.lost_least
            and found.low > self.incumbent * self.lost_ratio
        ):
            return Verdict.LOST
        if found.count >= self.most:
            return Verdict.CONVERGED
        if found.count >= self.least and found.half_width <= self.share:
            return Verdict.CONVERGED
        return Verdict.CONTINUE


@dataclass(frozen=True)
class Split:
    """Samples parted by the mode they were taken in; nothing is dropped.

    ``kept`` and ``aside`` are masks over the samples. ``slow_only`` says that no sample was taken
    in the fast mode.
    """

    kept: NDArray[np.bool_]
    aside: NDArray[np.bool_]

    @property
    def set_aside(self) -> int:
        """How many samples were taken in the slow mode."""
        return int(np.count_nonzero(self.aside))

    @property
    def slow_only(self) -> bool:
        """True when there are samples and all of them are from the slow mode."""
        return bool(self.aside.size) and bool(self.aside.all())


def is_slow(
    speeds: Mapping[str, float], reference: Mapping[str, float], below: float = SLOW_BELOW
) -> bool:
    """True when any probe's speed is under ``below`` times its reference fast value.

    Speeds are in units per second (larger is faster). A probe without a reference says nothing.
    """
    return any(
        speed < below * reference[name] for name, speed in speeds.items() if name in reference
    )


def split_modes(
    before: Sequence[Mapping[str, float]],
    after: Sequence[Mapping[str, float]],
    reference: Mapping[str, float],
    below: float = SLOW_BELOW,
) -> Split:
    """Mark the samples whose probe before or after says that the unit was slow.

    ``before[i]`` and ``after[i]`` are the probe speeds around sample i. A unit that flips inside
    of a sample shows in one of the two.
    """
    if len(before) != len(after):
        raise ValueError(f"{len(before)} probes before but {len(after)} after the samples")
    aside = np.array(
        [
            is_slow(b, reference, below) or is_slow(a, reference, below)
            for b, a in zip(before, after, strict=True)
        ],
        dtype=np.bool_,
    )
    return Split(~aside, aside)


def drift(samples: ArrayLike) -> float:
    """Median of the last third over the median of the first third; 1 for under six samples."""
    values = np.asarray(samples, dtype=np.float64).ravel()
    if values.size < 2 * DRIFT_GROUPS:
        return 1.0
    third = values.size // DRIFT_GROUPS
    return float(np.median(values[-third:]) / np.median(values[:third]))


@dataclass(frozen=True)
class Ranking:
    """The standing of a final: ``winner`` is a column; ``ratios[i]`` = time(i) / time(winner).

    ``decided`` when every other column's interval lies above 1, or is within the ``tie`` share
    of it on both sides (too close to matter).
    """

    winner: int
    ratios: tuple[Interval, ...]
    decided: bool


def rank_paired(times: NDArray[Any], tie: float = 0.005) -> Ranking:
    """Rank the columns of a matrix of times [rounds, columns]; NaN where a column sat out.

    The winner has the smallest median of time divided by the round's median over the columns
    present in every round, which takes the drift of the machine out before comparing.
    """
    values = np.asarray(times, dtype=np.float64)
    if values.ndim != 2 or values.shape[0] == 0:
        raise ValueError(f"a ranking needs times [rounds, columns], not {values.shape}")
    complete = ~np.isnan(values).any(axis=0)
    if not complete.any():
        raise ValueError("no column was measured in every round")
    level = np.median(values[:, complete], axis=1, keepdims=True)
    scores = np.median(values[:, complete] / level, axis=0)
    winner = int(np.flatnonzero(complete)[int(np.argmin(scores))])
    ratios = tuple(
        Interval(1.0, 1.0, 1.0, values.shape[0])
        if column == winner
        else ratio_interval(values[:, column], values[:, winner])
        for column in range(values.shape[1])
    )
    decided = all(
        column == winner or found.low > 1.0 or (found.low >= 1 - tie and found.high <= 1 + tie)
        for column, found in enumerate(ratios)
    )
    return Ranking(winner, ratios, decided)
