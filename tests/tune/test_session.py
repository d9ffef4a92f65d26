"""What a session does with its budget, the record, and what earlier sessions know."""

from __future__ import annotations

import json

import pytest

from tests.tune.faulty import TightTarget
from tests.tune.helpers import Watcher, run
from tfsearch.core.errors import NoCandidateError, RequestError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.cost.model import Prediction
from tfsearch.db import SessionStatus, Store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.search.scan import predict_points
from tfsearch.space import Point, Points, Space
from tfsearch.space.enumeration import Counts
from tfsearch.target.null.problem import NullProblem
from tfsearch.tune import Progress, Stage, Started, TrialEnded, TuneRequest
from tfsearch.tune.request import resolve


def test_a_session_measures_decides_and_records(
    gemm: Workload, store: Store, home: Settings
) -> None:
    watcher = Watcher()
    report = run(gemm, store, home, observer=watcher, trials=4, baseline=True)
    assert report.stopped == "trials"
    assert (report.trials.total, report.trials.ok, report.trials.reused) == (4, 4, 0)
    best = report.best
    assert best is not None
    assert best.source == "measured"
    assert best.verified
    stored = store.trials()
    assert [t.trial.index for t in stored] == [0, 1, 2, 3]
    final = store.latest_final(gemm.key)
    assert final is not None
    assert final.final.winner == best.trial
    assert {entry.trial for entry in final.final.entries} == {t.id for t in stored}
    (session,) = store.sessions()
    assert session.status is SessionStatus.FINISHED
    assert report.baseline is not None
    assert report.baseline.name == "simulated"
    assert report.baseline.speedup > 1
    assert watcher.of(Stage) == [Stage.ENUMERATE, Stage.SEARCH, Stage.FINAL]
    assert len(watcher.of(TrialEnded)) == len(watcher.of(Progress)) == 4
    assert watcher.of(Started)[0].legal == report.space.legal
    last = watcher.of(Progress)[-1]
    assert (last.done, last.failed) == (4, 0)
    assert last.seconds_left == 0


def test_the_report_prints_exactly_the_documented_fields(
    gemm: Workload, store: Store, home: Settings
) -> None:
    document = json.loads(json.dumps(run(gemm, store, home, baseline=True).to_json()))
    assert list(document) == [
        "workload", "target", "device", "toolchain", "space", "trials", "best", "baseline",
        "elapsed_s", "interrupted", "noise",
    ]  # fmt: skip
    assert set(document["workload"]) == {"key", "op", "dims", "dtype"}
    assert set(document["space"]) == {"points", "legal", "pruned", "rejected"}
    assert set(document["trials"]) == {"total", "ok", "failed"}
    assert set(document["best"]) == {
        "schedule", "median_us", "ci_us", "tflops", "roofline_fraction", "verified",
        "max_error", "source",
    }  # fmt: skip
    assert set(document["baseline"]) == {"name", "median_us", "speedup"}
    assert document["device"]["name"] == "null (simulated clock)"
    space = document["space"]
    assert space["points"] == space["legal"] + sum(space["rejected"].values())


def test_a_warm_session_answers_duplicates_from_the_record(
    gemm: Workload, store: Store, home: Settings
) -> None:
    cold = run(gemm, store, home)
    warm = run(gemm, store, home)
    assert cold.best is not None
    assert warm.best is not None
    assert warm.trials.total == 3
    assert warm.trials.reused == 3
    assert warm.best.source == "database"
    assert warm.best.trial == cold.best.trial
    assert len(store.trials()) == 3
    assert len(store.sessions()) == 2


def test_more_trials_continue_where_the_record_ends(
    gemm: Workload, store: Store, home: Settings
) -> None:
    run(gemm, store, home, policy="random")
    more = run(gemm, store, home, policy="random", trials=5)
    assert (more.trials.total, more.trials.reused) == (5, 3)
    schedules = [t.trial.schedule.key for t in store.trials()]
    assert len(schedules) == len(set(schedules)) == 5


def test_deterministic_failures_are_answered_from_the_record_too(
    gemm: Workload, store: Store, home: Settings, faulty: str
) -> None:
    options = {"target": faulty, "policy": "exhaustive", "trials": 100}
    fix = {"block": 8, "lanes": 1, "unroll": 1, "order": "forward", "fault": "compile_error"}
    for _ in range(2):
        with pytest.raises(NoCandidateError):
            run(gemm, store, home, fix=fix, **options)
    assert len(store.trials()) == 4


def test_equal_seeds_give_equal_sessions(gemm: Workload, home: Settings) -> None:
    def params(seed: int) -> list[object]:
        watcher = Watcher()
        run(gemm, None, home, observer=watcher, policy="random", seed=seed)
        return [event.params for event in watcher.of(TrialEnded)]

    first = params(4)
    assert params(4) == first
    assert params(5) != first


def test_a_session_ends_with_the_space(gemm: Workload, store: Store, home: Settings) -> None:
    fix = {"recipe": "whole", "block": "64", "lanes": "16", "unroll": 2, "order": "forward"}
    report = run(gemm, store, home, fix=fix, trials=50)
    assert report.stopped == "exhausted"
    assert report.trials.total == report.space.legal == 4
    assert report.best is not None
    assert report.best.schedule.params["block"] == 64


def test_a_session_ends_when_the_bound_says_that_nothing_is_left(
    gemm: Workload, store: Store, home: Settings
) -> None:
    report = run(gemm, store, home, trials=50, converge=1e9)
    assert report.stopped == "converged"
    assert report.trials.total < 50


