"""The evolutionary policy: crossover and mutation of the fastest points so far.

The first points are uniform. Then two parents of one recipe are the winners of tournaments among
the fastest; a child takes each value from one of them, and now and then another one of its domain
or the next one. Children that are illegal or known are drawn again; after a while a neighbour of
the first parent, and at last a uniform point, stands in.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfsearch.core.records import ParamValue
from tfsearch.search.base import Base, time_of
from tfsearch.search.problem import Problem, Result
from tfsearch.search.uniform import UniformPoints
from tfsearch.space import Parameter, Point

TRIES = 24
ROUNDS = 3
"""Contestants of a tournament."""
STEP = 0.5
"""Share of mutations that go to a neighbouring value instead of any other."""


@dataclass(frozen=True)
class EvolutionaryOptions:
    """``population``: how many of the fastest are parents; ``mutation``: expected number of
    parameters of a child that change by themselves."""

    population: int = 24
    mutation: float = 1.0


class Evolutionary(Base):
    """See the module. ``hints`` are among the first points."""

    name = "evolutionary"

    def __init__(
        self,
        problem: Problem,
        *,
        seed: int,
        incumbent_us: float | None,
        options: EvolutionaryOptions,
        hints: Sequence[Point] = (),
    ) -> None:
        super().__init__(problem, incumbent_us)
        self._seed = seed
        self._options = options
        self._hints = [point for point in hints if not problem.space.check(point)]
        self._uniform = iter(UniformPoints(problem, (seed, 11)))
        self._fastest: list[tuple[float, int, Point]] = []
        self._told = 0

    def tell(self, results: Sequence[Result]) -> None:
        """Keep the fastest."""
        super().tell(results)
        for result in results:
            self._told += 1
            time_us = time_of(result)
            if time_us is None or self.problem.space.check(result.point):
                continue
            bisect.insort(self._fastest, (time_us, self._told, result.point), key=lambda e: e[:2])
            del self._fastest[self._options.population :]

    def _next(self) -> Point | None:
        if self._hints:
            return self._hints.pop(0)
        if self._told >= self._options.population // 2 and len(self._fastest) >= 2:
            child = self._child(np.random.default_rng([self._seed, 12, len(self._seen)]))
            if child is not None:
                return child
        return next((p for p, bound in self._uniform if not self._hopeless(bound)), None)

    def _child(self, rng: np.random.Generator) -> Point | None:
        first = self._parent(rng, None)
        for _ in range(TRIES):
            second = self._parent(rng, first.recipe_name)
            child = self._crossed(first, second, rng)
            if child not in self._seen and not self.problem.space.check(child):
                return child
            first = self._parent(rng, None)
        near = [p for p in self.problem.space.neighbours(first) if p not in self._seen]
        return near[int(rng.integers(len(near)))] if near else None

    def _parent(self, rng: np.random.Generator, recipe: str | None) -> Point:
        pool = [entry for entry in self._fastest if recipe in (None, entry[2].recipe_name)]
        return pool[int(rng.integers(len(pool), size=ROUNDS).min())][2]

    def _crossed(self, first: Point, second: Point, rng: np.random.Generator) -> Point:
        recipe = self.problem.space.recipe(first.recipe_name)
        free = [p for p in recipe.parameters if len(p) > 1]
        rate = self._options.mutation / max(len(free), 1)
        params = dict(first.params)
        for parameter in free:
            if rng.random() < 0.5:
                params[parameter.name] = second.params[parameter.name]
            if rng.random() < rate:
                params[parameter.name] = _mutated(parameter, params[parameter.name], rng)
        return Point(first.recipe_name, params)


def _mutated(parameter: Parameter, value: ParamValue, rng: np.random.Generator) -> ParamValue:
    code = parameter.encode(value)
    near = parameter.neighbours(code)
    others = near if rng.random() < STEP else [c for c in range(len(parameter)) if c != code]
    return parameter.decode(int(others[int(rng.integers(len(others)))]))
