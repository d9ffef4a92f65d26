"""A point of the ring pipeline and what follows from it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.records import ParamValue
from tfsearch.recipes.contraction.shared import number

COOPERATIVE, PINGPONG = "cooperative", "pingpong"
DIRECT, STAGED = "direct", "staged"
STAGES_OF_RESULTS = 2
"""Tiles of results that a consumer has in shared memory: one is filled, one copied."""
LOADER_REGISTERS = 32
STEP = 8


@dataclass(frozen=True)
class RingSchedule:
    """Tiles of a unit, slots of the ring, consumers, clusters and the order of tiles.

    ``tile_m`` x ``tile_n`` x ``tile_k`` is what a unit works on in one step. ``high`` x ``wide`` is
    the shape of a cluster in tiles; ``group`` rows of tiles are walked column by column.
    ``epilogue``: results are stored from registers, or staged in shared memory and copied.
    """

    tile_m: int
    tile_n: int
    tile_k: int
    stages: int
    consumers: int
    scheme: str
    high: int
    wide: int
    group: int
    units: int
    epilogue: str = DIRECT

    @staticmethod
    def of(params: Mapping[str, ParamValue]) -> RingSchedule:
        """From the parameters of a point."""
        return RingSchedule(
            tile_m=number(params, "tile_m"),
            tile_n=number(params, "tile_n"),
            tile_k=number(params, "tile_k"),
            stages=number(params, "stages"),
            consumers=number(params, "consumers"),
            scheme=str(params["scheme"]),
            high=number(params, "high"),
            wide=number(params, "wide"),
            group=number(params, "group"),
            units=number(params, "units"),
            epilogue=str(params["epilogue"]),
        )

    @property
    def pingpong(self) -> bool:
        """True where consumers take turns with whole tiles."""
        return self.scheme == PINGPONG

    @property
    def staged(self) -> bool:
        """True where results go through shared memory."""
        return self.epilogue == STAGED

    @property
    def share(self) -> int:
        """Consumers that work on one tile."""
        return 1 if self.pingpong else self.consumers

    @property
    def size(self) -> int:
        """Units of a cluster."""
        return self.high * self.wide


def entry_registers(file: int, threads: int, most: int) -> int:
    """Registers that a thread starts with: an even share of the file."""
    return min(file // threads, most) // STEP * STEP


def consumer_registers(file: int, lanes: int, team: int, consumers: int, most: int) -> int:
    """Registers that a consumer's thread can have once the loader has given up its own."""
    warps = team * (consumers + 1)
    total = entry_registers(file, warps * lanes, most) * warps - LOADER_REGISTERS * team
    return min(total // (team * consumers), most) // STEP * STEP
