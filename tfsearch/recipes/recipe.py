"""What a recipe gives for a workload: a space, facts, lowering.

A recipe matches a program by its structure. The target contributes a :class:`Kit`: its atoms,
how wide its vectors are, how many registers there are, how far a search may go.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.tir.nodes import MemorySpace, Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.counting import Traffic
from tfsearch.space import Points, RecipeSpace


@dataclass(frozen=True)
class Team:
    """Who executes a unit: ``warps`` of ``lanes`` threads each."""

    warps: int
    lanes: int


@dataclass(frozen=True)
class Crew:
    """What units have in which teams of warps work side by side.

    ``lanes`` of a warp; ``shared``: bytes of on-chip memory of a unit; ``registers`` of a unit, of
    which a thread has at most ``most``; ``cluster``: units of the largest cluster; ``units`` that
    run at once with all of that memory. ``reserved``: bytes that every unit takes beside its own,
    where several share what one may have.
    """

    lanes: int
    shared: int
    registers: int
    most: int
    cluster: int
    units: int
    reserved: int = 0


@dataclass(frozen=True)
class Kit:
    """What recipes need to know of a target.

    ``lanes`` are the vector widths (32-bit lanes) worth trying, widest first; ``registers`` the
    number of vector registers at each of these widths; ``tiles`` of matrix registers; ``units`` the
    unit counts worth trying; ``line`` the bytes of a cache line; ``caches`` the bytes of each of
    three levels, innermost first, per unit.
    ``cycles`` maps an atom to the cycles that one unit needs for it (reciprocal throughput).
    ``cores``: units beyond so many share caches with others; 0 where every unit has its own.
    ``fetches``: a cache line in memory is read before it is written in part or in whole.
    ``teams`` are the threads among which fragments of so many lanes are shared out; a width that
    is not in it is of one thread. ``staging`` is the memory of a unit for values that a later
    pass reads back; None where there is none. ``crew``: None where units are of one team.
    """

    atoms: AtomTable
    lanes: tuple[int, ...]
    registers: Mapping[int, int]
    units: tuple[int, ...]
    caches: Sequence[int]
    cycles: Callable[[str], float]
    line: int = 64
    tiles: int = 0
    cores: int = 0
    fetches: bool = True
    teams: Mapping[int, Team] = field(default_factory=dict[int, Team])
    staging: MemorySpace | None = MemorySpace.LOCAL
    crew: Crew | None = None

    @property
    def outer_cache(self) -> int:
        """Bytes of the last cache before the outermost, which units may share."""
        return self.caches[max(len(self.caches) - 2, 0)]

    def traffic(self, units: NDArray[Any]) -> Traffic:
        """Counts the bytes that a column of unit counts moves between memory levels."""
        turns = self.turns(units)
        return Traffic(self.caches, len(units), turns, fetches=self.fetches)

    def turns(self, units: NDArray[Any]) -> NDArray[Any] | float:
        """How many units share the caches of one core."""
        return np.maximum(1.0, units / self.cores) if self.cores else 1.0


def staffed(module: Module, kit: Kit, lanes: int) -> Module:
    """The module with every kernel executed by the team for fragments of so many lanes."""
    team = kit.teams.get(lanes)
    if team is None:
        return module
    kernels = (replace(k, warps=team.warps, lanes=team.lanes) for k in module.kernels)
    return Module(tuple(kernels))


class Matched(Protocol):
    """One recipe bound to one workload; it may contribute several parameter spaces."""

    workload: Workload
    kit: Kit
    spaces: Sequence[RecipeSpace]
    refusals: Sequence[Refusal]

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points of one of :attr:`spaces`."""
        ...

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        ...

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """The workload and the parameters at sizes small enough to interpret the point's shape.

        At least three tiles per unit and a tail in every dimension that the parameters tile, two
        blocks where the point has several. Lowering them gives the shape's TIR.
        """
        ...


class Recipe(Protocol):
    """A structural way to turn a class of programs into kernels."""

    name: str

    def match(self, workload: Workload, kit: Kit) -> Matched:
        """Bind a workload; ``RequestError`` with the reason when the structure does not fit."""
        ...
