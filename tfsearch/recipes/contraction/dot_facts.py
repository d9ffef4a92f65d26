"""Facts of the dot pipeline of a contraction, for whole batches of points at once.

The named columns count all units together and are exact. The phase is that of the unit that has
most to do, its share counted as whole tiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.cost.model import Facts, Phase
from tfsearch.recipes.contraction.dot import COLUMNS_OUTSIDE, Dot
from tfsearch.recipes.contraction.facts import (
    L1_WAY_BYTES,
    LATENCY,
    TILE_OVERHEAD,
    USABLE,
    tile_counts,
)
from tfsearch.recipes.counting import Traffic
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points

Column = NDArray[Any]

STEP_OVERHEAD = 1.0
"""Cycles of loop control per step that the front end cannot hide; an estimate."""
CROWDED = 2.0
"""How much longer columns take that share sets of the first-level cache beyond its ways: 12 and
16 columns against 8, 16 KiB apart (measured)."""


class DotFacts:
    """Facts of the points of one width's space."""

    def __init__(self, dot: Dot, kit: Kit) -> None:
        self.dot = dot
        self.kit = kit

    def of(self, points: Points) -> Facts:
        """Facts of a batch."""
        dot, c = self.dot, self.dot.contraction
        out = sum(t.bytes for t in c.program.output_types)
        compulsory = sum(i.type.bytes for i in c.program.inputs) + out
        kind = dot.dtype.value
        flops = 2.0 * c.m * c.n * c.k * dot.outer
        phases = _Busiest(self, points).phases()
        return Facts(
            phases, points.column("units"), {kind: flops}, float(compulsory), self._counts(points)
        )

    def _counts(self, points: Points) -> dict[str, Column]:
        dot, c = self.dot, self.dot.contraction
        rows, columns = dot.extent(dot.row), dot.extent(dot.column)
        row_tiles, column_tiles = points.column("row_tiles"), points.column("column_tiles")
        every = np.full(len(points), dot.outer, dtype=np.int64)
        vectors = dot.vectors + (dot.rest > 0)
        read = {
            dot.row: rows * column_tiles * every,
            dot.column: columns * row_tiles * every,
        }
        counts = {
            "multiply_adds": every * (rows * columns * vectors),
            "factor_loads": sum(read.values()) * vectors,
            "register_tiles": row_tiles * column_tiles * every,
            "reductions": every * (rows * columns if dot.lanes > 1 else 0),
        }
        for axis, times in read.items():
            name = "a" if dot.side(axis) is c.a else "b"
            counts[f"{name}_read_bytes"] = times * (c.k * dot.side(axis).dtype.bytes)
        return counts

    def cycles(self, computes: Computation) -> float:
        """Cycles of the atom that computes this; 0 when there is none."""
        atom = self.kit.atoms.usable(computes)
        return 0.0 if atom is None else self.kit.cycles(atom.id)


