"""The register tile: accumulate over a block of k, then finish and store."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Expr, ExprLike, as_expr, ceil_div, minimum
from tfsearch.ir.tir.nodes import Buffer, MemorySpace, Scalar, Window, window
from tfsearch.recipes.contraction.epilogue import Epilogue
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Output
from tfsearch.recipes.contraction.nest import Tile
from tfsearch.recipes.contraction.pack import TileA, TileB, box_along, box_of
from tfsearch.recipes.contraction.schedule import Schedule, Tiling
from tfsearch.recipes.contraction.unit import MatrixUnit
from tfsearch.recipes.fragments import Fragments, Lanes, Place, compute_dtype

LINE_BYTES = 64
"""Bytes that one prefetch brings."""


def whole_lines(buffer: Buffer) -> bool:
    """True when rows of whole cache lines start at lines."""
    strides = (stride * buffer.dtype.bytes for stride in buffer.dense_strides[:-1])
    return buffer.alignment % LINE_BYTES == 0 and all(s % LINE_BYTES == 0 for s in strides)


@dataclass(frozen=True)
class Partial:
    """Where unfinished sums wait between blocks of k: an output that can hold them, or memory.

    ``part`` is the share of k whose sums these are, where units split k; the first dimension of
    the buffer is then the part.
    """

    output: int | None
    buffer: Buffer | None
    labels: tuple[str | None, ...] = ()
    part: Expr | None = None

    @staticmethod
    def of(contraction: Contraction, schedule: Schedule, outputs: tuple[Buffer, ...]) -> Partial:
        """An output of the accumulator's type with contiguous columns, if there is one.

        Tile units move whole tiles only, so all of the output has to be whole tiles.
        """
        um, un, _ = schedule.unit.tile
        whole = contraction.m % um == 0 and contraction.n % un == 0
        if not (schedule.unit.is_vector or whole):
            return Partial(None, None)
        for index, (output, buffer) in enumerate(zip(contraction.outputs, outputs, strict=True)):
            if _holds_sums(contraction, output, buffer):
                return Partial(index, buffer, output.labels)
        return Partial(None, None)

    @staticmethod
    def shared(
        builder: Builder, schedule: Schedule, rows: Tiling, columns: Tiling, part: Expr
    ) -> Partial:
        """Memory of all units for the sums of every part of k, whole tiles."""
        shape = (schedule.grid_k, rows.total * rows.tile, columns.total * columns.tile)
        buffer = builder.alloc("sums", schedule.unit.acc, shape, MemorySpace.SCRATCH)
        return Partial(None, buffer, part=part)

    def allocated(
        self, builder: Builder, acc: DType, rows: Tiling, columns: Tiling, order: str
    ) -> Partial:
        """Memory of a unit for the sums of one outer block, whole tiles."""
        m = (rows.share if order == "nkm" else rows.held) * rows.tile
        n = (columns.share if order == "mkn" else columns.held) * columns.tile
        buffer = builder.alloc("partial", acc, (m, n), MemorySpace.LOCAL)
        return replace(self, buffer=buffer)


def _holds_sums(contraction: Contraction, output: Output, buffer: Buffer) -> bool:
    axes = {*contraction.outer, M, N}
    if buffer.dtype is not compute_dtype(contraction.acc) or not axes <= set(output.labels):
        return False
    return buffer.dense_strides[output.labels.index(N)] == 1


@dataclass(frozen=True)
class Depth:
    """One block of k: first element, length, and predicates for the first and last block."""

    start: Expr
    length: Expr
    is_first: Expr
    is_last: Expr


@dataclass(frozen=True)
class Staged:
    """Memory between a tile unit and vectors: slots of a register tile's sums, and one of them."""

    buffer: Buffer
    slot: Expr

    @staticmethod
    def allocated(builder: Builder, acc: DType, shape: tuple[int, ...], slots: int) -> Staged:
        """Memory of a unit, at its first slot."""
        return Staged(builder.alloc("staged", acc, (slots, *shape), MemorySpace.LOCAL), as_expr(0))


