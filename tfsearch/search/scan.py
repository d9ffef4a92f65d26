"""One pass over all legal points: the best by estimate, what bounds remove, the lowest bound."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.search.problem import Correcting, Problem, Times, correcting
from tfsearch.space import Point, Points, Space

Ints = np.ndarray[Any, np.dtype[np.int64]]
POOL = 2048

Identity = tuple[str, int]
"""A point as (recipe, index)."""

REACH = 100_000
"""How many of the best by estimate a correction may bring to the front."""
CHUNK = 1 << 14
"""Points predicted at once: their columns stay in the second-level cache."""


@dataclass(frozen=True, eq=False)
class Pool:
    """Points, after a scan sorted by estimate, ties by recipe and index.

    Columns of equal length: ``recipe`` is a position in ``space.recipes``, ``index`` the point's
    index in it, times in microseconds.
    """

    space: Space
    recipe: Ints
    index: Ints
    estimate_us: Times
    bound_us: Times

    def __len__(self) -> int:
        return len(self.index)

    def point(self, row: int) -> Point:
        """One row as a record."""
        recipe = self.space.recipes[int(self.recipe[row])]
        return self.space.decode(recipe.name, int(self.index[row]))

    def first(self, count: int) -> Pool:
        """The first rows."""
        return Pool(
            self.space,
            self.recipe[:count],
            self.index[:count],
            self.estimate_us[:count],
            self.bound_us[:count],
        )

    def merged(self, other: Pool) -> Pool:
        """The points of both pools of one space, each once."""
        recipe = np.concatenate([self.recipe, other.recipe])
        index = np.concatenate([self.index, other.index])
        estimate = np.concatenate([self.estimate_us, other.estimate_us])
        bound = np.concatenate([self.bound_us, other.bound_us])
        order = np.lexsort((index, recipe, estimate))
        twice = np.zeros(len(order), dtype=np.bool_)
        twice[1:] = (np.diff(index[order]) == 0) & (np.diff(recipe[order]) == 0)
        order = order[~twice]
        return Pool(self.space, recipe[order], index[order], estimate[order], bound[order])

    @cached_property
    def codes(self) -> list[Ints]:
        """For every recipe of the space, [rows of that recipe, parameters] value positions."""
        out: list[Ints] = []
        for position, recipe in enumerate(self.space.recipes):
            index = self.index[self.recipe == position]
            columns = [index // recipe.strides[p.name] % len(p) for p in recipe.parameters] or [
                np.zeros_like(index)
            ]
            out.append(np.stack(columns, axis=1))
        return out


@dataclass(frozen=True)
class Scan:
    """What a pass found. ``floor_us`` is the lowest bound of a legal point (0: unknown).

    ``pruned`` counts legal points that were removed because their bound is not below
    ``incumbent_us``; it is 0 without an incumbent.
    """

    pool: Pool
    legal: int
    pruned: int
    floor_us: float
    incumbent_us: float | None


def scan(
    problem: Problem,
    *,
    keep: int = POOL,
    incumbent_us: float | None = None,
    exclude: Mapping[str, Sequence[int]] | None = None,
) -> Scan:
    """Walk the legal points in chunks and hold the ``keep`` best by estimate.

    Where a problem corrects its estimates, the ``REACH`` best are corrected, and the best of these
    are held. ``exclude`` maps recipe names to indices that are left out of the pool. Memory is
    bounded by ``keep``, ``REACH`` and the chunk.
    """
    better = correcting(problem)
    top = _Top(problem.space, keep if better is None else max(keep, REACH))
    legal = pruned = 0
    floor = np.inf
    positions = {recipe.name: i for i, recipe in enumerate(problem.space.recipes)}
    left_out = {
        name: np.unique(np.asarray(indices, dtype=np.int64))
        for name, indices in (exclude or {}).items()
        if len(indices)
    }
    for points in problem.space.chunks(CHUNK):
        predicted = problem.predict(points)
        estimate, bound = predicted.estimate_us, predicted.bound_us
        legal += len(points)
        floor = min(floor, float(bound.min(initial=np.inf)))
        alive = None
        if incumbent_us is not None:
            alive = bound < incumbent_us
            pruned += len(points) - int(np.count_nonzero(alive))
        skip = left_out.get(points.recipe.name)
        if skip is not None:
            fresh = np.isin(points.index, skip, invert=True)
            alive = fresh if alive is None else alive & fresh
        top.add(positions[points.recipe.name], points, estimate, bound, alive)
    pool = top.pool()
    if better is not None:
        pool = _corrected(better, pool).first(keep)
    return Scan(pool, legal, pruned, 0.0 if np.isinf(floor) else floor, incumbent_us)


def _corrected(problem: Correcting, pool: Pool) -> Pool:
    """The pool with corrected estimates, sorted by them."""
    estimate = pool.estimate_us.copy()
    for position, recipe in enumerate(pool.space.recipes):
        rows = np.flatnonzero(pool.recipe == position)
        if not len(rows):
            continue
        codes = {p.name: pool.codes[position][:, i] for i, p in enumerate(recipe.parameters)}
        points = Points(recipe, pool.index[rows], codes)
        estimate[rows] = problem.correct(points, estimate[rows])
    order = np.lexsort((pool.index, pool.recipe, estimate))
    return Pool(
        pool.space, pool.recipe[order], pool.index[order], estimate[order], pool.bound_us[order]
    )


class _Top:
    """The best by estimate so far; trimmed whenever four times too many are held."""

    def __init__(self, space: Space, keep: int) -> None:
        self._space = space
        self._keep = keep
        self._held: list[tuple[Ints, Ints, Times, Times]] = []
        self._count = 0
        self._limit = np.inf

    def add(
        self, recipe: int, points: Points, estimate: Times, bound: Times, alive: Any | None
    ) -> None:
        # Not-a-number ranks last instead of poisoning the comparison.
        estimate = np.where(np.isnan(estimate), np.inf, estimate)
        good = estimate <= self._limit
        if alive is not None:
            good &= alive
        rows = np.flatnonzero(good)
        if len(rows) > self._keep:
            best = np.argpartition(estimate[rows], self._keep - 1)[: self._keep]
            worst = estimate[rows[best]].max()
            rows = self._first(rows[estimate[rows] <= worst], estimate, points.index)
        if len(rows):
            owner = np.full(len(rows), recipe, dtype=np.int64)
            index = np.asarray(points.index[rows], dtype=np.int64)
            self._held.append((owner, index, estimate[rows], bound[rows]))
            self._count += len(rows)
        if self._count > 4 * self._keep:
            self._trim()

    def _first(self, rows: Ints, estimate: Times, index: Any) -> Ints:
        """The best ``keep`` of these rows, ties by index, so that chunks do not decide."""
        order = np.lexsort((index[rows], estimate[rows]))
        return rows[order[: self._keep]]

    def _trim(self) -> tuple[Ints, Ints, Times, Times]:
        owner = np.concatenate([part[0] for part in self._held])
        index = np.concatenate([part[1] for part in self._held])
        estimate = np.concatenate([part[2] for part in self._held])
        bound = np.concatenate([part[3] for part in self._held])
        order = np.lexsort((index, owner, estimate))[: self._keep]
        best = owner[order], index[order], estimate[order], bound[order]
        self._held = [best]
        self._count = len(order)
        if self._count == self._keep:
            self._limit = float(best[2][-1])
        return best

    def pool(self) -> Pool:
        if not self._held:
            empty = np.zeros(0, dtype=np.int64)
            return Pool(self._space, empty, empty, np.zeros(0), np.zeros(0))
        return Pool(self._space, *self._trim())


def points_of(space: Space, points: Sequence[Point]) -> list[tuple[Ints, Points]]:
    """Records as batches by recipe: (positions in ``points``, columns), for predictions."""
    groups: dict[str, list[int]] = {}
    for position, point in enumerate(points):
        groups.setdefault(point.recipe_name, []).append(position)
    out: list[tuple[Ints, Points]] = []
    for name, positions in groups.items():
        recipe = space.recipe(name)
        rows = [recipe.codes_of(points[position].params) for position in positions]
        codes = {p.name: np.array([row[p.name] for row in rows]) for p in recipe.parameters}
        index = np.array([recipe.encode(points[position].params) for position in positions])
        out.append((np.array(positions), Points(recipe, index, codes)))
    return out


def pool_of(problem: Problem, points: Sequence[Point]) -> Pool:
    """A pool of these points, unsorted."""
    names = [recipe.name for recipe in problem.space.recipes]
    estimate, bound = predict_points(problem, points, corrected=True)
    return Pool(
        problem.space,
        np.array([names.index(point.recipe_name) for point in points], dtype=np.int64),
        np.array([problem.space.encode(point) for point in points], dtype=np.int64),
        np.where(np.isnan(estimate), np.inf, estimate),
        bound,
    )


def predict_points(
    problem: Problem, points: Sequence[Point], *, corrected: bool = False
) -> tuple[Times, Times]:
    """(estimates, bounds) of records, microseconds, in their order.

    ``corrected``: with what the problem knows better than its estimates.
    """
    better = correcting(problem) if corrected else None
    estimate = np.zeros(len(points))
    bound = np.zeros(len(points))
    for positions, batch in points_of(problem.space, points):
        predicted = problem.predict(batch)
        found = np.asarray(predicted.estimate_us, np.float64)
        if better is not None:
            found = better.correct(batch, found)
        estimate[positions] = found
        bound[positions] = predicted.bound_us
    return estimate, bound
