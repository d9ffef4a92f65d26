"""Lowering of the blocked contraction: cache blocks, packing, register tiles, fused epilogue.

The loops from the outside in: outer axes, then blocks of the columns (or rows), blocks of k,
blocks of the rows (or columns), register tiles. Every unit owns a contiguous share of the
outer axes, rows and columns and packs what it needs itself, so units never wait.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Accuracy
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, Operator, Var, as_expr, binary, ceil_div, minimum
from tfsearch.ir.tir.nodes import UNIT, Buffer, Io, Kernel, MemorySpace, Module, Param
from tfsearch.recipes.contraction.epilogue import Epilogue, combine
from tfsearch.recipes.contraction.match import Contraction, K, M
from tfsearch.recipes.contraction.micro import (
    LINE_BYTES,
    Depth,
    MicroKernel,
    Partial,
    Staged,
    TileRegisters,
)
from tfsearch.recipes.contraction.nest import Region, Tile, for_blocks, for_tiles, share_of
from tfsearch.recipes.contraction.pack import (
    PackedA,
    PackedB,
    Packer,
    TileA,
    TileB,
    box_along,
    box_of,
)
from tfsearch.recipes.contraction.parameters import BARRIER
from tfsearch.recipes.contraction.schedule import Schedule, tilings
from tfsearch.recipes.domain import flat_size, places
from tfsearch.recipes.fragments import Fragments, Place

MAIN = "main"
PREPARE = "prepare"
PREPARED_B = "b_packed"


def lower(
    contraction: Contraction,
    schedule: Schedule,
    atoms: AtomTable,
    lanes: int,
    accuracy: Accuracy,
    alignment: int,
) -> Module:
    """One candidate as TIR. ``lanes`` is the vector width (elements) of packing and epilogue.

    ``alignment`` is the guaranteed alignment of arguments in bytes.
    """
    lowering = _Lowering(contraction, schedule, atoms, lanes, accuracy, alignment)
    kernels: list[Kernel] = []
    if schedule.pack_b == "ahead":
        kernels.append(lowering.prepare())
    kernels.append(lowering.main())
    return Module(tuple(kernels))


class _Lowering:
    def __init__(
        self,
        contraction: Contraction,
        schedule: Schedule,
        atoms: AtomTable,
        lanes: int,
        accuracy: Accuracy,
        alignment: int,
    ) -> None:
        self.contraction = contraction
        self.schedule = schedule
        self.atoms = atoms
        self.lanes = lanes
        self.accuracy = accuracy
        self.rows, self.columns = tilings(contraction, schedule)
        program = contraction.program
        self.inputs = {
            i: Buffer(
                value.name,
                value.type.dtype,
                value.type.sizes,
                MemorySpace.GLOBAL,
                value.type.strides,
                alignment,
            )
            for i, value in enumerate(program.inputs)
        }
        self.outputs = tuple(
            Buffer(o.name, t.dtype, t.sizes, MemorySpace.GLOBAL, None, alignment)
            for o, t in zip(contraction.outputs, program.output_types, strict=True)
        )
        self.packed_b = PackedB.of(contraction, schedule, self.columns)

    def prepare(self) -> Kernel:
        """The kernel that packs a constant second factor ahead of calls."""
        builder = Builder(self._names())
        packer = self.packer(builder)
        packed = self.packed_b.ahead_buffer(PREPARED_B)
        with self._outer(builder, Region(Const(0), Const(self._outer_size))) as place:
            self.depth_blocks(
                builder,
                lambda block: packer.pack_b(
                    self.packed_b.ahead_view(packed, place, block.start),
                    Region(Const(0), Const(self.columns.total)),
                    Const(0),
                    block.start,
                    block.length,
                    place,
                ),
                parts=1,
            )
        source = self.inputs[self.contraction.b.source or 0]
        params = (Param(source, Io.IN), Param(packed, Io.OUT))
        return builder.kernel(PREPARE, params, 1)

    def main(self) -> Kernel:
        """The kernel that a call runs."""
        builder = Builder(self._names())
        ahead = self.packed_b.ahead_buffer(PREPARED_B) if self.schedule.pack_b == "ahead" else None
        nest = _Nest(self, builder, ahead)
        parts = self._parts()
        size = self._outer_size
        grid_o = self.schedule.grid[0]
        region = Region(parts.outer * size // grid_o, (parts.outer + 1) * size // grid_o)
        if grid_o == 1:
            region = Region(Const(0), Const(size))
        nest.allocate(parts.k)
        self._set_state(builder, "begin")
        share_m = share_of(builder, self.rows, parts.m, "m")
        share_n = share_of(builder, self.columns, parts.n, "n")
        with self._outer(builder, region) as place:
            nest.run(place, share_m, share_n)
        if self.schedule.grid_k > 1:
            nest.combine()
        if self.schedule.stream:
            builder.call(nest.packer.fragments.atom(Computation(Kind.SYNC, "fence", (), ())))
        self._set_state(builder, "end")
        params = [Param(buffer, Io.IN) for buffer in self.inputs.values()]
        if ahead is not None:
            params.append(Param(ahead, Io.PREPARED))
        params += [Param(buffer, Io.OUT) for buffer in self.outputs]
        return builder.kernel(MAIN, tuple(params), self.schedule.units)

    def _parts(self) -> _Parts:
        """Which part of every axis the executing unit works on; k varies fastest."""
        grid_o, grid_m, grid_n = self.schedule.grid
        below = 1
        found: list[Expr] = []
        for count in (self.schedule.grid_k, grid_n, grid_m, grid_o):
            part = Var(UNIT) // below
            below *= count
            if count == 1:
                part = Const(0)
            elif below < self.schedule.units:
                part = part % count
            found.append(part)
        k, n, m, outer = found
        return _Parts(outer, m, n, k)

    def _names(self) -> list[str]:
        buffers = (*self.inputs.values(), *self.outputs)
        return [PREPARED_B, *(buffer.name for buffer in buffers)]

    def _set_state(self, builder: Builder, fn: str) -> None:
        """Configure the tile unit, or release it, where the target's needs that."""
        if not self.schedule.unit.is_vector:
            state = self.atoms.usable(Computation(Kind.CONFIGURE, fn, (), ()))
            if state is not None:
                builder.call(state.id)

    @property
    def _outer_size(self) -> int:
        return flat_size(self.contraction.outer, self.contraction.extents)

    @contextmanager
    def _outer(self, builder: Builder, region: Region) -> Generator[Place, None, None]:
        """A loop over the flattened outer axes; yields the place on each of them."""
        with builder.loop("o", region.last, start=region.first) as index:
            yield places(builder, index, self.contraction.outer, self.contraction.extents)

    def packer(self, builder: Builder) -> Packer:
        """A packer that writes into ``builder``."""
        fragments = Fragments(
            builder, self.contraction.program, self.atoms, self.accuracy, self.inputs
        )
        return Packer(
            builder, fragments, self.contraction, self.schedule, self.rows, self.columns, self.lanes
        )

    def depth_blocks(self, builder: Builder, body: Callable[[Depth], None], *, parts: int) -> None:
        """Run ``body`` for each block of k that the unit owns, of so many ``parts``."""
        total, size = self.contraction.k, self.schedule.kc
        if size >= total:
            body(Depth(Const(0), Const(total), Const(1), Const(1)))
            return
        first: Expr = Const(0)
        last: Expr = Const(total)
        if parts > 1:
            blocks, part = -(-total // size), self._parts().k
            first = builder.let("k_first", part * blocks // parts * size)
            last = builder.let("k_last", minimum((part + 1) * blocks // parts * size, total))
        with builder.loop("p0", last, start=first, step=size) as start:
            length: Expr = Const(size)
            if total % size:
                length = builder.let("kc", minimum(size, total - start))
            # Where units split k, sums are finished after all of them are done.
            is_last = Const(0) if parts > 1 else binary(Operator.LE, total, start + size)
            one_each = parts > 1 and -(-total // size) <= parts
            is_first = Const(1) if one_each else start.eq(first)
            body(Depth(start, length, is_first, is_last))


@dataclass(frozen=True)
class _Parts:
    """The executing unit's part of every axis."""

    outer: Expr
    m: Expr
    n: Expr
    k: Expr


@dataclass(frozen=True)
class _Block:
    """A block of rows and columns, and the origin that partial sums count from."""

    rows: Region
    columns: Region
    origin_rows: Region
    origin_columns: Region


class _Nest:
    """The block and tile loops of the main kernel."""

    def __init__(self, lowering: _Lowering, builder: Builder, ahead: Buffer | None) -> None:
        self.low = lowering
        self.builder = builder
        self.ahead = ahead
        self.packer = lowering.packer(builder)
        self.epilogue = Epilogue(
            self.packer.fragments,
            lowering.contraction,
            lowering.outputs,
            lowering.schedule.stream,
        )
        self.packed_a = PackedA.of(lowering.contraction, lowering.schedule, lowering.rows)
        self.a_buffer: Buffer | None = None
        self.b_buffer: Buffer | None = None
        self.partial: Partial | None = None
        self.tiles: TileRegisters | None = None
        self.staged: Buffer | None = None

    @property
    def whole_k(self) -> bool:
        """True when a block of columns is packed for every block of k at once."""
        return self.low.schedule.order == "nmk"

    def allocate(self, part_k: Expr) -> None:
        """Memory and tile registers that live for the whole kernel."""
        low, schedule = self.low, self.low.schedule
        if not schedule.unit.is_vector:
            self.tiles = TileRegisters.allocated(self.builder, schedule)
        if schedule.pack_b == "block":
            self.b_buffer = low.packed_b.block_buffer(self.builder, whole=self.whole_k)
        if schedule.finish == "beside":
            shape = (schedule.tile_m, schedule.tile_n)
            self.staged = Staged.allocated(self.builder, schedule.unit.acc, shape, 2).buffer
        if schedule.pack_a != "none":
            self.a_buffer = self.packed_a.buffer(self.builder)
        if schedule.grid_k > 1:
            self.partial = Partial.shared(self.builder, schedule, low.rows, low.columns, part_k)
        elif schedule.kc < low.contraction.k:
            self.partial = Partial.of(low.contraction, schedule, low.outputs)
            if self.partial.output is None:
                self.partial = self.partial.allocated(
                    self.builder, schedule.unit.acc, low.rows, low.columns, schedule.order
                )

    def run(self, place: Place, share_m: Region, share_n: Region) -> None:
        """Blocks of one place of the outer axes."""
        builder, low = self.builder, self.low

        def columns_first(columns: Region) -> None:
            def inside(depth: Depth) -> None:
                self._pack_b(place, depth, columns)
                for_blocks(builder, low.rows, "ib", share_m, lambda rows: rows_block(depth, rows))

            def rows_block(depth: Depth, rows: Region) -> None:
                rows_block_of(depth, rows, _Block(rows, columns, share_m, columns))

            low.depth_blocks(builder, inside, parts=low.schedule.grid_k)

        def rows_first(rows: Region) -> None:
            def inside(depth: Depth) -> None:
                self._pack_a(place, depth, rows)
                for_blocks(
                    builder,
                    low.columns,
                    "jb",
                    share_n,
                    lambda columns: columns_block(depth, columns),
                )

            def columns_block(depth: Depth, columns: Region) -> None:
                self._pack_b(place, depth, columns)
                self._tiles(place, depth, _Block(rows, columns, rows, share_n))

            low.depth_blocks(builder, inside, parts=low.schedule.grid_k)

        def columns_alone(columns: Region) -> None:
            if self.b_buffer is not None:
                low.depth_blocks(
                    builder, lambda depth: self._pack_b(place, depth, columns), parts=1
                )
            for_blocks(builder, low.rows, "ib", share_m, lambda rows: both(columns, rows))

        def both(columns: Region, rows: Region) -> None:
            low.depth_blocks(
                builder,
                lambda depth: rows_block_of(depth, rows, _Block(rows, columns, rows, columns)),
                parts=1,
            )

        def rows_block_of(depth: Depth, rows: Region, block: _Block) -> None:
            self._pack_a(place, depth, rows)
            self._tiles(place, depth, block)

        if self.whole_k:
            for_blocks(builder, low.columns, "jb", share_n, columns_alone)
        elif low.schedule.order == "nkm":
            for_blocks(builder, low.columns, "jb", share_n, columns_first)
        else:
            for_blocks(builder, low.rows, "ib", share_m, rows_first)

    def combine(self) -> None:
        """Wait for every part of k, then add the parts in order and finish rows in shares."""
        low, builder = self.low, self.builder
        assert self.partial is not None
        assert self.partial.buffer is not None
        barrier = Computation(Kind.SYNC, BARRIER, (), ())
        builder.call(self.packer.fragments.atom(barrier))
        combine(builder, self.epilogue, self.partial.buffer, low.schedule.units, low.lanes)

    def _tiles(self, place: Place, depth: Depth, block: _Block) -> None:
        """Every register tile of a block."""
        builder, low = self.builder, self.low
        walk = _Tiles(self, place, depth, block)

        def over_rows(column: Tile) -> None:
            for_tiles(builder, low.rows, "i", block.rows, lambda row: walk.tile(row, column))

        if low.schedule.held(low.contraction) == "b":
            for_tiles(builder, low.columns, "j", block.columns, over_rows)
        else:
            for_tiles(builder, low.rows, "i", block.rows, walk.along_columns)

    def _pack_a(self, place: Place, depth: Depth, block: Region) -> None:
        if self.a_buffer is not None:
            self.packer.pack_a(
                self.packed_a, self.a_buffer, block, depth.start, depth.length, place
            )

    def _pack_b(self, place: Place, depth: Depth, block: Region) -> None:
        if self.b_buffer is not None:
            view = self.low.packed_b.block_view(self.b_buffer, depth.start, whole=self.whole_k)
            self.packer.pack_b(view, block, block.first, depth.start, depth.length, place)

    def view_a(self, row: Tile, block: Region) -> TileA | None:
        if self.a_buffer is None:
            return None
        return self.packed_a.view(self.a_buffer, row.index - block.first)

    def view_b(self, place: Place, depth: Depth, column: Tile, block: Region) -> TileB | None:
        if self.ahead is not None:
            return self.low.packed_b.ahead_view(self.ahead, place, depth.start).tile(column.index)
        if self.b_buffer is not None:
            view = self.low.packed_b.block_view(self.b_buffer, depth.start, whole=self.whole_k)
            return view.tile(column.index - block.first)
        return None


class _Tiles:
    """The register tiles of one block."""

    def __init__(self, nest: _Nest, place: Place, depth: Depth, block: _Block) -> None:
        self.nest = nest
        self.low = nest.low
        self.builder = nest.builder
        self.place = place
        self.depth = depth
        self.block = block

    def tile(self, row: Tile, column: Tile) -> None:
        """One register tile, finished before the next."""
        self._ask_ahead(row, column)
        self._micro(row, column).emit()

    def _ask_ahead(self, row: Tile, column: Tile) -> None:
        """Ask for this tile's share of the next panel of the first factor.

        Where panels are packed in blocks it is that of the next block. The last row is asked for
        again where there is no later one.
        """
        low, contraction = self.low, self.low.contraction
        side = contraction.a
        if not low.schedule.prefetch or low.schedule.unit.is_vector or side.source is None:
            return
        buffer = low.inputs[side.source]
        fragments = self.nest.packer.fragments
        hint = fragments.atom(Computation(Kind.HINT, "prefetch_outer", (1,), (buffer.dtype,)))
        line = LINE_BYTES // buffer.dtype.bytes
        each = -(-low.rows.tile // low.columns.held)
        panels = 1 if self.nest.a_buffer is None else low.rows.held
        following = (row.index + panels) * low.rows.tile
        share = following + (column.index - self.block.columns.first) * each
        with self.builder.loop("q", each) as q:
            later = self.builder.let("later", minimum(share + q, contraction.m - 1))
            with self.builder.loop("l", ceil_div(self.depth.length, line)) as at:
                box = box_along(self.place, K, self.depth.start + at * line, 1)
                box[M] = (later, 1)
                self.builder.call(hint, box_of(buffer, side, box))

    def _micro(
        self,
        row: Tile,
        column: Tile,
        staged: Staged | None = None,
        beside: Callable[[Expr], None] | None = None,
    ) -> MicroKernel:
        nest, low, block = self.nest, self.low, self.block
        return MicroKernel(
            builder=self.builder,
            fragments=nest.packer.fragments,
            contraction=low.contraction,
            schedule=low.schedule,
            lanes=low.lanes,
            place=self.place,
            row=row,
            column=column,
            depth=self.depth,
            a=nest.view_a(row, block.rows),
            b=nest.view_b(self.place, self.depth, column, block.columns),
            partial=nest.partial,
            origin=(
                block.origin_rows.first * low.rows.tile,
                block.origin_columns.first * low.columns.tile,
            ),
            epilogue=nest.epilogue,
            tiles=nest.tiles,
            staged=staged,
            beside=beside,
        )

    def along_columns(self, row: Tile) -> None:
        """The tiles of some rows, one after another or each finished beside the next."""

        def plain() -> None:
            for_tiles(
                self.builder,
                self.low.columns,
                "j",
                self.block.columns,
                lambda column: self.tile(row, column),
            )

        if self.nest.staged is None:
            plain()
            return
        blocks = -(-self.low.contraction.k // self.low.schedule.kc)
        depth = self.depth
        with self.builder.capture() as last:
            self.depth = replace(depth, is_first=Const(int(blocks == 1)), is_last=Const(1))
            self._skewed(row, self.nest.staged)
        with self.builder.capture() as others:
            self.depth = replace(depth, is_last=Const(0))
            plain()
        self.depth = depth
        self.builder.choose(depth.is_last, tuple(last), tuple(others))

    def _skewed(self, row: Tile, buffer: Buffer) -> None:
        """In the last block of k: sums wait in one of two slots while the next are made."""
        low, builder = self.low, self.builder
        first, last = self.block.columns.first, self.block.columns.last
        depth = low.contraction.k - (-(-low.contraction.k // low.schedule.kc) - 1) * low.schedule.kc
        steps = -(-depth // low.schedule.unit.tile[2])
        each = -(-row.size // steps)

        def at(index: Expr) -> Tile:
            return Tile(index, as_expr(index * low.columns.tile), low.columns.tile)

        def slot(index: Expr) -> Staged:
            return Staged(buffer, (index - first) % 2)

        def finish(column: Expr, r: Expr) -> None:
            self._micro(row, at(column)).finish_row(slot(column), r)

        def following(column: Expr) -> None:
            def beside(p: Expr) -> None:
                for part in range(each):
                    r = builder.let("r", p * each + part)
                    whole = steps * each == row.size
                    with builder.when(Const(1) if whole else r.lt(row.size)):
                        finish(column - 1, r)

            self._ask_ahead(row, at(column))
            self._micro(row, at(column), slot(column), beside).emit()

        self._ask_ahead(row, at(first))
        self._micro(row, at(first), slot(first)).emit()
        with builder.loop("j", last, start=first + 1) as column:
            following(column)
        with builder.loop("r", row.size) as r:
            finish(as_expr(last - 1), r)
