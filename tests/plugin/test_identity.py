"""Whether a record still is what would be built now, and what flips the keys."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tfsearch.core.errors import InternalError, RequestError
from tfsearch.core.records import (
    BuildKey,
    BuildRecord,
    MeasurementKey,
    ScheduleRecord,
    Status,
    ToolchainRecord,
    Trial,
)
from tfsearch.db import ArtifactStore, Store, open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.tir.nodes import Module
from tfsearch.plugin import identity
from tfsearch.plugin.target import Problem, Source
from tfsearch.space import Point
from tfsearch.target.null import NullTarget
from tfsearch.target.null.compiler import NullCompiler
from tfsearch.target.null.problem import NullProblem

WORKLOAD = build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})
POINT = Point("whole", {"block": 64, "lanes": 16, "unroll": 2, "stages": 2, "order": "forward"})


class Edited(NullTarget):
    """The null target after an edit of its generator."""

    def generator_digest(self) -> str:
        return "e" * 64


class OtherText(NullProblem):
    def emit(self, module: Module, point: Point) -> Source:
        source = super().emit(module, point)
        return replace(source, text=source.text + "\n")


@pytest.fixture
def artifacts(tmp_path: Path) -> ArtifactStore:
    return ArtifactStore(tmp_path / "artifacts")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return open_store(f"sqlite:///{tmp_path / 'a.db'}")


def _problem(kind: type[NullProblem] = NullProblem) -> Problem:
    return kind(WORKLOAD, NullTarget().nominal())


def _trial(flags: Sequence[str] = (), macros: Sequence[str] = ()) -> tuple[Trial, Source]:
    target, problem = NullTarget(), _problem()
    source = problem.emit(problem.lower(POINT), POINT)
    key = target.compiler(None).key(source, flags, macros)
    trial = Trial(
        session="s",
        index=0,
        workload=WORKLOAD.key,
        schedule=identity.schedule_of(problem, "null", POINT),
        status=Status.CRASH,
        generator=target.generator_digest(),
        measurement_key=identity.measurement_key(key, target.nominal(), "warm"),
        build=BuildRecord(key, "a" * 64, 0.1),
    )
    return trial, source


def _never() -> Problem:
    raise AssertionError("the fast path must not lower")


def test_schedules_and_points_are_inverse() -> None:
    problem = _problem()
    schedule = identity.schedule_of(problem, "null", POINT)
    assert ScheduleRecord.from_json(schedule.to_json()) == schedule
    assert identity.point_of(problem, "null", schedule) == POINT


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"target": "x86"}, "schedule.target"),
        ({"workload": "0" * 64}, "schedule.workload"),
        ({"recipe": "other"}, "space.unknown-recipe"),
        ({"recipe_version": 99}, "schedule.recipe-version"),
    ],
)
def test_a_schedule_of_something_else_is_refused(change: dict[str, str], code: str) -> None:
    schedule = replace(identity.schedule_of(_problem(), "null", POINT), **change)
    with pytest.raises(RequestError) as caught:
        identity.point_of(_problem(), "null", schedule)
    assert caught.value.code == code


def noted(trial: Trial, artifacts: ArtifactStore) -> None:
    assert trial.build is not None
    generator = NullTarget().generator_digest()
    identity.note_source(artifacts, trial.schedule.key, generator, trial.build.key.source)


def judged(
    trial: Trial,
    store: Store,
    artifacts: ArtifactStore,
    *,
    problem: Callable[[], Problem] = _problem,
    target: NullTarget | None = None,
) -> identity.Verdict:
    return identity.still_current(
        trial,
        target=target or NullTarget(),
        problem=problem,
        compiler=NullCompiler("null"),
        store=store,
        artifacts=artifacts,
    )


def test_an_unchanged_generator_and_a_kept_source_need_no_lowering(
    store: Store, artifacts: ArtifactStore
) -> None:
    trial, source = _trial()
    assert trial.build is not None
    identity.keep_source(source, trial.build, store, artifacts)
    noted(trial, artifacts)
    verdict = judged(trial, store, artifacts, problem=_never)
    assert verdict.current
    assert not verdict.relowered
    assert verdict.source == source
    assert verdict.build == trial.build.key


def test_a_kept_source_counts_only_for_the_schedule_it_was_emitted_for(
    store: Store, artifacts: ArtifactStore
) -> None:
    trial, source = _trial()
    assert trial.build is not None
    other = replace(source, text=source.text + "\n")
    build = replace(trial.build, key=NullCompiler("null").key(other, (), ()))
    noted(trial, artifacts)
    identity.keep_source(other, build, store, artifacts)
    # a row that pairs the schedule with another kept source
    verdict = judged(replace(trial, build=build), store, artifacts)
    assert not verdict.current
    assert verdict.relowered
    assert "build.source" in verdict.differs


def test_a_kept_source_of_another_workloads_schedule_does_not_count(
    store: Store, artifacts: ArtifactStore
) -> None:
    trial, source = _trial()
    assert trial.build is not None
    identity.keep_source(source, trial.build, store, artifacts)
    noted(trial, artifacts)
    verdict = judged(replace(trial, workload="0" * 64), store, artifacts)
    assert verdict.relowered


def test_a_damaged_kept_source_is_lowered_again(store: Store, artifacts: ArtifactStore) -> None:
    trial, source = _trial()
    assert trial.build is not None
    identity.keep_source(source, trial.build, store, artifacts)
    noted(trial, artifacts)
    digest = trial.build.key.source
    (artifacts.folder / digest[:2] / digest[2:]).write_bytes(b"{}")
    verdict = judged(trial, store, artifacts)
    assert verdict.current
    assert verdict.relowered


def test_an_edit_that_leaves_the_source_equal_loses_no_record(
    store: Store, artifacts: ArtifactStore
) -> None:
    trial, _ = _trial()
    verdict = judged(trial, store, artifacts, target=Edited())
    assert verdict.current
    assert verdict.relowered


def test_an_edit_that_changes_the_source_misses_and_names_the_field() -> None:
    trial, _ = _trial()
    verdict = identity.still_current(
        trial,
        target=Edited(),
        problem=lambda: _problem(OtherText),
        compiler=NullCompiler("null"),
    )
    assert not verdict.current
    assert list(verdict.differs) == ["build.source"]
    wanted, found = verdict.differs["build.source"]
    assert trial.build is not None
    assert found == trial.build.key.source != wanted


def test_a_schedule_that_is_no_longer_legal_is_not_current() -> None:
    trial, _ = _trial()
    gone = replace(trial, schedule=replace(trial.schedule, params={"block": 64}))
    verdict = identity.still_current(
        gone, target=Edited(), problem=_problem, compiler=NullCompiler("null")
    )
    assert not verdict.current
    assert verdict.differs == {"schedule": ("space.missing-parameter", "ok")}


@pytest.mark.parametrize(
    ("recorded", "now", "field"),
    [
        ({"flags": ("-O1", "-O2")}, {"flags": ("-O2", "-O1")}, "build.flags"),
        ({"flags": ()}, {"flags": ("-g",)}, "build.flags"),
        ({"macros": ("A=1",)}, {"macros": ("A=2",)}, "build.macros"),
    ],
)
def test_flags_their_order_and_macros_are_part_of_the_answer(
    recorded: dict[str, tuple[str, ...]], now: dict[str, tuple[str, ...]], field: str
) -> None:
    trial, _ = _trial(**recorded)
    verdict = identity.still_current(
        trial, target=NullTarget(), problem=_problem, compiler=NullCompiler("null"), **now
    )
    assert list(verdict.differs) == [field]


class _OtherCompiler(NullCompiler):
    def __init__(self, change: Callable[[BuildKey], BuildKey]) -> None:
        super().__init__("null")
        self._change = change

    def key(self, source: Source, flags: Sequence[str], macros: Sequence[str]) -> BuildKey:
        return self._change(super().key(source, flags, macros))


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda key: replace(key, headers="h"), "build.headers"),
        (lambda key: replace(key, features=("avx9",)), "build.features"),
        (
            lambda key: replace(
                key, toolchain=ToolchainRecord("writer", "1", {"writer": "f" * 64})
            ),
            "build.toolchain.programs.writer",
        ),
    ],
)
def test_headers_features_and_the_toolchains_programs_are_compared(
    change: Callable[[BuildKey], BuildKey], field: str
) -> None:
    trial, _ = _trial()
    verdict = identity.still_current(
        trial, target=NullTarget(), problem=_problem, compiler=_OtherCompiler(change)
    )
    assert list(verdict.differs) == [field]


def test_a_source_that_no_longer_builds_is_not_current() -> None:
    def missing(key: BuildKey) -> BuildKey:
        raise RequestError("toolchain.preprocess", "a header is gone")

    trial, _ = _trial()
    verdict = identity.still_current(
        trial, target=NullTarget(), problem=_problem, compiler=_OtherCompiler(missing)
    )
    assert not verdict.current
    assert verdict.differs == {"build": ("toolchain.preprocess", "ok")}


def test_every_field_of_the_keys_flips_them() -> None:
    trial, source = _trial()
    base = trial.measurement_key
    assert base is not None
    build, device = base.build, base.device
    keys = {base.key}
    flips: list[MeasurementKey] = [
        replace(base, protocol="cold/1"),
        replace(base, verifier=base.verifier + 1),
        *(
            replace(base, build=replace(build, **change))
            for change in (
                {"source": replace(source, text="x").digest},
                {"source": replace(source, language="c").digest},
                {"source": replace(source, flags=("-mavx2",)).digest},
                {"launch": "l"},
                {"target": "x86"},
                {"features": ("avx2",)},
                {"flags": ("-O1", "-O2")},
                {"flags": ("-O2", "-O1")},
                {"macros": ("A",)},
                {"headers": "h"},
                {"toolchain": ToolchainRecord("gcc", "1", build.toolchain.programs)},
                {"toolchain": ToolchainRecord("writer", "1", {"cc1": "f"})},
            )
        ),
        *(
            replace(base, device=replace(device, **change))
            for change in (
                {"name": "other"},
                {"kind": "cpu"},
                {"model": "6/207/2"},
                {"features": ("amx",)},
                {"units": 2},
                {"memory_bytes": 1},
                {"partitioning": "mig"},
                {"driver": "9"},
            )
        ),
    ]
    for flipped in flips:
        keys.add(flipped.key)
    assert len(keys) == len(flips) + 1


def test_a_toolchains_version_text_alone_changes_no_key() -> None:
    programs = {"cc1": "a" * 64}
    assert (
        ToolchainRecord("gcc", "1", programs).digest == ToolchainRecord("gcc", "2", programs).digest
    )


def test_a_source_is_kept_by_its_content() -> None:
    _, source = _trial()
    assert Source.from_bytes(source.to_bytes(), source.launch, source.features) == source
    for damaged in (b"[]", b"{}", b"not json"):
        with pytest.raises(ValueError, match=r".+"):
            Source.from_bytes(damaged, source.launch, ())


def test_a_generator_digest_covers_the_content_of_whole_packages() -> None:
    small = identity.generator_digest("tfsearch.core.keys")
    package = identity.generator_digest("tfsearch.core")
    assert len(small) == len(package) == 64
    assert small != package
    assert identity.generator_digest("tfsearch.core") == package
    with pytest.raises(InternalError):
        identity.generator_digest("tfsearch.nothing")
