"""How many legal points a component has, where counting them would not end.

Prefixes are extended parameter by parameter as the join does it, but of each level's survivors only
a random sample goes on, which stands for all of them. The product of the levels' growth is an
unbiased estimate of the number of leaves of a tree (D. E. Knuth, "Estimating the efficiency of
backtrack programs", 1975; with many prefixes at once, R. Rubinstein, "Stochastic enumeration
method", 2013). Several runs show how far it may be off.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from tfsearch.space.block import Block, Tally, start
from tfsearch.space.compiled import Compiled
from tfsearch.space.join import WORK, Extender, concatenate, rechunk
from tfsearch.space.plan import Component

HELD = 1 << 13
"""Prefixes of a level that go on."""
RUNS = 8


@dataclass(frozen=True)
class Estimate:
    """``legal`` points and ``failed`` ones by constraint, estimated; ``error`` is the relative
    standard error of ``legal`` (infinite where none was found).
    """

    legal: int
    failed: Mapping[int, int]
    error: float


def estimate(component: Component, compiled: Compiled, deadline: float) -> Estimate:
    """The mean of ``RUNS`` runs, the same every time.

    Raises :class:`~tfsearch.space.block.Overdue` after ``deadline`` (``time.monotonic``).
    """
    found: list[Fraction] = []
    failed: dict[int, Fraction] = {}
    for run in range(RUNS):
        rng = np.random.Generator(np.random.PCG64(run))
        found.append(_run(component, compiled, rng, failed, deadline))
    legal = sum(found, Fraction(0)) / RUNS
    if not legal:
        return Estimate(0, _whole(failed), math.inf)
    shares = [float(one / legal) for one in found]
    return Estimate(round(legal), _whole(failed), float(np.std(shares, ddof=1)) / math.sqrt(RUNS))


def _run(
    component: Component,
    compiled: Compiled,
    rng: np.random.Generator,
    failed: dict[int, Fraction],
    deadline: float,
) -> Fraction:
    """One estimate of the legal points; failures are added to ``failed``."""
    weight = Fraction(1)
    block = start()
    for level in component.levels:
        tally = Tally(deadline=deadline)
        extender = Extender(level, compiled, 0, tally, last=False)
        children: list[Block] = []
        for part in rechunk([block], max(1, WORK // level.size)):
            tally.watch()
            child = extender.extend(part)
            if child is not None:
                children.append(child)
        for constraint, count in tally.failed.items():
            failed[constraint] = failed.get(constraint, Fraction(0)) + weight * count
        if not children:
            return Fraction(0)
        block = concatenate(children)
        if len(block) > HELD:
            weight *= Fraction(len(block), HELD)
            block = block.take(np.sort(rng.permutation(len(block))[:HELD]))
    return weight * len(block)


def _whole(failed: Mapping[int, Fraction]) -> dict[int, int]:
    return {constraint: round(total / RUNS) for constraint, total in failed.items()}
