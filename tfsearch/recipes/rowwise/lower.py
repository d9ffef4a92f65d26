"""Lowering of row-wise candidates: groups of lines, walks along them, tails."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Accuracy
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, Var, as_expr, minimum
from tfsearch.ir.tir.nodes import UNIT, Io, Kernel, Module, Param
from tfsearch.recipes.domain import dealt, places
from tfsearch.recipes.fragments import Fragments, Lanes, Place
from tfsearch.recipes.rowwise.beside import Beside, staged_slots
from tfsearch.recipes.rowwise.match import Pipeline
from tfsearch.recipes.rowwise.plan import Pass, Plan
from tfsearch.recipes.rowwise.schedule import REGISTERS, Geometry, Schedule
from tfsearch.recipes.rowwise.walk import Accumulators, Active, Line, Piece, Walker

MAIN = "main"
FETCH_BYTES = 2048
"""How far ahead of a joint walk its input is asked for (measured on Zen 4 at 128 to 65,536 columns:
2 KB is best, 4 to 16 KB cost up to 2 cycles a line more)."""

Ahead = Callable[[Expr], Place]
"""The place to ask for while the walk is at a lane."""


def lower(
    plan: Plan, schedule: Schedule, atoms: AtomTable, accuracy: Accuracy, alignment: int, line: int
) -> Module:
    """One candidate as TIR; ``alignment`` of arguments and cache ``line`` in bytes."""
    kind = Rows if plan.domain.pipeline is Pipeline.ROWS else Columns
    return Module((kind(plan, schedule, atoms, accuracy, alignment, line).kernel(),))


class Lowering:
    """What both pipelines share: arguments, the split over units, the order of passes."""

    def __init__(
        self,
        plan: Plan,
        schedule: Schedule,
        atoms: AtomTable,
        accuracy: Accuracy,
        alignment: int,
        line: int,
    ) -> None:
        self.plan = plan
        self.domain = plan.domain
        self.schedule = schedule
        self.cache_line = line
        self.geometry = Geometry.of(plan.domain)
        names = [a.name for a in (*plan.domain.inputs, *plan.domain.outputs)]
        self.builder = Builder(names)
        self.inputs = {v: a.buffer(alignment) for v, a in enumerate(plan.domain.inputs)}
        self.outputs = [a.buffer(alignment) for a in plan.domain.outputs]
        self.fragments = Fragments(self.builder, plan.domain.program, atoms, accuracy, self.inputs)
        self.walker = Walker(self.builder, self.fragments, plan, schedule, self.outputs)
        self.outer = [a for a in plan.domain.kept if a != plan.domain.lane]
        self.deep = [a for a in plan.domain.reduced if a != plan.domain.lane]

    def kernel(self) -> Kernel:
        """The kernel of the candidate."""
        self.walker.fill_constants()
        self.allocate()
        self.groups()
        if self.schedule.stream and self.plan.element_outputs:
            self.builder.call(self.fragments.atom(Computation(Kind.SYNC, "fence", (), ())))
        params = [Param(buffer, Io.IN) for buffer in self.inputs.values()]
        params += [Param(buffer, Io.OUT) for buffer in self.outputs]
        return self.builder.kernel(MAIN, tuple(params), self.schedule.units)

    def allocate(self) -> None:
        """Memory of the unit."""
        raise NotImplementedError

    def groups(self) -> None:
        """Everything that the executing unit owns."""
        raise NotImplementedError

    def share(self, total: int, stem: str) -> tuple[Expr, Expr]:
        """The executing unit's contiguous share of ``total`` things: first, past the last."""
        return dealt(self.builder, total, self.schedule.units, Var(UNIT), stem)

    def passes(self, lines: list[Line], walk: Callable[[int, Pass, Accumulators], None]) -> None:
        """All passes over a group of lines."""
        walker = self.walker
        for number, one in enumerate(self.plan.passes):
            if not number:
                continue
            acc = walker.begin(one, len(lines))
            walk(number, one, acc)
            for line in lines:
                walker.end(one, line, acc)

    def lane_counts(self) -> tuple[int, int, int]:
        """Along the lane axis: whole steps of ``unroll`` fragments, whole fragments beyond them,
        elements in a last short fragment.
        """
        extent, lanes, unroll = self.geometry.extent, self.schedule.lanes, self.schedule.unroll
        whole = extent // lanes
        return whole // unroll, whole % unroll, extent % lanes


