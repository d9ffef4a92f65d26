"""Points: one as a record, many as columns."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.core.records import ParamValue
from tfsearch.space.code import Env
from tfsearch.space.recipe import RecipeSpace


@dataclass(frozen=True)
class Point:
    """One assignment of every parameter of a recipe; ``params`` keeps the declared order."""

    recipe_name: str
    params: Mapping[str, ParamValue] = field(default_factory=dict[str, ParamValue])

    def __hash__(self) -> int:
        return hash((self.recipe_name, frozenset(self.params.items())))


@dataclass(frozen=True, eq=False)
class Points:
    """A batch of points of one recipe as columns of equal length.

    ``index`` (int64) is the mixed-radix index over the recipe's declared order; ``codes`` holds,
    for every parameter, the positions of values in its domain in the smallest unsigned type.
    Columns may be read-only and shared.
    """

    recipe: RecipeSpace
    index: Any
    codes: Mapping[str, Any]

    def __len__(self) -> int:
        return len(self.index)

    def column(self, name: str) -> Any:
        """Values of a parameter, definition or constant, one per point.

        int64 for integers and booleans, float64 for decimals and floating-point definitions. For a
        string parameter the positions in its ``values``; string definitions and constants give
        string arrays (see :meth:`labels`). Where a definition is undefined (division by zero) it
        is 0.
        Raises ``RequestError("space.unknown-name")``.
        """
        return self.recipe.column_from(self.codes, self._env, len(self), name)

    @cached_property
    def _env(self) -> Env:
        """One environment, so that what several columns are made of is computed once."""
        return self.recipe.compiled.env(self.codes)

    def labels(self, name: str) -> Any:
        """A parameter's values as they are (an array of integers, booleans or strings)."""
        if name in self.recipe.by_name:
            return np.array(self.recipe.by_name[name].values).take(self.codes[name])
        return self.column(name)

    def select(self, rows: Any) -> Points:
        """The rows of a boolean mask, or at positions, in that order."""
        chosen = np.asarray(rows)
        if chosen.dtype == np.bool_:
            chosen = np.flatnonzero(chosen)
        chosen = chosen.astype(np.int64)
        codes = {name: column.take(chosen) for name, column in self.codes.items()}
        return Points(self.recipe, self.index.take(chosen), codes)

    def params(self, row: int) -> dict[str, ParamValue]:
        """Parameter values of one row."""
        return {
            name: parameter.values[int(self.codes[name][row])]
            for name, parameter in self.recipe.by_name.items()
        }

    def point(self, row: int) -> Point:
        """One row as a record."""
        return Point(self.recipe.name, self.params(row))


@dataclass(frozen=True, eq=False)
class Sample:
    """Points in the order in which they were drawn, over all recipes.

    ``batches`` holds them by recipe; draw i is row ``row[i]`` of batch ``batch[i]``.
    """

    batches: tuple[Points, ...]
    batch: Any
    row: Any

    def __len__(self) -> int:
        return len(self.row)

    def point(self, draw: int) -> Point:
        """One draw as a record."""
        return self.batches[int(self.batch[draw])].point(int(self.row[draw]))

    def __iter__(self) -> Iterator[Point]:
        return (self.point(draw) for draw in range(len(self)))
