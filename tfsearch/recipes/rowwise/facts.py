"""Facts of row-wise candidates, for whole batches of points at once.

The code of one fragment, one line and one accumulator is lowered and counted once for each
combination of the choices that shape it; how often each runs is arithmetic on columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.cost.model import Facts, Phase
from tfsearch.ir.hir.facts import facts_of
from tfsearch.ir.tir.expr import Const
from tfsearch.ir.tir.nodes import Buffer, Window, window
from tfsearch.ir.workload import Workload
from tfsearch.recipes.counting import Meter
from tfsearch.recipes.fragments import Lanes
from tfsearch.recipes.recipe import Kit
from tfsearch.recipes.rowwise.beside import Beside
from tfsearch.recipes.rowwise.lower import Columns, Lowering, Rows
from tfsearch.recipes.rowwise.match import Pipeline
from tfsearch.recipes.rowwise.plan import Pass, Plan
from tfsearch.recipes.rowwise.schedule import REGISTERS, STAGED, Geometry, Schedule
from tfsearch.recipes.rowwise.walk import Line, Piece
from tfsearch.space import Points

Column = Any

STEP_OVERHEAD = 2.0
"""Cycles of loop control per step that the front end cannot hide; an estimate."""
CHAIN = "chain"
"""The wait for accumulators, counted beside the pipes."""
CHAIN_LATENCY = 4.0
"""Cycles until a dependent add, max or multiply-add can start; the same on current cores."""
UNASKED = 3.0
"""Cycles that a line of input from beyond the outer cache costs where nobody asked for it ahead:
hardware prefetchers begin anew at every page (measured on Zen 4: 1 to 8)."""
FINISH_LATENCY = 40.0
"""Cycles from the last element of a walk to the first of the next: joining the lanes, the row's
own arithmetic, a mispredicted loop exit; an estimate."""


@dataclass(frozen=True)
class Profiles:
    """Counts of the pieces of one pass (see :class:`~tfsearch.recipes.counting.Meter`).

    ``line``: the end of a pass with one accumulator chain; ``fill`` and ``join``: one chain more;
    ``whole`` and ``short``: one element fragment. ``short_line``: ``line`` where the lanes across
    rows are not all there.
    """

    line: Column
    short_line: Column
    fill: Column
    join: Column
    whole: Column
    short: Column


class RowwiseFacts:
    """Facts of the points of one row-wise space; ``plans`` by the way rows divide."""

    def __init__(self, plans: Mapping[str, Plan], kit: Kit, workload: Workload) -> None:
        self.plans = plans
        self.kit = kit
        self.workload = workload
        self.meter = Meter.of(kit.atoms, kit.cycles)
        self._known: dict[tuple[int, str, str, bool], _Shape] = {}

    def of(self, points: Points) -> Facts:
        """Facts of a batch."""
        return _Batch(self, points).facts()

    def shape(self, lanes: int, staging: str, divide: str, stream: bool) -> _Shape:
        """Profiles of one combination of choices."""
        key = (lanes, staging, divide, stream)
        if key not in self._known:
            schedule = Schedule(lanes, 1, 1, staging, divide, False, stream, 1)
            self._known[key] = _Shape(self.plans[divide], schedule, self)
        return self._known[key]


class _Shape:
    """Lowers and counts the pieces of one combination of choices."""

    def __init__(self, plan: Plan, schedule: Schedule, owner: RowwiseFacts) -> None:
        kind = Rows if plan.domain.pipeline is Pipeline.ROWS else Columns
        self.low: Lowering = kind(
            plan,
            schedule,
            owner.kit.atoms,
            owner.workload.accuracy,
            owner.workload.alignment,
            owner.kit.line,
        )
        self.plan = plan
        self.meter = owner.meter
        self.builder = self.low.builder
        walker = self.low.walker
        count = self.meter.counted
        self.unit = count(self.builder, walker.fill_constants)
        if schedule.stream and plan.element_outputs:
            fence = self.low.fragments.atom(Computation(Kind.SYNC, "fence", (), ()))
            self.unit = self.unit + count(self.builder, lambda: self.builder.call(fence))
        self.low.allocate()
        self.lanes = schedule.lanes
        self.rest = self.low.geometry.extent % schedule.lanes
        self.whole_line, first = self._line(schedule.lanes)
        self.short_line, short_first = self._line(self.rest or schedule.lanes)
        self.passes: list[Profiles] = []
        if schedule.staging == REGISTERS:
            self._registers(first)
            return
        zero = np.zeros(self.meter.width)
        self.passes.append(Profiles(first, short_first, zero, zero, zero, zero))
        for one in plan.passes[1:]:
            self.passes.append(self._pass(one))
        self.asked = self._asked()
        self.kept = self._kept(first)

    def _kept(self, first: Column) -> list[Column]:
        """What each pass adds for a line where passes run side by side: row values through memory.

        And those that need no reduction once more, but for the first walk, which has them anyway.
        """
        low, passes, zero = self.low, self.plan.passes, np.zeros(self.meter.width)
        if not isinstance(low, Rows) or len(passes) < 3:
            return [zero] * len(passes)
        beside = Beside(low.walker, low.outer, lambda _newest, _active: None)
        beside.allocate()
        line = self.whole_line
        out = [zero]
        for number, one in enumerate(passes[1:], 1):

            def move(number: int = number, one: Pass = one) -> None:
                for earlier in passes[1:number]:
                    for value in low.walker.handed_on(earlier):
                        line.tile.leaves[value] = beside.fetch(value, line)
                beside.keep(one, line)

            moved = self.meter.counted(self.builder, move)
            out.append(moved + (first if number > 1 else zero))
        return out

    def _line(self, valid: int) -> tuple[Line, Column]:
        low = self.low
        lane, axes = low.domain.lane, (*low.domain.kept, *low.domain.reduced)
        place = {axis: Const(0) for axis in axes}
        lanes = self.lanes if low.walker.along_rows else valid
        made: list[Line] = []
        profile = self.meter.counted(
            self.builder,
            lambda: made.append(low.walker.line(0, place, Lanes.of(self.lanes, lane, lanes))),
        )
        return made[0], profile

    def _pass(self, one: Pass) -> Profiles:
        count, walker = self.meter.counted, self.low.walker
        lane = self.low.domain.lane
        fills: list[Any] = []
        fill = count(self.builder, lambda: fills.append(walker.begin(one, 1)))
        acc = fills[0]

        def element(line: Line, valid: int) -> Column:
            zero = Const(0)
            piece = Piece(line.tile.place, Lanes.of(self.lanes, lane, valid), 0, (zero, zero))
            return count(self.builder, lambda: walker.element(one, line, piece, acc))

        whole = element(self.whole_line, self.lanes)
        short = element(self.short_line, self.rest) if self.rest else whole

        def end(line: Line) -> None:
            for reduction in one.reductions:
                chain = self._chain(acc, reduction.value)
                walker.finish(reduction, line, [chain])
            walker.row_values(one, line)

        def join() -> None:
            for reduction in one.reductions:
                chain = self._chain(acc, reduction.value)
                walker.join(reduction, chain, chain, chain)

        return Profiles(
            line=count(self.builder, lambda: end(self.whole_line)),
            short_line=count(self.builder, lambda: end(self.short_line)),
            fill=fill,
            join=count(self.builder, join),
            whole=whole,
            short=short,
        )

    def _chain(self, acc: Mapping[int, Buffer], value: int) -> Window:
        return window(acc[value], 0, 0, (0, self.lanes))

    def _registers(self, first: Column) -> None:
        """A whole row is straight-line code: it is counted as it is."""
        low = self.low
        assert isinstance(low, Rows)
        zero = np.zeros(self.meter.width)
        low.pieces(self.whole_line)
        self.passes.append(Profiles(first, first, zero, zero, zero, zero))
        for one in self.plan.passes[1:]:
            row = self.meter.counted(
                self.builder, lambda one=one: low.register_pass(one, self.whole_line)
            )
            self.passes.append(Profiles(row, row, zero, zero, zero, zero))
        self.asked = zero
        self.kept = [zero] * len(self.plan.passes)

    def _asked(self) -> Column:
        """Prefetches of one fragment that begins a cache line."""
        low = self.low
        if not isinstance(low, Rows) or len(self.plan.passes) < 3:
            return np.zeros(self.meter.width)
        return self.meter.counted(
            self.builder, lambda: low.walker.prefetch(self.whole_line.tile.place)
        )


def scaled(phase: Phase, where: Column) -> Phase:
    """The phase at the points that ``where`` marks, nothing elsewhere."""
    return Phase(
        phase.name,
        {pipe: column * where for pipe, column in phase.cycles.items()},
        {level: column * where for level, column in phase.bytes.items()},
        phase.overhead * where,
    )


class _Batch:
    def __init__(self, owner: RowwiseFacts, points: Points) -> None:
        self.owner, self.points = owner, points
        self.meter = owner.meter
        plan = next(iter(owner.plans.values()))
        self.plan = plan
        self.geometry = Geometry.of(plan.domain)
        self.along = plan.domain.pipeline is Pipeline.ROWS
        self.lanes, self.unroll = points.column("lanes"), points.column("unroll")
        self.rows, self.units = points.column("rows"), points.column("units")
        self.staging, self.divide = points.labels("staging"), points.labels("divide")
        self.stream = points.labels("stream").astype(bool)
        self.prefetch = points.labels("prefetch").astype(bool)
        self.beside = points.labels("beside").astype(bool)
        self.groups = points.column("groups")
        self.registers = self.staging == REGISTERS
        self._trips()

    def _trips(self) -> None:
        """How often each piece runs, in all and on the busiest unit."""
        g = self.geometry
        self.fragments = g.extent // self.lanes
        self.short = (g.extent % self.lanes > 0).astype(np.int64)
        share = -(-self.groups // self.units)
        alone = self.units == 1
        if self.along:
            self.lines = np.full(len(self.points), g.lines)
            self.busy = np.where(alone, g.lines, np.minimum(g.lines, share * self.rows))
            self.chains = self.unroll
            steps = self.fragments // self.unroll
            width = self._line_width()
            begins = -(-self.unroll * self.lanes * width // self.owner.kit.line)
            asked = np.where(self.lanes * width >= self.owner.kit.line, self.unroll, begins)
            self.asks = np.where(self.prefetch, steps * g.deep * asked, 0)
        else:
            per_line = self.fragments + self.short
            self.lines = g.lines * per_line
            most = np.minimum(self.lines, share * self.unroll)
            self.busy = np.where(alone, self.lines, most)
            self.chains = self.rows
            self.asks = np.zeros(len(self.points), np.int64)

    def _line_width(self) -> int:
        inputs = self.plan.domain.inputs
        return max((inputs[v].type.dtype.bytes for v in self.plan.fetched), default=1)

    def _shapes(self) -> list[tuple[Column, _Shape]]:
        """Rows of the batch with the profiles that they share."""
        keys = np.stack(
            [
                self.lanes,
                self.points.codes["staging"].astype(np.int64),
                self.points.codes["divide"].astype(np.int64),
                self.stream.astype(np.int64),
            ]
        )
        kinds, inverse = np.unique(keys, axis=1, return_inverse=True)
        inverse = np.asarray(inverse).reshape(-1)
        out: list[tuple[Column, _Shape]] = []
        for number in range(kinds.shape[1]):
            rows = np.flatnonzero(inverse == number)
            at = int(rows[0])
            shape = self.owner.shape(
                int(self.lanes[at]),
                str(self.staging[at]),
                str(self.divide[at]),
                bool(self.stream[at]),
            )
            out.append((rows, shape))
        return out

    def facts(self) -> Facts:
        """The facts of the batch."""
        count = len(self.plan.passes)
        total = np.zeros((len(self.points), self.meter.width))
        busiest = np.zeros((count, len(self.points), self.meter.width))
        for rows, shape in self._shapes():
            each, ends = self._per_pass(rows, shape)
            lines, busy = self.lines[rows], self.busy[rows]
            short = ends["short_lines"]
            # Rows that fill no group are passed over one after another.
            piped = np.where(self.beside[rows], lines - lines % self.rows[rows], 0)
            for number in range(count):
                line, short_line = each[number]
                total[rows] += line * (lines - short)[:, None] + short_line * short[:, None]
                busiest[number][rows] = line * busy[:, None]
                total[rows] += shape.kept[number] * piped[:, None]
                busiest[number][rows] += shape.kept[number] * np.minimum(piped, busy)[:, None]
            total[rows] += shape.unit * self.units[rows][:, None]
            busiest[0][rows] += shape.unit
        apart = [self._phase(number, busiest[number]) for number in range(count)]
        phases = [scaled(phase, ~self.beside) for phase in apart]
        phases.append(scaled(self._together(apart[1:]), self.beside))
        program = facts_of(self.plan.domain.program)
        wide = any(op.type.dtype.bytes == 8 for op in self.plan.domain.program.ops)
        return Facts(
            phases,
            self.units,
            {"f64" if wide else "f32": float(program.flops)},
            float(program.bytes_read + program.bytes_written),
            self.meter.counts_of(total),
        )

    def _per_pass(
        self, rows: Column, shape: _Shape
    ) -> tuple[list[tuple[Column, Column]], dict[str, Column]]:
        """Counts of one line in every pass: with all lanes, and (COLUMNS) with the last ones."""
        deep, chains = self.geometry.deep, self.chains[rows][:, None]
        whole, short = self.fragments[rows][:, None], self.short[rows][:, None]
        held = self.registers[rows][:, None]
        out: list[tuple[Column, Column]] = []
        for number, p in enumerate(shape.passes):
            if number == 0:
                pair = (p.line + 0 * chains, p.short_line + 0 * chains)
                out.append(pair)
                continue
            extra = np.where(held, 0, chains * p.fill + (chains - 1) * p.join)
            if self.along:
                inner = np.where(held, 0, deep * (whole * p.whole + short * p.short))
                line = p.line + extra + inner
                if number == min(2, len(shape.passes) - 1):
                    line = line + shape.asked * self.asks[rows][:, None]
                out.append((line, line))
            else:
                line = p.line + extra + deep * p.whole
                out.append((line, p.short_line + extra + deep * p.short))
        shorts = np.zeros(len(rows), np.int64)
        if not self.along:
            shorts = self.geometry.lines * self.short[rows]
        return out, {"short_lines": shorts}

    # Phases ----------------------------------------------------------------------------------

    def _phase(self, number: int, profile: Column) -> Phase:
        """One pass of the busiest unit: pipes, the chain of its accumulators, memory."""
        cycles = dict(self.meter.cycles_of(profile))
        if number == 0:
            return Phase("prepare", cycles)
        one = self.plan.passes[number]
        deep = self.geometry.deep
        lanes_of = self.fragments + self.short
        if self.along:
            groups = -(-self.busy // self.rows)
            steps = deep * -(-lanes_of // self.unroll)
        else:
            groups = -(-self.busy // self.unroll)
            steps = np.asarray(-(-deep // self.rows)) + np.zeros_like(self.rows)
        steps = np.where(self.registers, 1, steps)
        if one.reductions:
            cycles[CHAIN] = (groups * steps * CHAIN_LATENCY).astype(np.float64)
        ends = FINISH_LATENCY if self.along else FINISH_LATENCY / 4
        overhead = groups * (steps * STEP_OVERHEAD + ends)
        if number == 1:
            overhead = overhead + self._unasked()
        return Phase(f"pass{number}", cycles, self._traffic(number), overhead)

    def _unasked(self) -> Column:
        """Cycles of waiting for input lines that nobody asked for."""
        domain, caches = self.plan.domain, self.owner.kit.caches
        arguments = (*domain.inputs, *domain.outputs)
        far = sum(a.type.bytes for a in arguments) / self.units > (caches[:2] or (0,))[-1]
        size = sum(domain.inputs[v].type.bytes for v in self.plan.fetched)
        lines = size / self.owner.kit.line * self.busy / np.maximum(self.lines, 1)
        return np.where(far & ~self.prefetch & ~self.registers, UNASKED * lines, 0.0)

    def _together(self, phases: Sequence[Phase]) -> Phase:
        """Passes side by side in one walk: their work adds up, their waits overlap."""
        cycles: dict[str, Column] = {}
        moved: dict[str, Column] = {}
        zero = np.zeros(len(self.points))
        for phase in phases:
            for pipe, column in phase.cycles.items():
                before = cycles.get(pipe, zero)
                cycles[pipe] = np.maximum(before, column) if pipe == CHAIN else before + column
            for level, column in phase.bytes.items():
                moved[level] = moved.get(level, zero) + column
        waits = [np.asarray(phase.overhead) + zero for phase in phases]
        return Phase("together", cycles, moved, np.max(np.stack(waits), axis=0))

    def _traffic(self, number: int) -> dict[str, Column]:
        domain = self.plan.domain
        program = domain.program
        one = self.plan.passes[number]
        traffic = self.owner.kit.traffic(self.points.column("units"))
        arguments = (*domain.inputs, *domain.outputs)
        home = traffic.level(sum(a.type.bytes for a in arguments) / self.units)
        again = np.minimum(home, traffic.level(self._group_bytes()))
        share = self.busy / np.maximum(self.lines, 1)
        seen = {v for p in self.plan.passes[1:number] for v in p.inputs}
        staged = self.staging == STAGED
        for value in one.inputs:
            amount = domain.inputs[value].type.bytes * share
            anew = any(axis in domain.kept for axis in domain.labels[value])
            level = home if anew and value not in seen else again
            skipped = (staged & (value not in one.staged_inputs)) | (
                self.registers & (value in seen)
            )
            if value in self.plan.fetched and number == 1:
                # What was fetched ahead, while an earlier group computed, waits in a cache.
                level = np.where(self.prefetch, again, level)
            traffic.add(level, np.where(skipped, 0, amount))
        if number == min(2, len(self.plan.passes) - 1):
            ahead = sum(domain.inputs[v].type.bytes for v in self.plan.fetched) * share
            traffic.add(home, np.where(self.prefetch, ahead, 0))
        for position in one.outputs:
            amount = domain.outputs[position].type.bytes * share
            traffic.write(home, amount, self.stream)
        for value in (*one.stores, *one.loads):
            size = 8 if program.ops[value].type.dtype.bytes == 8 else 4
            elements = self.geometry.deep * self.geometry.extent * self.geometry.lines
            traffic.add(again, np.where(staged, elements * size * share, 0))
        return traffic.moved()

    def _group_bytes(self) -> Column:
        """Bytes that one group of lines touches again from pass to pass."""
        domain = self.plan.domain
        inputs = {v for one in self.plan.passes for v in one.inputs}
        anew = shared = 0
        for value in inputs:
            size = domain.inputs[value].type.bytes
            if any(axis in domain.kept for axis in domain.labels[value]):
                anew += size
            else:
                shared += size
        at_once = self.rows if self.along else self.unroll
        group = anew * at_once / np.maximum(self.lines, 1)
        kept = np.where(self.staging == STAGED, self.points.column("kept_bytes"), 0)
        return group + shared + kept
