"""The ranked policy: the model's order, without near-copies, corrected by what was measured.

A model's estimates are good to some ``tolerance`` (15 % unless said otherwise, 5 % where they are
corrected by what was learned of other workloads): differences below it are no information. So the
next point is the one with the least

    log(estimate) + correction + tolerance · closeness

over a pool: the best points by estimate, as many uniform ones (which a correction can bring to
the front although the model thinks little of them), and the neighbours of every point that was
the best measured one. ``closeness`` is 1 / (1 + d) to the nearest point
already proposed, where d counts differing parameters (half for a single step of an ordinal
one; another recipe is infinitely far): of two equally promising points the one least like what
was tried comes first, and a near-copy has to be predicted better by several per cent.
``correction`` is the mean log of measured over estimated time of the points told, weighted by
the square of closeness and shrunk towards 0 (the overall ratio is taken out, because a
constant factor ranks nothing); a point that failed counts as twice as slow as estimated. A share
``explore`` (one in eight) of the points is uniform over all legal ones, which keeps a wrong
model from hiding a part of the space for ever; for a share ``exploit`` (one in four) closeness does
not count: these follow the model's order and, once something was measured, the neighbourhood of
what was better than estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.core.records import Status
from tfsearch.search.base import Base, time_of
from tfsearch.search.problem import Problem, Result, Times
from tfsearch.search.scan import Ints, Pool, Scan, pool_of, predict_points, scan
from tfsearch.search.uniform import UniformPoints
from tfsearch.space import Kind, Point

FAILED = math.log(2.0)
CORRECTED = 0.05
"""The tolerance of a model that is corrected by what was learned of other workloads."""
PRIOR = 1.0
"""Weight of "the model is right" against measurements at distance 0 of weight 1 each."""


@dataclass(frozen=True)
class RankedOptions:
    """``explore``, ``exploit`` in [0, 1], ``tolerance`` as a share of time, ``pool`` in points."""

    explore: float = 0.125
    exploit: float = 0.25
    tolerance: float = 0.15
    pool: int = 2048


class Ranked(Base):
    """See the module. ``hints`` are proposed first, as far as they are legal."""

    name = "ranked"

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int,
        incumbent_us: float | None,
        options: RankedOptions,
        first: Scan | None,
        hints: Sequence[Point],
    ) -> None:
        super().__init__(problem, incumbent_us)
        self._options = options
        self._uniform = iter(UniformPoints(problem, (seed, 1)))
        self._hints = [point for point in hints if not problem.space.check(point)]
        self._proposed: list[Point] = []
        self._noted: set[Point] = set()
        self._residuals: list[tuple[Point, float, bool]] = []
        usable = first is not None and first.incumbent_us == incumbent_us
        best = (first if usable and first else self._scan()).pool
        sample = problem.space.sample(options.pool, np.random.default_rng([seed, 2]))
        self._pool = _Pool(best.merged(pool_of(problem, list(sample))))

    def tell(self, results: Sequence[Result]) -> None:
        """Learn from results, one after the other: residuals, the best time, what is crowded."""
        for result in results:
            before = self.best_us
            super().tell([result])
            if not self.problem.space.check(result.point):
                self._learn(result, better=self.best_us != before)

    def _learn(self, result: Result, *, better: bool) -> None:
        point = result.point
        if point not in self._noted:
            self._note(point)
        if result.status is not Status.CANCELLED:
            estimate = float(predict_points(self.problem, [point], corrected=True)[0][0])
            time_us = time_of(result)
            residual = FAILED
            if time_us is not None and estimate > 0:
                residual = math.log(time_us) - math.log(estimate)
            failed = time_us is None
            self._residuals.append((point, residual, failed))
            self._pool.learn(self.problem, point, residual, failed=failed)
        if better:
            self._refill(pool_of(self.problem, self.problem.space.neighbours(point)))

    def _next(self) -> Point | None:
        if self._hints:
            point = self._hints.pop(0)
        else:
            found = self._explored() or self._ranked()
            if found is None:
                return None
            point = found
        if point not in self._seen:
            self._note(point)
        return point

    def _note(self, point: Point) -> None:
        self._proposed.append(point)
        self._noted.add(point)
        self._pool.crowd(self.problem, point)

    def _explored(self) -> Point | None:
        if not self._turn(self._options.explore):
            return None
        for point, bound in self._uniform:
            if point not in self._seen and not self._hopeless(bound):
                return point
        return None

    def _turn(self, share: float, shift: int = 0) -> bool:
        """Whether it is the turn of points that are ``share`` of all."""
        count = len(self._seen) + shift
        return math.floor((count + 1) * share) > math.floor(count * share)

    def _ranked(self) -> Point | None:
        # Shifted, so that it is not the turn of both kinds at once.
        alone = self._turn(self._options.exploit, shift=2)
        tolerance = 0.0 if alone else self._options.tolerance
        while True:
            while (row := self._pool.best(tolerance)) is not None:
                point = self._pool.take(row)
                if point not in self._seen and not self._hopeless(self._pool.bound(row)):
                    return point
            fresh = self._scan().pool
            if not len(fresh):
                return None
            self._refill(fresh)

    def _scan(self) -> Scan:
        exclude: dict[str, list[int]] = {}
        for point in self._seen:
            if not self.problem.space.check(point):
                index = self.problem.space.encode(point)
                exclude.setdefault(point.recipe_name, []).append(index)
        return scan(
            self.problem,
            keep=self._options.pool,
            incumbent_us=self.best_us,
            exclude=exclude,
        )

    def _refill(self, more: Pool) -> None:
        self._pool = _Pool(self._pool.left().merged(more))
        for point in self._proposed:
            self._pool.crowd(self.problem, point)
        for point, residual, failed in self._residuals:
            self._pool.learn(self.problem, point, residual, failed=failed)


class _Pool:
    """A pool with what is known about each of its points."""

    def __init__(self, pool: Pool) -> None:
        size = len(pool)
        self._pool = pool
        self._rows = [np.flatnonzero(pool.recipe == i) for i in range(len(pool.space.recipes))]
        self._log = np.log(np.maximum(pool.estimate_us, 1e-12))
        self._alive: Any = np.ones(size, dtype=np.bool_)
        self._closeness = np.zeros(size)
        # Sums over the points told, each weighted by its closeness to the row.
        self._weight = np.zeros(size)
        self._failures = np.zeros(size)
        self._measured_weight = np.zeros(size)
        self._measured = np.zeros(size)
        self._residuals: list[float] = []

    def left(self) -> Pool:
        """The points not taken yet."""
        pool, rows = self._pool, np.flatnonzero(self._alive)
        return Pool(
            pool.space,
            pool.recipe[rows],
            pool.index[rows],
            pool.estimate_us[rows],
            pool.bound_us[rows],
        )

    def bound(self, row: int) -> float:
        return float(self._pool.bound_us[row])

    def take(self, row: int) -> Point:
        self._alive[row] = False
        return self._pool.point(row)

    def best(self, tolerance: float) -> int | None:
        """The row to propose next; ties go to the better estimate."""
        if not self._alive.any():
            return None
        score = self._log + tolerance * self._closeness + self._correction()
        score[~self._alive] = np.inf
        row = int(np.argmin(score))
        # An infinite estimate is the last resort, not the end.
        return row if self._alive[row] else int(np.flatnonzero(self._alive)[0])

    def _correction(self) -> Times:
        overall = float(np.median(self._residuals)) if self._residuals else 0.0
        total = self._measured - overall * self._measured_weight + self._failures
        return total / (self._weight + PRIOR)

    def crowd(self, problem: Problem, point: Point) -> None:
        """Note that a point was proposed."""
        rows, closeness = self._near(problem, point)
        self._closeness[rows] = np.maximum(self._closeness[rows], closeness)

    def learn(self, problem: Problem, point: Point, residual: float, *, failed: bool) -> None:
        """Note a measured log ratio, or a failure."""
        rows, closeness = self._near(problem, point)
        weight = closeness**2
        self._weight[rows] += weight
        if failed:
            self._failures[rows] += residual * weight
        else:
            self._measured_weight[rows] += weight
            self._measured[rows] += residual * weight
            self._residuals.append(residual)

    def _near(self, problem: Problem, point: Point) -> tuple[Ints, Times]:
        """(rows of the point's recipe, their closeness to it)."""
        names = [recipe.name for recipe in problem.space.recipes]
        if point.recipe_name not in names:
            return np.zeros(0, dtype=np.int64), np.zeros(0)
        position = names.index(point.recipe_name)
        recipe = problem.space.recipes[position]
        codes = recipe.codes_of(point.params)
        own = np.array([codes[p.name] for p in recipe.parameters] or [0])
        apart = np.abs(self._pool.codes[position] - own)
        kinds = [p.kind in (Kind.ORDINAL, Kind.DECIMAL) for p in recipe.parameters]
        ordinal = np.array(kinds or [False])
        distance = np.where(ordinal, np.minimum(apart / 2.0, 1.0), apart > 0).sum(axis=1)
        return self._rows[position], 1.0 / (1.0 + distance)
