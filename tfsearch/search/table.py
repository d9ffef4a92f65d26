"""The legal points of a space as rows of a table, with features for distances and regressions.

Policies that learn from distances need all candidates at once as arrays. A space of at most
``HELD`` legal points is held whole; of a larger one a uniform sample is held, and points
are added as a policy comes near them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tfsearch.search.features import Encoder
from tfsearch.search.problem import Problem, Times, correcting
from tfsearch.search.scan import Ints, points_of
from tfsearch.space import Point, Points

HELD = 131_072
SAMPLED = 32_768
NEAR = 2
"""Differing parameters up to which :meth:`Table.near` calls two points of a recipe near."""


class Table:
    """Rows are numbered from 0; a row keeps its number for ever.

    ``features`` [rows, dimensions] float64 in 0 … 1, dimension d belonging to group
    ``groups[d]``; ``estimate`` [rows] the log of the model's estimate, standardised over the first
    rows, or None where the model says nothing; ``bound_us`` [rows] sound lower bounds.
    """

    def __init__(self, problem: Problem, seed: int) -> None:
        self._problem = problem
        space = problem.space
        legal = space.count().legal
        self.complete = legal <= HELD
        batches = (
            space.legal_set()
            if self.complete
            else list(space.sample(SAMPLED, np.random.default_rng([seed, 77])).batches)
        )
        self._encoder = Encoder(space)
        self.groups: Ints = self._encoder.groups
        self._positions = {recipe.name: i for i, recipe in enumerate(space.recipes)}
        self._batches: list[Points] = []
        self._codes: list[list[Any]] = []
        self._starts: list[int] = [0]
        self._known: list[tuple[int, Any, Any]] = []
        self._added: dict[tuple[int, int], int] = {}
        self._bounded = False
        self._scale: tuple[float, float] | None = None
        self.features: Times = np.zeros((0, len(self.groups)))
        self.bound_us: Times = np.zeros(0)
        self.estimate: Times | None = np.zeros(0)
        self._extend(batches)

    def __len__(self) -> int:
        return self._starts[-1]

    def point(self, row: int) -> Point:
        """A row as a record."""
        batch = int(np.searchsorted(self._starts, row, side="right")) - 1
        return self._batches[batch].point(row - self._starts[batch])

    def row(self, point: Point) -> int | None:
        """The row of a legal point; None if the point is not legal.

        A legal point that is not held yet is added.
        """
        position = self._positions.get(point.recipe_name)
        if position is None or self._problem.space.check(point):
            return None
        found = self._find(position, self._problem.space.encode(point))
        return found if found is not None else self.add([point])[0]

    def add(self, points: Sequence[Point]) -> list[int]:
        """The rows of legal points; those not held yet are added."""
        keys = [(self._positions[p.recipe_name], self._problem.space.encode(p)) for p in points]
        fresh: dict[tuple[int, int], Point] = {}
        for key, point in zip(keys, points, strict=True):
            if self._find(*key) is None:
                fresh.setdefault(key, point)
        if fresh:
            self._extend([batch for _, batch in points_of(self._problem.space, [*fresh.values()])])
        rows = [self._find(*key) for key in keys]
        return [row for row in rows if row is not None]

    def near(self, row: int) -> Ints:
        """Rows of the same recipe that differ in at most ``NEAR`` parameters, itself included."""
        batch = int(np.searchsorted(self._starts, row, side="right")) - 1
        own = [column[row - self._starts[batch]] for column in self._codes[batch]]
        recipe = self._batches[batch].recipe.name
        found: list[Ints] = []
        for columns, start, points in zip(self._codes, self._starts, self._batches, strict=False):
            if points.recipe.name != recipe:
                continue
            differing = np.zeros(len(points), np.uint8)
            for column, value in zip(columns, own, strict=True):
                differing += column != value
            found.append(np.flatnonzero(differing <= NEAR) + start)
        return np.concatenate(found)

    def nearest(self, point: Point, rows: Ints) -> Point:
        """The one of these rows that is most like a point, which need not be legal."""
        (_, points), *_ = points_of(self._problem.space, [point])
        apart = self.features[rows] - self._encoder.features(points)
        return self.point(int(rows[np.argmin((apart**2).sum(axis=1))]))

    def _find(self, position: int, index: int) -> int | None:
        for recipe, indices, rows in self._known:
            if recipe == position:
                place = int(np.searchsorted(indices, index))
                if place < len(indices) and indices[place] == index:
                    return int(rows[place])
        return self._added.get((position, index))

    def _extend(self, batches: Sequence[Points]) -> None:
        features: list[Times] = [self.features]
        bounds: list[Times] = [self.bound_us]
        estimates: list[Times] = []
        better = correcting(self._problem)
        for points in batches:
            start, position = self._starts[-1], self._positions[points.recipe.name]
            predicted = self._problem.predict(points)
            estimate = np.asarray(predicted.estimate_us, np.float64)
            if better is not None:
                estimate = better.correct(points, estimate)
            estimates.append(estimate)
            bounds.append(np.asarray(predicted.bound_us, np.float64))
            features.append(self._encoder.features(points))
            self._batches.append(points)
            self._codes.append(_codes(points))
            self._starts.append(start + len(points))
            if len(points) > 1024:
                order = np.argsort(points.index, kind="stable")
                self._known.append((position, points.index[order], order + start))
            else:
                for row, index in enumerate(points.index.tolist()):
                    self._added[position, index] = start + row
        self.features = np.concatenate(features)
        self.bound_us = np.concatenate(bounds)
        self._bounded = bool(self.bound_us.any())
        if self.estimate is not None:
            self.estimate = self._estimates(estimates)

    def _estimates(self, fresh: list[Times]) -> Times | None:
        """All standardised log estimates; None when they are missing or rank nothing."""
        assert self.estimate is not None
        raw = np.concatenate([*fresh, np.zeros(0)])
        good = np.isfinite(raw) & (raw > 0)
        log = np.full(len(raw), np.nan)
        log[good] = np.log(raw[good])
        if self._scale is None:
            if good.sum() < max(2, len(raw) // 2) or float(np.ptp(log[good])) < 1e-9:
                return None
            self._scale = float(np.mean(log[good])), float(np.std(log[good]))
        mean, deviation = self._scale
        scaled = np.clip((log - mean) / deviation, -4.0, 4.0)
        return np.concatenate([self.estimate, np.where(good, scaled, 4.0)])

    @property
    def bounded(self) -> bool:
        """Whether any row has a lower bound."""
        return self._bounded

    @property
    def estimate_unit(self) -> float:
        """How much of log time one unit of ``estimate`` is."""
        return 1.0 if self._scale is None else self._scale[1]


def _codes(points: Points) -> list[Any]:
    """One column for every parameter with a choice, in memory one after the other."""
    return [
        np.ascontiguousarray(points.codes[p.name]) for p in points.recipe.parameters if len(p) > 1
    ]
