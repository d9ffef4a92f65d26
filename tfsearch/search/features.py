"""Points as vectors of numbers for distances: one group of dimensions for each choice.

What a parameter's value is like, for any kernel: how large it is (halfway between its rank and its
logarithm, because domains are made of powers of two and of multiples alike), how often it can be
halved (alignment, vector widths and whole warps depend on it, not on size), or, for categories,
merely which one it is. Parameters of the same name share their dimensions over recipes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tfsearch.core.records import ParamValue
from tfsearch.search.problem import Times
from tfsearch.search.scan import Ints
from tfsearch.space import Kind, Parameter, Points, Space

ABSENT = 0.5
"""The place of a parameter that a recipe does not have."""
HALVINGS = 10
"""Beyond that many, being halved once more changes nothing."""


@dataclass(frozen=True)
class _Choice:
    """A parameter's dimensions: ``first`` … ``first + width``, and a vector for every value."""

    first: int
    width: int
    vectors: dict[tuple[type, ParamValue], Times]


class Encoder:
    """Features of the points of one space. ``groups[d]`` is the group of dimension d."""

    def __init__(self, space: Space) -> None:
        self._choices: dict[str, list[_Choice]] = {}
        groups: list[int] = []
        group = 0
        for name in dict.fromkeys(p.name for recipe in space.recipes for p in recipe.parameters):
            holders = [r.by_name[name] for r in space.recipes if name in r.by_name]
            for vectors in _vectors(holders):
                width = len(next(iter(vectors.values())))
                choice = _Choice(len(groups), width, vectors)
                self._choices.setdefault(name, []).append(choice)
                groups.extend([group] * width)
                group += 1
        self._recipes = [recipe.name for recipe in space.recipes]
        self._recipe_first = len(groups)
        if len(self._recipes) > 1:
            groups.extend([group] * len(self._recipes))
        self.groups: Ints = np.array(groups, dtype=np.int64)

    def features(self, points: Points) -> Times:
        """[rows, dimensions] in 0 … 1."""
        out = np.full((len(points), len(self.groups)), ABSENT)
        for parameter in points.recipe.parameters:
            for choice in self._choices.get(parameter.name, []):
                own = np.array([choice.vectors[type(v), v] for v in parameter.values])
                span = slice(choice.first, choice.first + choice.width)
                out[:, span] = own.take(points.codes[parameter.name], axis=0)
        if len(self._recipes) > 1:
            out[:, self._recipe_first :] = 0.0
            out[:, self._recipe_first + self._recipes.index(points.recipe.name)] = np.sqrt(0.5)
        return out


def _vectors(holders: Sequence[Parameter]) -> list[dict[tuple[type, ParamValue], Times]]:
    """One table of vectors for each group that a parameter has; none when it has one value."""
    values = list(dict.fromkeys((type(v), v) for p in holders for v in p.values))
    if len(values) < 2:
        return []
    kinds = {p.kind for p in holders}
    if len(values) == 2:
        return [dict(zip(values, np.array([[0.0], [1.0]]), strict=True))]
    if not kinds <= {Kind.ORDINAL, Kind.DECIMAL}:
        return [dict(zip(values, np.eye(len(values)) * np.sqrt(0.5), strict=True))]
    if any(isinstance(value, str) for _, value in values):
        # Declared order is all there is to go by.
        place = np.linspace(0.0, 1.0, len(values))[:, None]
        return [dict(zip(values, place, strict=True))]
    values.sort(key=lambda pair: pair[1])
    numbers = [int(value) for _, value in values]
    tables = [_sizes(numbers)]
    halvings = _halvings(numbers)
    if halvings is not None:
        tables.append(halvings)
    return [dict(zip(values, table[:, None], strict=True)) for table in tables]


def _sizes(numbers: Sequence[int]) -> Times:
    rank = np.linspace(0.0, 1.0, len(numbers))
    if numbers[0] <= 0:
        return rank
    log = np.log(np.array(numbers, np.float64))
    return (rank + (log - log[0]) / (log[-1] - log[0])) / 2


def _halvings(numbers: Sequence[int]) -> Times | None:
    """How often each can be halved, to 0 … 1; None when that follows from their order."""
    if any(number == 0 for number in numbers):
        return None
    counts = np.array([min((n & -n).bit_length() - 1, HALVINGS) for n in numbers], np.float64)
    steps = np.diff(counts)
    if not (np.any(steps > 0) and np.any(steps < 0)):
        return None
    return (counts - counts.min()) / np.ptp(counts)
