"""The row-wise recipe bound to a workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from tfsearch.core.errors import RequestError
from tfsearch.core.records import ParamValue, Refusal
from tfsearch.cost.model import Facts
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.recipes.recipe import Kit, staffed
from tfsearch.recipes.resize import DimensionClasses
from tfsearch.recipes.rowwise.facts import RowwiseFacts
from tfsearch.recipes.rowwise.lower import lower
from tfsearch.recipes.rowwise.match import Domain, Pipeline, match
from tfsearch.recipes.rowwise.parameters import space_of
from tfsearch.recipes.rowwise.plan import Plan, divides_by_rows, plan_of, with_reciprocals
from tfsearch.recipes.rowwise.schedule import (
    EXACT,
    RECIPROCAL,
    REGISTERS,
    REREAD,
    Geometry,
    Schedule,
)
from tfsearch.space import Points, RecipeSpace

REDUCED_GROUPS = 3
REDUCED_FRAGMENTS = 3
REDUCED_UNITS = 3


class Rowwise:
    """Reductions over one set of axes, and everything that is elementwise around them."""

    name = "rowwise"

    def match(self, workload: Workload, kit: Kit) -> MatchedRowwise:
        """Bind a workload; ``RequestError`` when it is not row-wise or lacks instructions."""
        return MatchedRowwise(workload, match(workload.program), kit)


class MatchedRowwise:
    """See :class:`tfsearch.recipes.recipe.Matched`."""

    def __init__(self, workload: Workload, domain: Domain, kit: Kit) -> None:
        self.workload = workload
        self.kit = kit
        self.plans: dict[str, Plan] = {EXACT: plan_of(domain)}
        if divides_by_rows(domain):
            self.plans[RECIPROCAL] = plan_of(match(with_reciprocals(domain)))
        lanes, refusals = self._usable()
        self.refusals: Sequence[Refusal] = tuple(refusals)
        if not lanes:
            reasons = "; ".join(f"{r.where}: {r.message}" for r in refusals[:3])
            raise RequestError("recipe.rowwise", f"no vector width has all instructions: {reasons}")
        self.spaces: Sequence[RecipeSpace] = (space_of(self.plans[EXACT], kit, lanes),)
        self._facts = RowwiseFacts(self.plans, kit, workload)

    def _usable(self) -> tuple[tuple[int, ...], list[Refusal]]:
        """Widths at which every op has an instruction, found by lowering; why not the others."""
        lanes: list[int] = []
        refusals: list[Refusal] = []
        for width in self.kit.lanes:
            try:
                for divide in self.plans:
                    self._lower(Schedule(width, 1, 1, REREAD, divide, False, False, 1))
                lanes.append(width)
            except RequestError as error:
                refusals.append(Refusal(error.code, f"rowwise: {width} lanes", error.message))
        return tuple(lanes), refusals

    def facts(self, points: Points) -> Facts:
        """Facts of a batch of points. The columns count all units together."""
        return self._facts.of(points)

    def lower(self, space: str, params: Mapping[str, ParamValue]) -> Module:
        """A point as TIR."""
        del space
        return self._lower(Schedule.of(params))

    def _lower(self, schedule: Schedule) -> Module:
        module = lower(
            self.plans[schedule.divide],
            schedule,
            self.kit.atoms,
            self.workload.accuracy,
            self.workload.alignment,
            self.kit.line,
        )
        return staffed(module, self.kit, schedule.lanes)

    def reduced(
        self, space: str, params: Mapping[str, ParamValue]
    ) -> tuple[Workload, Mapping[str, ParamValue]]:
        """The workload and parameters at sizes that take milliseconds to interpret.

        Three groups of lines a unit and a tail; along the lanes three steps, a whole fragment
        beyond them and a short one; what is narrower than a vector stays as it is.
        """
        del space
        domain, schedule = self.plans[EXACT].domain, Schedule.of(params)
        rows = domain.pipeline is Pipeline.ROWS
        units = min(schedule.units, REDUCED_UNITS)
        walks = len(self.plans[EXACT].passes) - 1
        each = max(REDUCED_GROUPS, walks + 1) if schedule.beside else REDUCED_GROUPS
        groups = each * units
        sizes = {axis: 1 for axis in domain.positions if axis not in domain.extents}
        sizes[domain.lane] = self._reduced_extent(schedule, domain)
        if rows:
            lines, deep = groups * schedule.rows + schedule.rows // 2, 2
        else:
            steps = sizes[domain.lane] // (schedule.unroll * schedule.lanes)
            lines, deep = -(-groups // max(1, steps)), 3 * schedule.rows + schedule.rows // 2
        self._spread(sizes, [a for a in domain.kept if a != domain.lane], lines)
        self._spread(sizes, [a for a in domain.reduced if a != domain.lane], deep)
        classes = DimensionClasses(self.workload.program)
        program = classes.resized({classes.of(*domain.positions[a]): n for a, n in sizes.items()})
        return replace(self.workload, program=program), {**params, "units": units}

    def _reduced_extent(self, schedule: Schedule, domain: Domain) -> int:
        extent = Geometry.of(domain).extent
        lanes, unroll = schedule.lanes, schedule.unroll
        if extent < lanes:
            return extent
        if schedule.staging == REGISTERS:
            whole = min(extent // lanes, REDUCED_FRAGMENTS)
            return whole * lanes + min(extent % lanes, lanes - 1)
        beyond = lanes if unroll > 1 else 0
        return REDUCED_FRAGMENTS * unroll * lanes + beyond + lanes // 2

    def _spread(self, sizes: dict[str, int], axes: Sequence[str], total: int) -> None:
        """Give ``total`` places to some axes: two to each but the innermost."""
        rest = total
        for position, axis in enumerate(axes):
            last = position == len(axes) - 1
            sizes[axis] = max(1, rest) if last else 2
            rest = -(-rest // 2)


__all__ = ["MatchedRowwise", "Rowwise"]