@dataclass(frozen=True)
class TileRegisters:
    """The registers of a tile unit, which every register tile of a kernel uses in turn."""

    acc: Buffer
    a: Buffer
    b: Buffer

    @staticmethod
    def allocated(builder: Builder, schedule: Schedule) -> TileRegisters:
        """Registers for the largest register tile of a schedule."""
        unit, space = schedule.unit, schedule.unit.space
        acc, a, b = (spec.shape for spec in unit.atom.operands)
        _, a_count, b_count = unit.tile_registers(schedule.rows, schedule.columns)
        return TileRegisters(
            builder.alloc("acc", unit.acc, (schedule.rows, schedule.columns, *acc), space),
            builder.alloc("at", unit.a, (a_count, *a), space),
            builder.alloc("bt", unit.b, (b_count, *b), space),
        )


@dataclass(frozen=True)
class Strip:
    """Columns of a register tile that one unit computes: ``columns`` unit tiles from element
    ``start`` of the tile on, of which the last may be short.
    """

    unit: MatrixUnit
    start: int
    columns: int
    acc: Buffer

    @property
    def width(self) -> int:
        """Columns of a unit tile, elements."""
        return self.unit.tile[1]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of an accumulator."""
        return self.unit.atom.operands[0].shape

    def fragment(self, i: ExprLike, j: ExprLike) -> Window:
        """The accumulator of a row and a column of unit tiles."""
        return window(self.acc, i, j, *((0, extent) for extent in self.acc.shape[2:]))

    def valid(self, j: int, size: int) -> int:
        """Elements of column ``j`` within a register tile of ``size`` columns."""
        return min(self.width, size - self.start - j * self.width)


@dataclass(frozen=True)
class MicroKernel:
    """Code of one register tile.

    ``a`` and ``b`` are packed tiles, or None to read the inputs in place. ``origin`` is the
    first row and column (elements) that the unit's partial sums hold. ``tiles`` are the registers
    of a tile unit. With ``staged`` the sums are left in that memory and not finished here;
    ``beside`` adds statements to the step of k that it is given.
    """

    builder: Builder
    fragments: Fragments
    contraction: Contraction
    schedule: Schedule
    lanes: int
    place: Place
    row: Tile
    column: Tile
    depth: Depth
    a: TileA | None
    b: TileB | None
    partial: Partial | None
    origin: tuple[Expr, Expr]
    epilogue: Epilogue
    tiles: TileRegisters | None = None
    staged: Staged | None = None
    beside: Callable[[Expr], None] | None = None

    @property
    def _rows(self) -> int:
        return -(-self.row.size // self.schedule.unit.tile[0])

    @property
    def _columns(self) -> int:
        return -(-self.column.size // self.schedule.unit.tile[1])

    def emit(self) -> None:
        """Append the tile's statements."""
        strips = self._strips()
        self._begin(strips)
        self._accumulate(strips)
        self._end(strips)

    # Accumulators ------------------------------------------------------------------------

    def _strips(self) -> tuple[Strip, ...]:
        """One strip, or two where a short last vector fits a unit that takes less time."""
        unit = self.schedule.unit
        if self.tiles is not None:
            return (Strip(unit, 0, self._columns, self.tiles.acc),)
        whole, rest = divmod(self.column.size, unit.tile[1])
        narrow = self.schedule.narrow_for(rest)
        parts = [(unit, 0, self._columns)]
        if narrow is not None:
            parts = [(unit, 0, whole)] * (whole > 0) + [(narrow, whole * unit.tile[1], 1)]
        strips: list[Strip] = []
        for its, start, columns in parts:
            shape = (self._rows, columns, *its.atom.operands[0].shape)
            name = "acc" if its is unit else "acc_tail"
            acc = self.builder.alloc(name, its.acc, shape, its.space)
            strips.append(Strip(its, start, columns, acc))
        return tuple(strips)

    def _begin(self, strips: Sequence[Strip]) -> None:
        """Zero, or what the blocks of k before this one left."""
        builder = self.builder
        fn, value = ("", (Scalar(0.0),)) if self.schedule.unit.is_vector else ("zero", ())
        with builder.capture() as zero:
            for strip in strips:
                computes = Computation(Kind.FILL, fn, strip.shape, (strip.unit.acc,))
                fill = self.fragments.atom(computes)
                with self._each(strip) as (i, j):
                    builder.call(fill, strip.fragment(i, j), *value)
        if self.partial is None:
            builder.extend(zero)
            return
        with builder.capture() as resume:
            self._move_partial(strips, Kind.LOAD)
        builder.choose(self.depth.is_first, tuple(zero), tuple(resume))

    @contextmanager
    def _each(self, strip: Strip) -> Generator[tuple[Expr, Expr], None, None]:
        with (
            self.builder.loop("i", self._rows, unrolled=True) as i,
            self.builder.loop("j", strip.columns, unrolled=True) as j,
        ):
            yield i, j

    def _move_partial(self, strips: Sequence[Strip], kind: Kind) -> None:
        """Load or store the unfinished sums."""
        for strip in strips:
            types = (strip.unit.acc, strip.unit.acc)
            for j in range(strip.columns):
                with self.builder.loop("i", self._rows, unrolled=True) as i:
                    memory, partial = self._partial_window(strip, i, j)
                    computes = Computation(kind, "", strip.shape, types, partial=partial)
                    fragment = strip.fragment(i, j)
                    pair = (fragment, memory) if kind is Kind.LOAD else (memory, fragment)
                    self.builder.call(self.fragments.atom(computes), *pair)

    def _partial_window(self, strip: Strip, i: ExprLike, j: int) -> tuple[Window, bool]:
        assert self.partial is not None
        buffer = self.partial.buffer
        assert buffer is not None
        um, un, _ = strip.unit.tile
        valid = strip.valid(j, self.column.size)
        row: Expr = self.row.start + as_expr(i) * um
        column = self.column.start + (strip.start + j * un)
        if self.partial.part is not None:
            return window(buffer, self.partial.part, (row, um), (column, un)), False
        if self.partial.output is None:
            row, column = row - self.origin[0], column - self.origin[1]
            return window(buffer, (row, um), (column, un)), False
        box = box_along(self.place, M, row, um)
        box[N] = (column, valid)
        dims = [(0, 1) if axis is None else box[axis] for axis in self.partial.labels]
        return window(buffer, *dims), valid < un

    # The loop over k ---------------------------------------------------------------------

    def _accumulate(self, strips: Sequence[Strip]) -> None:
        unit, builder = self.schedule.unit, self.builder
        depth = unit.tile[2]
        steps = ceil_div(self.depth.length, depth) if depth > 1 else self.depth.length
        with builder.loop("p", steps, unroll=self.schedule.unroll) as p:
            if unit.is_vector:
                self._vector_step(strips, p)
            else:
                self._tile_step(strips[0], p)
            if self.beside is not None:
                self.beside(p)

    def _vector_step(self, strips: Sequence[Strip], p: Expr) -> None:
        builder = self.builder
        loaded = [self._load_row(strip, p) for strip in strips]
        if self.schedule.prefetch and self.b is None:
            self._prefetch(p)
        with builder.loop("i", self._rows, unrolled=True) as i:
            source, dtype = self._a_element(i, p)
            for strip, b in zip(strips, loaded, strict=True):
                unit, lanes = strip.unit, strip.width
                a = builder.alloc("av", unit.a, (lanes,), MemorySpace.REGISTER)
                splat = Computation(Kind.SPLAT, "", (lanes,), (unit.a, dtype))
                builder.call(self.fragments.atom(splat), window(a, (0, lanes)), source)
                with builder.loop("j", strip.columns, unrolled=True) as j:
                    factors = window(a, (0, lanes)), window(b, j, (0, lanes))
                    builder.call(unit.name, strip.fragment(i, j), *factors)

    def _load_row(self, strip: Strip, p: Expr) -> Buffer:
        """Registers with a row of the second factor."""
        unit, lanes = strip.unit, strip.width
        b = self.builder.alloc("bv", unit.b, (strip.columns, lanes), MemorySpace.REGISTER)
        for j in range(strip.columns):
            source, dtype, partial = self._b_row(strip, p, j)
            load = Computation(Kind.LOAD, "", (lanes,), (unit.b, dtype), partial=partial)
            self.builder.call(self.fragments.atom(load), window(b, j, (0, lanes)), source)
        return b

    def _prefetch(self, p: Expr) -> None:
        """Ask for the lines of a row of the second factor that a later step will read.

        The last row is asked for again where there is no later one.
        """
        side, lanes = self.contraction.b, self.schedule.unit.tile[1]
        assert side.source is not None
        buffer = self.fragments.buffers[side.source]
        hint = self.fragments.atom(Computation(Kind.HINT, "prefetch", (1,), (buffer.dtype,)))
        later = minimum(self.depth.start + p + self.schedule.prefetch, self.contraction.k - 1)
        row = self.builder.let("later", later)
        line = max(lanes, LINE_BYTES // buffer.dtype.bytes)
        for at in range(0, self._columns * lanes, line):
            box = box_along(self.place, K, row, 1)
            box[N] = (self.column.start + at, 1)
            self.builder.call(hint, box_of(buffer, side, box))

    def _b_row(self, strip: Strip, p: Expr, j: int) -> tuple[Window, DType, bool]:
        lanes, at = strip.width, strip.start + j * strip.width
        valid = strip.valid(j, self.column.size)
        if self.b is not None:
            return self.b.row(p, at, valid), self.b.view.buffer.dtype, valid < lanes
        side = self.contraction.b
        assert side.source is not None
        buffer = self.fragments.buffers[side.source]
        box = box_along(self.place, K, self.depth.start + p, 1)
        box[N] = (self.column.start + at, valid)
        return box_of(buffer, side, box), buffer.dtype, valid < lanes

    def _a_element(self, i: ExprLike, p: Expr) -> tuple[Window, DType]:
        if self.a is not None:
            return self.a.element(i, p), self.a.buffer.dtype
        side = self.contraction.a
        assert side.source is not None
        buffer = self.fragments.buffers[side.source]
        box = box_along(self.place, K, self.depth.start + p, 1)
        box[M] = (self.row.start + i, 1)
        return box_of(buffer, side, box), buffer.dtype

    def _tile_step(self, strip: Strip, p: Expr) -> None:
        """One step of k: each factor is loaded right before the first product that needs it."""
        builder = self.builder
        rows, columns = self._rows, self._columns
        order = [(i, j) for i in range(rows) for j in range(columns)]
        if rows < columns:
            order.sort(key=lambda place: place[1])
        loaded: set[tuple[str, int]] = set()
        for i, j in order:
            factors: list[Window] = []
            for name, index in (("a", i), ("b", j)):
                fragment = self._factor(name, index)
                if (name, index) not in loaded:
                    loaded.add((name, index))
                    self._load_factor(fragment, name, index, p)
                factors.append(fragment)
            builder.call(strip.unit.name, strip.fragment(i, j), *factors)

    def _factor(self, name: str, index: int) -> Window:
        """The register of a factor; those of the longer side take turns."""
        assert self.tiles is not None
        buffer = self.tiles.a if name == "a" else self.tiles.b
        extents = [(0, extent) for extent in buffer.shape[1:]]
        return window(buffer, index % buffer.shape[0], *extents)

    def _load_factor(self, target: Window, name: str, index: int, p: Expr) -> None:
        """The factor that passes by leaves the first-level cache to the one that is held.

        Only whole lines do: the other half of a line would be fetched a second time.
        """
        dtype, shape = target.buffer.dtype, target.buffer.shape[1:]
        if name == "a":
            source = self._a_tile(index, p, shape)
        else:
            assert self.b is not None
            source = self.b.step(p, index)
        load = Computation(Kind.LOAD, "", shape, (dtype, dtype))
        if name != self.schedule.held(self.contraction) and whole_lines(source.buffer):
            passing = replace(load, fn="stream")
            load = load if self.fragments.atoms.usable(passing) is None else passing
        self.builder.call(self.fragments.atom(load), target, source)

    def _a_tile(self, i: int, p: Expr, shape: tuple[int, ...]) -> Window:
        um, _, uk = self.schedule.unit.tile
        if self.a is not None:
            return self.a.step(i * um, shape[0], p * uk, shape[1])
        side = self.contraction.a
        assert side.source is not None
        box = box_along(self.place, K, self.depth.start + p * uk, shape[1])
        box[M] = (self.row.start + i * um, shape[0])
        return box_of(self.fragments.buffers[side.source], side, box)

    # Epilogue ----------------------------------------------------------------------------

    def _end(self, strips: Sequence[Strip]) -> None:
        """Keep the sums for the next block of k, or finish them into the outputs."""
        builder = self.builder
        if self.staged is not None:
            self._stage(strips[0], self.staged)
            return
        with builder.capture() as finish:
            if self.schedule.unit.is_vector:
                self._finish_vectors(strips)
            else:
                self._finish_tiles(strips[0])
        if self.partial is None:
            builder.extend(finish)
            return
        with builder.capture() as keep:
            self._move_partial(strips, Kind.STORE)
        builder.choose(self.depth.is_last, tuple(finish), tuple(keep))

    def _finish_vectors(self, strips: Sequence[Strip]) -> None:
        for strip in strips:
            for j in range(strip.columns):
                lanes = Lanes.of(strip.width, N, strip.valid(j, self.column.size))
                column = self.column.start + (strip.start + j * strip.width)
                with self.builder.loop("i", self._rows, unrolled=True) as i:
                    place = self._place(self.row.start + i, column)
                    self.epilogue.finish(strip.fragment(i, j), place, lanes)

    def _stage(self, strip: Strip, staged: Staged) -> None:
        """Tiles go through memory, where vectors pick them up row by row."""
        um, un, _ = strip.unit.tile
        types = (strip.unit.acc, strip.unit.acc)
        store = self.fragments.atom(Computation(Kind.STORE, "", strip.shape, types))
        for i in range(self._rows):
            for j in range(self._columns):
                target = window(staged.buffer, staged.slot, (i * um, um), (j * un, un))
                self.builder.call(store, target, strip.fragment(i, j))

    def _finish_tiles(self, strip: Strip) -> None:
        um, un, _ = self.schedule.unit.tile
        shape = (self._rows * um, self._columns * un)
        staged = Staged.allocated(self.builder, self.schedule.unit.acc, shape, 1)
        self._stage(strip, staged)
        with self.builder.loop("r", self.row.size) as r:
            self.finish_row(staged, r)

    def finish_row(self, staged: Staged, r: Expr) -> None:
        """Row ``r`` of a register tile, from memory into the outputs."""
        builder, lanes, acc = self.builder, self.lanes, self.schedule.unit.acc
        load = self.fragments.atom(Computation(Kind.LOAD, "", (lanes,), (acc, acc)))
        for at in range(0, self.column.size, lanes):
            value = builder.alloc("sum", acc, (lanes,), MemorySpace.REGISTER)
            whole = window(value, (0, lanes))
            builder.call(load, whole, window(staged.buffer, staged.slot, r, (at, lanes)))
            valid = min(lanes, self.column.size - at)
            place = self._place(self.row.start + r, self.column.start + at)
            self.epilogue.finish(whole, place, Lanes.of(lanes, N, valid))

    def _place(self, row: Expr, column: Expr) -> Place:
        return {**self.place, M: row, N: column}
