"""A space whose legal points are a list, such as those that somebody measured."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.space.enumeration import Counts
from tfsearch.space.parameters import Kind, Parameter
from tfsearch.space.points import Point, Points, Sample
from tfsearch.space.recipe import RecipeSpace
from tfsearch.space.space import CHUNK, Space

ABSENT = "space.absent"
"""The code of a combination that is not in the list."""


class ListedSpace(Space):
    """One recipe, ``recorded``; its legal points are the rows, in their order.

    ``rows`` maps a point's index to its row.
    """

    rows: dict[int, int]
    listed: Points

    @staticmethod
    def of(names: Sequence[str], columns: Sequence[Sequence[Any]]) -> ListedSpace:
        """``columns[i][row]`` is the value of parameter ``names[i]`` in a row; rows are distinct.

        Numbers are ordered; texts and mixtures are categories. ``RequestError``
        (``space.duplicate-point``) for a combination that stands twice.
        """
        parameters: list[Parameter] = []
        codes: dict[str, Any] = {}
        for name, column in zip(names, columns, strict=True):
            parameter, codes[name] = _parameter(name, column)
            parameters.append(parameter)
        recipe = RecipeSpace("recorded", 1, tuple(parameters))
        recipe.require_index()
        count = len(columns[0]) if columns else 0
        indices: Any = np.zeros(count, np.int64)
        for name in names:
            indices += codes[name].astype(np.int64) * recipe.strides[name]
        rows = {int(index): row for row, index in enumerate(indices)}
        if len(rows) != count:
            raise RequestError(
                "space.duplicate-point", f"{count - len(rows)} combinations are listed twice"
            )
        space = ListedSpace((recipe,))
        object.__setattr__(space, "rows", rows)
        object.__setattr__(space, "listed", Points(recipe, indices, codes))
        return space

    def __getstate__(self) -> dict[str, Any]:
        """Everything; what is cached can be made again."""
        return {"recipes": self.recipes, "rows": self.rows, "listed": self.listed}

    def row(self, point: Point) -> int:
        """The row of a legal point; ``KeyError`` for another."""
        return self.rows[self.encode(point)]

    def count(self) -> Counts:
        """The list is legal, all else is not in it."""
        size = len(self.rows)
        rejected = {ABSENT: self.points - size} if self.points > size else {}
        return Counts(self.points, size, rejected)

    def count_within(self, seconds: float) -> Counts:
        """The same: the list is there."""
        del seconds
        return self.count()

    def charge_order(self, recipe_name: str) -> tuple[str, ...]:
        """See :meth:`Space.charge_order`."""
        self.recipe(recipe_name)
        return (ABSENT,)

    def chunks(self, limit: int = CHUNK) -> Iterator[Points]:
        """See :meth:`Space.chunks`."""
        for start in range(0, len(self.rows), limit):
            yield self.listed.select(np.arange(start, min(start + limit, len(self.rows))))

    def legal_set(self) -> list[Points]:
        """All rows."""
        return [self.listed]

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        """See :meth:`Space.sample`."""
        rows = rng.permutation(len(self.rows))[:n]
        batch = np.zeros(len(rows), np.int64)
        return Sample((self.listed.select(rows),), batch, np.arange(len(rows)))

    def check(self, point: Point) -> tuple[Refusal, ...]:
        """See :meth:`Space.check`; what is not in the list is refused as ``space.absent``."""
        refusals = super().check(point)
        if not refusals and self.encode(point) not in self.rows:
            message = "this combination is not in the list"
            refusals = (Refusal("space.absent", "recipe", message),)
        return refusals

    def neighbours(self, point: Point) -> list[Point]:
        """See :meth:`Space.neighbours`."""
        return [near for near in super().neighbours(point) if self.encode(near) in self.rows]

    def only(self, recipe_name: str) -> Space:
        """See :meth:`Space.only`."""
        self.recipe(recipe_name)
        return self

    def fix(self, values: Any) -> Space:
        """The rows that have these values; see :meth:`Space.fix`."""
        super().fix(values)
        recipe = self.recipes[0]
        keep = np.ones(len(self.rows), np.bool_)
        for name, value in values.items():
            keep &= self.listed.codes[name] == recipe.by_name[name].encode(value)
        left = np.flatnonzero(keep)
        if not len(left):
            raise RequestError(
                "space.value-outside-domain", "no point of the list has these values together"
            )
        columns: list[list[Any]] = []
        for parameter in recipe.parameters:
            codes: Any = self.listed.codes[parameter.name][left]
            columns.append([parameter.seen[int(code)] for code in codes])
        return ListedSpace.of([p.name for p in recipe.parameters], columns)


def _parameter(name: str, column: Sequence[Any]) -> tuple[Parameter, Any]:
    """A parameter over the values of a column, and the position of each row's value."""
    kinds: set[type] = {type(value) for value in column}
    values: Sequence[ParamValue]
    keys: list[Any] = list(column)
    if kinds == {bool}:
        values, kind = [v for v in (False, True) if v in column], Kind.BOOLEAN
    elif kinds == {int}:
        values, kind = sorted(set(column)), Kind.ORDINAL
    elif kinds <= {int, float}:
        keys = [repr(float(value)) for value in column]
        values, kind = sorted(set(keys), key=float), Kind.DECIMAL
    else:
        keys = [value if isinstance(value, str) else json.dumps(value) for value in column]
        values, kind = list(dict.fromkeys(keys)), Kind.CATEGORICAL
    place = {value: code for code, value in enumerate(values)}
    codes = np.array([place[key] for key in keys], np.uint16 if len(values) < 1 << 16 else np.int64)
    return Parameter(name, tuple(values), kind), codes
