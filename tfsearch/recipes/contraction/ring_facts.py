"""Facts of the ring pipeline: what the busiest unit does, and how much of it is hidden."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tfsearch.cost.model import Facts, Phase
from tfsearch.recipes.contraction.match import K, M, N
from tfsearch.recipes.contraction.ring import RingContraction
from tfsearch.recipes.contraction.ring_schedule import STAGED
from tfsearch.space import Points

Column = NDArray[Any]
L2_SHARE = 0.6
"""Part of the last cache that holds factors between their uses."""
SHARED_RATE = 128.0
"""Bytes that a unit's shared memory delivers or takes in a cycle; recorded as a pipe."""
LATENCY = 1500.0
"""Cycles from asking for a slot's bytes to the first of them, under load."""
ARRIVAL = 40.0
"""Bytes of a slot that arrive in a cycle when all units ask."""
FILL = 1500.0
"""Cycles before the first product of a kernel and after its last store."""
STEP_OVERHEAD = 24.0
"""Cycles in which no product runs between two steps of one consumer, where no other fills them."""
STORE_RATE = 32.0
"""Bytes that a unit stores in a cycle from registers."""
STAGED_RATE = 48.0
"""Bytes that a unit stages for copies in a cycle."""


JITTER = 0.03
"""Part of a step that a ring of two slots waits beyond the average; deeper rings wait less."""
EXPOSED = 1.0 / 300.0
"""Cycles of a unit for a byte from memory that nothing hides: misses, and the power they take."""


class RingFacts:
    """Facts of batches of points."""

    def __init__(self, ring: RingContraction) -> None:
        self.ring = ring

    def of(self, points: Points) -> Facts:
        """Facts of one batch."""
        c, ring = self.ring.contraction, self.ring
        names = ("tile_m", "tile_n", "tile_k", "stages", "consumers", "high", "wide", "group")
        tm, tn, tk, stages, consumers, high, wide, group = (
            points.column(name).astype(np.float64) for name in names
        )
        units = points.column("units").astype(np.float64)
        pingpong = points.labels("scheme") == "pingpong"
        down, across = np.ceil(c.m / (tm * high)), np.ceil(c.n / (tn * wide))
        clusters = units / (high * wide)
        planes = prod(c.extents[axis] for axis in c.outer)
        tiles, steps = down * across * planes, np.ceil(c.k / tk)
        turns = np.ceil(tiles / clusters)
        size = c.a.dtype.bytes
        math = self._math(tm, tn, tk)
        operands = (tm + tn) * tk * size
        # Every block of rows reads all columns; a slot is filled once.
        blocks = tm / ring.atoms.rows
        shared = (operands + (tm + blocks * tn) * tk * size) / SHARED_RATE
        # What hangs over the edge is filled, not read.
        rows, beside = np.minimum(tm, c.m), np.minimum(tn, c.n)
        loads = (rows / wide + beside / high) * tk * size
        arrival = (LATENCY + loads / ARRIVAL) / np.maximum(stages - 1, 1)
        step = np.maximum(np.maximum(math, shared), arrival)
        step = step * (1.0 + JITTER / np.maximum(stages - 1, 1))
        alone = (consumers == 1) | pingpong
        step = step + np.where(alone, STEP_OVERHEAD, STEP_OVERHEAD / 4)
        stored = tm * tn * sum(c.program.ops[o.value].type.dtype.bytes for o in c.outputs)
        staged = points.labels("epilogue") == STAGED
        finish = stored / np.where(staged, STAGED_RATE, STORE_RATE)
        exposed = np.where(pingpong, np.maximum(0.0, finish - steps * step), finish)
        # One epilogue is always exposed; the ring fills while others run.
        exposed = (
            exposed * (turns - 1)
            + finish
            - np.minimum(exposed, (stages - 1) * LATENCY / 4) * (turns - 1) * 0.25
        )
        memory = self._memory(tm, tn, group, clusters * high * wide, down * high, across * wide)
        memory = memory * planes
        active = np.minimum(units, tiles * high * wide)
        phase = Phase(
            "tiles",
            {"matrix": turns * steps * step},
            {
                "l3": turns * steps * loads,
                "memory": (memory + planes * c.m * c.n * stored / (tm * tn))
                / np.maximum(active, 1),
            },
            exposed + FILL + memory / np.maximum(active, 1) * EXPOSED,
        )
        flops = {c.a.dtype.value: 2.0 * c.m * c.n * c.k * planes}
        columns = {
            "tiles": tiles * high * wide,
            "turns": turns,
            "steps": steps,
            "step_cycles": step,
            "shared_bytes": stages * operands,
            "memory_bytes": memory,
        }
        return Facts((phase,), active, flops, self._compulsory(), columns)

    def _math(self, tm: Column, tn: Column, tk: Column) -> Column:
        """Cycles of the matrix unit for one step of a tile."""
        atoms, kit = self.ring.atoms, self.ring.kit
        cost = {n: kit.cycles(product.more.id) for n, product in atoms.products.items()}
        each = np.array([cost[int(n)] for n in tn.ravel()]).reshape(tn.shape)
        return each * (tm / atoms.rows) * (tk / atoms.depth)

    def _compulsory(self) -> float:
        c = self.ring.contraction
        total = 0.0
        for value, item in enumerate(c.program.inputs):
            del value
            total += float(np.prod(item.type.sizes)) * item.type.dtype.bytes
        for output in c.outputs:
            kind = c.program.ops[output.value].type
            total += float(np.prod(kind.sizes)) * kind.dtype.bytes
        return total

    def _memory(
        self,
        tm: Column,
        tn: Column,
        group: Column,
        units: Column,
        down: Column,
        across: Column,
    ) -> Column:
        """Bytes of the factors that come from memory: what units work on at once is shared."""
        c, kit = self.ring.contraction, self.ring.kit
        size = c.a.dtype.bytes
        least = float(c.m + c.n) * c.k * size
        cache = kit.caches[-1] * max(kit.cores, 1) * L2_SHARE
        rows = np.minimum(np.maximum(group, 1), down)
        beside = np.minimum(np.ceil(units / rows), across)
        over = np.ceil(units / np.maximum(rows * beside, 1))
        rows = np.minimum(rows * over, down)
        waves = np.ceil(down * across / units)
        moved = waves * (rows * tm + beside * tn) * c.k * size
        return np.where(least <= cache, least, np.maximum(moved, least))


AXES = (M, N, K)
