"""The surrogate policy: a Gaussian process over the legal points, and expected improvement.

For small constrained spaces and few trials. The first points are uniform ones far apart (where a
model predicts, every other is the model's best of a random quarter). From then on the next point
has the greatest expected improvement of log time. What slows a point down beyond the median is
compressed, because only the fast end matters; a failure counts as the slowest time seen. Where a
model predicts, its estimate is both the mean that the process corrects, as far as the measurements
bear it out, and one of the features. Lengths are fitted again whenever the results have
grown by a third.

Everything follows from the seed and the results in the order told, so that a session that is
told the results of an earlier one goes on with the same point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.records import Status
from tfsearch.search.base import Base, time_of
from tfsearch.search.gaussian import Posterior, Shape, fit, improvement
from tfsearch.search.problem import Problem, Result, Times
from tfsearch.search.scan import Ints
from tfsearch.search.table import Table
from tfsearch.search.uniform import UniformPoints
from tfsearch.space import Point

WHOLE = 6144
"""Tables up to this size are judged whole; of larger ones a selection is."""
NEAREST, UNIFORM = 1536, 2048
CENTRES = 4
LEARN = 192
"""Observations that one posterior starts from."""
FIT = 96
"""Observations that lengths are fitted to."""
SPREAD_OVER = 8

Mask = np.ndarray[Any, np.dtype[np.bool_]]


@dataclass(frozen=True)
class SurrogateOptions:
    """``explore``: share of uniform points after the first ones; ``slow``: what is left of log
    time beyond the median; ``trust``: weight, in trials, of "the model is right"."""

    explore: float = 0.03
    slow: float = 0.3
    trust: float = 4.0


class Surrogate(Base):
    """See the module."""

    name = "surrogate"

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int,
        incumbent_us: float | None,
        options: SurrogateOptions,
        hints: Sequence[Point] = (),
        table: Table | None = None,
    ) -> None:
        super().__init__(problem, incumbent_us)
        self._options = options
        self._seed = seed
        self._table = table or Table(problem, seed)
        self._groups = self._table.groups
        if self._table.estimate is not None and len(self._table):
            self._groups = np.append(self._groups, self._groups.max(initial=-1) + 1)
        self._hints = [point for point in hints if not problem.space.check(point)]
        self._rest = iter(UniformPoints(problem, (seed, 3)))
        self._order = np.random.default_rng([seed, 4]).permutation(len(self._table))
        self._open = np.ones(len(self._table), np.bool_)
        self._asked: list[int] = []
        self._told: list[int] = []
        self._known: set[int] = set()
        self._times: list[float] = []
        self._shape = Shape.first(int(self._groups.max(initial=-1)) + 1)
        self._first = max(8, len(self._shape.lengths) + 4)
        self._next_fit = self._first
        self._view: _View | None = None

    @property
    def opening(self) -> int:
        """How many points come before anything has been learnt."""
        return self._first

    def tell(self, results: Sequence[Result]) -> None:
        """Learn from results, one after the other."""
        super().tell(results)
        for result in results:
            row = self._table.row(result.point)
            if row is None:
                continue
            self._close(row)
            if result.status is Status.CANCELLED or row in self._known:
                continue
            self._known.add(row)
            time_us = time_of(result)
            self._told.append(row)
            self._times.append(math.nan if time_us is None else math.log(time_us))
            if len(self._told) >= self._next_fit:
                self._view = self._fitted()
            elif self._view is not None:
                self._view.tell(row, self._times[-1])

    def _next(self) -> Point | None:
        if self._hints:
            return self._hints.pop(0)
        row = self._choose()
        if row is None:
            return next((p for p, bound in self._rest if not self._hopeless(bound)), None)
        self._close(row)
        if self._view is not None:
            self._view.expect(row)
        return self._table.point(row)

    def _close(self, row: int) -> None:
        if len(self._open) < len(self._table):
            more = np.ones(len(self._table) - len(self._open), np.bool_)
            self._open = np.concatenate([self._open, more])
        if self._open[row]:
            self._open[row] = False
            self._asked.append(row)

    def _choose(self) -> int | None:
        possible = self._open
        if self.best_us is not None and self._table.bounded:
            possible = possible & (self._table.bound_us[: len(possible)] < self.best_us)
        if not possible.any():
            return None
        count, explore = len(self._asked), self._options.explore
        uniform = math.floor((count + 1) * explore) > math.floor(count * explore)
        if self._view is None or uniform:
            return self._initial(possible, count)
        row = self._view.best(possible)
        return self._initial(possible, count) if row is None else row

    def _initial(self, possible: Mask, count: int) -> int:
        """A uniform point far from those asked for, or, by turns, one that the model likes."""
        order = self._order[possible[self._order]]
        if not len(order):
            return int(np.flatnonzero(possible)[0])
        estimate = self._table.estimate
        if estimate is not None and len(estimate) and count % 2 == 0:
            rng = np.random.default_rng([self._seed, 5, count])
            some = order[rng.random(len(order)) < 0.25]
            some = some if len(some) else order
            return int(some[np.argmin(estimate[some])])
        few = order[:SPREAD_OVER]
        if not self._asked:
            return int(few[0])
        apart = self._table.features[few][:, None, :] - self._table.features[self._asked[-64:]]
        return int(few[np.argmax((apart**2).sum(axis=2).min(axis=1))])

    def _fitted(self) -> _View | None:
        """A view made from the results so far; None while nothing has worked."""
        table = self._table
        told, times = np.array(self._told), np.array(self._times)
        self._next_fit = len(told) + min(max(len(told) // 3, 4), 64)
        good = np.isfinite(times)
        if good.sum() < 3:
            return None
        rng = np.random.default_rng([self._seed, 6, len(told)])
        scale = _Scale.of(times[good], self._options.slow)
        values = scale.values(times)
        learn = _part(values, LEARN, rng)
        residual = _Residual.of(table, told, values, self._options.trust, scale.unit)
        observed = residual.features(table, told[learn])
        y = values[learn] - residual.mean(table, told[learn])
        some = _part(y, FIT, rng)
        self._shape = fit(self._shape, observed[some], self._groups, y[some])
        rows = self._rows(told, values, rng)
        room = self._next_fit - len(told) + 16
        points = residual.features(table, rows)
        posterior = Posterior(self._shape, self._groups, points, observed, y, room)
        view = _View(table, rows, posterior, scale, residual, float(values.min()))
        for row in self._asked:
            if row not in self._known:
                view.expect(row)
        return view

    def _rows(self, told: Ints, values: Times, rng: np.random.Generator) -> Ints:
        """The rows to judge until the next fit."""
        table = self._table
        if len(table) <= WHOLE and table.complete:
            return np.arange(len(table))
        best = told[np.argsort(values, kind="stable")[:CENTRES]]
        if not table.complete:
            for row in best:
                table.add(self.problem.space.neighbours(table.point(int(row))))
            self._close(int(best[0]))
        near = np.unique(np.concatenate([table.near(int(row)) for row in best]))
        near = near[self._open[near]]
        if len(near) > NEAREST:
            near = rng.choice(near, NEAREST, replace=False)
        free = np.flatnonzero(self._open)
        if len(free) > UNIFORM:
            free = rng.choice(free, UNIFORM, replace=False)
        return np.unique(np.concatenate([near, free, told[-1:]]))


def _part(values: Times, size: int, rng: np.random.Generator) -> Ints:
    """Positions of all values, or of the better half of ``size`` and a uniform rest."""
    if len(values) <= size:
        return np.arange(len(values))
    order = np.argsort(values, kind="stable")
    rest = rng.choice(order[size // 2 :], size - size // 2, replace=False)
    return np.sort(np.concatenate([order[: size // 2], rest]))


@dataclass(frozen=True)
class _Scale:
    """From log times to what is learnt: compressed above ``middle``, of mean 0 and deviation 1."""

    middle: float
    slow: float
    worst: float
    mean: float
    unit: float

    @staticmethod
    def of(times: Times, slow: float) -> _Scale:
        middle, worst = float(np.median(times)), float(times.max())
        plain = _Scale(middle, slow, worst, 0.0, 1.0).values(times)
        return _Scale(middle, slow, worst, float(plain.mean()), max(float(plain.std()), 1e-6))

    def values(self, times: Times) -> Times:
        filled = np.where(np.isfinite(times), times, self.worst)
        beyond = np.maximum(filled - self.middle, 0.0)
        return (filled - (1.0 - self.slow) * beyond - self.mean) / self.unit


@dataclass(frozen=True)
class _Residual:
    """How far the model's estimate is believed: log time grows by ``slope`` per unit of it."""

    slope: float | None

    @staticmethod
    def of(table: Table, rows: Ints, values: Times, trust: float, unit: float) -> _Residual:
        if table.estimate is None or not len(table.estimate):
            return _Residual(None)
        estimate = table.estimate[rows]
        prior = table.estimate_unit / unit
        off = estimate - estimate.mean()
        weight = trust * max(float(off.var()), 1e-6)
        slope = (float(off @ (values - values.mean())) + weight * prior) / (
            float(off @ off) + weight
        )
        return _Residual(max(slope, 0.0))

    def mean(self, table: Table, rows: Ints) -> Times:
        if self.slope is None or table.estimate is None:
            return np.zeros(len(rows))
        return self.slope * table.estimate[rows]

    def features(self, table: Table, rows: Ints) -> Times:
        if self.slope is None or table.estimate is None:
            return table.features[rows]
        return np.column_stack([table.features[rows], (table.estimate[rows] + 4.0) / 8.0])


