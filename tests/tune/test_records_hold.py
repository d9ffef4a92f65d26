"""Which edits and options lose records, and which do not."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace

import pytest

from tests.tune.helpers import Watcher, run
from tfsearch.core.settings import Settings
from tfsearch.db import ArtifactStore, Store
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry
from tfsearch.plugin.target import Device, Problem, Source
from tfsearch.space import Point
from tfsearch.target.null import NullTarget
from tfsearch.target.null.problem import NullProblem
from tfsearch.tune import TrialEnded, TuneRequest, resolve
from tfsearch.tune.recorder import Recorder


class Refactored(NullTarget):
    """After an edit of the generator that changes no source."""

    def generator_digest(self) -> str:
        return "1" * 64


class OtherSource(NullProblem):
    def emit(self, module: Module, point: Point) -> Source:
        source = super().emit(module, point)
        return replace(source, text=source.text + "\n")


class Changed(NullTarget):
    """After an edit of the generator that changes every source."""

    def generator_digest(self) -> str:
        return "2" * 64

    def problem(self, workload: Workload, device: Device) -> Problem:
        return OtherSource(workload, device)


@pytest.fixture
def edited() -> Iterator[None]:
    """Tests swap the target under the name ``null``; the installed one comes back afterwards."""
    registry.register("null", NullTarget)
    yield
    registry.unregister("null")


def test_an_edit_that_leaves_the_source_equal_loses_no_record(
    gemm: Workload, store: Store, home: Settings, edited: None
) -> None:
    before = run(gemm, store, home)
    registry.register("null", Refactored)
    after = run(gemm, store, home)
    assert after.trials.reused == 3
    assert after.best is not None
    assert before.best is not None
    assert after.best.trial == before.best.trial
    assert after.best.source == "database"


def test_an_edit_that_changes_the_source_measures_again_and_starts_from_the_old_best(
    gemm: Workload, store: Store, home: Settings, edited: None
) -> None:
    before = run(gemm, store, home)
    registry.register("null", Changed)
    watcher = Watcher()
    after = run(gemm, store, home, observer=watcher)
    assert after.trials.reused == 0
    assert after.best is not None
    assert before.best is not None
    assert after.best.source == "measured"
    assert after.best.trial != before.best.trial
    first = watcher.of(TrialEnded)[0]
    assert dict(first.params) == dict(before.best.schedule.params)


def test_the_order_of_flags_is_part_of_the_key_and_a_miss_says_so(
    gemm: Workload, store: Store, home: Settings
) -> None:
    run(gemm, store, home, flags=("-O1", "-g"))
    swapped = resolve(TuneRequest(gemm, target="null", flags=("-g", "-O1"))).query
    assert store.best(swapped) is None
    (nearest, *_) = store.nearest(swapped)
    assert dict(nearest.differs) == {"flags": (["-g", "-O1"], ["-O1", "-g"])}
    again = run(gemm, store, home, flags=("-g", "-O1"))
    assert again.trials.reused == 0
    assert store.best(swapped) is not None


@pytest.mark.parametrize(
    "change", [{"macros": ("A=1",)}, {"protocol": "cold"}, {"flags": ("-O3",)}]
)
def test_what_changes_a_measurement_is_measured_again(
    gemm: Workload, store: Store, home: Settings, change: dict[str, object]
) -> None:
    run(gemm, store, home, trials=1)
    report = run(gemm, store, home, trials=1, **change)
    assert report.trials.reused == 0
    assert len(store.trials()) == 2


@pytest.mark.parametrize("change", [{"alignment": 64}, {"constant_inputs": ("b",)}])
def test_what_changes_the_workload_is_another_workload(
    gemm: Workload, store: Store, home: Settings, change: dict[str, object]
) -> None:
    run(gemm, store, home, trials=1)
    report = run(replace(gemm, **change), store, home, trials=1)
    assert report.trials.reused == 0
    assert report.workload.key != gemm.key


def test_cold_then_warm_twice_on_one_database(gemm: Workload, store: Store, home: Settings) -> None:
    reports = [run(gemm, store, home, trials=2) for _ in range(3)]
    assert [report.trials.reused for report in reports] == [0, 2, 2]
    assert len({report.best.trial for report in reports if report.best is not None}) == 1
    assert store.verify() == []


def test_artifacts_that_are_gone_are_built_again(
    gemm: Workload, store: Store, home: Settings
) -> None:
    run(gemm, store, home, trials=2)
    for path in home.artifacts.rglob("*"):
        if path.is_file():
            path.unlink()
    report = run(gemm, store, home, trials=2)
    assert report.trials.reused == 2
    assert report.best is not None
    assert any(home.artifacts.rglob("*"))


def test_a_damaged_artifact_is_never_run(gemm: Workload, store: Store, home: Settings) -> None:
    run(gemm, store, home, trials=1)
    for entry in ArtifactStore(home.artifacts).entries():
        (home.artifacts / entry.digest[:2] / entry.digest[2:]).write_bytes(b"something else")
    watcher = Watcher()
    report = run(gemm, store, home, trials=1, observer=watcher)
    assert "artifacts.wrong-hash" in watcher.warnings
    assert report.best is not None
    assert report.best.verified


def test_a_recorded_build_counts_only_where_this_user_made_its_file(
    gemm: Workload, store: Store, home: Settings
) -> None:
    run(gemm, store, home)
    builds = [one.trial.build for one in store.trials() if one.trial.build is not None]
    artifacts = ArtifactStore(home.artifacts)
    recorder = Recorder(store, artifacts, Watcher(), home=home.home)
    for build in builds:
        found = recorder.build(build.key.key)
        assert found is not None
        assert found.record.artifact == build.artifact
    other = artifacts.put(b"another file of this user")
    artifacts.note(builds[0].key.key, other)
    assert recorder.build(builds[0].key.key) is None
    shutil.rmtree(home.artifacts / "notes")
    assert [recorder.build(build.key.key) for build in builds] == [None] * len(builds)


def test_a_file_that_a_record_names_and_nobody_made_is_built_again(
    gemm: Workload, store: Store, home: Settings
) -> None:
    run(gemm, store, home)
    shutil.rmtree(home.artifacts / "notes")
    after = run(gemm, store, home)
    assert after.exit_code == 0
    artifacts = ArtifactStore(home.artifacts)
    assert after.best is not None
    winner = store.trial(after.best.trial)
    assert winner is not None
    assert winner.trial.build is not None
    assert artifacts.noted(winner.trial.build.key.key) == winner.trial.build.artifact