class Rows(Lowering):
    """Lanes along the row. A group is ``rows`` rows; every unit owns whole groups."""

    def allocate(self) -> None:
        """Staged values of whole rows, padded to whole fragments."""
        lanes = self.schedule.lanes
        padded = -(-self.geometry.extent // lanes) * lanes
        slots = staged_slots(self.plan) if self.schedule.beside else 1
        self.walker.allocate_staging(slots * self.schedule.rows, self.geometry.deep, padded)

    def groups(self) -> None:
        """The unit's whole groups, then the rows that fill none."""
        rows, size = self.geometry.lines, self.schedule.rows
        full, rest = divmod(rows, size)
        total = full + (rest > 0)
        first, last = self.share(total, "group")
        stop = minimum(last, full) if rest else last
        if self.schedule.beside:
            pipeline = Beside(self.walker, self.outer, self.walk_beside)
            pipeline.allocate()
            pipeline.emit(first, stop)
        elif full:
            with self.builder.loop("g", stop, start=first) as group:
                self.group(group * size, size)
        if rest:
            with self.builder.when(last.eq(total)):
                self.group(Const(full * size), rest)

    def group(self, start: Expr, count: int) -> None:
        """``count`` rows from ``start``."""
        lanes = Lanes.of(self.schedule.lanes, self.domain.lane)
        lines = [
            self.walker.line(
                i, places(self.builder, start + i, self.outer, self.domain.extents), lanes
            )
            for i in range(count)
        ]
        if self.schedule.staging == REGISTERS:
            self.in_registers(lines)
            return
        ahead = self._ahead(start, count) if self.schedule.prefetch else []

        def walk(number: int, one: Pass, acc: Accumulators) -> None:
            ask = ahead if number == self.prefetching_pass() else []
            self.walk([Active(one, lines, acc)], ask)

        self.passes(lines, walk)

    def prefetching_pass(self) -> int:
        """The second walk reads from cache: memory is free to fetch what comes next."""
        return min(2, len(self.plan.passes) - 1)

    def _ahead(self, start: Expr, count: int) -> list[Ahead]:
        """Places of the rows of the next group; the last row stands for missing ones."""
        out: list[Ahead] = []
        for i in range(count):
            place = self._row(start + (self.schedule.rows + i))
            out.append(lambda at, place=place: {**place, self.domain.lane: at})
        return out

    def _row(self, row: Expr) -> Place:
        """Where a row is, or the last one where there is none."""
        row = self.builder.let("next", minimum(row, self.geometry.lines - 1))
        return places(self.builder, row, self.outer, self.domain.extents)

    def walk_beside(self, newest: Expr, active: list[Active]) -> None:
        """One walk of several passes; what pass 1 will read a little later is asked for."""
        asks = self.schedule.prefetch and active[0].one is self.plan.passes[1]
        self.walk(active, self._little_ahead(newest) if asks else [])

    def _little_ahead(self, group: Expr) -> list[Ahead]:
        """Places ``FETCH_BYTES`` further on: in the same row or the next, or some rows on."""
        extent, rows, lane = self.geometry.extent, self.schedule.rows, self.domain.lane
        width = max(self.inputs[v].dtype.bytes for v in self.plan.fetched)
        elements = FETCH_BYTES // width
        if extent <= elements or self.geometry.deep > 1:
            return self._ahead((group + (-(-elements // (extent * rows)) - 1)) * rows, rows)

        def further(at: Expr, i: int) -> Place:
            flat = at + elements
            place = self._row((group + flat // extent) * rows + i)
            return {**place, lane: flat % extent}

        return [lambda at, i=i: further(at, i) for i in range(rows)]

    def walk(self, active: list[Active], ahead: list[Ahead]) -> None:
        """Along the rows of groups: whole steps, then what is left."""
        steps, rest, short = self.lane_counts()
        lanes, unroll, lane = self.schedule.lanes, self.schedule.unroll, self.domain.lane
        with self.builder.loop("o", self.geometry.deep) as deep:
            inner = places(self.builder, deep, self.deep, self.domain.extents)

            def piece(line: Line, at: Expr, chain: int, valid: int) -> Piece:
                place = {**line.tile.place, **inner, lane: at}
                return Piece(place, Lanes.of(lanes, lane, valid), chain, (deep, at))

            with self.builder.loop("s", steps) as step:
                for each in active:
                    for line, u in product(each.lines, range(unroll)):
                        at = step * (unroll * lanes) + u * lanes
                        self.walker.element(each.one, line, piece(line, at, u, lanes), each.acc)
                for place in ahead:
                    self.ask(place, inner, step)
            for u in range(rest + (short > 0)):
                at = Const((steps * unroll + u) * lanes)
                valid = lanes if u < rest else short
                for each in active:
                    for line in each.lines:
                        self.walker.element(each.one, line, piece(line, at, u, valid), each.acc)

    def ask(self, ahead: Ahead, inner: Place, step: Expr) -> None:
        """Prefetch the cache lines of one step, a line's first fragment at a time."""
        lanes, unroll = self.schedule.lanes, self.schedule.unroll
        for u in self.asked_fragments():
            at = step * (unroll * lanes) + u * lanes
            self.walker.prefetch({**ahead(at), **inner})

    def asked_fragments(self) -> list[int]:
        """Fragments of a step that begin a cache line of the widest input."""
        lanes, unroll = self.schedule.lanes, self.schedule.unroll
        values = self.plan.fetched
        width = max((self.inputs[v].dtype.bytes for v in values), default=1)
        return [u for u in range(unroll) if u * lanes * width % self.cache_line == 0]

    # Short rows ------------------------------------------------------------------------------

    def in_registers(self, lines: list[Line]) -> None:
        """The rows of a group stay in registers over all passes."""
        for line in lines:
            self.pieces(line)
        for number, one in enumerate(self.plan.passes):
            if not number:
                continue
            for line in lines:
                self.register_pass(one, line)

    def pieces(self, line: Line) -> None:
        """Every fragment of a row; values computed on it stay."""
        lanes, lane = self.schedule.lanes, self.domain.lane
        for at in range(0, self.geometry.extent, lanes):
            valid = min(lanes, self.geometry.extent - at)
            place = {**line.tile.place, lane: as_expr(at)}
            tile = self.fragments.at(place, Lanes.of(lanes, lane, valid), self.walker.constants)
            tile.leaves = line.tile.leaves
            line.pieces[at] = tile

    def register_pass(self, one: Pass, line: Line) -> None:
        """One pass over the fragments of a row."""
        walker = self.walker
        for reduction in one.reductions:
            chains = [
                walker.source(tile, reduction)
                if tile.lanes.whole
                else walker.first_lanes(reduction, line, tile)
                for tile in line.pieces.values()
            ]
            walker.finish(reduction, line, chains, reuse=False)
        walker.row_values(one, line)
        for tile in line.pieces.values():
            walker.store_outputs(one, tile)


class Columns(Lowering):
    """Lanes across rows. A group is ``unroll`` fragments; every unit owns whole groups."""

    def allocate(self) -> None:
        """Staged values of the fragments of a group."""
        lanes = self.schedule.lanes
        self.walker.allocate_staging(self.schedule.unroll, self.geometry.deep, lanes)

    def groups(self) -> None:
        """The unit's groups; the last of a line has the fragments that fill none."""
        steps, rest, short = self.lane_counts()
        width = self.schedule.unroll * self.schedule.lanes
        tail = rest + (short > 0)
        per_line = steps + (tail > 0)
        first, last = self.share(self.geometry.lines * per_line, "group")
        with self.builder.loop("g", last, start=first) as group:
            outer = places(self.builder, group // per_line, self.outer, self.domain.extents)
            position = group % per_line
            if not tail:
                self.group(outer, position * width, self.schedule.unroll, 0)
                return
            with self.builder.capture() as full:
                if steps:
                    self.group(outer, position * width, self.schedule.unroll, 0)
            with self.builder.capture() as end:
                self.group(outer, Const(steps * width), tail, short)
            if steps:
                self.builder.choose(position.lt(steps), tuple(full), tuple(end))
            else:
                self.builder.extend(end)

    def group(self, outer: Place, start: Expr, count: int, short: int) -> None:
        """``count`` fragments from ``start``; the last has only ``short`` lanes unless 0."""
        lanes, lane = self.schedule.lanes, self.domain.lane
        lines: list[Line] = []
        for i in range(count):
            valid = short if short and i == count - 1 else lanes
            place = {**outer, lane: self.builder.let("c", start + i * lanes)}
            lines.append(self.walker.line(i, place, Lanes.of(lanes, lane, valid)))

        def walk(number: int, one: Pass, acc: Accumulators) -> None:
            del number
            self.walk(one, lines, acc)

        self.passes(lines, walk)

    def walk(self, one: Pass, lines: list[Line], acc: Accumulators) -> None:
        """Down the rows, ``rows`` of them a step."""
        size, deep = self.schedule.rows, self.geometry.deep
        full = deep // size
        with self.builder.loop("s", full) as step:
            for r in range(size):
                self.row(one, lines, acc, step * size + r, r)
        with self.builder.loop("t", deep, start=full * size) as index:
            self.row(one, lines, acc, index, 0)

    def row(self, one: Pass, lines: list[Line], acc: Accumulators, index: Expr, chain: int) -> None:
        """All fragments at one place of the reduced axes."""
        inner = places(self.builder, index, self.deep, self.domain.extents)
        for line in lines:
            place = {**line.tile.place, **inner}
            piece = Piece(place, line.tile.lanes, chain, (index, Const(0)))
            self.walker.element(one, line, piece, acc)