class _View:
    """A posterior over some rows of the table (sorted), kept up to date until the next fit."""

    def __init__(
        self,
        table: Table,
        rows: Ints,
        posterior: Posterior,
        scale: _Scale,
        residual: _Residual,
        best: float,
    ) -> None:
        self._table = table
        self._rows = rows
        self._posterior = posterior
        self._scale = scale
        self._residual = residual
        self._offset = residual.mean(table, rows)
        self._expected: dict[int, int] = {}
        self._best = best

    def best(self, possible: Mask) -> int | None:
        """The row with the greatest expected improvement; None when none is possible."""
        free = np.flatnonzero(possible[self._rows])
        if not len(free):
            return None
        mean = (self._offset + self._posterior.mean)[free]
        deviation = self._posterior.deviation[free]
        gain = improvement(mean, deviation, self._best)
        if float(gain.max()) < 1e-12:
            gain = -mean
        return int(self._rows[free[np.argmax(gain)]])

    def expect(self, row: int) -> None:
        """Note that a row was asked for: until its result is told, it is what was expected."""
        if row not in self._expected and not self._posterior.full:
            self._expected[row] = self._add(row, None)

    def tell(self, row: int, log_time: float) -> None:
        """Learn a result."""
        total = float(self._scale.values(np.array([log_time]))[0])
        self._best = min(self._best, total)
        value = total - float(self._residual.mean(self._table, np.array([row]))[0])
        number = self._expected.get(row)
        if number is not None:
            self._posterior.correct(number, value)
        elif not self._posterior.full:
            self._expected[row] = self._add(row, value)

    def _add(self, row: int, value: float | None) -> int:
        place = int(np.searchsorted(self._rows, row))
        held = place < len(self._rows) and self._rows[place] == row
        features = self._residual.features(self._table, np.array([row]))[0]
        return self._posterior.add(features, place if held else None, value)
