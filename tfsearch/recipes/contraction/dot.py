"""The dot pipeline of a contraction: lanes run along k, where both factors have it contiguous.

A register tile is ``rows x columns`` independent dot products. Every step along k loads one
vector of each of its rows and columns and multiplies them all; after the last step the lanes of
every accumulator are added up, and the sums of neighbouring columns, gathered in a small buffer,
go through the epilogue as one vector. Nothing is packed, and a block of rows reads every byte of
the second factor once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod

from tfsearch.atoms.contract import Atom, Computation, Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.core.records import Accuracy, ParamValue, Refusal
from tfsearch.ir.dtypes import DType
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Var
from tfsearch.ir.tir.nodes import (
    UNIT,
    Buffer,
    Io,
    Kernel,
    MemorySpace,
    Module,
    Param,
    Scalar,
    Window,
    window,
)
from tfsearch.recipes.contraction.epilogue import Epilogue
from tfsearch.recipes.contraction.match import Contraction, K, M, N, Side
from tfsearch.recipes.contraction.nest import Region, Tile, for_tiles, share_of
from tfsearch.recipes.contraction.pack import box_along, box_of
from tfsearch.recipes.contraction.parameters import contiguous
from tfsearch.recipes.contraction.schedule import Tiling
from tfsearch.recipes.domain import Argument, dealt, flat_size, places
from tfsearch.recipes.fragments import Fragments, Lanes, Place, compute_dtype
from tfsearch.recipes.recipe import Kit

MAIN = "main"
REDUCED_TILES = 3
COLUMNS_OUTSIDE, ROWS_OUTSIDE = "columns", "rows"


@dataclass(frozen=True)
class Dot:
    """A contraction seen as dot products of vectors of one width.

    ``row`` and ``column`` are the axes of the result that play these parts: results of one
    column are gathered along their rows instead.
    """

    contraction: Contraction
    atom: Atom
    row: str
    column: str

    @staticmethod
    def of(contraction: Contraction, atom: Atom) -> Dot:
        """The contraction with products that ``atom``, a lane-wise multiply-add, computes."""
        turned = contraction.n == 1 and contraction.m > 1
        row, column = (N, M) if turned else (M, N)
        return Dot(contraction, atom, row, column)

    @property
    def name(self) -> str:
        """Name of the parameter space."""
        return f"contraction.dot.{self.atom.id}"

    @property
    def lanes(self) -> int:
        """Elements of a vector."""
        (lanes,) = self.atom.computes.shape
        return lanes

    @property
    def dtype(self) -> DType:
        """Element type of products and sums."""
        return self.atom.computes.dtypes[0]

    def side(self, axis: str) -> Side:
        """The factor that has an axis of the result."""
        return self.contraction.a if axis == M else self.contraction.b

    def extent(self, axis: str) -> int:
        """Length of an axis, elements."""
        return self.contraction.extents[axis]

    @property
    def outer(self) -> int:
        """Places on the outer axes."""
        return flat_size(self.contraction.outer, self.contraction.extents)

    @property
    def vectors(self) -> int:
        """Whole vectors along k."""
        return self.contraction.k // self.lanes

    @property
    def rest(self) -> int:
        """Elements of the short vector along k, 0 when there is none."""
        return self.contraction.k % self.lanes

    def load(self, axis: str, *, partial: bool = False) -> Computation:
        """What loads a vector of the factor that has ``axis``."""
        types = (self.dtype, self.side(axis).dtype)
        return Computation(Kind.LOAD, "", (self.lanes,), types, partial=partial)

    @property
    def reduction(self) -> Computation:
        """What adds up the lanes of a vector."""
        return Computation(Kind.REDUCE, "sum", (self.lanes,), (self.dtype,))

    def gather(self, kind: Kind, valid: int) -> Computation:
        """What moves the first ``valid`` lanes to (STORE) or from (LOAD) the gathered sums."""
        types = (self.dtype, self.dtype)
        return Computation(kind, "", (self.lanes,), types, partial=valid < self.lanes)


def dots(contraction: Contraction, kit: Kit) -> tuple[list[Dot], list[Refusal]]:
    """One for every width worth trying that the contraction can be built from, and why not."""
    found: list[Dot] = []
    refusals: list[Refusal] = []
    for atom in kit.atoms.values():
        if atom.computes.kind is not Kind.MAP or atom.computes.fn != "fma":
            continue
        dot = Dot.of(contraction, atom)
        reason = _reason(dot, kit)
        if reason:
            refusals.append(Refusal("atom.refused", atom.id, reason))
        elif width_of(dot) in kit.lanes:
            found.append(dot)
    return found, refusals


def width_of(dot: Dot) -> int:
    """Width in 32-bit lanes, as :class:`Kit` counts them."""
    return max(1, dot.lanes * dot.dtype.bits // 32) if dot.lanes > 1 else 1


def _reason(dot: Dot, kit: Kit) -> str:
    contraction = dot.contraction
    missing = sorted(dot.atom.features - kit.atoms.features)
    if missing:
        return f"needs {', '.join(missing)}"
    wanted = compute_dtype(contraction.acc)
    if dot.dtype is not wanted:
        return f"accumulates in {dot.dtype.value}, wanted {wanted.value}"
    for side in (contraction.a, contraction.b):
        if not contiguous(contraction, side, K):
            return "needs both factors from inputs in which the summed axis is contiguous"
    if contraction.k < max(dot.lanes, 2):
        return f"sums of {contraction.k} products fill no vector of {dot.lanes}"
    for axis in (dot.row, dot.column):
        for partial in (False, True) if dot.lanes > 1 else (False,):
            if kit.atoms.usable(dot.load(axis, partial=partial)) is None:
                have = dot.side(axis).dtype.value
                return f"no instruction loads {have} as {dot.lanes} x {dot.dtype.value}"
    return ""


@dataclass(frozen=True)
class DotSchedule:
    """The choices of one candidate.

    ``rows`` x ``columns`` dot products at once; ``unroll`` vectors along k a step, added into
    ``sums`` accumulators in turn; ``order`` names the outer of the two tile loops; ``grid``
    splits units over outer axes, rows and columns.
    """

    rows: int
    columns: int
    unroll: int
    sums: int
    order: str
    grid: tuple[int, int, int]

    @staticmethod
    def of(params: Mapping[str, ParamValue]) -> DotSchedule:
        """Read the parameters that :mod:`tfsearch.recipes.contraction.dot_parameters` declares."""
        grid_o, grid_r = int(params["grid_outer"]), int(params["grid_rows"])
        return DotSchedule(
            rows=int(params["rows"]),
            columns=int(params["columns"]),
            unroll=int(params["unroll"]),
            sums=int(params["sums"]),
            order=str(params["order"]),
            grid=(grid_o, grid_r, int(params["units"]) // (grid_o * grid_r)),
        )

    @property
    def units(self) -> int:
        """Number of executing units."""
        return prod(self.grid)


def reduced(dot: Dot, schedule: DotSchedule) -> dict[str, int]:
    """Extents small enough to interpret at which the kernel still does all that it does.

    Three tiles a unit and a tail along rows and columns; along k two steps, vectors that are
    left over and a short one. Axes of one element stay so: layouts depend on them.
    """
    _, grid_r, grid_c = schedule.grid
    sizes = {axis: min(3, dot.extent(axis)) for axis in dot.contraction.outer}
    for axis, tile, parts in (
        (dot.row, schedule.rows, grid_r),
        (dot.column, schedule.columns, grid_c),
    ):
        several = tile * REDUCED_TILES * parts + max(1, tile // 3)
        sizes[axis] = 1 if dot.extent(axis) == 1 else several
    vectors = 2 * schedule.unroll + (schedule.unroll > 1)
    sizes[K] = vectors * dot.lanes + (dot.lanes > 1) * (dot.lanes // 2 + 1)
    return sizes


def lower(
    dot: Dot,
    schedule: DotSchedule,
    atoms: AtomTable,
    accuracy: Accuracy,
    alignment: int,
) -> Module:
    """One candidate as TIR; ``alignment`` of arguments in bytes."""
    return Module((_Lowering(dot, schedule, atoms, accuracy, alignment).kernel(),))


class _Lowering:
    def __init__(
        self,
        dot: Dot,
        schedule: DotSchedule,
        atoms: AtomTable,
        accuracy: Accuracy,
        alignment: int,
    ) -> None:
        self.dot = dot
        self.schedule = schedule
        contraction = dot.contraction
        program = contraction.program
        self.inputs = {
            i: Argument.of(value.name, value.type).buffer(alignment)
            for i, value in enumerate(program.inputs)
        }
        self.outputs = tuple(
            Argument.of(o.name, t).buffer(alignment)
            for o, t in zip(contraction.outputs, program.output_types, strict=True)
        )
        buffers = (*self.inputs.values(), *self.outputs)
        self.builder = Builder(buffer.name for buffer in buffers)
        self.fragments = Fragments(self.builder, program, atoms, accuracy, self.inputs)
        self.epilogue = Epilogue(self.fragments, contraction, self.outputs, stream=False)
        _, grid_r, grid_c = schedule.grid
        self.rows = _tiling(dot.extent(dot.row), schedule.rows, grid_r)
        self.columns = _tiling(dot.extent(dot.column), schedule.columns, grid_c)

    def kernel(self) -> Kernel:
        """The kernel of the candidate."""
        builder, dot = self.builder, self.dot
        gathered = builder.alloc(
            "gathered", dot.dtype, (self.schedule.rows, self.schedule.columns), MemorySpace.LOCAL
        )
        outer_part, row_part, column_part = self._parts()
        rows = share_of(builder, self.rows, row_part, "row")
        columns = share_of(builder, self.columns, column_part, "column")
        first, last = dealt(builder, dot.outer, self.schedule.grid[0], outer_part, "outer")
        contraction = dot.contraction
        with builder.loop("o", last, start=first) as index:
            place = places(builder, index, contraction.outer, contraction.extents)
            self._tiles(place, rows, columns, gathered)
        params = [Param(buffer, Io.IN) for buffer in self.inputs.values()]
        params += [Param(buffer, Io.OUT) for buffer in self.outputs]
        return builder.kernel(MAIN, tuple(params), self.schedule.units)

    def _parts(self) -> tuple[Expr, Expr, Expr]:
        """The executing unit's part of outer axes, rows and columns; columns vary fastest."""
        below = 1
        found: list[Expr] = []
        for count in reversed(self.schedule.grid):
            part = Var(UNIT) // below
            below *= count
            if count == 1:
                part = Const(0)
            elif below < self.schedule.units:
                part = part % count
            found.append(part)
        column, row, outer = found
        return outer, row, column

    def _tiles(self, place: Place, rows: Region, columns: Region, gathered: Buffer) -> None:
        builder = self.builder

        def along_rows(column: Tile) -> None:
            for_tiles(
                builder, self.rows, "i", rows, lambda row: self._tile(place, row, column, gathered)
            )

        def along_columns(row: Tile) -> None:
            for_tiles(
                builder,
                self.columns,
                "j",
                columns,
                lambda column: self._tile(place, row, column, gathered),
            )

        if self.schedule.order == COLUMNS_OUTSIDE:
            for_tiles(builder, self.columns, "j", columns, along_rows)
        else:
            for_tiles(builder, self.rows, "i", rows, along_columns)

    def _tile(self, place: Place, row: Tile, column: Tile, gathered: Buffer) -> None:
        """Dot products of the rows and columns of one tile, and what is made of them."""
        tile = _DotTile(self, place, row, column)
        tile.accumulate()
        tile.gather(gathered)
        tile.finish(gathered)


