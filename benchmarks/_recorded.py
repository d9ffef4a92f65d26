"""Recorded spaces (T4 results) as problems for policies."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core.records import Refusal, Status
from tfsearch.search import Result, make_policy
from tfsearch.search.score import Recorded
from tfsearch.space import Kind, Parameter, Point, Points, RecipeSpace, Space
from tfsearch.space.enumeration import Counts
from tfsearch.space.points import Sample


class ListedSpace(Space):
    """A space of one recipe whose legal points are those recorded, in recorded order."""

    indices: Any
    rows: dict[int, int]
    listed: Points

    @staticmethod
    def of(names: list[str], values: list[list[Any]]) -> ListedSpace:
        """``values[i][row]``: the value of parameter i in a row."""
        domains = [sorted(set(column)) for column in values]
        parameters = tuple(
            Parameter(name, tuple(domain), Kind.ORDINAL)
            for name, domain in zip(names, domains, strict=True)
        )
        recipe = RecipeSpace("recorded", 1, parameters)
        space = ListedSpace((recipe,))
        codes = {
            name: np.searchsorted(domain, column).astype(np.uint16)
            for name, domain, column in zip(names, domains, values, strict=True)
        }
        indices = sum(codes[name].astype(np.int64) * recipe.strides[name] for name in names)
        object.__setattr__(space, "indices", indices)
        object.__setattr__(space, "rows", {int(i): row for row, i in enumerate(indices)})
        object.__setattr__(space, "listed", Points(recipe, indices, codes))
        return space

    def count(self) -> Counts:
        return Counts(self.points, len(self.indices), {})

    def chunks(self, limit: int = 1 << 18) -> Iterator[Points]:
        for start in range(0, len(self.indices), limit):
            yield self.listed.select(np.arange(start, min(start + limit, len(self.indices))))

    def legal_set(self) -> list[Points]:
        return [self.listed]

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        rows = rng.permutation(len(self.indices))[:n]
        batch = np.zeros(len(rows), np.int64)
        return Sample((self.listed.select(rows),), batch, np.arange(len(rows)))

    def check(self, point: Point) -> tuple[Refusal, ...]:
        refusals = super().check(point)
        if not refusals and self.encode(point) not in self.rows:
            refusals = (Refusal("recorded.absent", "recipe", "not recorded"),)
        return refusals

    def neighbours(self, point: Point) -> list[Point]:
        return [near for near in super().neighbours(point) if self.encode(near) in self.rows]


class _Unknown:
    """No model: nothing is estimated, and every bound is 0."""

    def __init__(self, count: int) -> None:
        self.estimate_us = np.full(count, np.nan)
        self.bound_us = np.zeros(count)


class RecordedProblem:
    """A recorded space for policies, with its times and costs."""

    def __init__(self, name: str, space: ListedSpace, times: Any, seconds: Any) -> None:
        self.name = name
        self.space = space
        self.recorded = Recorded(times, seconds)

    def predict(self, points: Points) -> _Unknown:
        return _Unknown(len(points))

    def run(self, policy: str, seed: int, seconds: float) -> list[int]:
        """Rows in the order in which a policy visits them in that much simulated time."""
        one = make_policy(policy, self, seed=seed)
        visited: list[int] = []
        spent = 0.0
        while spent <= seconds and (points := one.ask(1)):
            row = self.space.rows[self.space.encode(points[0])]
            time = float(self.recorded.times[row])
            status = Status.CRASH if np.isnan(time) else Status.OK
            one.tell([Result(points[0], status, None if np.isnan(time) else 1000.0 * time)])
            visited.append(row)
            spent += float(self.recorded.seconds[row])
        return visited


def load(path: Path) -> RecordedProblem:
    """A T4 file, perhaps compressed. Costs are the sum of all its times."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "rt", encoding="utf-8") as file:
        rows = json.load(file)["results"]
    names = list(rows[0]["configuration"])
    values = [[row["configuration"][name] for row in rows] for name in names]
    times = np.array(
        [
            float(row["measurements"][0]["value"]) if row["invalidity"] == "correct" else np.nan
            for row in rows
        ]
    )
    seconds = np.array([_cost(row["times"]) for row in rows]) / 1000.0
    name = f"{path.parent.name}/{path.name.split('_T4')[0]}"
    return RecordedProblem(name, ListedSpace.of(names, values), times, seconds)


def _cost(times: dict[str, Any]) -> float:
    return sum(sum(part) if isinstance(part, list) else part for part in times.values())
