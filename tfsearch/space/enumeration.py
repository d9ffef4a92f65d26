"""Counts, blocks and ranks of one recipe's legal points."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tfsearch.space import join
from tfsearch.space.block import Overdue
from tfsearch.space.estimate import Estimate, estimate
from tfsearch.space.grammar import INT_MAX
from tfsearch.space.join import Block, Tally
from tfsearch.space.plan import Component, Plan, make_plan
from tfsearch.space.recipe import RecipeSpace

HOLD = 1 << 20
"""Legal rows of one component that are kept for later passes (about 20 bytes each)."""
ESTIMATE_S = 60.0
LEAST_ERROR = 1e-9


@dataclass(frozen=True)
class Counts:
    """``legal + sum(rejected.values()) == points``, exactly.

    A point is charged to the first constraint that it fails in the plan's order: constraints on
    constants alone, then component by component and, inside one, as soon as all parameters of
    a conjunct are bound, in declared order. The order depends on the recipe alone.

    ``error`` is not 0 where the time given was too short to count: then ``legal`` is an estimate
    with that relative standard error (infinite where no legal point was found), the rejected ones
    are estimates too, and the sum need not hold.
    """

    points: int
    legal: int
    rejected: dict[str, int]
    error: float = 0.0

    @property
    def exact(self) -> bool:
        """Whether the points were counted, and not estimated."""
        return self.error == 0.0


@dataclass(frozen=True)
class _Result:
    legal: int
    failed: dict[int, int]
    rows: Block | None


class Enumeration:
    """Works on one recipe; results of a first pass are kept (see ``HOLD``)."""

    def __init__(self, recipe: RecipeSpace) -> None:
        self.recipe = recipe
        self._results: dict[int, _Result] = {}
        # Where indices do not fit, points are only counted, and no index leaves this class.
        fits = recipe.points <= INT_MAX
        self._strides = {name: stride * fits for name, stride in recipe.strides.items()}

    @cached_property
    def plan(self) -> Plan:
        """Binding order; see :mod:`tfsearch.space.plan`."""
        sizes = {parameter.name: len(parameter) for parameter in self.recipe.parameters}
        return make_plan(self.recipe.compiled, sizes)

    @cached_property
    def counts(self) -> Counts:
        """Exact counts; one pass over each constrained component."""
        return self.counted(math.inf)

    def counted(self, deadline: float) -> Counts:
        """Counts; estimates for components that are not counted by ``deadline``.

        That is a time of ``time.monotonic``; an estimate takes up to ``ESTIMATE_S`` more.
        """
        recipe, plan = self.recipe, self.plan
        rejected = {constraint.code: 0 for constraint in recipe.constraints}
        broken = self._broken()
        if broken is not None:
            rejected[recipe.constraints[broken].code] += recipe.points
            return Counts(recipe.points, 0, _positive(rejected))
        legal, later, variance = 1, recipe.points, 0.0
        for position, component in enumerate(plan.components):
            later //= component.points
            result, error = self._found(position, deadline)
            variance += error * error
            for constraint, failures in result.failed.items():
                rejected[recipe.constraints[constraint].code] += legal * failures * later
            legal *= result.legal
        return Counts(recipe.points, legal, _positive(rejected), math.sqrt(variance))

    def _found(self, position: int, deadline: float) -> tuple[_Result | Estimate, float]:
        """A component's counts and their relative standard error."""
        try:
            return self._result(position, deadline), 0.0
        except Overdue:
            more = time.monotonic() + ESTIMATE_S
            found = estimate(self.plan.components[position], self.recipe.compiled, more)
            # What was not counted is not exact, whatever the runs agree on.
            return found, max(found.error, LEAST_ERROR)

    def _broken(self) -> int | None:
        """The first constraint on constants alone that does not hold."""
        with np.errstate(all="ignore"):
            for check in self.plan.static:
                if not np.all(check.test(self.recipe.compiled.env({}))):
                    return check.constraint
        return None

    def _result(self, position: int, deadline: float = math.inf) -> _Result:
        if position not in self._results:
            component = self.plan.components[position]
            if component.free and component.points > HOLD:
                self._results[position] = _Result(component.points, {}, None)
            else:
                for _ in self._pass(position, count_only=True, deadline=deadline):
                    pass
        return self._results[position]

    def _pass(self, position: int, count_only: bool, deadline: float = math.inf) -> Iterator[Block]:
        """One pass over a component that records its result at its end."""
        component = self.plan.components[position]
        tally = Tally(deadline=deadline)
        kept: list[Block] = []
        for block in join.stream(component, self.recipe.compiled, self._strides, tally):
            if tally.legal <= HOLD:
                kept.append(block)
            else:
                kept.clear()
                tally.keep = not count_only
            yield block
        rows = join.concatenate(kept).freeze() if kept and tally.legal <= HOLD else None
        self._results[position] = _Result(tally.legal, tally.failed, rows)

    def _component_blocks(self, position: int) -> Iterable[Block]:
        result = self._results.get(position)
        if result is None:
            return self._pass(position, count_only=False)
        if result.rows is not None:
            return [result.rows]
        if result.legal == 0:
            return []
        return self._pass(position, count_only=False)

    def blocks(self, limit: int) -> Iterator[Block]:
        """Legal rows in blocks of ``limit``; ``space.too-large`` if indices do not fit."""
        self.recipe.require_index()
        if self._broken() is not None:
            return
        later = range(1, len(self.plan.components))
        if any(self._result(position).legal == 0 for position in later):
            return
        rows: Iterable[Block] = self._component_blocks(0)
        for position in later:
            rows = self._crossed(rows, position, limit)
        yield from join.rechunk(rows, limit)

    def _crossed(self, rows: Iterable[Block], position: int, limit: int) -> Iterator[Block]:
        for block in rows:
            for other in self._component_blocks(position):
                yield from join.cross([block], [other], limit)

    def at(self, ranks: Any) -> Block:
        """Rows of the legal points with these ranks (0 … legal-1, int64), in their order."""
        self.recipe.require_index()
        rest = ranks
        parts: list[Block] = []
        for position in reversed(range(len(self.plan.components))):
            rest, own = np.divmod(rest, self._result(position).legal)
            parts.append(self._component_at(position, own))
        codes = {name: column for part in parts for name, column in part.codes.items()}
        return Block(codes, np.sum([part.index for part in parts], axis=0, dtype=np.int64))

    def _component_at(self, position: int, ranks: Any) -> Block:
        rows = self._result(position).rows
        if rows is not None:
            return rows.take(ranks)
        component = self.plan.components[position]
        if component.free:
            return self._free_at(component, ranks)
        wanted, back = np.unique(ranks, return_inverse=True)
        found: list[Block] = []
        passed = 0
        for block in self._component_blocks(position):
            lo, hi = np.searchsorted(wanted, [passed, passed + len(block)])
            if lo < hi:
                found.append(block.take(wanted[lo:hi] - passed))
            passed += len(block)
        return join.concatenate(found).take(back.ravel())

    def _free_at(self, component: Component, ranks: Any) -> Block:
        codes: dict[str, Any] = {}
        index: Any = np.zeros(len(ranks), np.int64)
        rest = ranks
        for level in reversed(component.levels):
            rest, own = np.divmod(rest, level.size)
            codes[level.name] = own.astype(join.code_type(level.size))
            index += own * self._strides[level.name]
        return Block(codes, index)


def _positive(rejected: dict[str, int]) -> dict[str, int]:
    return {code: count for code, count in rejected.items() if count}


def merge(counts: Iterable[Counts]) -> Counts:
    """The sum over recipes, by code."""
    items = list(counts)
    rejected: dict[str, int] = {}
    for item in items:
        for code, count in item.rejected.items():
            rejected[code] = rejected.get(code, 0) + count
    points, legal = sum(item.points for item in items), sum(item.legal for item in items)
    spread = math.sqrt(sum((item.error * item.legal) ** 2 for item in items if item.legal))
    if any(math.isinf(item.error) for item in items):
        return Counts(points, legal, rejected, math.inf)
    return Counts(points, legal, rejected, spread / legal if legal else 0.0)
