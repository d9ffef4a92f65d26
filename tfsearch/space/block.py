"""Rows of value positions, and the tally of a pass that makes them."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Block:
    """Prefixes: positions of the values of the bound parameters, and their share of the index."""

    codes: Mapping[str, Any]
    index: Any

    def __len__(self) -> int:
        return len(self.index)

    def slice(self, start: int, stop: int) -> Block:
        """Rows start … stop-1, without a copy."""
        codes = {name: column[start:stop] for name, column in self.codes.items()}
        return Block(codes, self.index[start:stop])

    def take(self, rows: Any) -> Block:
        """The rows at these positions."""
        codes = {name: column.take(rows) for name, column in self.codes.items()}
        return Block(codes, self.index.take(rows))

    def freeze(self) -> Block:
        """Mark every column read-only, so that what is kept stays what it is."""
        for column in (self.index, *self.codes.values()):
            column.flags.writeable = False
        return self


def start() -> Block:
    """The one prefix that binds nothing."""
    return Block({}, np.zeros(1, np.int64))


def concatenate(blocks: list[Block]) -> Block:
    """One block of all rows; at least one block, all with the same columns."""
    if len(blocks) == 1:
        return blocks[0]
    codes = {
        name: np.concatenate([block.codes[name] for block in blocks]) for name in blocks[0].codes
    }
    return Block(codes, np.concatenate([block.index for block in blocks]))


@dataclass
class Tally:
    """What one pass over a component found; ``failed`` by constraint, of all its points.

    ``keep`` False says that the caller wants counts only from here on. After ``deadline``, a time
    of ``time.monotonic``, the pass ends with :class:`Overdue`.
    """

    legal: int = 0
    failed: dict[int, int] = field(default_factory=dict[int, int])
    keep: bool = True
    deadline: float = math.inf

    def watch(self) -> None:
        """Raise :class:`Overdue` after the deadline."""
        if self.deadline != math.inf and time.monotonic() > self.deadline:
            raise Overdue


class Overdue(Exception):
    """A pass took longer than it was given."""


def code_type(size: int) -> Any:
    """The smallest unsigned integer type that numbers ``size`` values."""
    return np.min_scalar_type(max(size - 1, 0))
