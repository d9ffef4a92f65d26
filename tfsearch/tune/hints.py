"""What earlier sessions suggest to try first: winners of similar workloads and their neighbours."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from tfsearch.core.records import ParamValue, ScheduleRecord, WorkloadRecord
from tfsearch.search.scan import predict_points
from tfsearch.space import Parameter, Point
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.request import Plan

LOOKED_AT = 200
"""Workloads of the same op that are compared by their dimensions."""
ASKED = 12
"""Of these, the nearest whose winner is asked for."""
WINNERS = 4
NEIGHBOURS = 4
LEARNED = (2, 6)
"""Winners and neighbours where a learned model ranks the neighbours for the shape at hand."""


def similar_points(plan: Plan, recorder: Recorder) -> list[Point]:
    """Legal points: winners of similar workloads, the nearest first, then their neighbours.

    Similar is a workload of the same op, dtype and accuracy class; near is a small sum of
    logarithmic distances of the dimensions. A winner that is not legal here stands for the legal
    point nearest to it. Of the neighbours, one move away, those are taken that the model likes
    best. What worked there is tried early here, nothing more.
    """
    own = plan.workload
    most = LEARNED if plan.corrects else (WINNERS, NEIGHBOURS)
    known = recorder.read(lambda store: store.workloads(op=own.op, limit=LOOKED_AT)) or []
    others = [
        (distance, other)
        for other in known
        if other.key != own.key
        and (other.dtype, other.accuracy) == (own.dtype, own.accuracy)
        and (distance := _distance(own.dims, other.dims)) is not None
    ]
    others.sort(key=lambda pair: (pair[0], pair[1].key))
    winners: list[Point] = []
    for _, other in others[:ASKED]:
        schedule = _winner(plan, recorder, other)
        point = None if schedule is None else _legal(plan, schedule)
        if point is not None and point not in winners:
            winners.append(point)
        if len(winners) == most[0]:
            break
    near = [near for point in winners for near in plan.space.neighbours(point)]
    near = [point for point in dict.fromkeys(near) if point not in winners]
    return [*winners, *_best(plan, near, most[1])]


def _best(plan: Plan, points: Sequence[Point], count: int) -> list[Point]:
    """The ``count`` best by estimate, ties in order."""
    if not points:
        return []
    estimate, _ = predict_points(plan, points, corrected=True)
    order = np.argsort(np.where(np.isnan(estimate), np.inf, estimate), kind="stable")
    return [points[int(place)] for place in order[:count]]


def _winner(plan: Plan, recorder: Recorder, other: WorkloadRecord) -> ScheduleRecord | None:
    query = replace(plan.query, workload=other)
    best = recorder.read(lambda store: store.best(query))
    return None if best is None else best.trial.schedule


def _legal(plan: Plan, schedule: ScheduleRecord) -> Point | None:
    """The schedule's point here, or the model's best of the legal ones least far from it.

    Values that a domain lacks become the nearest that it has, or make it no point here.
    """
    names = [recipe.name for recipe in plan.space.recipes]
    if schedule.recipe not in names:
        return None
    recipe = plan.space.recipe(schedule.recipe)
    if set(schedule.params) != set(recipe.by_name):
        return None
    params: dict[str, ParamValue] = {}
    for parameter in recipe.parameters:
        value = _nearest(parameter, schedule.params[parameter.name])
        if value is None:
            return None
        params[parameter.name] = value
    point = Point(schedule.recipe, params)
    if not plan.space.check(point):
        return point
    one = plan.space.neighbours(point)
    # Neighbours of illegal neighbours: the space itself walks through legal points only.
    two = one or [
        near
        for parameter in recipe.parameters
        for code in parameter.neighbours(parameter.encode(params[parameter.name]))
        for near in plan.space.neighbours(
            Point(point.recipe_name, {**params, parameter.name: parameter.decode(code)})
        )
    ]
    return next(iter(_best(plan, list(dict.fromkeys(two)), 1)), None)


def _nearest(parameter: Parameter, value: ParamValue) -> ParamValue | None:
    """The value, or of whole positive numbers the one with the nearest logarithm; else None."""
    if value in parameter:
        return value
    numbers = [v for v in parameter.values if _is_size(v)]
    if not _is_size(value) or not numbers:
        return None
    return min(numbers, key=lambda v: abs(math.log(int(v) / int(value))))


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
