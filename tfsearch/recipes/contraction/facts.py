"""Facts of the blocked contraction, for whole batches of points at once.

Counts are of the unit that has most to do. They are exact where a unit owns everything; where
rows or columns are dealt out, its share is counted as whole tiles.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.cost.model import Facts, Phase
from tfsearch.ir.tir.nodes import Buffer, MemorySpace
from tfsearch.recipes.contraction.match import Contraction, K, M, N
from tfsearch.recipes.contraction.micro import LINE_BYTES, whole_lines
from tfsearch.recipes.contraction.parameters import BARRIER, contiguous
from tfsearch.recipes.contraction.unit import MatrixUnit, order_of
from tfsearch.recipes.counting import Traffic
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points

Column = NDArray[Any]

LATENCY = 4.0
"""Cycles until a dependent multiply-accumulate can start; the same on all current cores."""
TILE_OVERHEAD = 12.0
"""Cycles to enter and leave the loop over k of one register tile (loop exit mispredicted)."""
USABLE = 0.75
"""Part of a cache that a block can count on beside what streams through it; an estimate."""
USABLE_TILES = 0.85
"""The same for tile units, whose packed factors lie in large pages (measured)."""
KEPT, LOST = 0.6, 1.6
"""A held panel is always found again in the first-level cache when it takes at most the first part
of it, never when it takes the second, and in proportion between (fitted)."""
L1_WAY_BYTES, L2_WAY_BYTES = 4096, 131072
"""Bytes of one way of a cache: addresses that far apart share a set. The second: 1 MB in 8 ways on
Zen 4, 2 MB in 16 on Sapphire and Emerald Rapids."""
TLB_ENTRIES = 64
PAGE = 4096
STREAMS = 32
"""Rows that hardware prefetchers follow at once (Intel optimisation manual: one a page, 32)."""
SCATTERED = 1.5
"""How much longer rows take that are read in pieces too scattered to be prefetched (measured)."""
WAIT_PIECE = 40.0
"""Cycles that such a piece of a row from beyond the outer cache costs where nobody asked for it
(fitted to 215 kernels of 64 x 2048 x 512 and 52 of 16 x 4096 x 4096 on Zen 4)."""
FETCH = 400.0
"""Cycles ahead at which such a piece has to be asked for to cost nothing (fitted to 429 kernels of
64 x 2048 x 512 on Zen 4)."""
WAIT_CROWDED = 30.0
"""Cycles that a line of unfinished sums costs a vector unit where rows share too few sets of the
outer cache (fitted to 637 kernels of 64 x 2048 x 512 on Zen 4)."""
WAIT_FIRST = (0.5, 3.0)
"""Cycles a line of the first factor from beyond the outer cache costs tile loads: more where
nobody asked for it ahead, and anyway. These and the next four: fitted to 690 kernels of 768³,
1024³ and 1536³ on Emerald Rapids."""
WAIT_SECOND = 6.0
"""Cycles a line of the second factor, packed ahead, costs tile loads from beyond that cache."""
WAIT_SUMS = (2.0, 6.0)
"""Cycles a line of unfinished sums costs where it and the second factor's block share the outer
cache easily, and elsewhere."""
EASILY = 0.4
"""Part of the outer cache that leaves room for what passes by."""
WAIT_OUTPUT = (50.0, 35.0)
"""Cycles a line of output beyond the outer cache costs: stores through the caches, and past them.
"""
TLB_MISS = 4.0
"""Cycles that one access to a page beyond the first-level TLB adds, partly hidden."""


def _ceil(a: Any, b: Any) -> Any:
    """The quotient rounded up; exact below 2**52, and faster than division of integers."""
    return np.ceil(np.true_divide(a, b))


def _lost(part: Column) -> Column:
    """Share of a panel's loads that miss, of the part of the cache that it takes."""
    return np.clip((part - KEPT) / (LOST - KEPT), 0.0, 1.0)


