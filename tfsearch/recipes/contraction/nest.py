"""Loops over blocks and tiles of one axis."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tfsearch.ir.tir.builder import Builder
from tfsearch.ir.tir.expr import Const, Expr, as_expr, minimum
from tfsearch.recipes.contraction.schedule import Tiling
from tfsearch.recipes.domain import dealt


@dataclass(frozen=True)
class Region:
    """Tiles ``first`` to before ``last`` of an axis."""

    first: Expr
    last: Expr


@dataclass(frozen=True)
class Tile:
    """One register tile: its index, its first element, and how many elements it has."""

    index: Expr
    start: Expr
    size: int


def share_of(builder: Builder, tiling: Tiling, part: Expr, stem: str) -> Region:
    """The tiles dealt to part ``part`` of ``tiling.parts``."""
    return Region(*dealt(builder, tiling.total, tiling.parts, part, stem))


def for_blocks(
    builder: Builder, tiling: Tiling, stem: str, region: Region, body: Callable[[Region], None]
) -> None:
    """Run ``body`` for each cache block of a region."""
    if tiling.block >= tiling.share:
        body(region)
        return
    with builder.loop(stem, region.last, start=region.first, step=tiling.block) as first:
        last = builder.let(f"{stem}_end", minimum(first + tiling.block, region.last))
        body(Region(first, last))


def for_tiles(
    builder: Builder, tiling: Tiling, stem: str, region: Region, body: Callable[[Tile], None]
) -> None:
    """Run ``body`` for each register tile of a region; the short tile has code of its own."""
    if tiling.full:
        stop = minimum(region.last, tiling.full) if tiling.rest else region.last
        with builder.loop(stem, stop, start=region.first) as index:
            body(Tile(index, as_expr(index * tiling.tile), tiling.tile))
    if tiling.rest:
        with builder.when(region.last.eq(tiling.total)):
            index = Const(tiling.full)
            body(Tile(index, Const(tiling.full * tiling.tile), tiling.rest))
