"""The standard score of a search on a recorded space: 0 is random search, 1 is the optimum.

As F.-J. Willemsen and others define it ("A methodology for comparing optimization algorithms for
auto-tuning", Future Generation Computer Systems 159, 2024) and the package
``autotuning-methodology`` 1.1.0 computes it. With N valid configurations sorted from slow to fast,
random search needs ``ceil(i / (N + 1 - i))`` evaluations to get to position i. The time scored over
goes from where it has closed 1 % of the gap between median and optimum to where it has closed 95 %,
at the median cost of an evaluation. At each of ``STEPS`` times t the search's value F(t) is the
recorded time at a mean position, which isotonic regression fits to the best so far after every
evaluation of every run; random search has position ``M (N + 1) / (M + 1)`` after the M evaluations
that fit, smoothed by a monotone cubic, which gives R(t). The score is the mean over t of
``(R(t) - F(t)) / (R(t) - optimum)``.

As in the package the regression is the mean of several to random parts of the evaluations. The
interval is that of a bootstrap over runs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.search.problem import Times
from tfsearch.search.scan import Ints

START, END = 0.01, 0.95
STEPS = 1000
BINS = 2000
MARGIN = 0.1
RESAMPLED = 300


@dataclass(frozen=True)
class Scored:
    """A score with the 2.5 % and 97.5 % quantiles of its bootstrap over runs."""

    score: float
    low: float
    high: float


@dataclass(frozen=True, eq=False)
class Recorded:
    """A recorded space: ``times`` [rows], NaN for failures, in any unit; ``seconds`` [rows] that
    evaluating the row costs. Raises ``ValueError`` when fewer than three times are there or all
    are equal."""

    times: Times
    seconds: Times

    def __post_init__(self) -> None:
        good = self._sorted
        if len(good) < 3 or good[0] == good[-1]:
            raise ValueError("a score needs at least three recorded times that are not all equal")

    @cached_property
    def _sorted(self) -> Times:
        """Recorded times, fastest first."""
        return np.sort(self.times[np.isfinite(self.times)])

    @property
    def optimum(self) -> float:
        """The fastest time."""
        return float(self._sorted[0])

    def evaluations(self, share: float) -> int:
        """What random search needs to close this share of the gap from median to optimum."""
        slow_first = self._sorted[::-1]
        wanted = self.optimum + (float(np.median(slow_first)) - self.optimum) * (1.0 - share)
        position = int(np.argmax(slow_first <= wanted))
        if share != 1.0 and slow_first[position] == self.optimum:
            position = max(position - 1, 0)
        return math.ceil(position / (len(slow_first) + 1 - position))

    @cached_property
    def span(self) -> tuple[int, int]:
        """Evaluations at the start and at the end of what is scored."""
        first, last = self.evaluations(START), self.evaluations(END)
        return (first, last) if last - first >= 2 else (max(first - 1, 0), last + 1)

    @cached_property
    def grid(self) -> Times:
        """The times scored at, in seconds."""
        usual = float(np.median(self.seconds[np.isfinite(self.seconds)]))
        return _even(self.span[0] * usual, self.span[1] * usual, STEPS)

    @cached_property
    def baseline(self) -> Times:
        """What random search has found by then."""
        failed = ~np.isfinite(self.times)
        each = float(self.seconds[~failed].mean())
        if failed.any():
            each += float(failed.mean()) * float(self.seconds[failed].mean())
        counts = np.asarray(np.round(np.maximum(self.grid / each, 1.0)), np.float64)
        size = len(self._sorted)
        place = np.minimum(np.round(counts * (size + 1) / (counts + 1)), size - 1).astype(np.int64)
        found = self._sorted[::-1][place]
        first = np.append(True, np.diff(counts) > 0)
        if first.sum() < 2:
            return found
        even = _even(float(counts[0]), float(counts[-1]), len(counts))
        return monotone_cubic(counts[first], found[first], even)

    def best(self, visited: Sequence[int]) -> Times:
        """The fastest time after each of these rows; NaN before the first that worked."""
        return np.fmin.accumulate(self.times[np.asarray(visited, dtype=np.int64)])

    def single(self, visited: Sequence[int]) -> float:
        """The score of one run by itself: its best so far where the mean curve would be."""
        ends = np.cumsum(self.seconds[np.asarray(visited, dtype=np.int64)])
        last = np.searchsorted(ends, self.grid, side="right") - 1
        best = np.where(last >= 0, self.best(visited)[np.maximum(last, 0)], np.nan)
        found = np.where(np.isnan(best), self._sorted[-1], best)
        return float(((self.baseline - found) / (self.baseline - self.optimum)).mean())

    def score(self, runs: Sequence[Sequence[int]], seed: int = 0) -> Scored:
        """The score of runs, each the rows in the order visited."""
        held = _Runs(self, runs)
        scores = [held.score(rows) for rows in _resampled(len(runs), seed)]
        return _shifted(held.bagged(seed), held.score(np.arange(len(runs))), scores)

    def difference(
        self, runs: Sequence[Sequence[int]], others: Sequence[Sequence[int]], seed: int = 0
    ) -> Scored:
        """How much higher the first runs score; both are resampled by themselves."""
        ours, theirs = _Runs(self, runs), _Runs(self, others)
        pairs = zip(_resampled(len(runs), seed), _resampled(len(others), seed + 1), strict=True)
        scores = [ours.score(a) - theirs.score(b) for a, b in pairs]
        middle = ours.score(np.arange(len(runs))) - theirs.score(np.arange(len(others)))
        return _shifted(ours.bagged(seed) - theirs.bagged(seed), middle, scores)

    def score_of(self, positions: Times, stop: float) -> float:
        """The score of a curve of positions over the grid, held from ``stop`` on."""
        place = np.clip(np.round(positions), 0, len(self._sorted) - 1)
        found = self._sorted[place.astype(np.int64)]
        later = np.flatnonzero(self.grid > stop)
        if len(later):
            found[later] = found[later[0]]
        return float(((self.baseline - found) / (self.baseline - self.optimum)).mean())

    def trace(self, visited: Sequence[int]) -> tuple[Times, Times]:
        """(seconds, position of the best so far) of a run from its first time on."""
        rows = np.asarray(visited, dtype=np.int64)
        best, ends = self.best(visited), np.cumsum(self.seconds[rows])
        good = ~np.isnan(best)
        place = np.searchsorted(self._sorted, best[good]).astype(np.float64)
        return ends[good], place


class _Runs:
    """The evaluations of some runs inside of what is scored, and as sums over narrow bins."""

    def __init__(self, recorded: Recorded, runs: Sequence[Sequence[int]]) -> None:
        self._recorded = recorded
        low = float(recorded.grid[0]) * (1 - MARGIN)
        high = float(recorded.grid[-1]) * (1 + MARGIN)
        edges = _even(low, high, BINS + 1)
        shape = (len(runs), BINS)
        self._counts, self._sums, self._placed = (np.zeros(shape) for _ in range(3))
        self._ends = np.full(len(runs), np.inf)
        held: list[tuple[Times, Times]] = []
        for row, run in enumerate(runs):
            times, places = recorded.trace(run)
            if not len(times):
                continue
            self._ends[row] = times[-1]
            inside = (times >= low) & (times <= high)
            times, places = times[inside], places[inside]
            bins = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, BINS - 1)
            np.add.at(self._counts[row], bins, 1.0)
            np.add.at(self._sums[row], bins, times)
            np.add.at(self._placed[row], bins, places)
            held.append((times, places))
        self._times = np.concatenate([times for times, _ in held] or [np.zeros(0)])
        self._places = np.concatenate([places for _, places in held] or [np.zeros(0)])

    def bagged(self, seed: int) -> float:
        """The score of all runs: the mean of regressions to random parts of the evaluations."""
        size, fits = len(self._times), max(len(self._counts), 3)
        if not size:
            return float("nan")
        rng = np.random.default_rng([seed, size])
        total = np.zeros(len(self._recorded.grid))
        for _ in range(fits):
            some = rng.integers(size, size=max(1, int(size / math.sqrt(fits))))
            times, first = np.unique(self._times[some], return_inverse=True)
            weights = np.bincount(first).astype(np.float64)
            places = np.bincount(first, self._places[some]) / weights
            total += np.interp(self._recorded.grid, times, falling(places, weights))
        return self._recorded.score_of(total / fits, self._stop(self._ends))

    def score(self, rows: Ints) -> float:
        """The score of these runs, of which some may be given several times: one regression."""
        weight = np.bincount(rows, minlength=len(self._counts)).astype(np.float64)
        counts = weight @ self._counts
        used = counts > 0
        if not used.any():
            return float("nan")
        times = (weight @ self._sums)[used] / counts[used]
        places = falling((weight @ self._placed)[used] / counts[used], counts[used])
        curve = np.interp(self._recorded.grid, times, places)
        return self._recorded.score_of(curve, self._stop(self._ends[rows]))

    def _stop(self, ends: Times) -> float:
        """When fewer than half of the runs are left."""
        later = ends[ends > np.median(ends)]
        return float(later.min()) if len(later) else math.inf


def _shifted(score: float, middle: float, scores: list[float]) -> Scored:
    """A score with the quantiles of resampled ones, which a single regression gave."""
    low, high = np.quantile(scores, [0.025, 0.975]) + (score - middle)
    return Scored(score, float(low), float(high))


def falling(values: Times, weights: Times) -> Times:
    """The non-increasing sequence nearest to ``values`` in weighted squares.

    Neighbours out of order are pooled until none are left (Ayer and others, 1955).
    """
    blocks: list[tuple[float, float, int]] = []
    for value, weight in zip(values.tolist(), weights.tolist(), strict=True):
        total, mass, size = value * weight, weight, 1
        while blocks and blocks[-1][0] * mass < total * blocks[-1][1]:
            before = blocks.pop()
            total, mass, size = total + before[0], mass + before[1], size + before[2]
        blocks.append((total, mass, size))
    totals, masses, sizes = (np.array(column) for column in zip(*blocks, strict=True))
    return np.repeat(totals / masses, sizes)


def _even(low: float, high: float, count: int) -> Times:
    return np.asarray(np.linspace(low, high, count), np.float64)


def _resampled(count: int, seed: int) -> Ints:
    return np.random.default_rng([seed, count]).integers(count, size=(RESAMPLED, count))


def monotone_cubic(x: Times, y: Times, at: Times) -> Times:
    """Piecewise cubic through the points that is monotone wherever they are.

    Slopes are weighted harmonic means (F. N. Fritsch and J. Butland, 1984), as in SciPy's
    ``PchipInterpolator``; ``x`` increases.
    """
    step, rise = np.diff(x), np.diff(y) / np.diff(x)
    slope: Any = np.zeros(len(x))
    if len(x) == 2:
        slope[:] = rise[0]
    else:
        left, right = 2 * step[1:] + step[:-1], step[1:] + 2 * step[:-1]
        same = rise[:-1] * rise[1:] > 0
        with np.errstate(divide="ignore", invalid="ignore"):
            mean = (left + right) / (left / rise[:-1] + right / rise[1:])
        slope[1:-1] = np.where(same, mean, 0.0)
        slope[0] = _end(step[0], step[1], rise[0], rise[1])
        slope[-1] = _end(step[-1], step[-2], rise[-1], rise[-2])
    part = np.clip(np.searchsorted(x, at, side="right") - 1, 0, len(x) - 2)
    width = step[part]
    t = (at - x[part]) / width
    return (
        (1 + 2 * t) * (1 - t) ** 2 * y[part]
        + t * (1 - t) ** 2 * width * slope[part]
        + t * t * (3 - 2 * t) * y[part + 1]
        + t * t * (t - 1) * width * slope[part + 1]
    )


def _end(step: float, other: float, rise: float, next_rise: float) -> float:
    """The one-sided slope at an end that keeps the shape."""
    slope = ((2 * step + other) * rise - step * next_rise) / (step + other)
    if slope * rise <= 0:
        return 0.0
    if rise * next_rise <= 0 and abs(slope) > 3 * abs(rise):
        return 3 * rise
    return slope