class _Busiest:
    """The unit that has most to do, point by point."""

    def __init__(self, owner: DotFacts, points: Points) -> None:
        self.owner = owner
        self.points = points
        dot = owner.dot
        grid_rows, grid_columns = points.column("grid_rows"), points.column("grid_columns")
        self.rows, self.columns = points.column("rows"), points.column("columns")
        self.r = tile_counts(dot.extent(dot.row), self.rows, self.rows, 1, grid_rows)
        self.c = tile_counts(dot.extent(dot.column), self.columns, self.columns, 1, grid_columns)
        self.outer = -(-dot.outer // points.column("grid_outer"))
        self.unroll, self.sums = points.column("unroll"), points.column("sums")
        self.row_bytes = dot.contraction.k * dot.side(dot.row).dtype.bytes
        self.column_bytes = dot.contraction.k * dot.side(dot.column).dtype.bytes

    def phases(self) -> tuple[Phase, Phase]:
        """The row tiles that meet the columns first, and those that meet them again.

        They take turns, so that memory rests while columns come from a cache.
        """
        busy = np.zeros(len(self.points))
        overhead = np.zeros(len(self.points))
        for row_count, rows in ((self.r.full, self.rows), (self.r.rest > 0, self.r.rest)):
            for column_count, columns in (
                (self.c.full, self.columns),
                (self.c.rest > 0, self.c.rest),
            ):
                tiles = row_count * column_count * self.outer
                busy = busy + tiles * self._products(rows, columns)
                overhead = overhead + tiles * self._finish(rows, columns)
        share = 1.0 / self.r.tiles
        first, again = self._traffic(share)
        return (
            Phase("first rows", {"issue": busy * share}, first, overhead * share),
            Phase("other rows", {"issue": busy * (1 - share)}, again, overhead * (1 - share)),
        )

    def _products(self, rows: Column, columns: Column) -> Column:
        """Cycles of a tile's loop over k: its busiest pipe, or the wait for the last sum."""
        owner, dot = self.owner, self.owner.dot
        multiply = owner.kit.cycles(dot.atom.id)
        loads = rows * owner.cycles(dot.load(dot.row)) + columns * owner.cycles(
            dot.load(dot.column)
        )
        step = np.maximum(rows * columns * multiply, loads)
        step = np.maximum(step, LATENCY / self.sums) + STEP_OVERHEAD / self.unroll
        return step * (dot.vectors + (dot.rest > 0))

    def _finish(self, rows: Column, columns: Column) -> Column:
        """Cycles to add up a tile's lanes and to store its results."""
        owner, dot = self.owner, self.owner.dot
        lanes = dot.lanes
        add = owner.cycles(Computation(Kind.MAP, "add", (lanes,), (dot.dtype,)))
        each = (self.sums - 1) * add + owner.cycles(dot.gather(Kind.STORE, 1))
        if lanes > 1:
            each = each + owner.cycles(dot.reduction)
        moved = owner.cycles(dot.gather(Kind.LOAD, lanes)) + owner.cycles(
            dot.gather(Kind.STORE, lanes)
        )
        return rows * columns * each + rows * -(-columns // lanes) * moved + TILE_OVERHEAD

    def _traffic(self, share: Column) -> tuple[dict[str, Column], dict[str, Column]]:
        """Every factor once from where it lives, and again from where its last use left it.

        ``share`` is the part of a unit's row tiles that are first.
        """
        caches = [USABLE * size for size in self.owner.kit.caches]
        first, again = (Traffic(caches, len(self.points)) for _ in range(2))
        all_rows = self.r.total * self.row_bytes * self.outer
        all_columns = self.c.total * self.column_bytes * self.outer
        out = sum(t.bytes for t in self.owner.dot.contraction.program.output_types)
        results = out / self.points.column("units")
        home = first.level(all_rows + all_columns + results)
        one_row, one_column = self.rows * self.row_bytes, self.columns * self.column_bytes
        outside = self.points.labels("order") == COLUMNS_OUTSIDE
        near = one_row + one_column
        rows_reach = first.level(np.where(outside, all_rows / self.outer + one_column, near))
        columns_reach = first.level(np.where(outside, near, all_columns / self.outer + one_row))
        first.add(home, all_columns * self._crowded())
        again.add(columns_reach, all_columns * (self.r.tiles - 1))
        for traffic, part in ((first, share), (again, 1 - share)):
            traffic.add(home, all_rows * part)
            traffic.add(rows_reach, all_rows * part * (self.c.tiles - 1))
            traffic.write(home, results * part, np.zeros(len(self.points), dtype=bool))
        return first.moved(), again.moved()

    def _crowded(self) -> Column:
        """How many times lines of the columns come from afar: columns that share sets.

        What hardware prefetchers brought is driven out before it is used.
        """
        kit = self.owner.kit
        sets, ways = L1_WAY_BYTES // kit.line, max(1, kit.caches[0] // L1_WAY_BYTES)
        pitch = self.column_bytes // kit.line
        distinct = sets // int(np.gcd(max(pitch, 1), sets))
        return np.where(self.columns > ways * distinct, CROWDED, 1.0)
