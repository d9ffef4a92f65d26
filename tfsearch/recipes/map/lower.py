"""Lowering of maps: fragments along the lanes, or square tiles where inputs are turned."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Accuracy, ParamValue
from tfsearch.ir.hir.ops import OpKind
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Operator, Var, as_expr, binary, minimum
from tfsearch.ir.tir.nodes import (
    UNIT,
    Buffer,
    Io,
    Kernel,
    MemorySpace,
    Module,
    Param,
    Window,
    window,
)
from tfsearch.recipes.domain import dealt, flat_size, places
from tfsearch.recipes.fragments import Fragments, Labels, Lanes, Place, compute_dtype
from tfsearch.recipes.map.match import Domain

MAIN = "main"
STRIDED, TRANSPOSE = "strided", "transpose"
PLENTY = 8
"""Lines per unit from which an uneven split of whole lines costs little."""


@dataclass(frozen=True)
class Schedule:
    """One candidate: ``unroll`` fragments of ``lanes`` a step; or tiles of ``lanes`` squared,
    ``block`` of them side by side along the turned inputs' contiguous axis.
    """

    lanes: int
    unroll: int
    gather: str
    block: int
    stream: bool
    units: int

    @staticmethod
    def of(params: Mapping[str, ParamValue]) -> Schedule:
        """Read the parameters that :mod:`tfsearch.recipes.map.parameters` declares."""
        return Schedule(
            lanes=int(params["lanes"]),
            unroll=int(params["unroll"]),
            gather=str(params["gather"]),
            block=int(params["block"]),
            stream=bool(params["stream"]),
            units=int(params["units"]),
        )


def split_lines(lines: int, chunks: int, units: int) -> bool:
    """Whether units share whole lines, or else the steps along every line."""
    if units == 1 or lines % units == 0 or lines >= PLENTY * units:
        return True
    return chunks < units


def lower(
    domain: Domain, schedule: Schedule, atoms: AtomTable, accuracy: Accuracy, alignment: int
) -> Module:
    """One candidate as TIR; ``alignment`` of arguments in bytes."""
    return Module((Lowering(domain, schedule, atoms, accuracy, alignment).kernel(),))


class Lowering:
    """Writes the kernel of one candidate."""

    def __init__(
        self,
        domain: Domain,
        schedule: Schedule,
        atoms: AtomTable,
        accuracy: Accuracy,
        alignment: int,
    ) -> None:
        self.domain = domain
        self.schedule = schedule
        self.builder = Builder(a.name for a in (*domain.inputs, *domain.outputs))
        self.inputs = {v: a.buffer(alignment) for v, a in enumerate(domain.inputs)}
        self.outputs = [a.buffer(alignment) for a in domain.outputs]
        self.fragments = Fragments(self.builder, domain.program, atoms, accuracy, self.inputs)
        self.constants: dict[int, Window] = {}
        self.extent = domain.extents[domain.lane]
        self.tiles: dict[tuple[int, Labels], Buffer] = {}

    def kernel(self) -> Kernel:
        """The kernel of the candidate."""
        self.fill_constants()
        if self.schedule.gather == TRANSPOSE:
            self.allocate_tiles()
            self._turned()
        else:
            self._plain()
        if self.schedule.stream:
            self.fence()
        params = [Param(buffer, Io.IN) for buffer in self.inputs.values()]
        params += [Param(buffer, Io.OUT) for buffer in self.outputs]
        return self.builder.kernel(MAIN, tuple(params), self.schedule.units)

    def fence(self) -> None:
        """Make streamed stores visible in order."""
        self.builder.call(self.fragments.atom(Computation(Kind.SYNC, "fence", (), ())))

    def fill_constants(self) -> None:
        """Constants of the program live in registers throughout the kernel."""
        tile = self.fragments.at({}, Lanes.of(self.schedule.lanes, self.domain.lane))
        for value, op in enumerate(self.domain.program.ops):
            if op.kind is OpKind.CONST:
                self.constants[value] = tile.value(value, ())

    def element(self, place: Place, lanes: Lanes, row: ExprLike | None = None) -> None:
        """One fragment of every output; with ``row``, turned inputs come from their tiles."""
        tile = self.fragments.at(place, lanes, self.constants)
        if row is not None:
            for (value, labels), buffer in self.tiles.items():
                out = tile.register("x", buffer.dtype)
                source = window(buffer, row, (0, lanes.valid))
                dtypes = (buffer.dtype, buffer.dtype)
                tile.call(Kind.LOAD, "", dtypes, out, source, partial=not lanes.whole)
                tile.know(value, labels, out)
        outputs = zip(self.outputs, self.domain.program.outputs, self.domain.labels, strict=True)
        for buffer, (_, value), labels in outputs:
            found = tile.value(value, labels)
            tile.store(found, buffer, labels, stream=self.schedule.stream)

    def share(self, total: int, stem: str) -> tuple[Expr, Expr]:
        """The executing unit's contiguous share of ``total`` things: first, past the last."""
        return dealt(self.builder, total, self.schedule.units, Var(UNIT), stem)

    # Fragments along the lanes -----------------------------------------------------------------

    def _plain(self) -> None:
        lanes, unroll = self.schedule.lanes, self.schedule.unroll
        lines = flat_size(self.domain.axes, self.domain.extents)
        steps = self.extent // (lanes * unroll)
        chunks = steps + (self.extent % (lanes * unroll) > 0)
        if split_lines(lines, chunks, self.schedule.units):
            first, last = self.share(lines, "line")
            start, stop = Const(0), Const(chunks)
        else:
            first, last = Const(0), Const(lines)
            start, stop = self.share(chunks, "step")
        with self.builder.loop("o", last, start=first) as line:
            place = places(self.builder, line, self.domain.axes, self.domain.extents)
            self._line(place, start, stop, steps, chunks)

    def _line(self, place: Place, start: Expr, stop: Expr, steps: int, chunks: int) -> None:
        lanes, unroll, lane = self.schedule.lanes, self.schedule.unroll, self.domain.lane
        if steps:
            end = stop if chunks == steps else minimum(stop, steps)
            with self.builder.loop("s", end, start=start) as step:
                for u in range(unroll):
                    at = step * (unroll * lanes) + u * lanes
                    self.element({**place, lane: at}, Lanes.of(lanes, lane))
        if chunks > steps:
            with self.builder.when(stop.eq(chunks)):
                for at in range(steps * unroll * lanes, self.extent, lanes):
                    valid = min(lanes, self.extent - at)
                    self.element({**place, lane: as_expr(at)}, Lanes.of(lanes, lane, valid))

    # Square tiles ------------------------------------------------------------------------------

    def allocate_tiles(self) -> None:
        """A square of memory for every turned input."""
        lanes = self.schedule.lanes
        for value, labels in self.domain.turned:
            dtype = compute_dtype(self.inputs[value].dtype)
            self.tiles[value, labels] = self.builder.alloc(
                "turned", dtype, (lanes, lanes), MemorySpace.LOCAL
            )

    def _turned(self) -> None:
        lanes, block = self.schedule.lanes, self.schedule.block
        along = self.domain.extents[self.domain.turn]
        total = -(-along // lanes)
        groups = -(-total // block)
        outer = [a for a in self.domain.axes if a != self.domain.turn]
        first, last = self.share(flat_size(outer, self.domain.extents) * groups, "group")
        with self.builder.loop("g", last, start=first) as item:
            place = places(self.builder, item // groups, outer, self.domain.extents)
            group = self.builder.let("at", item % groups)
            with self.builder.loop("s", self.extent // lanes) as step:
                self._group(place, group, step * lanes, lanes)
            if self.extent % lanes:
                start = Const(self.extent // lanes * lanes)
                self._group(place, group, start, self.extent % lanes)

    def _group(self, place: Place, group: Expr, column: Expr, valid: int) -> None:
        """``block`` tiles along the contiguous axis of the turned inputs."""
        lanes, block = self.schedule.lanes, self.schedule.block
        full, rest = divmod(self.domain.extents[self.domain.turn], lanes)
        stop = minimum((group + 1) * block, full)
        if full:
            with self.builder.loop("t", stop, start=group * block) as index:
                self.square(place, index * lanes, lanes, column, valid)
        if rest:
            is_last = binary(Operator.LE, full + 1, (group + 1) * block)
            with self.builder.when(is_last):
                self.square(place, Const(full * lanes), rest, column, valid)

    def square(self, place: Place, row: Expr, rows: int, column: Expr, valid: int) -> None:
        """One tile: turn the inputs, then row by row."""
        self.turn(place, row, rows, column, valid)
        lane, turn = self.domain.lane, self.domain.turn
        with self.builder.loop("r", rows) as r:
            here = {**place, turn: row + r, lane: column}
            self.element(here, Lanes.of(self.schedule.lanes, lane, valid), r)

    def turn(self, place: Place, row: Expr, rows: int, column: Expr, valid: int) -> None:
        """Transpose a tile of every turned input into memory of the unit."""
        lanes = self.schedule.lanes
        for (value, labels), buffer in self.tiles.items():
            source = self.inputs[value]
            dims: list[tuple[ExprLike, ExprLike]] = []
            for axis in labels:
                if axis == self.domain.lane:
                    dims.append((column, valid))
                elif axis == self.domain.turn:
                    dims.append((row, rows))
                else:
                    dims.append((0, 1) if axis is None else (place[axis], 1))
            atom = self.fragments.atom(transpose_of(buffer, source, lanes))
            target = window(buffer, (0, rows), (0, valid))
            self.builder.call(atom, target, window(source, *dims))


def transpose_of(buffer: Buffer, source: Buffer, lanes: int) -> Computation:
    """What turns a tile of an input into a tile in memory."""
    return Computation(Kind.TRANSPOSE, "", (lanes, lanes), (buffer.dtype, source.dtype))
