"""The space of a workload on a target: recipes, and every way to walk their legal points."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.core import keys
from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.space.enumeration import Counts, Enumeration, merge
from tfsearch.space.grammar import INT_MAX, shorten
from tfsearch.space.join import Block
from tfsearch.space.points import Point, Points, Sample
from tfsearch.space.recipe import RecipeSpace

CHUNK = 1 << 18
LEGAL_SET_LIMIT = 4_000_000
"""Points that :meth:`Space.legal_set` will hold: about 100 MB for a dozen parameters."""


@dataclass(frozen=True, eq=False)
class Space:
    """A list of recipes with distinct names (none is allowed: nothing matched).

    Legal points come in a fixed order that depends on the space alone.
    """

    recipes: tuple[RecipeSpace, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "recipes", tuple(self.recipes))
        names = [recipe.name for recipe in self.recipes]
        for name in names:
            if names.count(name) > 1:
                raise RequestError("space.duplicate-name", f"recipe {name!r} is listed twice")

    def __getstate__(self) -> dict[str, Any]:
        """Without cached results."""
        return {"recipes": self.recipes}

    @cached_property
    def _enumerations(self) -> dict[str, Enumeration]:
        return {recipe.name: Enumeration(recipe) for recipe in self.recipes}

    def recipe(self, name: str) -> RecipeSpace:
        """The recipe of that name; ``RequestError("space.unknown-recipe")``."""
        for recipe in self.recipes:
            if recipe.name == name:
                return recipe
        raise RequestError("space.unknown-recipe", self._unknown(name))

    def _unknown(self, name: str) -> str:
        known = ", ".join(recipe.name for recipe in self.recipes) or "none"
        return f"unknown recipe {shorten(name)!r}; this space has: {known}"

    @cached_property
    def points(self) -> int:
        """Size of the Cartesian products of all recipes."""
        return sum(recipe.points for recipe in self.recipes)

    def count(self) -> Counts:
        """Exact counts over all recipes; rejections by constraint code (see :class:`Counts`)."""
        return merge(enumeration.counts for enumeration in self._enumerations.values())

    def count_within(self, seconds: float) -> Counts:
        """As :meth:`count`, with estimates for what is not counted in that time.

        What was counted is kept; what was estimated is not taken for a count by anything else.
        """
        deadline = time.monotonic() + seconds
        return merge(one.counted(deadline) for one in self._enumerations.values())

    def charge_order(self, recipe_name: str) -> tuple[str, ...]:
        """Constraint codes in the order in which they are charged (one entry per conjunct)."""
        recipe = self.recipe(recipe_name)
        order = self._enumerations[recipe_name].plan.order
        return tuple(recipe.constraints[check.constraint].code for check in order)

    def chunks(self, limit: int = CHUNK) -> Iterator[Points]:
        """All legal points in batches of at most ``limit``, recipe by recipe.

        Memory is bounded by ``limit`` and the domains, whatever the size of the space. Raises
        ``space.too-large`` for a recipe of more than 2**63-1 points.
        """
        if limit < 1:
            raise RequestError("space.limit", f"a chunk holds at least one point, not {limit}")
        for recipe in self.recipes:
            for block in self._enumerations[recipe.name].blocks(limit):
                yield _points(recipe, block)

    def legal_set(self) -> list[Points]:
        """All legal points, one batch per recipe that has any; computed once and kept.

        Raises ``RequestError("space.too-many-legal")`` above ``LEGAL_SET_LIMIT`` points.
        """
        return list(self._legal_set)

    @cached_property
    def _legal_set(self) -> tuple[Points, ...]:
        legal = self.count().legal
        if legal > LEGAL_SET_LIMIT:
            raise RequestError(
                "space.too-many-legal",
                f"{legal} legal points exceed the {LEGAL_SET_LIMIT} that are held at once; "
                "fix some parameters, or walk the space in chunks",
            )
        out: list[Points] = []
        for recipe in self.recipes:
            blocks = self._enumerations[recipe.name].blocks(LEGAL_SET_LIMIT)
            out.extend(_points(recipe, block.freeze()) for block in blocks)
        return tuple(out)

    def sample(self, n: int, rng: np.random.Generator) -> Sample:
        """``min(n, legal)`` distinct points, uniform over all legal ones, in random order.

        Exact: ranks are drawn without replacement and looked up, whatever the share of legal
        points.
        """
        if n < 0:
            raise RequestError("space.limit", f"a sample holds at least 0 points, not {n}")
        for recipe in self.recipes:
            recipe.require_index()
        sizes = [enumeration.counts.legal for enumeration in self._enumerations.values()]
        total = sum(sizes)
        if total > INT_MAX:
            raise RequestError("space.too-large", f"{total} legal points are too many to sample")
        ranks = draw(total, min(n, total), rng)
        ends: Any = np.cumsum([0, *sizes], dtype=np.int64)
        owner: Any = np.searchsorted(ends[1:], np.asarray(ranks), side="right")
        batches: list[Points] = []
        batch: Any = np.zeros(len(ranks), np.int64)
        row: Any = np.zeros(len(ranks), np.int64)
        for position, recipe in enumerate(self.recipes):
            mine: Any = np.flatnonzero(owner == position)
            if not len(mine):
                continue
            batch[mine] = len(batches)
            row[mine] = np.arange(len(mine))
            block = self._enumerations[recipe.name].at(ranks[mine] - ends[position])
            batches.append(_points(recipe, block))
        return Sample(tuple(batches), batch, row)

    def decode(self, recipe_name: str, index: int) -> Point:
        """The point with this index; ``space.unknown-recipe`` or ``space.index``."""
        return Point(recipe_name, self.recipe(recipe_name).decode(index))

    def encode(self, point: Point) -> int:
        """Index of a point in its recipe, as a Python integer of any size.

        Raises ``RequestError``: ``space.unknown-recipe``, ``space.unknown-parameter``,
        ``space.missing-parameter``, ``space.value-outside-domain``.
        """
        return self.recipe(point.recipe_name).encode(point.params)

    def check(self, point: Point) -> tuple[Refusal, ...]:
        """Everything that makes a point illegal; empty if it is legal. Never raises."""
        for recipe in self.recipes:
            if recipe.name == point.recipe_name:
                return recipe.check(point.params)
        message = self._unknown(point.recipe_name)
        return (Refusal("space.unknown-recipe", "recipe", message),)

    def neighbours(self, point: Point) -> list[Point]:
        """Legal points one move of one parameter away, in declared order.

        The point's values must be in their domains; it need not be legal itself.
        """
        recipe = self.recipe(point.recipe_name)
        codes = recipe.codes_of(point.params)
        moves = [
            (parameter.name, code)
            for parameter in recipe.parameters
            for code in parameter.neighbours(codes[parameter.name])
        ]
        if not moves:
            return []
        columns = {name: np.full(len(moves), code) for name, code in codes.items()}
        for row, (name, code) in enumerate(moves):
            columns[name][row] = code
        legal: Any = np.flatnonzero(recipe.mask(columns))
        out: list[Point] = []
        for row in legal:
            name, code = moves[int(row)]
            params = {p.name: p.values[codes[p.name]] for p in recipe.parameters}
            params[name] = recipe.by_name[name].values[code]
            out.append(Point(recipe.name, params))
        return out

    def fix(self, values: Mapping[str, ParamValue]) -> Space:
        """The part of the space where these parameters have these values.

        Recipes without such a parameter stay; recipes whose domain lacks the value go, unless
        no recipe would be left with the parameter: then ``space.value-outside-domain``. A name
        that no recipe has is ``space.unknown-parameter``. Indices count within the new domains.
        """
        kept = list(self.recipes)
        for name, value in values.items():
            holders = [recipe for recipe in self.recipes if name in recipe.by_name]
            if not holders:
                known = ", ".join(dict.fromkeys(n for r in self.recipes for n in r.by_name))
                raise RequestError(
                    "space.unknown-parameter",
                    f"no recipe has a parameter {shorten(name)!r}; known: {known or 'none'}",
                )
            if not any(value in recipe.by_name[name] for recipe in holders):
                raise RequestError(
                    "space.value-outside-domain", holders[0].by_name[name].outside(value)
                )
            kept = [r for r in kept if name not in r.by_name or value in r.by_name[name]]
        return Space(tuple(recipe.fix(values) for recipe in kept))

    def only(self, recipe_name: str) -> Space:
        """The part of the space that belongs to one recipe."""
        return Space((self.recipe(recipe_name),))

    @cached_property
    def fingerprint(self) -> str:
        """Digest over the recipes' names, versions, domains, expressions and constants."""
        return keys.digest("space", {"recipes": [recipe.fingerprint for recipe in self.recipes]})


def draw(total: int, n: int, rng: np.random.Generator) -> Any:
    """``n`` distinct integers below ``total``, uniform and in random order (int64)."""
    if n == 0:
        return np.zeros(0, np.int64)
    if total <= 4 * n:
        return rng.permutation(total)[:n].astype(np.int64)
    drawn: Any = rng.integers(total, size=n, dtype=np.int64)
    while True:
        # The first n distinct values of an independent sequence are a sample without replacement.
        first: Any = np.unique(drawn, return_index=True)[1]
        if len(first) >= n:
            return drawn[np.sort(first)[:n]]
        more = rng.integers(total, size=n, dtype=np.int64)
        drawn = np.concatenate([drawn, more])


def _points(recipe: RecipeSpace, block: Block) -> Points:
    codes = {parameter.name: block.codes[parameter.name] for parameter in recipe.parameters}
    return Points(recipe, block.index, codes)
