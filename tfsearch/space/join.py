"""Enumeration of a recipe's legal points by a join over its plan.

Prefixes are extended one parameter at a time in blocks of bounded size; a check runs on the
prefixes × values grid, so what depends on the prefix alone is computed once per prefix, and a
prefix that fails is never extended.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np

from tfsearch.space.block import Block, Tally, code_type, concatenate, start
from tfsearch.space.code import Env
from tfsearch.space.compiled import Compiled
from tfsearch.space.grid import SMALL, grid
from tfsearch.space.plan import Component, Level

WORK = 1 << 17
"""Elements of the grid that one check runs on: a few such arrays fit a second-level cache."""


def rechunk(blocks: Iterable[Block], size: int) -> Iterator[Block]:
    """The same rows in blocks of exactly ``size``, the last one possibly shorter."""
    pending: list[Block] = []
    rows = 0
    for block in blocks:
        begin = 0
        if rows:
            begin = min(size - rows, len(block))
            pending.append(block.slice(0, begin))
            rows += begin
            if rows == size:
                yield concatenate(pending)
                pending, rows = [], 0
        while len(block) - begin >= size:
            yield block.slice(begin, begin + size)
            begin += size
        if begin < len(block):
            pending, rows = [block.slice(begin, len(block))], len(block) - begin
    if pending:
        yield concatenate(pending)


def stream(
    component: Component, compiled: Compiled, strides: Mapping[str, int], tally: Tally
) -> Iterator[Block]:
    """Legal rows of a component in lexicographic order of the plan; counts go to ``tally``."""
    if 1 < component.points <= SMALL:
        return iter([grid(component, compiled, strides, tally)])
    blocks: Iterator[Block] = iter([start()])
    last = len(component.levels) - 1
    for position, level in enumerate(component.levels):
        extender = Extender(level, compiled, strides[level.name], tally, position == last)
        blocks = _extended(blocks, extender)
    if not component.levels:
        tally.legal += 1
    return blocks


def _extended(blocks: Iterator[Block], extender: Extender) -> Iterator[Block]:
    for block in rechunk(blocks, max(1, WORK // extender.level.size)):
        extender.tally.watch()
        child = extender.extend(block)
        if child is not None:
            yield child


def cross(blocks: Iterable[Block], others: Iterable[Block], limit: int) -> Iterator[Block]:
    """Every row of ``blocks`` with every row of ``others``, in blocks of at most ``limit``."""
    held = list(others)
    for block in blocks:
        for other in held:
            for right in rechunk([other], limit):
                for left in rechunk([block], max(1, limit // len(right))):
                    yield _pair(left, right)


def _pair(left: Block, right: Block) -> Block:
    n, k = len(left), len(right)
    if k == 1:
        codes = dict(left.codes)
        codes.update((name, np.repeat(column, n)) for name, column in right.codes.items())
        return Block(codes, left.index + right.index)
    codes = {name: np.repeat(column, k) for name, column in left.codes.items()}
    codes.update((name, _tiled(column, n)) for name, column in right.codes.items())
    return Block(codes, np.add.outer(left.index, right.index).ravel())


def _tiled(column: Any, times: int) -> Any:
    out: Any = np.empty((times, len(column)), column.dtype)
    out[:] = column
    return out.reshape(-1)


class _Taken(dict[str, Any]):
    """Columns of chosen rows, gathered when first read."""

    def __init__(self, source: Mapping[str, Any], rows: Any) -> None:
        super().__init__()
        self.source = source
        self.rows = rows

    def __missing__(self, name: str) -> Any:
        column = self[name] = self.source[name].take(self.rows)
        return column


class Extender:
    """Binds one parameter to all of its values for a block of prefixes."""

    def __init__(
        self, level: Level, compiled: Compiled, stride: int, tally: Tally, last: bool
    ) -> None:
        self.level = level
        self.compiled = compiled
        self.tally = tally
        self.last = last
        self.codes: Any = np.arange(level.size, dtype=code_type(level.size))
        self.steps: Any = np.arange(level.size, dtype=np.int64) * stride

    def extend(self, block: Block) -> Block | None:
        """The surviving children in order, or None (also when only counts are wanted)."""
        if not self.level.checks:
            return self.finish(_pair(block, Block({self.level.name: self.codes}, self.steps)))
        total = len(block) * self.level.size
        alive, count, done = self.dense(block)
        if count == 0:
            return None
        if done == len(self.level.checks):
            if self.last and not self.tally.keep:
                self.tally.legal += count
                return None
            if count == total:
                return self.finish(_pair(block, Block({self.level.name: self.codes}, self.steps)))
        flat: Any = np.flatnonzero(alive)
        rows = flat // self.level.size
        values = flat - rows * self.level.size
        return self.sparse(block, rows, values, done)

    def finish(self, block: Block) -> Block | None:
        """Count a complete row set; hand it on if it is wanted."""
        if not self.last:
            return block
        self.tally.legal += len(block)
        return block if self.tally.keep else None

    def charge(self, constraint: int, failures: int) -> None:
        failed = self.tally.failed
        failed[constraint] = failed.get(constraint, 0) + failures * self.level.below

    def dense(self, block: Block) -> tuple[Any, int, int]:
        """Run checks on the grid while most of it is alive: (alive, how many, checks done)."""
        shape = (len(block), self.level.size)
        columns = {name: column[:, None] for name, column in block.codes.items()}
        columns[self.level.name] = self.codes[None, :]
        env = self.compiled.env(columns)
        total = before = shape[0] * shape[1]
        alive: Any = None
        for done, check in enumerate(self.level.checks, 1):
            with np.errstate(all="ignore"):
                verdict: Any = np.broadcast_to(check.test(env), shape)
            alive = verdict if alive is None else np.logical_and(alive, verdict)
            after = int(np.count_nonzero(alive))
            self.charge(check.constraint, before - after)
            before = after
            if after * 4 < total:
                return alive, before, done
        return alive, before, len(self.level.checks)

    def sparse(self, block: Block, rows: Any, values: Any, done: int) -> Block | None:
        """Run the remaining checks on the survivors alone, then gather them."""
        env = self.env(block, rows, values)
        for check in self.level.checks[done:]:
            with np.errstate(all="ignore"):
                verdict: Any = np.broadcast_to(check.test(env), rows.shape)
            alive: Any = np.flatnonzero(verdict)
            self.charge(check.constraint, len(rows) - len(alive))
            if not len(alive):
                return None
            if len(alive) < len(rows):
                rows, values = rows.take(alive), values.take(alive)
                env = self.env(block, rows, values)
        if self.last and not self.tally.keep:
            self.tally.legal += len(rows)
            return None
        codes = {name: column.take(rows) for name, column in block.codes.items()}
        codes[self.level.name] = self.codes.take(values)
        index = block.index.take(rows) + self.steps.take(values)
        return self.finish(Block(codes, index))

    def env(self, block: Block, rows: Any, values: Any) -> Env:
        columns = _Taken(block.codes, rows)
        columns[self.level.name] = self.codes.take(values)
        return self.compiled.env(columns)
