"""The local policy: hill climbing over neighbours, with restarts.

From a uniform start the neighbours (one move of one parameter) are tried in random order; the first
faster one is the next place. Where no neighbour is faster the climb is over, and the next start
is, by turns, a uniform point and one a few moves away from the best so far.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tfsearch.search.base import Base, time_of
from tfsearch.search.problem import Problem, Result
from tfsearch.search.uniform import UniformPoints
from tfsearch.space import Point

KICK = 3
"""Moves of a start near the best."""


class Local(Base):
    """See the module. ``hints`` are the first starts."""

    name = "local"

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int,
        incumbent_us: float | None,
        hints: Sequence[Point] = (),
    ) -> None:
        super().__init__(problem, incumbent_us)
        self._seed = seed
        self._hints = [point for point in hints if not problem.space.check(point)]
        self._uniform = iter(UniformPoints(problem, (seed, 8)))
        self._place: tuple[Point, float] | None = None
        self._best: tuple[Point, float] | None = None
        self._moves: list[Point] = []
        self._climbs = 0

    def tell(self, results: Sequence[Result]) -> None:
        """Move on to what is faster; one result after the other."""
        for result in results:
            super().tell([result])
            time_us = time_of(result)
            if time_us is not None and not self.problem.space.check(result.point):
                if self._best is None or time_us < self._best[1]:
                    self._best = result.point, time_us
                if self._place is None or time_us < self._place[1]:
                    self._place = result.point, time_us
                    self._moves = self._around(result.point)
            self._settle()

    def _settle(self) -> None:
        """End the climb where every neighbour was tried."""
        self._moves = [point for point in self._moves if point not in self._seen]
        if self._place is not None and not self._moves:
            self._place = None
            self._climbs += 1

    def _around(self, point: Point) -> list[Point]:
        near = self.problem.space.neighbours(point)
        order = np.random.default_rng([self._seed, 9, len(self._seen)]).permutation(len(near))
        return [near[i] for i in order]

    def _next(self) -> Point | None:
        if self._moves:
            return self._moves.pop(0)
        if self._hints:
            return self._hints.pop(0)
        if self._place is None and self._climbs % 2 and self._best is not None:
            point = self._kicked(self._best[0])
            if point is not None:
                return point
        return next((p for p, bound in self._uniform if not self._hopeless(bound)), None)

    def _kicked(self, point: Point) -> Point | None:
        """A point not seen a few moves away; None when none was found."""
        rng = np.random.default_rng([self._seed, 10, len(self._seen)])
        for _ in range(8):
            found = point
            for _ in range(KICK):
                near = self.problem.space.neighbours(found)
                if not near:
                    break
                found = near[int(rng.integers(len(near)))]
            if found not in self._seen:
                return found
        return None