def test_a_session_ends_in_time(gemm: Workload, store: Store, home: Settings) -> None:
    report = run(gemm, store, home, trials=None, seconds=2.0)
    assert report.stopped in ("seconds", "exhausted")
    assert report.trials.ok >= 1
    statuses = {t.trial.status for t in store.trials()}
    assert statuses <= {Status.OK, Status.CANCELLED}


def test_the_winner_of_one_session_is_the_incumbent_of_the_next(
    gemm: Workload, store: Store, home: Settings
) -> None:
    first = run(gemm, store, home, trials=6)
    assert first.best is not None
    slow = {"block": 8, "lanes": 1, "unroll": 1}
    other = run(gemm, store, home, policy="random", trials=2)
    assert other.best is not None
    assert other.best.trial == first.best.trial
    assert other.best.source == "database"
    # What is fixed elsewhere is not part of the space, so the incumbent is not either.
    fixed = run(gemm, store, home, trials=2, fix=slow)
    assert fixed.best is not None
    assert fixed.best.schedule.params["lanes"] == 1


def test_only_what_the_bound_excludes_against_the_incumbent_is_pruned(
    gemm: Workload, store: Store, home: Settings, tight: str
) -> None:
    first = run(gemm, store, home, target=tight)
    assert first.space.pruned == 0
    assert first.best is not None
    watcher = Watcher()
    second = run(gemm, store, home, target=tight, observer=watcher, policy="random", trials=5)
    assert 0 < second.space.pruned < second.space.legal
    problem = TightTarget().problem(gemm, TightTarget().nominal())
    points = [Point("whole", dict(event.params)) for event in watcher.of(TrialEnded)]
    _, bounds = predict_points(problem, points)
    assert len(points) == 5
    assert max(bounds) < first.best.median_us


def test_similar_workloads_suggest_where_to_start(
    gemm: Workload, store: Store, home: Settings
) -> None:
    first = run(gemm, store, home, policy="random", trials=2, seed=9)
    assert first.best is not None
    watcher = Watcher()
    near = build_workload("gemm", {"m": 10, "n": 6, "k": 7, "dtype": "f32"})
    run(near, store, home, observer=watcher, trials=1)
    (event,) = watcher.of(TrialEnded)
    assert dict(event.params) == dict(first.best.schedule.params)


def test_full_proof_interprets_every_candidate(
    gemm: Workload, store: Store, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tfsearch.tune import prepare

    calls: list[int] = []
    real = prepare.prove_reduced

    def counted(*arguments: object) -> object:
        calls.append(1)
        return real(*arguments)  # pyright: ignore[reportArgumentType]

    monkeypatch.setattr(prepare, "prove_reduced", counted)
    fix = {"order": "forward"}
    run(gemm, store, home, trials=4, fix=fix)
    assert len(calls) == 1
    run(gemm, store, home, trials=4, fix=fix)
    assert len(calls) == 1, "the proof is remembered in the database"
    run(gemm, store, home, trials=4, fix=fix, prove="full")
    assert len(calls) == 5


def test_a_space_without_legal_points_is_an_error_that_counts_the_reasons(
    gemm: Workload, store: Store, home: Settings
) -> None:
    with pytest.raises(NoCandidateError, match=r"null\.capacity") as caught:
        run(gemm, store, home, fix={"block": 256, "unroll": 8, "stages": 4})
    assert caught.value.code == "tune.no-legal"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"trials": 0}, "tune.budget"),
        ({"seconds": 0}, "tune.budget"),
        ({"workers": -1}, "tune.budget"),
        ({"prove": "maybe"}, "tune.prove"),
        ({"seed": -1}, "tune.seed"),
        ({"policy": "greedy"}, "policy.unknown"),
        ({"protocol": "lukewarm"}, "measure.protocol"),
        ({"target": "vax"}, "target.unknown"),
        ({"device": "other"}, "device.unknown"),
        ({"flags": ("--bogus",)}, "toolchain.flag-rejected"),
        ({"fix": {"colour": 3}}, "space.unknown-parameter"),
        ({"fix": {"recipe": "packed"}}, "space.unknown-recipe"),
        ({"fix": {"block": "7"}}, "space.value-outside-domain"),
    ],
)
def test_a_wrong_request_is_one_coded_error(
    gemm: Workload, store: Store, home: Settings, options: dict[str, object], code: str
) -> None:
    with pytest.raises(RequestError) as caught:
        run(gemm, store, home, **options)  # pyright: ignore[reportArgumentType]
    assert caught.value.code == code
    assert "\n" not in caught.value.message
    assert store.trials() == []


def test_predictions_are_of_the_protocol_that_times(
    gemm: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []
    real = NullProblem.predict

    def predict(self: NullProblem, points: Points, *, cold: bool = False) -> Prediction:
        asked.append(cold)
        return real(self, points, cold=cold)

    monkeypatch.setattr(NullProblem, "predict", predict)
    for protocol in ("warm", "cold"):
        plan = resolve(TuneRequest(gemm, target="null", protocol=protocol))
        plan.predict(next(iter(plan.space.chunks(16))))
    assert asked == [False, True]


def test_without_a_budget_the_default_number_of_trials_applies(gemm: Workload) -> None:
    assert TuneRequest(gemm).trials_limit == 32
    assert TuneRequest(gemm, seconds=5.0).trials_limit is None


def test_a_space_that_cannot_be_counted_is_refused_in_one_line(
    gemm: Workload, store: Store, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Space, "count_within", lambda *_: Counts(10**30, 10**20, {}, 0.05))
    with pytest.raises(RequestError, match="about 1e\\+20 are legal") as caught:
        run(gemm, store, home)
    assert caught.value.code == "tune.space-too-large"