def _sets_shared(pitch: int, width: Column | float, way: int) -> Column:
    """The part of a cache's sets that rows of ``width`` bytes, ``pitch`` bytes apart, can lie in.

    1 where they are not rows in place (pitch 0). ``way``: bytes of one way.
    """
    lines = np.maximum(np.asarray(width, dtype=np.float64) / LINE_BYTES, 1.0)
    if not pitch:
        return np.ones(lines.shape)
    return np.minimum(1.0, _sets_begun(pitch, way) * lines / (way // LINE_BYTES))


def _sets_begun(pitch: int, way: int) -> int:
    """In how many sets of a cache rows begin that are ``pitch`` bytes apart."""
    sets = way // LINE_BYTES
    return sets // gcd(max(pitch // LINE_BYTES, 1), sets)


@dataclass(frozen=True)
class TileCounts:
    """Tiles of the busiest unit along one axis: whole ones, and the units in the short one."""

    full: Column
    per_tile: Column
    rest: Column

    @cached_property
    def tiles(self) -> Column:
        return self.full + (self.rest > 0)

    @cached_property
    def total(self) -> Column:
        return self.full * self.per_tile + self.rest


def tile_counts(
    extent: int, tile: Column, per_tile: Column, unit: int, parts: Column
) -> TileCounts:
    """Tiles of ``tile`` elements, ``per_tile`` units of ``unit`` each, dealt out to ``parts``."""
    whole = np.floor(np.true_divide(extent, tile))
    rest = extent - whole * tile
    share = _ceil(_ceil(extent, tile), parts)
    full = np.where(parts > 1, np.minimum(share, whole), whole)
    short = np.where((parts > 1) & (share <= whole), 0, _ceil(rest, unit))
    return TileCounts(full, per_tile, short)


class ContractionFacts:
    """Facts of the points of one unit's space."""

    def __init__(
        self,
        contraction: Contraction,
        unit: MatrixUnit,
        kit: Kit,
        lanes: int,
        alignment: int,
        narrow: MatrixUnit | None = None,
    ) -> None:
        self.contraction = contraction
        self.unit = unit
        self.kit = kit
        self.lanes = lanes
        self.alignment = alignment
        rest = contraction.n % unit.tile[1]
        fits = narrow is not None and 0 < rest <= narrow.tile[1]
        self.narrow = narrow if fits else None
        """The unit of the last vector of columns, where that is another."""

    def of(self, points: Points) -> Facts:
        """Facts of a batch."""
        return _Batch(self, points).facts()

    def cycles(self, computes: Computation) -> float:
        """Cycles of the atom that computes this; 0 when there is none."""
        atom = self.kit.atoms.usable(computes)
        return 0.0 if atom is None else self.kit.cycles(atom.id)

    @property
    def pitch_a(self) -> int:
        """Bytes from row to row of the first factor; 0 where it is computed or has no rows."""
        side = self.contraction.a
        if side.source is None or M not in side.source_labels:
            return 0
        strides = self.contraction.program.inputs[side.source].type.element_strides
        return strides[side.source_labels.index(M)] * side.dtype.bytes

    @property
    def whole_lines_a(self) -> bool:
        """True when the first factor, read in place, is read in whole cache lines."""
        side = self.contraction.a
        if side.source is None:
            return False
        source = self.contraction.program.inputs[side.source]
        strides = source.type.element_strides
        return whole_lines(
            Buffer("", side.dtype, source.type.sizes, MemorySpace.GLOBAL, strides, self.alignment)
        )


class _Batch:
    def __init__(self, owner: ContractionFacts, points: Points) -> None:
        self.owner = owner
        self.points = points
        c, unit = owner.contraction, owner.unit
        column: Callable[[str], Column] = points.column
        self.rows, self.columns = column("rows"), column("columns")
        grid_m, grid_n, grid_o = column("grid_m"), column("grid_n"), column("grid_o")
        um, un, self.uk = unit.tile
        self.m = tile_counts(c.m, column("tile_m"), self.rows, um, grid_m)
        self.n = tile_counts(c.n, column("tile_n"), self.columns, un, grid_n)
        outer = flat_size(c.outer, c.extents)
        self.outer = _ceil(outer, grid_o)
        self.depth = column("depth")
        self.grid_k = column("grid_k")
        self.narrowed = (grid_n == 1) & (self.grid_k == 1)
        self.depth_blocks = _ceil(column("k_blocks"), self.grid_k)
        self.k = np.minimum(self.depth_blocks * column("kc"), c.k)
        self.steps = _ceil(self.k, self.uk)
        self.m_blocks = _ceil(self.m.tiles, column("m_held"))
        self.n_blocks = _ceil(self.n.tiles, column("n_held"))
        order = points.labels("order")
        self.nkm = order != "mkn"
        self.inside_k = order == "nmk"
        self.beside = points.labels("finish") == "beside"
        self.inner_nm = points.labels("inner") == "nm"
        self.pack_a, self.pack_b = points.labels("pack_a"), points.labels("pack_b")
        self.units = column("units")
        self.a_block, self.b_block = column("a_block_bytes"), column("b_block_bytes")
        self.stream = column("stream")
        self.prefetch = column("prefetch")
        e_out = sum(t.bytes for t in c.program.output_types)
        self.a_bytes = c.m * c.k * c.a.dtype.bytes
        self.b_bytes = c.n * c.k * c.b.dtype.bytes
        self.working_set = (self.a_bytes + self.b_bytes) * outer + e_out
        self.out_bytes = e_out

    def facts(self) -> Facts:
        phases = [
            self._pack_a_phase(),
            self._pack_b_phase(),
            self._main_phase(),
            self._combine_phase(),
        ]
        c = self.owner.contraction
        multiply_adds = self.m.total * self.n.total * self.steps * self.outer
        flops = 2.0 * c.m * c.n * c.k * flat_size(c.outer, c.extents)
        compulsory = sum(i.type.bytes for i in c.program.inputs) + self.out_bytes
        columns = {
            "multiply_adds": multiply_adds,
            "register_tiles": self.m.tiles * self.n.tiles * self.depth_blocks * self.outer,
            "a_block_bytes": self.a_block,
            "b_block_bytes": self.b_block,
        }
        unit_flops = self.owner.unit.atom.computes.dtypes[1].value
        return Facts(phases, self.units, {unit_flops: flops}, float(compulsory), columns)

    # Helpers -----------------------------------------------------------------------------

    def _traffic(self, moves: list[tuple[Any, Any]]) -> dict[str, Column]:
        """Bytes per level of (bytes moved, size of the working set they come from)."""
        part = USABLE if self.owner.unit.is_vector else USABLE_TILES
        usable = [part * size for size in self.owner.kit.caches]
        traffic = Traffic(usable, len(self.points))
        for moved, size in moves:
            traffic.add(traffic.level(size), moved)
        return traffic.moved()

    def _share(self, of: str) -> Column:
        """Part of a factor's bytes that the busiest unit touches."""
        axis, extent, unit = (
            (self.m, self.owner.contraction.m, self.owner.unit.tile[0])
            if of == "a"
            else (self.n, self.owner.contraction.n, self.owner.unit.tile[1])
        )
        return np.minimum(1.0, axis.total * unit / extent) * self.outer

    # Phases ------------------------------------------------------------------------------

    def _pack_phase(self, name: str, packed: Column, elements: Any, cost: Any, block: Any) -> Phase:
        on = packed.astype(np.float64)
        c = self.owner.contraction
        side = c.a if name == "pack_a" else c.b
        unit_bytes = (self.owner.unit.a if name == "pack_a" else self.owner.unit.b).bytes
        cycles = {"pack": on * elements * cost}
        traffic = self._traffic(
            [
                (on * elements * side.dtype.bytes, self.working_set),
                (on * elements * unit_bytes, block),
            ]
        )
        return Phase(name, cycles, traffic)

    def _vector_copy(self, dtype: Any, source: Any) -> float:
        """Cycles to load, convert and store one element."""
        lanes = self.owner.lanes
        load = self.owner.cycles(Computation(Kind.LOAD, "", (lanes,), (dtype, source)))
        store = self.owner.cycles(Computation(Kind.STORE, "", (lanes,), (dtype, dtype)))
        return (load + store + 0.5) / lanes

    def _pack_a_phase(self) -> Phase:
        owner, c = self.owner, self.owner.contraction
        repeats = np.where(self.nkm, self.n_blocks, 1)
        elements = self._share("a") * c.m * self.k * repeats
        wide = owner.unit.acc
        copy = self._vector_copy(wide, c.a.dtype)
        lanes = owner.lanes
        square = Computation(Kind.TRANSPOSE, "", (lanes, lanes), (owner.unit.a, c.a.dtype))
        turned = owner.cycles(square) / (lanes * lanes) * lanes / np.minimum(self.rows, lanes)
        if not turned.any():
            turned = np.full(self.rows.shape, 2.0)
        panel = copy * lanes / np.minimum(np.maximum(self.rows, 1), lanes)
        if contiguous(c, c.a, K):
            panel = turned
        cost = np.where(self.pack_a == "rows", copy, panel)
        if not owner.unit.is_vector:
            cost = self._tile_pack("a", copy)
        return self._pack_phase("pack_a", self.pack_a != "none", elements, cost, self.a_block)

    def _pack_b_phase(self) -> Phase:
        owner, c = self.owner, self.owner.contraction
        repeats = np.where(self.nkm, 1, self.m_blocks)
        elements = self._share("b") * c.n * self.k * repeats
        lanes = owner.lanes
        cost: Any = self._vector_copy(owner.unit.acc, c.b.dtype)
        if not contiguous(c, c.b, N):
            square = Computation(Kind.TRANSPOSE, "", (lanes, lanes), (owner.unit.b, c.b.dtype))
            cost = max(owner.cycles(square) / (lanes * lanes), cost)
        if not owner.unit.is_vector:
            cost = self._tile_pack("b", cost)
        return self._pack_phase("pack_b", self.pack_b == "block", elements, cost, self.b_block)

    def _tile_pack(self, which: str, converted: float) -> float:
        """Cycles to bring one element into the order of a tile unit.

        ``converted`` is that of a factor that passes through vector registers.
        """
        owner, c, unit = self.owner, self.owner.contraction, self.owner.unit
        side, axis = (c.a, M) if which == "a" else (c.b, N)
        um, _, uk = unit.tile
        types = (side.dtype, side.dtype)
        order = order_of(c, side, axis)
        if side.dtype is not (unit.a if which == "a" else unit.b) or order is None:
            return converted
        if which == "a" and order == K:
            load = owner.cycles(Computation(Kind.LOAD, "", (uk,), types))
            return (load + owner.cycles(Computation(Kind.STORE, "", (uk,), types))) / uk
        if which == "a":
            block = Computation(Kind.TRANSPOSE, "padded", (uk, um), types)
        else:
            fn = "" if order == N else "transposed"
            block = Computation(Kind.INTERLEAVE, fn, (uk, um), types)
        return owner.cycles(block) / (uk * um)

    def _main_phase(self) -> Phase:
        owner = self.owner
        unit = owner.unit
        mma = owner.kit.cycles(unit.name)
        splat, load = self._operand_cycles()
        grid = self.m.tiles * self.n.tiles
        tiles = grid * self.depth_blocks * self.outer
        busy = grid / self.points.column("unroll")
        least = LATENCY if unit.is_vector else unit.atom.cost.latency
        for n_count, columns in ((self.n.full, self.columns), (self.n.rest > 0, self.n.rest)):
            loads = columns * load + self._hints(columns)
            for m_count, rows in ((self.m.full, self.rows), (self.m.rest > 0, self.m.rest)):
                step = np.maximum(rows * columns * mma, rows * splat + loads)
                busy += m_count * n_count * np.maximum(step, least)
        if owner.narrow is not None:
            saved = self.m.total * (mma - owner.kit.cycles(owner.narrow.name))
            busy -= np.where(self.narrowed, saved, 0.0)
        busy *= self.steps * self.outer
        lanes = owner.lanes
        store = owner.cycles(Computation(Kind.STORE, "", (lanes,), (unit.acc, unit.acc)))
        sums = self.m.total * self.n.total * unit.tile[0] * unit.tile[1] / lanes * self.outer
        finish = sums * (store * self.depth_blocks + 0.5 * (self.depth_blocks - 1))
        overhead = tiles * TILE_OVERHEAD + finish + self._tlb()
        if unit.is_vector:
            overhead = overhead + self._piece_waits() + self._crowded_sums()
        else:
            staged, picked = self._row_of_tile()
            after = np.where(self.beside, 1.0 / self.points.column("n_held"), 1.0)
            overhead = overhead + tiles * unit.atom.cost.latency + sums * (staged + picked)
            overhead = overhead - sums * (picked + store) * (1.0 - after)
            busy = busy + self._waits()
        return Phase("main", {"issue": busy}, self._main_traffic(), overhead)

    def _hints(self, columns: Column) -> Column:
        """Cycles to prefetch one row of so many vectors of the second factor."""
        if not self.owner.unit.is_vector:
            return np.zeros(self.rows.shape)
        c, lanes = self.owner.contraction, self.owner.lanes
        hint = self.owner.cycles(Computation(Kind.HINT, "prefetch", (1,), (c.b.dtype,)))
        lines = _ceil(columns * lanes, max(lanes, LINE_BYTES // c.b.dtype.bytes))
        return np.where(self.prefetch > 0, lines * hint, 0.0)

    def _piece_waits(self) -> Column:
        """Cycles in which a vector unit waits for pieces of rows of an unpacked second factor.

        Asked for ahead they wait less; where rows share pages, not at all.
        """
        owner = self.owner
        if self.working_set <= USABLE * owner.kit.outer_cache:
            return np.zeros(self.rows.shape)
        scattered = (self.pack_b == "none") & (self.depth > STREAMS)
        step = self.rows * self.columns * owner.kit.cycles(owner.unit.name)
        late = np.maximum(0.0, 1.0 - self.prefetch * step / FETCH)
        late = np.where((self.prefetch == 0) | (self._pitch_b() >= PAGE), late, 0.0)
        pieces = self.k * self.n.tiles * np.where(self.nkm, 1, self.m_blocks) * self.outer
        return np.where(scattered, WAIT_PIECE * late * pieces, 0.0)

    def _crowded_sums(self) -> Column:
        """Cycles in which a vector unit waits for unfinished sums between passes over k.

        Rows whose pitch is a large power of two share few sets of the outer cache, so that sums in
        place, and rows of an unpacked second factor beside them, displace one another.
        """
        c, unit = self.owner.contraction, self.owner.unit
        across = np.minimum(self.n.total * unit.tile[1] / self.n_blocks, c.n)
        high = self.m.total * unit.tile[0] / np.where(self.nkm, 1, self.m_blocks)
        width = np.where(self.nkm, across, c.n) * unit.acc.bytes
        share = _sets_shared(c.n * unit.acc.bytes, width, L2_WAY_BYTES)
        beside = _sets_shared(self._pitch_b(), across * unit.b.bytes, L2_WAY_BYTES)
        beside = np.where(self.pack_b == "none", beside, 1.0)
        held = width * high / share + self.b_block / beside
        crowded = (held > EASILY * self.owner.kit.outer_cache) & ((share < 1.0) | (beside < 1.0))
        lines = self.m.total * self.n.total * unit.tile[0] * unit.tile[1] * self.outer
        lines = lines * unit.acc.bytes / LINE_BYTES * (self.depth_blocks - 1)
        return np.where(crowded, WAIT_CROWDED * lines, 0.0)

    def _waits(self) -> Column:
        """Cycles in which a tile unit waits for memory beyond the outer cache.

        Tile loads and stores come too fast for anything to be fetched in time.
        """
        c, unit = self.owner.contraction, self.owner.unit
        outer_cache = self.owner.kit.outer_cache
        if self.working_set <= USABLE * outer_cache:
            return np.zeros(self.rows.shape)
        kept = USABLE_TILES * outer_cache
        passes = np.where(self.nkm, self.n_blocks, 1)
        again = np.where(self.inner_nm, self.n.tiles, self.n_blocks)
        passes = np.where(self.a_block > kept, again, passes)
        first = self._share("a") * c.m * self.k * c.a.dtype.bytes * passes
        each = np.where(self.prefetch == 0, WAIT_FIRST[0], 0.0)
        each = each + np.where(self.pack_a == "none", WAIT_FIRST[1], 0.0)
        passes = np.where(self.nkm | (self.b_bytes <= kept), 1, self.m_blocks)
        again = np.where(self.inner_nm, self.m_blocks, self.m.tiles)
        passes = np.where(self.b_block > kept, again, passes)
        second = self._share("b") * c.n * self.k * unit.b.bytes * passes
        second = np.where((self.pack_b == "ahead") | (self.b_block > kept), second, 0.0)
        tile = unit.tile[0] * unit.tile[1] * unit.acc.bytes
        sums = self.m.total * self.n.total * tile * self.outer
        crowded = sums / self._rounds() + self.b_block > EASILY * outer_cache
        unfinished = 2.0 * sums * (self.depth_blocks - 1)
        output = self.out_bytes / np.maximum(self.units, 1)
        waits = first * each + second * WAIT_SECOND
        waits = waits + unfinished * np.where(crowded, WAIT_SUMS[1], WAIT_SUMS[0])
        waits = waits + output * np.where(self.stream != 0, WAIT_OUTPUT[1], WAIT_OUTPUT[0])
        return waits / LINE_BYTES

    def _row_of_tile(self) -> tuple[float, float]:
        """Cycles of one row of an accumulator: into memory, and from there into a register."""
        unit, lanes = self.owner.unit, self.owner.lanes
        types, (rows, columns) = (unit.acc, unit.acc), unit.atom.operands[0].shape
        store = self.owner.cycles(Computation(Kind.STORE, "", (rows, columns), types))
        load = self.owner.cycles(Computation(Kind.LOAD, "", (lanes,), types))
        return store / rows, load

    def _combine_phase(self) -> Phase:
        """Units that split k wait for one another, then add the parts of their share of rows."""
        c, unit, lanes = self.owner.contraction, self.owner.unit, self.owner.lanes
        on = (self.grid_k > 1).astype(np.float64)
        vectors = c.m * _ceil(c.n, lanes) / self.units
        load = self.owner.cycles(Computation(Kind.LOAD, "", (lanes,), (unit.acc, unit.acc)))
        store = self.owner.cycles(Computation(Kind.STORE, "", (lanes,), (unit.acc, unit.acc)))
        cycles = on * vectors * (self.grid_k * load + store)
        moved = on * vectors * lanes * unit.acc.bytes * (self.grid_k + 1)
        sums = c.m * c.n * unit.acc.bytes * self.grid_k
        wait = self.owner.cycles(Computation(Kind.SYNC, BARRIER, (), ()))
        return Phase("combine", {"add": cycles}, self._traffic([(moved, sums)]), on * wait)

    def _operand_cycles(self) -> tuple[float, float]:
        unit = self.owner.unit
        if unit.is_vector:
            n = unit.tile[1]
            splat = Computation(Kind.SPLAT, "", (n,), (unit.a, unit.a))
            load = Computation(Kind.LOAD, "", (n,), (unit.b, unit.b))
            return self.owner.cycles(splat), self.owner.cycles(load)
        load = self.owner.cycles(self._tile_load())
        return load, load

    def _tile_load(self, fn: str = "") -> Computation:
        """The load of a factor's tile; both factors' have one shape."""
        unit = self.owner.unit
        return Computation(Kind.LOAD, fn, unit.atom.operands[1].shape, (unit.a, unit.a))

    def _main_traffic(self) -> dict[str, Column]:
        unit = self.owner.unit
        um, un, _ = unit.tile
        a_once = self.m.total * um * self.k * unit.a.bytes * self.outer
        b_once = self.n.total * un * self.k * unit.b.bytes * self.outer
        a_inner = a_once * np.where(self.inner_nm, self.n.tiles, self.n_blocks)
        b_inner = b_once * np.where(self.inner_nm, self.m_blocks, self.m.tiles)
        conflicts = self._conflicts()
        a_inner = a_inner * conflicts
        a_home = np.where(conflicts > 1, 2.0 * self.owner.kit.caches[0], self.a_block)
        first_a = np.where(self.pack_a == "none", a_once, 0) * np.where(self.nkm, self.n_blocks, 1)
        first_b = np.where(self.pack_b == "none", b_once, 0) * np.where(self.nkm, 1, self.m_blocks)
        scattered = (self.depth > STREAMS) & (self.prefetch == 0)
        first_b = first_b * np.where(scattered, SCATTERED, 1.0)
        panel_b = self.points.column("tile_n") * self.depth * unit.b.bytes
        panel_a = self.points.column("tile_m") * self.depth * unit.a.bytes
        sums = self.m.total * self.n.total * um * un * unit.acc.bytes * self.outer
        ahead = np.where(self.pack_b == "ahead", b_once, 0) * np.where(self.nkm, 1, self.m_blocks)
        again_a, again_b = self._held_again(panel_a, panel_b)
        moves: list[tuple[Any, Any]] = [
            (a_once * again_a, self.a_block),
            (b_once * again_b, self.b_block),
            (a_inner, a_home + panel_b),
            (b_inner, self.b_block + np.where(self.inner_nm, 0, panel_a)),
            (first_a, self.working_set),
            (first_b, self.working_set),
            (ahead, self.b_bytes),
            (2.0 * sums * (self.depth_blocks - 1), sums / self._rounds() + self.b_block),
            (sums, self.working_set),
        ]
        return self._traffic(moves)

    def _rounds(self) -> Column:
        """How many times the memory of unfinished sums is used anew."""
        rounds = np.where(self.nkm, self.n_blocks, self.m_blocks)
        return np.where(self.inside_k, self.n_blocks * self.m_blocks, rounds)

    def _held_again(self, panel_a: Column, panel_b: Column) -> tuple[Column, Column]:
        """How many more times tile loads bring each factor past the first-level cache.

        The panel that is held is loaded for every panel of the other. It stays in the cache when
        the other's loads leave that alone, or when both panels fit.
        """
        if self.owner.unit.is_vector:
            return np.zeros(self.rows.shape), np.zeros(self.rows.shape)
        alone = self.owner.cycles(self._tile_load("stream")) > 0
        held_a = self.points.column("held_a") != 0
        beside = panel_a + panel_b
        whole = (self.pack_a != "none") | self.owner.whole_lines_a
        spread = np.where(self.pack_a == "none", self._sets_used(), 1.0)
        inner = self.owner.kit.caches[0]
        lost_a = _lost(np.where(alone, panel_a, beside) / (spread * inner))
        lost_b = _lost(np.where(alone & whole, panel_b, beside) / inner)
        return (
            np.where(held_a, self.n.tiles - self.n_blocks, 0) * lost_a,
            np.where(~held_a, self.m.tiles - self.m_blocks, 0) * lost_b,
        )

    def _sets_used(self) -> Column:
        """The part of the first-level cache's sets that rows of the first factor in place share."""
        width = self.depth * self.owner.contraction.a.dtype.bytes
        return _sets_shared(self.owner.pitch_a, width, L1_WAY_BYTES)

    def _conflicts(self) -> Column:
        """How many times a line of an unpacked first factor is fetched: rows that share sets.

        A tile load takes whole lines.
        """
        c, kit = self.owner.contraction, self.owner.kit
        ones = np.ones(self.rows.shape)
        if not self.owner.unit.is_vector or not contiguous(c, c.a, K):
            return ones
        if not self.owner.pitch_a:
            return ones
        ways = kit.caches[0] // L1_WAY_BYTES
        begun = _sets_begun(self.owner.pitch_a, L1_WAY_BYTES)
        crowded = (self.pack_a == "none") & (self.rows > (ways - 1) * begun)
        return np.where(crowded, kit.line / c.a.dtype.bytes, ones)

    def _pitch_b(self) -> int:
        """Bytes from row to row of a second factor whose rows are contiguous; 0 for others."""
        c = self.owner.contraction
        if c.b.source is None or not contiguous(c, c.b, N) or K not in c.b.source_labels:
            return 0
        strides = c.program.inputs[c.b.source].type.element_strides
        return strides[c.b.source_labels.index(K)] * c.b.dtype.bytes

    def _tlb(self) -> Column:
        """Cycles of first-level TLB misses of an unpacked second factor read row by row."""
        pitch = self._pitch_b()
        pages = self.depth * min(pitch, PAGE) / PAGE
        accesses = self.m.tiles * self.n.tiles * self.steps * min(1.0, pitch / PAGE) * self.outer
        misses = np.where((self.pack_b == "none") & (pages > TLB_ENTRIES), accesses, 0)
        return misses * TLB_MISS
