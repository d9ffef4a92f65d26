"""Small components on the grid of all their points at once.

Every parameter is an axis, so a check runs on the axes of its own parameters only and its verdict
spreads over the others. For a few thousand points this takes less time than binding one parameter
after the other (:mod:`tfsearch.space.join`) and gives the same rows, order and counts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from tfsearch.space.block import Block, Tally, code_type
from tfsearch.space.compiled import Compiled
from tfsearch.space.plan import Component

SMALL = 1 << 15
"""Points of a component that goes this way: its grid stays in a first-level cache."""


def grid(
    component: Component, compiled: Compiled, strides: Mapping[str, int], tally: Tally
) -> Block:
    """Legal rows of a component in lexicographic order of the plan; counts go to ``tally``."""
    levels = component.levels
    columns: dict[str, Any] = {}
    for axis, level in enumerate(levels):
        shape = [1] * len(levels)
        shape[axis] = level.size
        columns[level.name] = np.arange(level.size, dtype=code_type(level.size)).reshape(shape)
    env = compiled.env(columns)
    alive: Any = np.ones([level.size for level in levels], np.bool_)
    before = component.points
    with np.errstate(all="ignore"):
        for level in levels:
            for check in level.checks:
                alive &= check.test(env)
                after = int(np.count_nonzero(alive))
                tally.failed[check.constraint] = (
                    tally.failed.get(check.constraint, 0) + before - after
                )
                before = after
    tally.legal += before
    rest: Any = np.flatnonzero(alive)
    codes: dict[str, Any] = {}
    index: Any = np.zeros(len(rest), np.int64)
    for level in reversed(levels):
        above = rest // level.size
        own = rest - above * level.size
        codes[level.name] = own.astype(code_type(level.size))
        index += own * strides[level.name]
        rest = above
    return Block(codes, index)
