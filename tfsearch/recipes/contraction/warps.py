"""The warps pipeline: contractions by warps that each hold a tile of the result in registers.

All warps of a unit copy tiles of both factors into slots of shared memory, several steps ahead,
and meet once a step. Every warp loads fragments from a slot and multiplies them. Tiles lie in
panels (:mod:`tfsearch.recipes.contraction.warps_atoms`): along the sum a panel has a row for each
row of the tile, across it one for each element of the sum.
"""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.core.records import Accuracy
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.layout import Layout, SwizzledLayout
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Var, as_expr, maximum, minimum
from tfsearch.ir.tir.nodes import (
    UNIT,
    Buffer,
    Io,
    MemorySpace,
    Module,
    Param,
    Scalar,
    Window,
    window,
)
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side
from tfsearch.recipes.contraction.ring_epilogue import RegisterTile
from tfsearch.recipes.contraction.warps_atoms import LEFT, RIGHT, Panel, WarpsAtoms
from tfsearch.recipes.contraction.warps_schedule import WarpsSchedule, registers_at_most
from tfsearch.recipes.fragments import Fragments, Lanes, Place
from tfsearch.recipes.recipe import Crew, Kit

SHARED, REGISTER = MemorySpace.SHARED, MemorySpace.REGISTER
UNROLL = 8
"""Copies of a thread whose addresses are worked out side by side."""
Range = tuple[Expr, ExprLike]


@dataclass(frozen=True)
class WarpsContraction:
    """A contraction with the atoms of its pipeline; ``widths`` of register tiles, widest first.

    ``across``: whether the first and the second factor are stored across the sum; ``aligned``: what
    the places of their rows are multiples of, bytes.
    """

    contraction: Contraction
    atoms: WarpsAtoms
    widths: tuple[int, ...]
    kit: Kit
    crew: Crew
    accuracy: Accuracy
    alignment: int
    across: tuple[bool, bool]
    aligned: tuple[int, int]

    @property
    def batches(self) -> int:
        """Products side by side."""
        count = 1
        for axis in self.contraction.outer:
            count *= self.contraction.extents[axis]
        return count


