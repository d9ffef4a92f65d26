"""Facts of the warps pipeline: what one unit does, and how much of it is hidden."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.cost.model import Facts, Phase
from tfsearch.recipes.contraction.warps import WarpsContraction
from tfsearch.recipes.contraction.warps_atoms import LEFT, RIGHT
from tfsearch.space import Points

Column = NDArray[Any]
SHARED_RATE = 128.0
"""Bytes that an SM's shared memory delivers or takes in a cycle."""
LATENCY = 900.0
"""Cycles from asking for a slot's bytes to the last of them, under load."""
ARRIVAL = 40.0
"""Bytes of slots that arrive in a cycle when all units ask."""
MEETING = 40.0
"""Cycles in which the warps of a unit meet, once a step."""
START = 1200.0
"""Cycles of a unit before its first product and after its last store, beside its copies."""
STORE_RATE = 32.0
"""Bytes that a unit stores in a cycle from registers."""
L2_SHARE = 0.6
"""Part of the last cache that holds factors between their uses."""
HIDING = 8.0
"""Warps side by side that hide one another's loads of fragments and copies well."""


class WarpsFacts:
    """Facts of batches of points."""

    def __init__(self, whole: WarpsContraction) -> None:
        self.whole = whole

    def of(self, points: Points) -> Facts:
        """Facts of one batch."""
        whole, c = self.whole, self.whole.contraction
        counts = self.counts(points)
        names = ("tile_m", "tile_n", "tile_k", "stages", "high", "wide", "ahead", "group")
        tm, tn, tk, stages, high, wide, ahead, group = (
            points.column(name).astype(np.float64) for name in names
        )
        resident = points.column("resident").astype(np.float64)
        size = c.a.dtype.bytes
        units, steps = counts["units"].astype(np.float64), counts["steps"].astype(np.float64)
        at_once = np.minimum(resident, np.ceil(units / max(whole.kit.cores, 1)))
        rows, beside = np.minimum(tm, c.m), np.minimum(tn, c.n)
        loads = (rows + beside) * tk * size
        math = counts["products"] / steps * whole.kit.cycles(whole.atoms.product.id)
        shared = counts["shared_bytes_moved"] / steps / SHARED_RATE
        copies = self._copy_cycles(points) / steps
        # What one warp does in turn others hide, as far as there are others.
        busiest = np.maximum(np.maximum(math, shared), copies)
        alone = np.minimum(1.0, high * wide * at_once / HIDING)
        alone = np.minimum(1.0, alone * (1.0 + 0.25 * ahead))
        step = busiest + (1.0 - alone) * (math + shared + copies - busiest) + MEETING / at_once
        arrival = (LATENCY + loads * at_once / ARRIVAL) / (np.maximum(stages - 1, 1) * at_once)
        step = np.maximum(step, arrival)
        stored = tm * tn * sum(c.program.ops[o.value].type.dtype.bytes for o in c.outputs)
        start = (START + LATENCY) / at_once
        memory = self._memory(tm, tn, group, units, resident)
        output = c.m * c.n * stored / (tm * tn) * whole.batches
        phase = Phase(
            "tiles",
            {"matrix": steps * step + stored / STORE_RATE + start},
            {"l3": steps * loads, "memory": (memory + output) / units},
        )
        flops = {c.a.dtype.value: 2.0 * c.m * c.n * c.k * whole.batches}
        columns = {**counts, "step_cycles": step, "memory_bytes": memory}
        return Facts((phase,), units, flops, self._compulsory(), columns)

    def counts(self, points: Points) -> dict[str, Column]:
        """What the lowered kernel does, counted: of one unit, but for units and bytes of arguments.

        ``products`` and ``fragments`` are calls; ``copies`` of pieces, partial ones included.
        """
        whole, c, atoms = self.whole, self.whole.contraction, self.whole.atoms
        names = ("tile_m", "tile_n", "tile_k", "stages", "high", "wide")
        tm, tn, tk, stages, high, wide = (points.column(n).astype(np.int64) for n in names)
        rows, columns, depth = atoms.shape
        width = atoms.width(RIGHT)
        down, across = -(-c.m // tm), -(-c.n // tn)
        steps = -(-c.k // tk)
        size = c.a.dtype.bytes
        deep = steps * (tk // depth)
        a_loads, b_loads = deep * (tm // rows) * wide, deep * (tn // width) * high
        copied = steps * (tm + tn) * tk * size
        loaded = (a_loads * rows * depth + b_loads * width * depth) * size
        span, pitch, period = (self._of_panel(points, what) for what in ("span", "pitch", "period"))
        slots = [stages * tile * tk // span * pitch - (pitch - span) for tile in (tm, tn)]
        padding = np.maximum(period * size, 16) - 16
        return {
            "units": down * across * whole.batches,
            "steps": steps,
            "products": deep * (tm // rows) * (tn // columns),
            "fragments": a_loads + b_loads,
            "copies": self._pieces(points) * steps,
            "a_bytes": across * (c.m * c.k * size * whole.batches),
            "b_bytes": down * (c.n * c.k * size * whole.batches),
            "shared_bytes": (slots[0] + slots[1]) * size + padding,
            "shared_bytes_moved": copied + loaded,
        }

    def _of_panel(self, points: Points, what: str) -> Column:
        labels = points.labels("panel")
        out = np.zeros(len(points), dtype=np.int64)
        for name, panel in self.whole.atoms.panels.items():
            out[labels == name] = getattr(panel, what)
        return out

    def _sides(self, points: Points, side: int) -> list[tuple[Column, Column, Column]]:
        """(which points, pieces of a tile, cycles of a piece) of the copies of one factor."""
        whole = self.whole
        labels, vector = points.labels("panel"), points.column("vector")
        tile = points.column("tile_n" if side == RIGHT else "tile_m").astype(np.int64)
        total = tile * points.column("tile_k").astype(np.int64)
        out: list[tuple[Column, Column, Column]] = []
        partial = self._partial(points, side)
        for name, panel in whole.atoms.panels.items():
            for size in np.unique(vector):
                for hangs in (False, True):
                    which = (labels == name) & (vector == size) & (partial == hangs)
                    widest = panel.widest(min(int(size), whole.aligned[side]))
                    atom = panel.copy(widest, partial=hangs)
                    each = atom.computes.shape[0] * atom.computes.shape[1]
                    cycles = np.full(len(points), whole.kit.cycles(atom.id))
                    out.append((which, total // each, cycles))
        return out

    def _partial(self, points: Points, side: int) -> Column:
        """Whether copies of a factor take what exists of a piece: some size does not divide."""
        c = self.whole.contraction
        tm, tn = points.column("tile_m"), points.column("tile_n")
        down = -(-c.m // tm)
        plain = down % np.minimum(points.column("group"), down) == 0
        whole = (c.n % tn == 0) if side == RIGHT else (c.m % tm == 0)
        return ~(whole & plain & (c.k % points.column("tile_k") == 0))

    def _pieces(self, points: Points) -> Column:
        out = np.zeros(len(points), dtype=np.int64)
        for side in (LEFT, RIGHT):
            for which, pieces, _ in self._sides(points, side):
                out += np.where(which, pieces, 0)
        return out

    def _copy_cycles(self, points: Points) -> Column:
        out = np.zeros(len(points))
        for side in (LEFT, RIGHT):
            for which, pieces, cycles in self._sides(points, side):
                out += np.where(which, pieces * cycles, 0.0)
        steps = -(-self.whole.contraction.k // points.column("tile_k"))
        return out * steps

    def _compulsory(self) -> float:
        program = self.whole.contraction.program
        kinds = [item.type for item in program.inputs]
        kinds += [program.ops[o.value].type for o in self.whole.contraction.outputs]
        return sum(float(np.prod(kind.sizes)) * kind.dtype.bytes for kind in kinds)

    def _memory(
        self, tm: Column, tn: Column, group: Column, units: Column, resident: Column
    ) -> Column:
        """Bytes of the factors that come from memory: what units work on at once is shared."""
        c, kit, size = self.whole.contraction, self.whole.kit, self.whole.contraction.a.dtype.bytes
        batches = self.whole.batches
        down, across = np.ceil(c.m / tm), np.ceil(c.n / tn)
        least = float(c.m + c.n) * c.k * size
        cache = kit.caches[-1] * max(kit.cores, 1) * L2_SHARE
        together = np.minimum(units, max(kit.cores, 1) * resident)
        rows = np.minimum(np.maximum(group, 1), down)
        beside = np.minimum(np.ceil(together / rows), across)
        rows = np.minimum(rows * np.ceil(together / np.maximum(rows * beside, 1)), down)
        waves = np.ceil(down * across / together)
        moved = waves * (rows * tm + beside * tn) * c.k * size
        return np.where(least <= cache, least, np.maximum(moved, least)) * batches
