"""The static order in which a recipe's parameters are bound and its constraints tested.

Parameters that share no constraint are independent, so they are split into components whose
legal sets are multiplied instead of searched together. Inside a component the next constraint
is the one whose remaining parameters multiply the surviving prefixes least.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tfsearch.space.compiled import Check, Compiled

_SAMPLES = 1024
SMALL = 1 << 16
"""Components of so few points are joined in less time than it takes to sample their checks."""


@dataclass(frozen=True)
class Level:
    """Binds one parameter, then tests ``checks``; ``below`` is the product of later sizes."""

    name: str
    size: int
    checks: tuple[Check, ...]
    below: int


@dataclass(frozen=True)
class Component:
    """Parameters linked by constraints, in binding order; ``points`` is their product."""

    levels: tuple[Level, ...]
    points: int

    @property
    def free(self) -> bool:
        """Whether nothing constrains it."""
        return not any(level.checks for level in self.levels)


@dataclass(frozen=True)
class Plan:
    """``static`` checks depend on no parameter and come first, then components in order."""

    static: tuple[Check, ...]
    components: tuple[Component, ...]

    @property
    def order(self) -> tuple[Check, ...]:
        """All checks in the order in which a failing point is charged to one."""
        levels = [level for component in self.components for level in component.levels]
        return (*self.static, *(check for level in levels for check in level.checks))


def make_plan(compiled: Compiled, sizes: Mapping[str, int]) -> Plan:
    """The plan for parameters of these sizes; a function of the arguments alone."""
    static = tuple(check for check in compiled.checks if not check.parameters)
    linked = [check for check in compiled.checks if check.parameters]
    groups = _groups(linked)
    components: list[Component] = []
    for names in groups:
        checks = [check for check in linked if check.parameters <= names]
        components.append(_component(_order(checks, sizes, compiled), checks, sizes))
    components.sort(key=lambda component: -component.points)
    bound = frozenset[str]().union(*groups)
    free = sorted((name for name in sizes if name not in bound), key=lambda name: sizes[name])
    if free or not components:
        components.append(_component(free, [], sizes))
    return Plan(static, tuple(components))


def _groups(checks: Iterable[Check]) -> list[frozenset[str]]:
    groups: list[frozenset[str]] = []
    for check in checks:
        touching = [group for group in groups if group & check.parameters]
        merged = check.parameters.union(*touching)
        position = groups.index(touching[0]) if touching else len(groups)
        groups = [group for group in groups if group not in touching]
        groups.insert(position, merged)
    return groups


def _component(
    order: Sequence[str], checks: Iterable[Check], sizes: Mapping[str, int]
) -> Component:
    waiting = list(checks)
    levels: list[Level] = []
    bound: set[str] = set()
    points = below = math.prod(sizes[name] for name in order)
    for name in order:
        bound.add(name)
        below //= sizes[name]
        complete = tuple(check for check in waiting if check.parameters <= bound)
        waiting = [check for check in waiting if not check.parameters <= bound]
        levels.append(Level(name, sizes[name], complete, below))
    return Component(tuple(levels), points)


def _order(checks: Sequence[Check], sizes: Mapping[str, int], compiled: Compiled) -> list[str]:
    names = frozenset[str]().union(*(check.parameters for check in checks))
    small = math.prod(sizes[name] for name in names) <= SMALL
    rates = [0.5 if small else _pass_rate(check, sizes, compiled) for check in checks]
    order: list[str] = []
    bound: set[str] = set()
    declared = {name: position for position, name in enumerate(sizes)}
    waiting: list[int] = list(range(len(checks)))

    def score(position: int) -> tuple[float, int, int]:
        reached = bound | checks[position].parameters
        growth = math.prod(sizes[name] for name in reached - bound)
        kept = math.prod(rates[i] for i in waiting if checks[i].parameters <= reached)
        return growth * kept, growth, position

    while waiting:
        best = min(waiting, key=score)
        new = checks[best].parameters - bound
        order += sorted(new, key=lambda name: (sizes[name], declared[name]))
        bound |= new
        waiting = [i for i in waiting if not checks[i].parameters <= bound]
    return order


def _pass_rate(check: Check, sizes: Mapping[str, int], compiled: Compiled) -> float:
    """Share of a fixed set of assignments that pass; at least one in twice as many."""
    names = [name for name in sizes if name in check.parameters]
    total = math.prod(sizes[name] for name in names)
    count = min(total, _SAMPLES)
    columns: dict[str, object] = {}
    if total <= _SAMPLES:
        rest = np.arange(total, dtype=np.int64)
        for name in names:
            rest, columns[name] = np.divmod(rest, sizes[name])
    else:
        generator = np.random.Generator(np.random.PCG64(0))
        for name in names:
            columns[name] = generator.integers(sizes[name], size=count)
    with np.errstate(all="ignore"):
        passed = np.count_nonzero(np.broadcast_to(check.test(compiled.env(columns)), (count,)))
    return max(int(passed), 0.5) / count
