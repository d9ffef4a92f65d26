"""A point of the warps pipeline and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.records import ParamValue
from tfsearch.recipes.contraction.shared import number

STEP = 8
"""Registers of a thread are given in multiples of so many."""


@dataclass(frozen=True)
class WarpsSchedule:
    """Tile of a unit, tiles of its warps, stages, panels and the order of tiles.

    A unit works on ``tile_m`` x ``tile_n`` x ``tile_k`` in one step; ``high`` x ``wide`` warps
    share the tile. ``stages`` slots hold what is under way. ``panel`` names how tiles lie in shared
    memory; ``vector`` is the most bytes that one thread copies at once. ``ahead`` fragments are
    loaded before the products of earlier ones. ``group`` rows of tiles are walked column by
    column. ``resident`` units fit side by side.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    high: int
    wide: int
    stages: int
    panel: str
    vector: int
    ahead: int
    group: int
    resident: int

    @staticmethod
    def of(params: Mapping[str, ParamValue]) -> WarpsSchedule:
        """From the parameters of a point."""
        return WarpsSchedule(
            tile_m=number(params, "tile_m"),
            tile_n=number(params, "tile_n"),
            tile_k=number(params, "tile_k"),
            high=number(params, "high"),
            wide=number(params, "wide"),
            stages=number(params, "stages"),
            panel=str(params["panel"]),
            vector=number(params, "vector"),
            ahead=number(params, "ahead"),
            group=number(params, "group"),
            resident=number(params, "resident"),
        )

    @property
    def warps(self) -> int:
        """Warps of a unit."""
        return self.high * self.wide

    @property
    def warp_m(self) -> int:
        """Rows of a warp's tile."""
        return self.tile_m // self.high

    @property
    def warp_n(self) -> int:
        """Columns of a warp's tile."""
        return self.tile_n // self.wide


def registers_at_most(file: int, threads: int, resident: int, most: int) -> int:
    """Registers that a thread may have with so many units side by side; 0 where nothing limits."""
    share = file // (threads * resident) // STEP * STEP
    return 0 if share >= most else share