class _DotTile:
    """Code of one register tile."""

    def __init__(self, owner: _Lowering, place: Place, row: Tile, column: Tile) -> None:
        self.owner = owner
        self.dot = owner.dot
        self.schedule = owner.schedule
        self.builder = owner.builder
        self.place = place
        self.row = row
        self.column = column
        shape = (self.schedule.sums, row.size, column.size, self.dot.lanes)
        self.acc = self.builder.alloc("acc", self.dot.dtype, shape, MemorySpace.REGISTER)

    def _atom(self, computes: Computation) -> str:
        return self.owner.fragments.atom(computes)

    def _register(self, stem: str, *lead: int) -> Buffer:
        shape = (*lead, self.dot.lanes)
        return self.builder.alloc(stem, self.dot.dtype, shape, MemorySpace.REGISTER)

    def _sum(self, part: ExprLike, i: ExprLike, j: ExprLike) -> Window:
        return window(self.acc, part, i, j, (0, self.dot.lanes))

    # The loop over k ---------------------------------------------------------------------

    def accumulate(self) -> None:
        """The products of all of k, lane by lane."""
        dot, builder, unroll = self.dot, self.builder, self.schedule.unroll
        lanes, sums = dot.lanes, self.schedule.sums
        fill = self._atom(Computation(Kind.FILL, "", (lanes,), (dot.dtype,)))
        for part in range(sums):
            with (
                builder.loop("i", self.row.size, unrolled=True) as i,
                builder.loop("j", self.column.size, unrolled=True) as j,
            ):
                builder.call(fill, self._sum(part, i, j), Scalar(0.0))
        together = dot.vectors // unroll * unroll
        with builder.loop("p", together * lanes, step=unroll * lanes) as p:
            for u in range(unroll):
                self._products(u % sums, p + u * lanes, lanes)
        for u in range(dot.vectors - together):
            self._products(u % sums, Const((together + u) * lanes), lanes)
        if dot.rest:
            self._products(0, Const(dot.vectors * lanes), dot.rest)

    def _products(self, part: int, at: Expr, valid: int) -> None:
        """Multiply a vector of every row by one of every column.

        Those of the shorter side stay in registers while those of the other pass through one.
        """
        dot, builder = self.dot, self.builder
        by_rows = self.row.size <= self.column.size
        held_axis, passing_axis = (dot.row, dot.column) if by_rows else (dot.column, dot.row)
        held_size, passing_size = sorted((self.row.size, self.column.size))
        held = self._register("held", held_size)
        with builder.loop("h", held_size, unrolled=True) as h:
            self._load(window(held, h, (0, dot.lanes)), held_axis, h, at, valid)
        with builder.loop("q", passing_size, unrolled=True) as q:
            passing = self._register("passing")
            one = window(passing, (0, dot.lanes))
            self._load(one, passing_axis, q, at, valid)
            with builder.loop("h", held_size, unrolled=True) as h:
                other = window(held, h, (0, dot.lanes))
                i, j, a, b = (h, q, other, one) if by_rows else (q, h, one, other)
                builder.call(dot.atom.id, self._sum(part, i, j), a, b)

    def _load(self, target: Window, axis: str, index: Expr, at: Expr, valid: int) -> None:
        load = self._atom(self.dot.load(axis, partial=valid < self.dot.lanes))
        self.builder.call(load, target, self._source(axis, index, at, valid))

    def _source(self, axis: str, index: Expr, at: Expr, valid: int) -> Window:
        """Elements along k of the row or column ``index`` of the tile."""
        side = self.dot.side(axis)
        assert side.source is not None
        tile = self.row if axis == self.dot.row else self.column
        box = box_along(self.place, K, at, valid)
        box[axis] = (tile.start + index, 1)
        return box_of(self.owner.inputs[side.source], side, box)

    # What becomes of the sums ------------------------------------------------------------

    def gather(self, gathered: Buffer) -> None:
        """Add up the accumulators of every dot product, then its lanes, in a fixed order."""
        dot, builder = self.dot, self.builder
        lanes = dot.lanes
        add = self._atom(Computation(Kind.MAP, "add", (lanes,), (dot.dtype,)))
        store = self._atom(dot.gather(Kind.STORE, 1))
        with (
            builder.loop("i", self.row.size, unrolled=True) as i,
            builder.loop("j", self.column.size, unrolled=True) as j,
        ):
            half = self.schedule.sums // 2
            while half:
                for part in range(half):
                    here = self._sum(part, i, j)
                    builder.call(add, here, here, self._sum(part + half, i, j))
                half //= 2
            total = self._sum(0, i, j)
            if lanes > 1:
                one = window(self._register("total"), (0, lanes))
                builder.call(self._atom(dot.reduction), one, total)
                total = one
            builder.call(store, window(gathered, i, (j, 1)), total)

    def finish(self, gathered: Buffer) -> None:
        """The epilogue, and stores: neighbouring columns as one vector."""
        dot, builder = self.dot, self.builder
        lanes = dot.lanes
        with builder.loop("i", self.row.size) as i:
            for at in range(0, self.column.size, lanes):
                valid = min(lanes, self.column.size - at)
                sums = window(self._register("sums"), (0, lanes))
                load = self._atom(dot.gather(Kind.LOAD, valid))
                builder.call(load, sums, window(gathered, i, (at, valid)))
                place = {**self.place, dot.row: self.row.start + i}
                place[dot.column] = self.column.start + at
                self.owner.epilogue.finish(sums, place, Lanes.of(lanes, dot.column, valid))


def _tiling(extent: int, tile: int, parts: int) -> Tiling:
    """Register tiles without cache blocks around them."""
    return Tiling(extent, tile, -(-extent // tile), parts)
