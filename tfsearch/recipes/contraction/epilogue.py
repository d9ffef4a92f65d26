"""Finished sums become outputs: the fused elementwise work, and the order in which parts add."""

from __future__ import annotations

from dataclasses import dataclass

from tfsearch.atoms.contract import Computation, Kind
from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, ExprLike, Var, as_expr
from tfsearch.ir.tir.nodes import UNIT, Buffer, MemorySpace, Window, window
from tfsearch.recipes.contraction.match import Contraction, M, N
from tfsearch.recipes.domain import dealt
from tfsearch.recipes.fragments import Fragments, Lanes, Place


@dataclass(frozen=True)
class Epilogue:
    """Evaluates the outputs from a fragment of sums and stores them."""

    fragments: Fragments
    contraction: Contraction
    outputs: tuple[Buffer, ...]
    stream: bool

    def finish(self, sums: Window, place: Place, lanes: Lanes) -> None:
        """``sums`` are lanes of one row at ``place``, which has every axis but k."""
        tile = self.fragments.at(place, lanes, {self.contraction.value: sums})
        for output, buffer in zip(self.contraction.outputs, self.outputs, strict=True):
            value = tile.value(output.value, output.labels)
            tile.store(value, buffer, output.labels, stream=self.stream)


def combine(builder: Builder, epilogue: Epilogue, parts: Buffer, units: int, lanes: int) -> None:
    """Add the parts ``[part, row, column]`` in order and finish; units share the rows.

    Only for contractions whose outer axes have extent one.
    """
    outer: dict[str, Expr] = {axis: Const(0) for axis in epilogue.contraction.outer}
    rows, columns = epilogue.contraction.m, epilogue.contraction.n
    first, last = dealt(builder, rows, units, Var(UNIT), "row")

    def piece(row: Expr, column: ExprLike, valid: int) -> None:
        total = _sum(builder, epilogue.fragments, parts, row, column, lanes)
        place = {**outer, M: row, N: as_expr(column)}
        epilogue.finish(total, place, Lanes.of(lanes, N, valid))

    with builder.loop("row", last, start=first) as row:
        with builder.loop("c", columns // lanes) as c:
            piece(row, c * lanes, lanes)
        if columns % lanes:
            piece(row, columns - columns % lanes, columns % lanes)


def _sum(
    builder: Builder, fragments: Fragments, parts: Buffer, row: Expr, column: ExprLike, lanes: int
) -> Window:
    """A register with the sum of all parts; unit-order additions, so always the same bits."""
    dtype = parts.dtype
    load = fragments.atom(Computation(Kind.LOAD, "", (lanes,), (dtype, dtype)))
    add = fragments.atom(Computation(Kind.MAP, "add", (lanes,), (dtype,)))
    total = builder.alloc("total", dtype, (lanes,), MemorySpace.REGISTER)
    whole = window(total, (0, lanes))
    builder.call(load, whole, window(parts, Const(0), row, (column, lanes)))
    for part in range(1, parts.shape[0]):
        more = builder.alloc("part", dtype, (lanes,), MemorySpace.REGISTER)
        term = window(more, (0, lanes))
        builder.call(load, term, window(parts, part, row, (column, lanes)))
        builder.call(add, whole, whole, term)
    return whole
