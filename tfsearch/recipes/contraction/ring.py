"""The ring pipeline: persistent, warp-specialised contractions through slots of shared memory.

A unit is a loader and one to three consumers, teams of warps. The loader copies tiles of both
factors by the host's descriptors into a ring of slots; a slot is full once all its bytes are there
and empty once every consumer that reads it has said so. Consumers share each tile, or take turns
with whole tiles. Units of a cluster whose tiles lie above one another share tiles of the second
factor, those side by side tiles of the first: each copies a part for all of them. An outer axis is
walked plane by plane.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.layout import Layout, SwizzledLayout
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Var, as_expr, maximum, minimum
from tfsearch.ir.tir.nodes import (
    UNIT,
    Box,
    Buffer,
    Io,
    MemorySpace,
    Module,
    Param,
    Window,
    window,
)
from tfsearch.recipes.contraction.match import Contraction, M, N
from tfsearch.recipes.contraction.ring_atoms import RingAtoms
from tfsearch.recipes.contraction.ring_epilogue import RegisterTile
from tfsearch.recipes.contraction.ring_schedule import (
    LOADER_REGISTERS,
    STAGES_OF_RESULTS,
    RingSchedule,
    consumer_registers,
    entry_registers,
)
from tfsearch.recipes.fragments import Fragments, Lanes
from tfsearch.recipes.recipe import Crew, Kit

SHARED, REGISTER = MemorySpace.SHARED, MemorySpace.REGISTER
TURN = 1
"""Id of the first named barrier with which consumers pass on their turn."""
TEAM = 3
"""Id of the first named barrier of the warps of one consumer."""


def clipped(start: ExprLike, extent: int, size: int) -> tuple[Expr, Expr]:
    """(start, what is left of the extent before the edge)."""
    first = as_expr(start)
    return first, maximum(0, minimum(extent, as_expr(size) - first))


@dataclass(frozen=True)
class RingContraction:
    """A contraction with the atoms of its ring; ``widths`` of register tiles, widest first.

    ``across``: whether the first and the second factor are stored across the sum.
    """

    contraction: Contraction
    atoms: RingAtoms
    widths: tuple[int, ...]
    kit: Kit
    crew: Crew
    accuracy: Accuracy
    alignment: int
    across: tuple[bool, bool] = (False, False)


def lower(ring: RingContraction, schedule: RingSchedule) -> Module:
    """A point as TIR."""
    return _Ring(ring, schedule).module()


class _Ring:
    def __init__(self, ring: RingContraction, schedule: RingSchedule) -> None:
        self.ring, self.atoms, self.s = ring, ring.atoms, schedule
        c = self.contraction = ring.contraction
        program = c.program
        names = [item.name for item in program.inputs] + [o.name for o in c.outputs]
        self.builder = Builder(names)
        self.inputs = [self._argument(i.name, i.type) for i in program.inputs]
        self.outputs = [self._argument(o.name, program.ops[o.value].type) for o in c.outputs]
        assert c.a.source is not None
        assert c.b.source is not None
        self.a, self.b = self.inputs[c.a.source], self.inputs[c.b.source]
        s = schedule
        self.steps = -(-c.k // s.tile_k)
        self.chunks = s.tile_k // self.atoms.span
        self.down = -(-c.m // (s.tile_m * s.high))
        self.across = -(-c.n // (s.tile_n * s.wide))
        self.plane: Expr = Const(0)
        self.planes = prod(c.extents[axis] for axis in c.outer)
        self.clusters = s.units // s.size
        self.blocks = s.tile_m // (self.atoms.rows * s.share)
        crew, team = ring.crew, self.atoms.warps
        self.warps = team * (1 + s.consumers)
        self.entry = entry_registers(crew.registers, self.warps * crew.lanes, crew.most)
        self.registers = consumer_registers(
            crew.registers, crew.lanes, team, s.consumers, crew.most
        )

    def _argument(self, name: str, kind: TensorType) -> Buffer:
        return Buffer(
            name, kind.dtype, kind.sizes, MemorySpace.GLOBAL, kind.element_strides,
            max(self.ring.alignment, kind.dtype.bytes),
        )  # fmt: skip

    def module(self) -> Module:
        b, s, atoms = self.builder, self.s, self.atoms
        self.sa = self._slots("sa", s.tile_m, across=self.ring.across[0])
        self.sb = self._slots("sb", s.tile_n, across=self.ring.across[1])
        if s.staged:
            self.sc = self._tiles("sc", STAGES_OF_RESULTS * s.consumers, atoms.rows)
        self.full = b.alloc("full", DType.BARRIER, (s.stages,), SHARED, alignment=8)
        self.empty = b.alloc("empty", DType.BARRIER, (s.stages,), SHARED, alignment=8)
        self._setup()
        unit = Var(UNIT)
        self.rank = unit % s.size if s.size > 1 else Const(0)
        self.cluster = b.let("cluster", unit // s.size) if s.size > 1 else unit
        count = self.down * self.across * self.planes
        self.turns = b.let("turns", (count - self.cluster + (self.clusters - 1)) // self.clusters)
        team = atoms.warps
        with b.role("loader", 0, team, width=team):
            self._load()
        with b.role("maths", team, self.warps, width=team, instance="w") as w:
            self._work(w)
        if s.size > 1:
            self._meet()
        kernel = b.kernel(
            "main", self._params(), s.units, warps=self.warps, lanes=self.ring.crew.lanes,
            registers=self.entry, cluster=(s.high, s.wide) if s.size > 1 else (),
        )  # fmt: skip
        return Module((kernel,))

    def _slots(self, stem: str, rows: int, *, across: bool) -> Buffer:
        """Tiles of a factor; stored across the sum, blocks of columns lie one behind another."""
        count, span = self.s.stages * self.chunks, self.atoms.span
        if not across:
            return self._tiles(stem, count, rows)
        shape = (count, span, (span, rows // span))
        layout = Layout(shape, (span * rows, span, (1, span * span)))
        return self._swizzled(stem, (count, span, rows), layout)

    def _tiles(self, stem: str, count: int, rows: int) -> Buffer:
        shape = (count, rows, self.atoms.span)
        return self._swizzled(stem, shape, Layout.row_major(shape))

    def _swizzled(self, stem: str, shape: tuple[int, ...], plain: Layout) -> Buffer:
        layout = SwizzledLayout(self.atoms.swizzle, plain)
        dtype = self.contraction.a.dtype
        alignment = self.atoms.swizzle.period * dtype.bytes
        return self.builder.alloc(stem, dtype, shape, SHARED, alignment=alignment, layout=layout)

    def _params(self) -> tuple[Param, ...]:
        """Arguments, the factors with the boxes in which they are copied."""
        s, atoms = self.s, self.atoms
        rows = {self.a.name: s.tile_m // s.wide, self.b.name: s.tile_n // s.high}
        for buffer, across in zip((self.a, self.b), self.ring.across, strict=True):
            rows[buffer.name] = atoms.span if across else rows[buffer.name]
        out: list[Param] = []
        for buffer in self.inputs:
            boxes: tuple[Box, ...] = ()
            if buffer.name in rows:
                boxes = (self._box(buffer, rows[buffer.name]),)
            out.append(Param(buffer, Io.IN, boxes))
        for buffer in self.outputs:
            boxes = ()
            if s.staged:
                boxes = (self._box(buffer, atoms.rows),)
            out.append(Param(buffer, Io.OUT, boxes))
        return tuple(out)

    def _box(self, buffer: Buffer, rows: int) -> Box:
        shape = (1,) * (len(buffer.shape) - 2) + (rows, self.atoms.span)
        return Box(shape, buffer.dense_strides, self.atoms.swizzle)

    def _setup(self) -> None:
        b, s = self.builder, self.s
        with b.loop("i", s.stages) as i:
            b.call(self.atoms["init"], window(self.full, i), 1)
            b.call(self.atoms["init"], window(self.empty, i), s.share * s.size)
        b.call(self.atoms["fence init"])
        self._meet()

    def _meet(self) -> None:
        if self.s.size > 1:
            self.builder.call(self.atoms["cluster arrive"])
            self.builder.call(self.atoms["cluster wait"])
        else:
            self.builder.call(self.atoms["team"])

    def _place(self, j: Expr) -> tuple[Expr, Expr]:
        """(first row, first column) of this unit's tile of a turn, whose plane is kept."""
        b, s = self.builder, self.s
        t = b.let("t", self.cluster + j * self.clusters)
        self.plane = Const(0)
        if self.planes > 1:
            self.plane = b.let("plane", t // (self.down * self.across))
            t = b.let("t", t - self.plane * (self.down * self.across))
        if s.group == 1 or self.down == 1:
            high, wide = t // self.across, t % self.across
        else:
            group = min(s.group, self.down)
            first = b.let("first", t // (group * self.across) * group)
            inside = b.let("inside", t - first * self.across)
            rows: ExprLike = group
            if self.down % group:
                rows = b.let("rows", minimum(group, self.down - first))
            high, wide = first + inside % rows, inside // rows
        if s.high > 1:
            high = high * s.high + self.rank
        if s.wide > 1:
            wide = wide * s.wide + self.rank
        return b.let("tile_row", high) * s.tile_m, b.let("tile_col", wide) * s.tile_n

    def _load(self) -> None:
        b, s = self.builder, self.s
        if self.registers > self.entry:
            b.call(self.atoms["lower"], LOADER_REGISTERS)
        with b.loop("j", self.turns) as j:
            row, col = self._place(j)
            with b.loop("kk", self.steps) as kk:
                at = b.let("at", j * self.steps + kk)
                slot = b.let("slot", at % s.stages)
                # Only the thread that copies waits: nothing holds it back for others of its team,
                # which could miss a phase and then wait for one that never comes.
                empty = window(self.empty, slot)
                b.call(self.atoms["wait elected"], empty, (at // s.stages + 1) % 2)
                self._fill(kk, slot, row, col)

    def _fill(self, kk: Expr, slot: Expr, row: Expr, col: Expr) -> None:
        b, s, size = self.builder, self.s, self.contraction.a.dtype.bytes
        full = window(self.full, slot)
        b.call(self.atoms["expect"], full, (s.tile_m + s.tile_n) * s.tile_k * size)
        self._copies(self.a, self.sa, kk, slot, row, s.tile_m, s.wide, self.contraction.m)
        self._copies(self.b, self.sb, kk, slot, col, s.tile_n, s.high, self.contraction.n)

    def _copies(
        self,
        source: Buffer,
        into: Buffer,
        kk: Expr,
        slot: Expr,
        start: Expr,
        rows: int,
        parts: int,
        extent: int,
    ) -> None:
        """A tile of one factor; with ``parts`` a unit copies one of them for the whole cluster."""
        b, span, part = self.builder, self.atoms.span, rows // parts
        full = window(self.full, slot)
        above = self.rank * part if parts > 1 else Const(0)
        across = self.ring.across[0 if into is self.sa else 1]
        size = span if across else part
        pieces = [(chunk, at) for chunk in range(self.chunks) for at in range(0, part, size)]
        for chunk, at in pieces:
            k = clipped(kk * self.s.tile_k + chunk * span, span, self.contraction.k)
            lines = clipped(start + above + at, size, extent)
            place = slot * self.chunks + chunk
            plane = [(self.plane, 1)] * (len(source.shape) - 2)
            if across:
                source_box = window(source, *plane, k, lines)
                target = window(into, place, (0, span), (above + at, size))
            else:
                source_box = window(source, *plane, lines, k)
                target = window(into, place, (above, part), (0, span))
            if parts > 1:
                mask = (1 << parts) - 1
                b.call(self.atoms.casts[size].id, target, source_box, full, mask)
            else:
                b.call(self.atoms.boxes[size].id, target, source_box, full)

    def _work(self, w: Expr) -> None:
        b, s, atoms = self.builder, self.s, self.atoms
        if self.registers > self.entry:
            b.call(atoms["raise"], self.registers)
        shape = (self.blocks, atoms.rows, s.tile_n)
        acc = b.alloc(
            "acc", self.contraction.acc, shape, REGISTER, alignment=4, fragment=atoms.fragment
        )
        takes_turns = s.pingpong and s.consumers > 1
        if takes_turns:
            with b.when(w.eq(s.consumers - 1)):
                b.call(atoms["named arrive"], TURN, 2 * atoms.warps)
        start, step = (w, s.consumers) if s.pingpong else (Const(0), 1)
        with b.loop("j", self.turns, start=start, step=step) as j:
            row, col = self._place(j)
            with self._turn(w, takes_turns):
                self._contract(acc, w, j)
            below = self.blocks * atoms.rows
            first = row if s.pingpong or s.consumers == 1 else row + w * below
            if s.staged:
                self._stage(acc, w, first, col)
            else:
                self._finish(acc, first, col)
        if s.staged:
            b.call(atoms["put settle"], 0)

    @contextmanager
    def _turn(self, w: Expr, takes_turns: bool) -> Generator[None, None, None]:
        """Consumers that take turns multiply one after another."""
        b, warps = self.builder, 2 * self.atoms.warps
        if takes_turns:
            b.call(self.atoms["named"], w + TURN, warps)
        yield
        if takes_turns:
            following = (w + 1) % self.s.consumers
            b.call(self.atoms["named arrive"], following + TURN, warps)

    def _contract(self, acc: Buffer, w: Expr, j: Expr) -> None:
        """All steps of a tile; a slot is given back once the products of the next are under way."""
        b, s = self.builder, self.s
        self._step(acc, w, j, Const(0), first=True)
        with b.loop("kk", self.steps, start=1) as kk:
            at = self._step(acc, w, j, kk, first=False)
            b.call(self.atoms["settle"], 1)
            self._release((at + (s.stages - 1)) % s.stages)
        b.call(self.atoms["settle"], 0)
        self._release((j * self.steps + (self.steps - 1)) % s.stages)

    def _step(self, acc: Buffer, w: Expr, j: Expr, kk: Expr, *, first: bool) -> Expr:
        b, s, atoms = self.builder, self.s, self.atoms
        at = b.let("at", j * self.steps + kk)
        slot = b.let("slot", at % s.stages)
        b.call(atoms["wait"], window(self.full, slot), at // s.stages % 2)
        b.call(atoms["fence"])
        product = atoms.products[s.tile_n]
        below = self.blocks * atoms.rows
        base = Const(0) if s.pingpong or s.consumers == 1 else w * below
        for chunk in range(self.chunks):
            place = slot * self.chunks + chunk
            for depth in range(atoms.span // atoms.depth):
                k = (depth * atoms.depth, atoms.depth)
                atom = product.first if first and not (chunk or depth) else product.more
                for block in range(self.blocks):
                    rows, columns = (base + block * atoms.rows, atoms.rows), (0, s.tile_n)
                    a = self._factor(self.sa, place, rows, k, across=self.ring.across[0])
                    right = self._factor(self.sb, place, columns, k, across=self.ring.across[1])
                    b.call(atom.id, self._block(acc, block), a, right)
        b.call(atoms["commit"])
        return at

    def _factor(
        self,
        slots: Buffer,
        place: Expr,
        lines: tuple[ExprLike, int],
        k: tuple[int, int],
        *,
        across: bool,
    ) -> Window:
        return window(slots, place, k, lines) if across else window(slots, place, lines, k)

    def _block(self, acc: Buffer, block: int) -> Window:
        return window(acc, block, (0, self.atoms.rows), (0, self.s.tile_n))

    def _release(self, slot: Expr) -> None:
        b = self.builder
        empty = window(self.empty, b.let("slot", slot))
        if self.s.size > 1:
            with b.loop("r", self.s.size) as r:
                b.call(self.atoms["arrive far"], empty, r)
        else:
            b.call(self.atoms["arrive"], empty)

    def _finish(self, acc: Buffer, top: Expr, col: Expr) -> None:
        """The fused work on every tile of the accumulator, and the stores."""
        rows = self.atoms.rows
        for block in range(self.blocks):
            at = 0
            for width in self.ring.widths:
                count = (self.s.tile_n - at) // width
                with self.builder.loop("piece", count, unrolled=True) as piece:
                    if count:
                        self._piece(acc, block, top + block * rows, col, piece * width + at, width)
                at += count * width

    def _stage(self, acc: Buffer, w: Expr, top: Expr, col: Expr) -> None:
        """The same through shared memory, one box after another, two of them in turn."""
        b, atoms, span = self.builder, self.atoms, self.atoms.span
        assert atoms.put is not None
        (output,), rows, c = self.outputs, atoms.rows, self.contraction
        count = self.s.tile_n // span
        total = self.blocks * count
        for number in range(total):
            block, chunk = divmod(number, count)
            slot = w * STAGES_OF_RESULTS + number % STAGES_OF_RESULTS
            # The last box of a tile may have left from the slot that the next one begins with.
            late = number == 0 and total % STAGES_OF_RESULTS
            b.call(atoms["put read"], 0 if late else STAGES_OF_RESULTS - 1)
            b.call(atoms["named"], w + TEAM, atoms.warps)
            row, column = top + block * rows, col + chunk * span
            at = 0
            for width in self.ring.widths:
                for _ in range((span - at) // width):
                    into = window(self.sc, slot, (0, rows), (at, width))
                    self._piece(acc, block, row, col, Const(chunk * span + at), width, into)
                    at += width
            b.call(atoms["fence put"])
            b.call(atoms["named"], w + TEAM, atoms.warps)
            plane = [(self.plane, 1)] * len(c.outer)
            target = window(output, *plane, clipped(row, rows, c.m), clipped(column, span, c.n))
            source = window(self.sc, slot, (0, rows), (0, span))
            b.call(atoms.put.id, target, source)
            b.call(atoms["put commit"])

    def _piece(
        self,
        acc: Buffer,
        block: int,
        row: Expr,
        col: Expr,
        at: Expr,
        width: int,
        into: Window | None = None,
    ) -> None:
        c, rows = self.contraction, self.atoms.rows
        inputs = {value: self.inputs[value] for value in range(len(c.program.inputs))}
        fragments = Fragments(
            self.builder, c.program, self.ring.kit.atoms, self.ring.accuracy, inputs
        )
        _, height = clipped(row, rows, c.m)
        column, valid = clipped(col + at, width, c.n)
        sums = window(acc, block, (0, rows), (at, width))
        place = {M: row, N: column, **dict.fromkeys(c.outer, self.plane)}
        tile = RegisterTile(
            fragments, place, rows, height, Lanes.of(width, N, valid),
            self.atoms.fragment, {c.value: sums},
        )  # fmt: skip
        for output, buffer in zip(c.outputs, self.outputs, strict=True):
            value = tile.value(output.value, output.labels)
            if into is not None:
                tile.stage(value, into)
            else:
                tile.store(value, buffer, output.labels)
