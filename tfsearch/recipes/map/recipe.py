"""The map recipe bound to a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.hir.program import Program
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.map.facts import MapFacts
from tfsearch.recipes.map.lower import STRIDED, TRANSPOSE, Schedule, lower, split_lines
from tfsearch.recipes.map.match import Domain, match
from tfsearch.recipes.map.parameters import space_of
from tfsearch.recipes.recipe import Kit, staffed
from tfsearch.recipes.resize import DimensionClasses, Position
from tfsearch.space import Points, RecipeSpace

REDUCED = 3
"""Steps, lines and blocks per unit at reduced sizes, and the most units."""


class Map:
    """Programs without reductions and contractions."""

    name = "map"

    def match(self, workload: Workload, kit: Kit) -> MatchedMap:
        """Bind a workload; ``RequestError`` when it is no map or lacks instructions."""
        return MatchedMap(workload, match(workload.program), kit)


class MatchedMap:
    """See :class:`tfsearch.recipes.recipe.Matched`."""

    def __init__(self, workload: Workload, domain: Domain, kit: Kit) -> None:
        self.workload = workload
        self.domain = domain
        self.kit = kit
        refusals: list[Refusal] = []
        lanes = self._usable(STRIDED, kit.lanes, refusals)
        turning = self._usable(TRANSPOSE, lanes, refusals) if domain.turned else ()
        self.refusals: Sequence[Refusal] = tuple(refusals)
        if not lanes:
            reasons = "; ".join(f"{r.where}: {r.message}" for r in refusals[:3])
            raise RequestError("recipe.map", f"no vector width has all instructions: {reasons}")
        self.spaces: Sequence[RecipeSpace] = (space_of(domain, kit, lanes, turning),)
        self._facts = MapFacts(domain, kit, workload)

    def _usable(
        self, gather: str, widths: tuple[int, ...], refusals: list[Refusal]
    ) -> tuple[int, ...]:
        """Widths at which everything has an instruction, found by lowering."""
        found: list[int] = []
        for width in widths:
            try:
                self._lower(Schedule(width, 1, gather, 1, False, 1))
                found.append(width)
            except RequestError as error:
                where = f"map: {width} lanes, {gather}"
                refusals.append(Refusal(error.code, where, error.message))
        return tuple(found)

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points. The columns count all units together."""
        return self._facts.of(points)

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        del space
        return self._lower(Schedule.of(params))

    def _lower(self, schedule: Schedule) -> Module:
        module = lower(
            self.domain,
            schedule,
            self.kit.atoms,
            self.workload.accuracy,
            self.workload.alignment,
        )
        return staffed(module, self.kit, schedule.lanes)

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """The workload and parameters at sizes that take milliseconds to interpret.

        Three steps a unit, whole fragments beyond them and a short one along the lanes, or three
        lines a unit; turned inputs have three blocks of at most two tiles a unit and a short one.
        """
        del space
        domain, schedule = self.domain, Schedule.of(params)
        units = min(schedule.units, REDUCED)
        width = schedule.unroll * schedule.lanes
        extent = domain.extents[domain.lane]
        lines = flat_size(domain.axes, domain.extents)
        by_lines = split_lines(lines, -(-extent // width), schedule.units)
        steps = REDUCED if by_lines or schedule.gather == TRANSPOSE else REDUCED * units
        if schedule.gather == TRANSPOSE:
            steps = 2
        short = schedule.lanes // 2 + (schedule.lanes if schedule.unroll > 1 else 0)
        sizes = {axis: 1 for axis in domain.positions if axis not in domain.extents}
        sizes[domain.lane] = extent if extent < schedule.lanes else steps * width + short
        new: dict[str, ParamValue] = {**params, "units": units}
        outer = list(domain.axes)
        if schedule.gather == TRANSPOSE:
            block = min(schedule.block, 2)
            new["block"] = block
            outer.remove(domain.turn)
            tile = schedule.lanes
            sizes[domain.turn] = REDUCED * units * block * tile + tile // 2
            sizes.update(dict.fromkeys(outer, 2))
        else:
            self._spread(sizes, outer, REDUCED * units if by_lines else 2)
        return replace(self.workload, program=self._resized(sizes)), new

    def _spread(self, sizes: dict[str, int], axes: Sequence[str], total: int) -> None:
        """Give ``total`` places to some axes: two to each but the innermost."""
        rest = total
        for position, axis in enumerate(axes):
            last = position == len(axes) - 1
            sizes[axis] = max(1, rest) if last else 2
            rest = -(-rest // 2)

    def _resized(self, sizes: Mapping[str, int]) -> Program:
        """Axes that the program ties together get the larger of their sizes."""
        classes = DimensionClasses(self.workload.program)
        wanted: dict[Position, int] = {}
        for axis, size in sizes.items():
            if axis in self.domain.positions:
                root = classes.of(*self.domain.positions[axis])
                wanted[root] = max(size, wanted.get(root, 1))
        return classes.resized(wanted)


__all__ = ["Map", "MatchedMap"]