@dataclass(frozen=True)
class Tiles:
    """How tiles of one factor lie in a slot: ``count`` panels of so many rows."""

    side: int
    across: bool
    panel: Panel
    count: int
    rows: int
    vector: int

    @staticmethod
    def of(whole: WarpsContraction, s: WarpsSchedule, side: int) -> Tiles:
        """Of a point."""
        panel, across = whole.atoms.panels[s.panel], whole.across[side]
        extent = s.tile_n if side == RIGHT else s.tile_m
        along, rows = (extent, s.tile_k) if across else (s.tile_k, extent)
        vector = panel.widest(min(s.vector, whole.aligned[side]))
        return Tiles(side, across, panel, along // panel.span, rows, vector)

    def shape(self, stages: int) -> tuple[int, int, int]:
        """Of all slots."""
        return (stages * self.count, self.rows, self.panel.span)

    def layout(self, stages: int) -> Layout | SwizzledLayout:
        """Of all slots."""
        pitch = self.panel.pitch
        plain = Layout(self.shape(stages), (self.rows * pitch, pitch, 1))
        swizzle = self.panel.layout.swizzle
        return plain if swizzle is None else SwizzledLayout(swizzle, plain)


def lower(whole: WarpsContraction, schedule: WarpsSchedule) -> Module:
    """A point as TIR."""
    return _Warps(whole, schedule).module()


def clipped(start: Expr, extent: int, size: int) -> Range:
    """(start, what is left of the extent before the edge)."""
    return start, maximum(0, minimum(extent, Const(size) - start))


class _Warps:
    def __init__(self, whole: WarpsContraction, schedule: WarpsSchedule) -> None:
        self.whole, self.atoms, self.s = whole, whole.atoms, schedule
        c = self.contraction = whole.contraction
        program, s = c.program, schedule
        names = [item.name for item in program.inputs] + [o.name for o in c.outputs]
        self.builder = Builder(names)
        self.inputs = [self._argument(i.name, i.type) for i in program.inputs]
        self.outputs = [self._argument(o.name, program.ops[o.value].type) for o in c.outputs]
        self.steps = -(-c.k // s.tile_k)
        self.down = -(-c.m // s.tile_m)
        self.wide = -(-c.n // s.tile_n)
        self.tiles = tuple(Tiles.of(whole, s, side) for side in (LEFT, RIGHT))
        self.copies_async = any(
            t.panel.copy(t.vector, partial=True).is_async for t in self.tiles
        )  # fmt: skip
        self.group = min(s.group, self.down)
        # Tiles at the edges are whole where the sizes divide and the order of tiles is plain.
        plain = self.down % self.group == 0
        self.whole_m, self.whole_n = c.m % s.tile_m == 0 and plain, c.n % s.tile_n == 0 and plain
        self.whole_k = c.k % s.tile_k == 0

    def _argument(self, name: str, kind: TensorType) -> Buffer:
        return Buffer(
            name, kind.dtype, kind.sizes, MemorySpace.GLOBAL, kind.element_strides,
            max(self.whole.alignment, kind.dtype.bytes),
        )  # fmt: skip

    def module(self) -> Module:
        b, s, crew = self.builder, self.s, self.whole.crew
        self.slots = tuple(self._slots(tiles) for tiles in self.tiles)
        self.place = self._place()
        with b.role("warp", 0, s.warps, width=1, instance="w") as w:
            self._work(w)
        params = [Param(buffer, Io.IN) for buffer in self.inputs]
        params += [Param(buffer, Io.OUT) for buffer in self.outputs]
        threads = s.warps * crew.lanes
        kernel = b.kernel(
            "main", tuple(params), self.down * self.wide * self.whole.batches, warps=s.warps,
            lanes=crew.lanes,
            registers=registers_at_most(crew.registers, threads, s.resident, crew.most),
        )  # fmt: skip
        return Module((kernel,))

    def _slots(self, tiles: Tiles) -> Buffer:
        dtype = self.contraction.a.dtype
        alignment = max(tiles.panel.period * dtype.bytes, 16)
        return self.builder.alloc(
            "sb" if tiles.side == RIGHT else "sa", dtype, tiles.shape(self.s.stages), SHARED,
            alignment=alignment, layout=tiles.layout(self.s.stages),
        )  # fmt: skip

    def _place(self) -> Place:
        """Where this unit's tile begins along every axis of the result."""
        b, c, count = self.builder, self.contraction, self.down * self.wide
        unit: Expr = Var(UNIT)
        place: dict[str, Expr] = {}
        rest = unit // count if self.whole.batches > 1 else Const(0)
        for axis in reversed(c.outer):
            extent = c.extents[axis]
            place[axis] = b.let(axis, rest % extent) if extent > 1 else Const(0)
            rest = rest // extent
        t = b.let("t", unit % count) if self.whole.batches > 1 else unit
        group = self.group
        if group == 1:
            high, beside = t // self.wide, t % self.wide
        else:
            first = b.let("first", t // (group * self.wide) * group)
            inside = b.let("inside", t % (group * self.wide))
            rows: ExprLike = group
            if self.down % group:
                rows = b.let("rows", minimum(group, Const(self.down) - first))
            high, beside = first + inside % rows, inside // rows
        # Products are not named, so that what places are multiples of stays visible.
        place[M] = b.let("tile_row", high) * self.s.tile_m
        place[N] = b.let("tile_col", beside) * self.s.tile_n
        return place

    def _work(self, w: Expr) -> None:
        b, s, rows = self.builder, self.s, self.atoms.shape[0]
        self.w = w
        self.at = (b.let("wm", w // s.wide), b.let("wn", w % s.wide))
        shape = (s.warp_m // rows, rows, s.warp_n)
        acc = b.alloc(
            "acc", self.contraction.acc, shape, REGISTER, alignment=4, fragment=self.atoms.fragment
        )
        self._clear(acc)
        self._contract(acc)
        self._finish(acc)

    def _clear(self, acc: Buffer) -> None:
        rows = self.atoms.shape[0]
        for block in range(self.s.warp_m // rows):
            for at, width in self._pieces():
                computes = Computation(Kind.FILL, "", (rows, width), (acc.dtype,))
                found = self.whole.kit.atoms.usable(computes)
                assert found is not None
                self.builder.call(found.id, window(acc, block, (0, rows), (at, width)), Scalar(0.0))

    def _pieces(self) -> list[tuple[int, int]]:
        """(first column, width) of the register tiles that make up a warp's columns."""
        out: list[tuple[int, int]] = []
        at = 0
        for width in self.whole.widths:
            while at + width <= self.s.warp_n:
                out.append((at, width))
                at += width
        return out

    def _contract(self, acc: Buffer) -> None:
        """All steps: copies run ``stages - 1`` steps ahead of products."""
        b, s, ahead = self.builder, self.s, self.s.stages - 1
        for step in range(ahead):
            if step < self.steps:
                self._fill(Const(step), Const(step))
            self._commit()
        with b.loop("kk", self.steps) as kk:
            if self.copies_async:
                b.call(self.atoms["wait"], ahead - 1)
            b.call(self.atoms["team"])
            if self.steps > ahead:
                following = b.let("following", kk + ahead)
                with b.when(following.lt(self.steps)):
                    self._fill(following, b.let("free", following % s.stages))
            self._commit()
            self._multiply(acc, b.let("slot", kk % s.stages))

    def _commit(self) -> None:
        if self.copies_async:
            self.builder.call(self.atoms["commit"])

    def _fill(self, step: Expr, slot: Expr) -> None:
        c = self.contraction
        for side, factor in enumerate((c.a, c.b)):
            self._copy(self.tiles[side], factor, step, slot)

    def _copy(self, tiles: Tiles, factor: Side, step: Expr, slot: Expr) -> None:
        """Pieces of a tile in turn: each warp copies every so many-th."""
        b, warps = self.builder, self.s.warps
        atom = tiles.panel.copy(tiles.vector, partial=self._partial(tiles.side))
        rows = atom.computes.shape[0]
        each = tiles.rows // rows
        if each % warps == 0:
            with (
                b.loop("p", tiles.count, unroll=tiles.count) as panel,
                b.loop("i", each // warps, unroll=min(each // warps, UNROLL)) as i,
            ):
                self._piece_copy(atom.id, tiles, factor, step, slot, panel, self.w + i * warps)
            return
        total = each * tiles.count
        count = -(-total // warps)
        with b.loop("i", count, unroll=min(count, UNROLL)) as i:
            number = b.let("piece", self.w + i * warps)
            inside = number.lt(total) if total % warps else Const(1)
            with b.when(inside):
                panel, at = (
                    (number // each, number % each) if tiles.count > 1 else (Const(0), number)
                )
                self._piece_copy(atom.id, tiles, factor, step, slot, panel, at)

    def _piece_copy(
        self,
        atom: str,
        tiles: Tiles,
        factor: Side,
        step: Expr,
        slot: Expr,
        panel: Expr,
        at: Expr,
    ) -> None:
        b, span = self.builder, tiles.panel.span
        rows = self.whole.kit.atoms[atom].computes.shape[0]
        row = b.let("r", at * rows)
        target = window(self.slots[tiles.side], slot * tiles.count + panel, (row, rows), (0, span))
        first = self.place[N if tiles.side == RIGHT else M]
        k = step * self.s.tile_k
        if tiles.across:
            depth, lines = (k + row, rows), (first + panel * span, span)
        else:
            lines, depth = (first + row, rows), (k + panel * span, span)
        b.call(atom, target, self._source(factor, tiles.side, lines, depth))

    def _partial(self, side: int) -> bool:
        """Whether pieces of a factor may hang over an edge."""
        return not (self.whole_k and (self.whole_n if side == RIGHT else self.whole_m))

    def _source(
        self, factor: Side, side: int, lines: tuple[Expr, int], depth: tuple[Expr, int]
    ) -> Window:
        assert factor.source is not None
        buffer, c = self.inputs[factor.source], self.contraction
        axis, size = (N, c.n) if side == RIGHT else (M, c.m)
        whole = self.whole_n if side == RIGHT else self.whole_m
        dims: list[Range] = []
        for label in factor.source_labels:
            if label is None:
                dims.append((Const(0), 1))
            elif label == K:
                dims.append(depth if self.whole_k else clipped(*depth, c.k))
            elif label == axis:
                dims.append(lines if whole else clipped(*lines, size))
            else:
                dims.append((self.place[label], 1))
        return window(buffer, *dims)

    def _multiply(self, acc: Buffer, slot: Expr) -> None:
        """The products of one step; fragments are loaded ``ahead`` of them."""
        b, s, (rows, columns, depth) = self.builder, self.s, self.atoms.shape
        dtype, width = self.contraction.a.dtype, self.atoms.width(RIGHT)
        blocks, pieces = s.warp_m // rows, s.warp_n // width
        a, right = (
            b.alloc(
                stem, dtype, (s.ahead + 1, count, *shape), REGISTER, alignment=4,
                fragment=self.atoms.fragment_of(side),
            )
            for stem, side, count, shape in (
                ("fa", LEFT, blocks, (rows, depth)), ("fb", RIGHT, pieces, (depth, width)),
            )
        )  # fmt: skip
        steps = s.tile_k // depth

        def load(number: int) -> None:
            at, held = number * depth, number % (s.ahead + 1)
            for block in range(blocks):
                self._load(
                    LEFT, slot, block * rows, at, window(a, held, block, (0, rows), (0, depth))
                )
            for piece in range(pieces):
                into = window(right, held, piece, (0, depth), (0, width))
                self._load(RIGHT, slot, piece * width, at, into)

        for number in range(min(s.ahead, steps)):
            load(number)
        for number in range(steps):
            if number + s.ahead < steps:
                load(number + s.ahead)
            held = number % (s.ahead + 1)
            for block in range(blocks):
                left = window(a, held, block, (0, rows), (0, depth))
                for at in range(0, s.warp_n, columns):
                    sums = window(acc, block, (0, rows), (at, columns))
                    beside = window(right, held, at // width, (0, depth), (at % width, columns))
                    b.call(self.atoms.product.id, sums, left, beside)

    def _load(self, side: int, slot: Expr, line: int, depth: int, into: Window) -> None:
        """A fragment: lines of this warp's share from ``line`` on, ``depth`` within the step."""
        tiles, s = self.tiles[side], self.s
        atom, span = tiles.panel.loads[side, tiles.across], tiles.panel.span
        share = s.warp_n if side == RIGHT else s.warp_m
        lines, deep = atom.operands[0].shape[side], atom.operands[0].shape[1 - side]
        first = self.at[side] * share + line
        if tiles.across:
            if share % span == 0:
                panel, at = self.at[side] * (share // span) + line // span, Const(line % span)
            else:
                panel, at = first // span, first % span
            row, column = (Const(depth), deep), (at, lines)
        else:
            panel, row, column = Const(depth // span), (first, lines), (Const(depth % span), deep)
        source = window(self.slots[side], slot * tiles.count + panel, row, column)
        self.builder.call(atom.id, into, source)

    def _finish(self, acc: Buffer) -> None:
        """The fused work on every register tile of the accumulator, and the stores."""
        s, rows = self.s, self.atoms.shape[0]
        top = self.place[M] + self.at[LEFT] * s.warp_m
        left = self.place[N] + self.at[RIGHT] * s.warp_n
        for block in range(s.warp_m // rows):
            for at, width in self._pieces():
                sums = window(acc, block, (0, rows), (at, width))
                self._piece(sums, top + block * rows, left + at, width)

    def _piece(self, sums: Window, row: Expr, col: Expr, width: int) -> None:
        c, whole, rows = self.contraction, self.whole, self.atoms.shape[0]
        inputs = {value: self.inputs[value] for value in range(len(c.program.inputs))}
        fragments = Fragments(self.builder, c.program, whole.kit.atoms, whole.accuracy, inputs)
        height = rows if self.whole_m else clipped(row, rows, c.m)[1]
        valid = width if self.whole_n else clipped(col, width, c.n)[1]
        tile = RegisterTile(
            fragments, {**self.place, M: row, N: col}, rows, as_expr(height),
            Lanes.of(width, N, valid), self.atoms.fragment, {c.value: sums},
        )  # fmt: skip
        for output, buffer in zip(c.outputs, self.outputs, strict=True):
            tile.store(tile.value(output.value, output.labels), buffer, output.labels)
