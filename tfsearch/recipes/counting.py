"""Counting what statements execute: the profiles from which facts are made."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Atom, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.nodes import Call, For, If, Role, Stmt

COUNTS = ("calls", "loads", "stores", "flops")
LEVELS = ("l1", "l2", "l3")
MEMORY = "memory"

Column = Any


@dataclass(frozen=True)
class Meter:
    """Measures atoms: integer :data:`COUNTS`, and cycles on each of ``pipes``.

    ``cycles`` gives the cycles that one unit needs for an atom (reciprocal throughput).
    """

    atoms: AtomTable
    cycles: Callable[[str], float]
    pipes: tuple[str, ...]

    @staticmethod
    def of(atoms: AtomTable, cycles: Callable[[str], float]) -> Meter:
        """A meter of all pipes that the table's atoms occupy."""
        pipes = sorted({atoms[name].cost.pipe for name in atoms})
        return Meter(atoms, cycles, tuple(pipes))

    @property
    def width(self) -> int:
        """Length of a profile."""
        return len(COUNTS) + len(self.pipes)

    def measure(self, atom: Atom) -> Column:
        """The profile of one execution: COUNTS, then cycles per pipe."""
        out = np.zeros(self.width)
        kind = atom.computes.kind
        out[: len(COUNTS)] = (
            1,
            kind in (Kind.LOAD, Kind.SPLAT, Kind.TRANSPOSE),
            kind in (Kind.STORE, Kind.TRANSPOSE),
            atom.flops,
        )
        out[len(COUNTS) + self.pipes.index(atom.cost.pipe)] = self.cycles(atom.id)
        return out

    def profile(self, statements: Iterable[Stmt]) -> Column:
        """The profile of straight-line statements."""
        out = np.zeros(self.width)
        for statement in statements:
            if isinstance(statement, Call):
                out += self.measure(self.atoms[statement.atom])
            elif isinstance(statement, (For, If, Role)):
                raise TypeError("a profile is taken of straight-line statements")
        return out

    def counted(self, builder: Builder, emit: Callable[[], object]) -> Column:
        """The profile of what ``emit`` adds to the builder."""
        with builder.capture() as statements:
            emit()
        return self.profile(statements)

    def cycles_of(self, profile: Column) -> dict[str, Column]:
        """Cycles per pipe of profiles stacked along the first axis."""
        return {
            pipe: profile[..., len(COUNTS) + i]
            for i, pipe in enumerate(self.pipes)
            if np.any(profile[..., len(COUNTS) + i])
        }

    def counts_of(self, profile: Column) -> dict[str, Column]:
        """COUNTS of profiles stacked along the first axis, as integers."""
        return {name: np.rint(profile[..., i]).astype(np.int64) for i, name in enumerate(COUNTS)}


class Traffic:
    """Bytes moved per memory level, column by column.

    ``caches`` are the capacities in bytes, innermost first; what fits none is in memory.
    ``turns`` is how many units share the caches of one; ``fetches``: a line in memory is read
    before it is written.
    """

    def __init__(
        self, caches: Sequence[float], length: int, turns: Column = 1.0, *, fetches: bool = True
    ) -> None:
        self.turns = turns
        self.fetches = fetches
        self.caches = tuple(caches[: len(LEVELS)])
        self.names = (*LEVELS[: len(self.caches)], MEMORY)
        self.bytes = {name: np.zeros(length) for name in self.names[1:]}

    def level(self, footprint: Column) -> Column:
        """Position of the innermost level that holds a working set of so many bytes.

        One number for one footprint, a column for a column.
        """
        footprint = footprint * self.turns
        if np.ndim(footprint) == 0:
            return sum(int(footprint > size) for size in self.caches)
        out = np.zeros(np.shape(footprint), np.int8)
        for size in self.caches:
            out += np.greater(footprint, size)
        return out

    @property
    def memory(self) -> int:
        """Position of memory."""
        return len(self.caches)

    def add(self, level: Column, amount: Column) -> None:
        """Move ``amount`` bytes from or to the level at each position.

        The first level is not counted: it keeps up with loads and stores.
        """
        for position, name in enumerate(self.names[1:], 1):
            moved = self.bytes[name]
            if np.ndim(level) == 0:
                if level == position:
                    moved += amount
            else:
                moved += amount * np.equal(level, position)

    def write(self, level: Column, amount: Column, stream: Column) -> None:
        """Stores: a line in memory may be read before it is written, unless they stream."""
        plain = np.where(level == self.memory, (1 + self.fetches) * amount, amount)
        self.add(np.where(stream, self.memory, level), np.where(stream, amount, plain))

    def moved(self) -> dict[str, Column]:
        """Bytes of the levels that move any."""
        return {name: column for name, column in self.bytes.items() if np.any(column)}
