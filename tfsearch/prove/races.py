"""Unordered conflicting accesses between units.

A barrier over all units orders everything before it against everything after it, so the clock
of every unit is the number of barriers passed: two accesses are unordered exactly when they
come from different units in the same epoch. Per element the last write and the last two reads
by different units are kept, each as one number that grows with the epoch.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfsearch.ir.tir.nodes import Buffer
from tfsearch.prove.memory import shaped

Codes = np.ndarray[Any, np.dtype[np.int64]]


class Tracker:
    """The accesses to one shared buffer. ``flat`` arrays are by address, ``shaped`` by index."""

    __slots__ = ("flat", "shaped")

    def __init__(self, buffer: Buffer) -> None:
        size = buffer.bytes // buffer.dtype.bytes
        arrays = tuple(np.full(size, -1, dtype=np.int64) for _ in range(3))
        self.flat: tuple[Codes, Codes, Codes] = (arrays[0], arrays[1], arrays[2])
        views = tuple(shaped(array, buffer) for array in arrays)
        self.shaped: tuple[Codes, Codes, Codes] = (views[0], views[1], views[2])


class Clock:
    """Turns (epoch, unit, statement) into numbers and finds conflicts among them."""

    def __init__(self, units: int, statements: int) -> None:
        self._units = units
        self._statements = max(statements, 1)
        self._epoch = 0

    def advance(self) -> None:
        """All units have passed a barrier."""
        self._epoch += 1

    def read(
        self, unit: int, statement: int, access: tuple[Codes, Codes, Codes]
    ) -> tuple[int, int, int, str] | None:
        """Note a read; (position, unit, statement, kind) of a conflicting access, or None."""
        writes, first, second = access
        code, low = self._code(unit, statement)
        conflict = self._conflict(writes, low)
        mine = (first >= low) & (first < low + self._statements)
        if not mine.all():
            second[...] = np.where(mine, second, first)
        first[...] = code
        return None if conflict is None else (*conflict, "wrote")

    def write(
        self, unit: int, statement: int, access: tuple[Codes, Codes, Codes]
    ) -> tuple[int, int, int, str] | None:
        """Note a write; (position, unit, statement, kind) of a conflicting access, or None."""
        writes, first, second = access
        code, low = self._code(unit, statement)
        conflict = self._conflict(writes, low)
        kind = "wrote"
        if conflict is None:
            kind = "read"
            conflict = self._conflict(first, low) or self._conflict(second, low)
        writes[...] = code
        return None if conflict is None else (*conflict, kind)

    def _code(self, unit: int, statement: int) -> tuple[int, int]:
        low = (self._epoch * self._units + unit) * self._statements
        return low + statement, low

    def _conflict(self, codes: Codes, low: int) -> tuple[int, int, int] | None:
        """The first access of this epoch by another unit: (position, unit, statement)."""
        epoch = self._epoch * self._units * self._statements
        found = (codes >= epoch) & ((codes < low) | (codes >= low + self._statements))
        if not found.any():
            return None
        position = int(np.argmax(found))
        code = int(codes.flat[position])
        return position, code // self._statements % self._units, code % self._statements
