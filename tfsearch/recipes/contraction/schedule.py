"""The choices of a blocked contraction, read from the parameters of a point."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tfsearch.core.records import ParamValue
from tfsearch.recipes.contraction.match import Contraction
from tfsearch.recipes.contraction.unit import MatrixUnit


@dataclass(frozen=True)
class Schedule:
    """Sizes in tiles and elements of one candidate.

    ``rows`` x ``columns`` is the register tile in unit tiles; ``kc`` the depth of a block in
    elements; ``m_tiles`` and ``n_tiles`` the extent of a cache block in register tiles.
    ``prefetch`` is how many steps of k ahead rows of the second factor are asked for, 0 for never;
    for tile units how many panels ahead the first factor is. ``finish`` says when sums become
    outputs: after a register tile, or beside the products of the next one.
    ``order`` names the block loops from the outside in, ``inner`` the register-tile loops.
    ``grid`` splits units over outer axes, rows and columns, ``grid_k`` over the blocks of k.
    ``narrow`` is a narrower unit that takes less time, for short last vectors of columns.
    """

    unit: MatrixUnit
    rows: int
    columns: int
    kc: int
    m_tiles: int
    n_tiles: int
    order: str
    inner: str
    pack_a: str
    pack_b: str
    unroll: int
    prefetch: int
    stream: bool
    finish: str
    grid: tuple[int, int, int]
    grid_k: int
    narrow: MatrixUnit | None = None

    @staticmethod
    def of(
        unit: MatrixUnit, params: Mapping[str, ParamValue], narrow: MatrixUnit | None = None
    ) -> Schedule:
        """Read the parameters that :mod:`tfsearch.recipes.contraction.parameters` declares."""
        units = int(params["units"])
        grid_m = int(params["grid_m"])
        grid_o = int(params["grid_o"])
        grid_k = int(params["grid_k"])
        return Schedule(
            unit=unit,
            rows=int(params["rows"]),
            columns=int(params["columns"]),
            kc=int(params["kc"]),
            m_tiles=int(params["m_tiles"]),
            n_tiles=int(params["n_tiles"]),
            order=str(params["order"]),
            inner=str(params["inner"]),
            pack_a=str(params["pack_a"]),
            pack_b=str(params["pack_b"]),
            unroll=int(params["unroll"]),
            prefetch=int(params["prefetch"]),
            stream=bool(params["stream"]),
            finish=str(params["finish"]),
            grid=(grid_o, grid_m, units // (grid_o * grid_m * grid_k)),
            grid_k=grid_k,
            narrow=narrow,
        )

    def narrow_for(self, rest: int) -> MatrixUnit | None:
        """The narrow unit, where a last vector of ``rest`` elements fits it.

        Units that split k add up whole vectors of one another's sums.
        """
        if self.narrow is None or self.grid_k > 1:
            return None
        return self.narrow if 0 < rest <= self.narrow.tile[1] else None

    def held(self, contraction: Contraction) -> str:
        """The factor, "a" or "b", of which a panel stays while panels of the other pass by."""
        rows, _ = tilings(contraction, self)
        if self.inner == "mn" or rows.held == 1:
            return "a"
        return "b"

    @property
    def tile_m(self) -> int:
        """Rows of a register tile, elements."""
        return self.rows * self.unit.tile[0]

    @property
    def tile_n(self) -> int:
        """Columns of a register tile, elements."""
        return self.columns * self.unit.tile[1]

    @property
    def units(self) -> int:
        """Number of executing units."""
        o, m, n = self.grid
        return o * m * n * self.grid_k


@dataclass(frozen=True)
class Tiling:
    """One axis cut into register tiles, dealt out to units, gathered into cache blocks.

    All counts are in tiles: ``total`` of which ``full`` are whole and one may be short by having
    only ``rest`` elements; ``share`` is the most that one unit gets.
    """

    extent: int
    tile: int
    block: int
    parts: int

    @property
    def full(self) -> int:
        """Whole tiles."""
        return self.extent // self.tile

    @property
    def rest(self) -> int:
        """Elements of the short tile, 0 when there is none."""
        return self.extent % self.tile

    @property
    def total(self) -> int:
        """Tiles, the short one included."""
        return -(-self.extent // self.tile)

    @property
    def share(self) -> int:
        """The most tiles that one unit gets."""
        return -(-self.total // self.parts)

    @property
    def held(self) -> int:
        """The most tiles of one cache block."""
        return min(self.block, self.share)


def tilings(contraction: Contraction, schedule: Schedule) -> tuple[Tiling, Tiling]:
    """Tilings of the rows and of the columns."""
    _, parts_m, parts_n = schedule.grid
    return (
        Tiling(contraction.m, schedule.tile_m, schedule.m_tiles, parts_m),
        Tiling(contraction.n, schedule.tile_n, schedule.n_tiles, parts_n),
    )
