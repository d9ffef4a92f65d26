"""What earlier sessions suggest to try first: neighbours of the best of similar workloads."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

from tfsearch.core.records import ScheduleRecord, WorkloadRecord
from tfsearch.space import Point
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.request import Plan

LOOKED_AT = 200
"""Workloads of the same op that are compared by their dimensions."""
SIMILAR = 4
MOST = 4


def similar_points(plan: Plan, recorder: Recorder) -> list[Point]:
    """At most ``MOST`` legal points: winners of similar workloads, as they are or one move away.

    Similar is a workload of the same op, dtype and accuracy class; near is a small sum of
    logarithmic distances of the dimensions. What worked there is tried early here, nothing more.
    """
    own = plan.workload
    known = recorder.read(lambda store: store.workloads(op=own.op, limit=LOOKED_AT)) or []
    others = [
        (distance, other)
        for other in known
        if other.key != own.key
        and (other.dtype, other.accuracy) == (own.dtype, own.accuracy)
        and (distance := _distance(own.dims, other.dims)) is not None
    ]
    others.sort(key=lambda pair: (pair[0], pair[1].key))
    out: list[Point] = []
    for _, other in others[:SIMILAR]:
        schedule = _winner(plan, recorder, other)
        point = None if schedule is None else _legal(plan, schedule)
        if point is not None and point not in out:
            out.append(point)
    return out[:MOST]


def _winner(plan: Plan, recorder: Recorder, other: WorkloadRecord) -> ScheduleRecord | None:
    query = replace(plan.query, workload=other)
    best = recorder.read(lambda store: store.best(query))
    return None if best is None else best.trial.schedule


def _legal(plan: Plan, schedule: ScheduleRecord) -> Point | None:
    """The schedule's point here, or the first legal one a single move away."""
    names = [recipe.name for recipe in plan.space.recipes]
    if schedule.recipe not in names:
        return None
    recipe = plan.space.recipe(schedule.recipe)
    point = Point(schedule.recipe, dict(schedule.params))
    if recipe.domain_refusals(point.params):
        return None
    if not plan.space.check(point):
        return point
    near = plan.space.neighbours(point)
    return near[0] if near else None


def _distance(own: Mapping[str, int | str], other: Mapping[str, int | str]) -> float | None:
    """Sum of |log2| ratios of the dimensions; None when something else than a size differs."""
    if set(own) != set(other):
        return None
    total = 0.0
    for name, value in own.items():
        found = other[name]
        if _is_size(value) and _is_size(found):
            total += abs(math.log2(int(value) / int(found)))
        elif value != found:
            return None
    return total


def _is_size(value: int | str) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
