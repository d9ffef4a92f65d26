"""Where a session starts that has similar ones before it."""

from __future__ import annotations

from dataclasses import replace

from tests.tune.helpers import Watcher, run
from tfsearch.core.settings import Settings
from tfsearch.db import ArtifactStore, Store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin import identity
from tfsearch.search.scan import predict_points
from tfsearch.space import Point
from tfsearch.tune import TrialEnded, TuneRequest, hints, resolve
from tfsearch.tune.recorder import Recorder


def _gemm(m: int) -> Workload:
    return build_workload("gemm", {"m": m, "n": 6, "k": 7, "dtype": "f32"})


def test_winners_come_first_the_nearest_before_others_and_then_their_neighbours(
    store: Store, home: Settings
) -> None:
    best: dict[int, Point] = {}
    for m, seed in ((40, 3), (12, 8), (5, 20)):
        report = run(_gemm(m), store, home, policy="random", trials=3, seed=seed)
        assert report.best is not None
        schedule = report.best.schedule
        best[m] = Point(schedule.recipe, dict(schedule.params))
    watcher = Watcher()
    run(_gemm(10), store, home, observer=watcher, trials=7)
    tried = [Point("whole", dict(event.params)) for event in watcher.of(TrialEnded)]
    winners = list(dict.fromkeys(best[m] for m in (12, 5, 40)))
    assert tried[: len(winners)] == winners
    space = resolve(TuneRequest(_gemm(10), target="null")).space
    near = {point for winner in winners for point in space.neighbours(winner)}
    assert set(tried[len(winners) : 7]) <= near


def test_neighbours_are_the_models_best() -> None:
    plan = resolve(TuneRequest(_gemm(10), target="null"))
    points = [next(plan.space.chunks(64)).point(row) for row in range(30)]
    estimate, _ = predict_points(plan, points)
    found = hints._best(plan, points, 4)
    assert [points.index(point) for point in found] == list(estimate.argsort(kind="stable")[:4])


def test_a_winner_that_is_not_legal_here_stands_for_the_nearest_that_is() -> None:
    plan = resolve(TuneRequest(_gemm(10), target="null"))
    legal = next(plan.space.chunks(8)).point(0)
    schedule = identity.schedule_of(plan.problem, "null", legal)
    assert hints._legal(plan, schedule) == legal

    larger = {**legal.params, "block": 5000}
    moved = hints._legal(plan, replace(schedule, params=larger))
    assert moved is not None
    assert not plan.space.check(moved)

    crowded = {**legal.params, "block": 256, "unroll": 8, "stages": 4}
    illegal = Point(legal.recipe_name, crowded)
    assert plan.space.check(illegal)
    moved = hints._legal(plan, replace(schedule, params=crowded))
    assert moved is not None
    assert not plan.space.check(moved)
    assert sum(moved.params[name] != crowded[name] for name in crowded) <= 2


def test_a_schedule_of_another_shape_suggests_nothing() -> None:
    plan = resolve(TuneRequest(_gemm(10), target="null"))
    legal = next(plan.space.chunks(8)).point(0)
    schedule = identity.schedule_of(plan.problem, "null", legal)
    other = {name: value for name, value in legal.params.items() if name != "block"}
    assert hints._legal(plan, replace(schedule, params=other)) is None
    assert hints._legal(plan, replace(schedule, recipe="gone")) is None
    word = {**legal.params, "block": "wide"}
    assert hints._legal(plan, replace(schedule, params=word)) is None


def test_nothing_is_suggested_without_a_record(home: Settings) -> None:
    plan = resolve(TuneRequest(_gemm(10), target="null"))
    recorder = Recorder(None, ArtifactStore(home.artifacts), Watcher(), home=home.home)
    assert hints.similar_points(plan, recorder) == []
