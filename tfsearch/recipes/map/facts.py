"""Facts of maps, for whole batches of points at once.

The code of one fragment and one tile is lowered and counted once for each combination of the
choices that shape it; how often each runs is arithmetic on columns.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tfsearch.cost.model import Facts, Phase
from tfsearch.ir.hir.facts import facts_of
from tfsearch.ir.tir.expr import Const
from tfsearch.ir.workload import Workload
from tfsearch.recipes.counting import Meter
from tfsearch.recipes.domain import flat_size
from tfsearch.recipes.fragments import Lanes
from tfsearch.recipes.map.lower import STRIDED, TRANSPOSE, Lowering, Schedule
from tfsearch.recipes.map.match import Domain
from tfsearch.recipes.recipe import Kit
from tfsearch.space import Points

Column = Any

STEP_OVERHEAD = 2.0
"""Cycles of loop control per step that the front end cannot hide; an estimate."""


class MapFacts:
    """Facts of the points of a map's space."""

    def __init__(self, domain: Domain, kit: Kit, workload: Workload) -> None:
        self.domain = domain
        self.kit = kit
        self.workload = workload
        self.meter = Meter.of(kit.atoms, kit.cycles)
        self._known: dict[tuple[int, str, bool], _Shape] = {}

    def of(self, points: Points) -> Facts:
        """Facts of a batch; the columns count all units together."""
        lanes, units = points.column("lanes"), points.column("units")
        gather, stream = points.labels("gather"), points.labels("stream").astype(bool)
        unroll, block = points.column("unroll"), points.column("block")
        extents, domain = self.domain.extents, self.domain
        extent, lines = extents[domain.lane], flat_size(domain.axes, extents)
        turned = gather == TRANSPOSE
        whole, short = extent // lanes, (extent % lanes > 0).astype(np.int64)
        along = extents[domain.turn] if domain.turn else 1
        squares = np.where(turned, lines // along * -(-along // lanes) * (whole + short), 0)
        total = np.zeros((len(points), self.meter.width))
        for rows, shape in self._shapes(points):
            count = (lines * whole)[rows, None] * shape.whole
            count = count + (lines * short)[rows, None] * shape.short
            total[rows] = count + squares[rows, None] * shape.square
            total[rows] += units[rows, None] * shape.unit
        share = self._share(points)
        steps = np.where(turned, squares * np.minimum(lanes, along), lines * -(-whole // unroll))
        overhead = share * STEP_OVERHEAD * (steps + lines / np.where(turned, block, 1))
        cycles = self.meter.cycles_of(total * share[:, None])
        phase = Phase("map", cycles, self._traffic(points, share, turned, stream), overhead)
        program = facts_of(domain.program)
        wide = any(op.type.dtype.bytes == 8 for op in domain.program.ops)
        return Facts(
            (phase,),
            units,
            {"f64" if wide else "f32": float(program.flops)},
            float(program.bytes_read + program.bytes_written),
            self.meter.counts_of(total),
        )

    def _share(self, points: Points) -> Column:
        """Part of the work that the busiest unit has."""
        units = points.column("units")
        turned = points.labels("gather") == TRANSPOSE
        lines = flat_size(self.domain.axes, self.domain.extents)
        by_lines = points.column("by_lines").astype(bool)
        pieces = np.where(turned, points.column("groups"), points.column("chunks"))
        pieces = np.where(~turned & by_lines, lines, pieces)
        return -(-pieces // units) / pieces

    def _traffic(
        self, points: Points, share: Column, turned: Column, stream: Column
    ) -> dict[str, Column]:
        domain = self.domain
        traffic = self.kit.traffic(points.column("units"))
        every = (*domain.inputs, *domain.outputs)
        home = traffic.level(sum(a.type.bytes for a in every) * share)
        lanes = points.column("lanes")
        for value, argument in enumerate(domain.inputs):
            if value not in domain.seen:
                continue
            amount = argument.type.bytes * share
            reads = 1.0
            if any(v == value for v, _ in domain.turned):
                # A line that holds more elements than a strided walk uses before it leaves the
                # cache is fetched again.
                again = max(1.0, self.kit.line / argument.type.dtype.bytes)
                far = domain.extents[domain.lane] * self.kit.line > self.kit.caches[0]
                reads = np.where(turned, np.maximum(1.0, again / lanes), again if far else 1.0)
            traffic.add(home, amount * reads)
        for argument in domain.outputs:
            traffic.write(home, argument.type.bytes * share, stream)
        return traffic.moved()

    def _shapes(self, points: Points) -> list[tuple[Column, _Shape]]:
        keys = np.stack(
            [points.codes[name].astype(np.int64) for name in ("lanes", "gather", "stream")]
        )
        kinds, inverse = np.unique(keys, axis=1, return_inverse=True)
        inverse = np.asarray(inverse).reshape(-1)
        out: list[tuple[Column, _Shape]] = []
        for number in range(kinds.shape[1]):
            rows = np.flatnonzero(inverse == number)
            out.append((rows, self._shape(points.params(int(rows[0])))))
        return out

    def _shape(self, params: dict[str, Any]) -> _Shape:
        key = (params["lanes"], params["gather"], params["stream"])
        if key not in self._known:
            schedule = Schedule(key[0], 1, key[1], 1, key[2], 1)
            self._known[key] = _Shape(self, schedule)
        return self._known[key]


class _Shape:
    """Counts of one unit's constants, a whole and a short fragment, turning one tile."""

    def __init__(self, owner: MapFacts, schedule: Schedule) -> None:
        work = owner.workload
        atoms = owner.kit.atoms
        low = Lowering(owner.domain, schedule, atoms, work.accuracy, work.alignment)
        domain, builder, lanes = owner.domain, low.builder, schedule.lanes
        count = owner.meter.counted
        self.unit = count(builder, low.fill_constants)
        if schedule.stream:
            self.unit = self.unit + count(builder, low.fence)
        place = {axis: Const(0) for axis in (*domain.axes, domain.lane)}
        rest = low.extent % lanes
        row = None if schedule.gather == STRIDED else 0
        self.square = np.zeros(owner.meter.width)
        if row is not None:
            low.allocate_tiles()
            zero = Const(0)
            self.square = count(builder, lambda: low.turn(place, zero, lanes, zero, lanes))
        whole = Lanes.of(lanes, domain.lane)
        self.whole = count(builder, lambda: low.element(place, whole, row))
        first = Lanes.of(lanes, domain.lane, rest or lanes)
        self.short = count(builder, lambda: low.element(place, first, row))
