"""The random and the exhaustive policy."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from tfsearch.search.base import Base
from tfsearch.search.problem import Problem
from tfsearch.search.scan import predict_points
from tfsearch.space import Point

FIRST_DRAW = 256
GROWTH = 4


class UniformPoints:
    """Legal points in uniformly random order, without repetition, each with its bound.

    Drawn in batches that grow, so that a few points of a huge space cost little; the last batch
    is a permutation of the whole legal set.
    """

    def __init__(self, problem: Problem, seed: Sequence[int]) -> None:
        self._problem = problem
        self._generator = np.random.default_rng(list(seed))
        self._drawn: set[Point] = set()

    def __iter__(self) -> Iterator[tuple[Point, float]]:
        size = FIRST_DRAW
        while True:
            sample = self._problem.space.sample(size, self._generator)
            fresh = [point for point in sample if point not in self._drawn]
            _, bounds = predict_points(self._problem, fresh)
            for point, bound in zip(fresh, bounds, strict=True):
                self._drawn.add(point)
                yield point, float(bound)
            if len(sample) < size:
                return
            size *= GROWTH


class Random(Base):
    """Uniform over the legal points; those that cannot beat the best are passed over."""

    name = "random"

    def __init__(self, problem: Problem, *, seed: int, incumbent_us: float | None) -> None:
        super().__init__(problem, incumbent_us)
        self._order = iter(UniformPoints(problem, (seed,)))

    def _next(self) -> Point | None:
        for point, bound in self._order:
            if not self._hopeless(bound):
                return point
        return None


class Exhaustive(Base):
    """Every legal point in the space's order; bounds remove points only under ``prune=true``."""

    name = "exhaustive"

    def __init__(self, problem: Problem, *, prune: bool, incumbent_us: float | None) -> None:
        super().__init__(problem, incumbent_us)
        self._prune = prune
        self._order = self._walk()

    def _walk(self) -> Iterator[tuple[Point, float]]:
        for points in self.problem.space.chunks():
            bounds = self.problem.predict(points).bound_us if self._prune else None
            for row in range(len(points)):
                yield points.point(row), 0.0 if bounds is None else float(bounds[row])

    def _next(self) -> Point | None:
        for point, bound in self._order:
            if not self._hopeless(bound) or not self._prune:
                return point
        return None
