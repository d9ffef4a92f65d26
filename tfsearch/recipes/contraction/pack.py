"""Packing: copies of a block of a factor in the order in which the register tile reads it.

A packed second factor has, per tile of columns, all its k in order: ``[tile, k, column]`` for
vector units, ``[tile, step, column tile, k group, column x group]`` for tile units. A packed
first factor is ``[tile, row, k]`` ("rows", with a pad that keeps rows off the same cache sets)
or ``[tile, k, row]`` ("panel"). For tile units missing rows, columns and k are zero; for vector
units the columns that a short tile lacks are never read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.core.errors import InternalError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Operator, as_expr, binary, ceil_div
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Scalar, Window, window
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side
from tfsearch.recipes.contraction.nest import Region, Tile, for_tiles
from tfsearch.recipes.contraction.schedule import Schedule, Tiling
from tfsearch.recipes.contraction.unit import order_of
from tfsearch.recipes.fragments import Fragments, Lanes, Place

ROW_PAD_BYTES = 64


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step


def padded_depth(contraction: Contraction, schedule: Schedule) -> int:
    """Depth of a packed block in elements: the block size, whole steps of the unit."""
    return _round_up(min(schedule.kc, contraction.k), schedule.unit.tile[2])


@dataclass(frozen=True)
class TileB:
    """The packed columns of one tile."""

    view: ViewB
    lead: Expr

    def row(self, k: ExprLike, column: ExprLike, extent: ExprLike) -> Window:
        """Vector units: ``extent`` columns of row ``k``."""
        return window(self.view.buffer, self.lead, k, (column, extent))

    def step(self, step: ExprLike, column: ExprLike) -> Window:
        """Tile units: the tile that one instruction loads."""
        groups, width = self.view.buffer.shape[-2:]
        return window(self.view.buffer, self.lead, step, column, (0, groups), (0, width))


@dataclass(frozen=True)
class ViewB:
    """A packed second factor from ``base`` on (in tiles)."""

    buffer: Buffer
    base: Expr

    def tile(self, index: ExprLike) -> TileB:
        """The tile ``index`` past the base."""
        return TileB(self, self.base + index)


@dataclass(frozen=True)
class PackedB:
    """Shapes of a packed second factor."""

    dtype: DType
    held: int
    total: int
    tile_shape: tuple[int, ...]
    depth_blocks: int
    kc: int
    outer: tuple[tuple[str, int], ...]

    @staticmethod
    def of(contraction: Contraction, schedule: Schedule, columns: Tiling) -> PackedB:
        """The shapes for a schedule."""
        depth = padded_depth(contraction, schedule)
        unit = schedule.unit
        if unit.is_vector:
            shape: tuple[int, ...] = (depth, schedule.tile_n)
        else:
            _, un, uk = unit.tile
            shape = (depth // uk, schedule.columns, uk // unit.group, un * unit.group)
        outer = tuple(
            (axis, contraction.extents[axis])
            for axis in contraction.outer
            if axis in contraction.b.labels
        )
        blocks = -(-contraction.k // schedule.kc)
        return PackedB(unit.b, columns.held, columns.total, shape, blocks, schedule.kc, outer)

    def block_buffer(self, builder: Builder, *, whole: bool) -> Buffer:
        """Memory for one block of columns, private to a unit: of one block of k, or of all."""
        lead = self.held * (self.depth_blocks if whole else 1)
        return builder.alloc("b_block", self.dtype, (lead, *self.tile_shape), MemorySpace.LOCAL)

    def block_view(self, buffer: Buffer, p0: Expr, *, whole: bool) -> ViewB:
        """The block as a view whose tile 0 is the first of the columns and of k from ``p0``."""
        return ViewB(buffer, p0 // self.kc * self.held if whole else Const(0))

    def ahead_buffer(self, name: str) -> Buffer:
        """The argument that holds the whole factor, packed ahead."""
        lead = self.depth_blocks * self.total
        for _, extent in self.outer:
            lead *= extent
        return Buffer(name, self.dtype, (lead, *self.tile_shape), MemorySpace.GLOBAL)

    def ahead_view(self, buffer: Buffer, place: Place, p0: Expr) -> ViewB:
        """The part of the whole factor for one place of the outer axes and one block of k."""
        lead: Expr = Const(0)
        for axis, extent in self.outer:
            lead = lead * extent + place[axis]
        block = p0 // self.kc
        return ViewB(buffer, (lead * self.depth_blocks + block) * self.total)


@dataclass(frozen=True)
class TileA:
    """The packed rows of one tile."""

    buffer: Buffer
    lead: Expr
    layout: str

    def element(self, row: ExprLike, k: ExprLike) -> Window:
        """One element."""
        if self.layout == "rows":
            return window(self.buffer, self.lead, row, k)
        return window(self.buffer, self.lead, k, row)

    def step(self, row: int, rows: int, k: ExprLike, depth: int) -> Window:
        """Tile units: ``rows`` rows of ``depth`` elements."""
        return window(self.buffer, self.lead, (row, rows), (k, depth))


@dataclass(frozen=True)
class PackedA:
    """Shapes of a packed first factor."""

    dtype: DType
    shape: tuple[int, ...]
    layout: str

    @staticmethod
    def of(contraction: Contraction, schedule: Schedule, rows: Tiling) -> PackedA:
        """The shapes for a schedule."""
        depth = padded_depth(contraction, schedule)
        dtype = schedule.unit.a
        if schedule.pack_a == "panel":
            return PackedA(dtype, (rows.held, depth, schedule.tile_m), "panel")
        pad = ROW_PAD_BYTES // dtype.bytes
        depth = _round_up(depth, pad) + pad
        return PackedA(dtype, (rows.held, schedule.tile_m, depth), "rows")

    def buffer(self, builder: Builder) -> Buffer:
        """Memory for one block, private to a unit."""
        return builder.alloc("a_block", self.dtype, self.shape, MemorySpace.LOCAL)

    def view(self, buffer: Buffer, index: ExprLike) -> TileA:
        """The tile ``index`` of the block."""
        return TileA(buffer, as_expr(index), self.layout)


class Packer:
    """Writes packed blocks."""

    def __init__(
        self,
        builder: Builder,
        fragments: Fragments,
        contraction: Contraction,
        schedule: Schedule,
        rows: Tiling,
        columns: Tiling,
        lanes: int,
    ) -> None:
        self.builder = builder
        self.fragments = fragments
        self.contraction = contraction
        self.schedule = schedule
        self.rows = rows
        self.columns = columns
        self.lanes = lanes

    def pack_b(
        self,
        view: ViewB,
        region: Region,
        base: Expr,
        p0: Expr,
        length: Expr,
        place: Place,
    ) -> None:
        """Pack tiles of columns; the view's tile 0 is tile ``base`` of the axis."""

        if not self.schedule.unit.is_vector:
            self._interleaved(view, region, base, p0, length, place)
            return

        def one(tile: Tile) -> None:
            packed = view.tile(tile.index - base)
            if self._transposes(self.contraction.b, N):
                self._transposed(
                    self.contraction.b,
                    N,
                    tile,
                    p0,
                    length,
                    place,
                    lambda p, depth, at, extent: window(
                        packed.view.buffer, packed.lead, (p, depth), (at, extent)
                    ),
                )
            else:
                self._across(
                    self.contraction.b,
                    N,
                    tile,
                    p0,
                    length,
                    place,
                    self.schedule.unit.b,
                    packed.row,
                )

        for_tiles(self.builder, self.columns, "jp", region, one)

    def pack_a(
        self,
        packed: PackedA,
        buffer: Buffer,
        region: Region,
        p0: Expr,
        length: Expr,
        place: Place,
    ) -> None:
        """Pack tiles of rows; tile 0 of the buffer is the region's first."""
        side = self.contraction.a

        def one(tile: Tile) -> None:
            view = packed.view(buffer, tile.index - region.first)
            order = order_of(self.contraction, side, M) if side.dtype is packed.dtype else None
            if not self.schedule.unit.is_vector and order is not None:
                copy = self._copied if order == K else self._turned
                copy(view, tile, p0, length, place)
            elif packed.layout == "rows":
                self._along_k(view, tile, p0, length, place)
            elif self._transposes(side, M):
                self._transposed(
                    side,
                    M,
                    tile,
                    p0,
                    length,
                    place,
                    lambda p, depth, at, extent: window(
                        buffer, view.lead, (p, depth), (at, extent)
                    ),
                )
            else:
                self._across(
                    side,
                    M,
                    tile,
                    p0,
                    length,
                    place,
                    packed.dtype,
                    lambda p, at, extent: window(buffer, view.lead, p, (at, extent)),
                )

        for_tiles(self.builder, self.rows, "ip", region, one)

    def _across(
        self,
        side: Side,
        axis: str,
        tile: Tile,
        p0: Expr,
        length: Expr,
        place: Place,
        dtype: DType,
        target: Callable[[ExprLike, int, int], Window],
    ) -> None:
        """Fragments along rows or columns, one k after another."""
        with self.builder.loop("p", length, unroll=4) as p:
            for at in range(0, tile.size, self.lanes):
                valid = min(self.lanes, tile.size - at)
                here = {**place, K: p0 + p, axis: tile.start + at}
                lanes = Lanes.of(self.lanes, axis, valid)
                fragment = self.fragments.at(here, lanes)
                value = fragment.value(side.value, side.labels)
                self._store(target(p, at, valid), value, dtype, partial=valid < self.lanes)

    def _store(self, target: Window, value: Window, dtype: DType, *, partial: bool) -> None:
        computes = Computation(
            Kind.STORE, "", (self.lanes,), (dtype, value.buffer.dtype), partial=partial
        )
        self.builder.call(self.fragments.atom(computes), target, value)

    def _along_k(self, view: TileA, tile: Tile, p0: Expr, length: Expr, place: Place) -> None:
        """Rows copied as they are: fragments along k, padded with zeros for tile units."""
        builder, lanes = self.builder, self.lanes
        tile_rows, _, depth = self.schedule.unit.tile

        def piece(row: Expr, p: ExprLike, valid: ExprLike) -> None:
            here = {**place, K: p0 + p, M: tile.start + row}
            fragment = self.fragments.at(here, Lanes.of(lanes, K, valid))
            side = self.contraction.a
            value = fragment.value(side.value, side.labels)
            target = window(view.buffer, view.lead, row, (p, lanes))
            self._store(target, value, view.buffer.dtype, partial=False)

        step = _round_up(depth, lanes)
        rest = self.contraction.k % step
        with builder.loop("r", tile.size) as row:
            if self._deepest >= step:
                with builder.loop("s", length // step) as s:
                    for at in range(0, step, lanes):
                        piece(row, s * step + at, lanes)
            if rest and not self.schedule.unit.is_vector:
                with builder.when(self._is_last(p0)):
                    for at in range(0, step, lanes):
                        valid = min(lanes, max(0, rest - at))
                        p = length // step * step + at
                        if valid:
                            piece(row, p, valid)
                        else:
                            self._zero(window(view.buffer, view.lead, row, (p, lanes)))
            elif self.schedule.unit.is_vector and self._ragged(lanes):
                with builder.when(binary(Operator.NE, length % lanes, 0)):
                    piece(row, length // lanes * lanes, length % lanes)
        missing = -tile.size % tile_rows
        if missing:
            total = view.buffer.shape[-1] - ROW_PAD_BYTES // view.buffer.dtype.bytes
            with builder.loop("z", tile.size + missing, start=tile.size) as row:  # noqa: SIM117
                with builder.loop("s", total // lanes) as s:
                    self._zero(window(view.buffer, view.lead, row, (s * lanes, lanes)))

    def _copied(self, view: TileA, tile: Tile, p0: Expr, length: Expr, place: Place) -> None:
        """Rows of an input as they are, whole steps of a tile unit; what is missing is zero."""
        builder, side = self.builder, self.contraction.a
        um, _, uk = self.schedule.unit.tile
        source = self._input(side)
        dtype = source.dtype
        types = (dtype, dtype)
        store = self.fragments.atom(Computation(Kind.STORE, "", (uk,), types))

        def register(stem: str) -> Window:
            return window(builder.alloc(stem, dtype, (uk,), MemorySpace.REGISTER), (0, uk))

        def target(row: Expr, step: ExprLike) -> Window:
            return window(view.buffer, view.lead, row, (as_expr(step) * uk, uk))

        def piece(row: Expr, step: Expr, depth: int) -> None:
            load = Computation(Kind.LOAD, "", (uk,), types, partial=depth < uk)
            box = box_along(place, K, p0 + step * uk, depth)
            box[M] = (tile.start + row, 1)
            value = register("raw")
            builder.call(self.fragments.atom(load), value, box_of(source, side, box))
            builder.call(store, target(row, step), value)

        rest = self.contraction.k % uk
        with builder.loop("r", tile.size) as row:
            with builder.loop("s", length // uk) as s:
                piece(row, s, uk)
            if rest:
                with builder.when(self._is_last(p0)):
                    piece(row, length // uk, rest)
        missing = -tile.size % um
        if missing:
            fill = self.fragments.atom(Computation(Kind.FILL, "zero", (uk,), (dtype,)))
            zero = register("zero")
            builder.call(fill, zero)
            with builder.loop("z", tile.size + missing, start=tile.size) as row:  # noqa: SIM117
                with builder.loop("s", ceil_div(length, uk)) as s:
                    builder.call(store, target(row, s), zero)

    def _turned(self, view: TileA, tile: Tile, p0: Expr, length: Expr, place: Place) -> None:
        """Rows that lie along columns of an input: tiles of k x rows, transposed and padded."""
        side = self.contraction.a
        um, _, uk = self.schedule.unit.tile
        source = self._input(side)
        atom = self.fragments.atom(
            Computation(Kind.TRANSPOSE, "padded", (uk, um), (source.dtype, source.dtype))
        )

        def step(index: Expr, depth: int) -> None:
            for row in range(0, tile.size, um):
                box = box_along(place, K, p0 + index * uk, depth)
                box[M] = (tile.start + row, min(um, tile.size - row))
                target = window(view.buffer, view.lead, (row, um), (index * uk, uk))
                self.builder.call(atom, target, box_of(source, side, box))

        self._steps(p0, length, step)

    def _steps(self, p0: Expr, length: Expr, step: Callable[[Expr, int], None]) -> None:
        """Whole steps of a tile unit along k, then the short one of the last block."""
        uk = self.schedule.unit.tile[2]
        with self.builder.loop("s", length // uk) as s:
            step(s, uk)
        rest = self.contraction.k % uk
        if rest:
            with self.builder.when(self._is_last(p0)):
                step(length // uk, rest)

    def _input(self, side: Side) -> Buffer:
        if side.source is None:
            raise InternalError("recipe.prologue", "a computed factor has no rows to copy")
        return self.fragments.buffers[side.source]

    @property
    def _deepest(self) -> int:
        """Length of the longest block of k."""
        return min(self.schedule.kc, self.contraction.k)

    def _ragged(self, step: int) -> bool:
        """True when some block of k is no multiple of ``step``."""
        total, block = self.contraction.k, self.schedule.kc
        return total % step != 0 or (block < total and block % step != 0)

    def _is_last(self, p0: Expr) -> Expr:
        return binary(Operator.LE, self.contraction.k, p0 + self.schedule.kc)

    def _zero(self, target: Window) -> None:
        dtype = DType.F32 if target.buffer.dtype.is_float else DType.I32
        register = self.builder.alloc("zero", dtype, (self.lanes,), MemorySpace.REGISTER)
        fill = Computation(Kind.FILL, "", (self.lanes,), (dtype,))
        zero = window(register, (0, self.lanes))
        self.builder.call(self.fragments.atom(fill), zero, Scalar(0.0))
        self._store(target, zero, target.buffer.dtype, partial=False)

    def _transposes(self, side: Side, axis: str) -> bool:
        """True when a tile transpose is the way: rows of k, one after another, in an input."""
        if side.source is None or order_of(self.contraction, side, axis) != K:
            return False
        buffer = self.fragments.buffers[side.source]
        return self.fragments.atoms.usable(self._transpose_of(side, buffer)) is not None

    def _transpose_of(self, side: Side, buffer: Buffer) -> Computation:
        dtype = self.schedule.unit.a if side is self.contraction.a else self.schedule.unit.b
        return Computation(Kind.TRANSPOSE, "", (self.lanes, self.lanes), (dtype, buffer.dtype))

    def _transposed(
        self,
        side: Side,
        axis: str,
        tile: Tile,
        p0: Expr,
        length: Expr,
        place: Place,
        target: Callable[[ExprLike, ExprLike, int, int], Window],
    ) -> None:
        """Square pieces with k contiguous in the source, transposed on the way."""
        assert side.source is not None
        buffer = self.fragments.buffers[side.source]
        atom = self.fragments.atom(self._transpose_of(side, buffer))
        lanes = self.lanes

        def piece(p: ExprLike, depth: ExprLike) -> None:
            for at in range(0, tile.size, lanes):
                extent = min(lanes, tile.size - at)
                box = box_along(place, K, p0 + p, depth)
                box[axis] = (tile.start + at, extent)
                source = box_of(buffer, side, box)
                self.builder.call(atom, target(p, depth, at, extent), source)

        if self._deepest >= lanes:
            with self.builder.loop("s", length // lanes) as s:
                piece(s * lanes, lanes)
        if self._ragged(lanes):
            with self.builder.when(binary(Operator.NE, length % lanes, 0)):
                piece(length // lanes * lanes, length % lanes)

    def _interleaved(
        self, view: ViewB, region: Region, base: Expr, p0: Expr, length: Expr, place: Place
    ) -> None:
        """Groups of k side by side, as a tile unit takes its second factor.

        Memory is read along its contiguous axis.
        """
        side, unit = self.contraction.b, self.schedule.unit
        source = self._input(side)
        _, un, uk = unit.tile
        along_n = order_of(self.contraction, side, N) == N
        fn = "" if along_n else "transposed"
        atom = self.fragments.atom(
            Computation(Kind.INTERLEAVE, fn, (uk, un), (unit.b, source.dtype))
        )

        def piece(tile: Tile, index: Expr, depth: int) -> None:
            packed = view.tile(tile.index - base)
            for column in range(-(-tile.size // un)):
                box = box_along(place, K, p0 + index * uk, depth)
                box[N] = (tile.start + column * un, min(un, tile.size - column * un))
                self.builder.call(atom, packed.step(index, column), box_of(source, side, box))

        def tiles(of: Callable[[Tile], None]) -> None:
            for_tiles(self.builder, self.columns, "jp", region, of)

        def steps(of: Callable[[Expr, int], None]) -> None:
            self._steps(p0, length, of)

        if along_n:
            steps(lambda index, depth: tiles(lambda tile: piece(tile, index, depth)))
        else:
            tiles(lambda tile: steps(lambda index, depth: piece(tile, index, depth)))


def box_along(
    place: Place, axis: str, start: Expr, extent: ExprLike
) -> dict[str, tuple[ExprLike, ExprLike]]:
    """A box of one point on every axis of a place, and ``extent`` points along ``axis``."""
    box: dict[str, tuple[ExprLike, ExprLike]] = {a: (e, 1) for a, e in place.items()}
    box[axis] = (start, extent)
    return box


def box_of(buffer: Buffer, side: Side, box: Mapping[str, tuple[ExprLike, ExprLike]]) -> Window:
    """The window of a factor's input for a start and extent along every axis."""
    dims = [(0, 1) if axis is None else box[axis] for axis in side.source_labels]
    return window(buffer, *dims)
