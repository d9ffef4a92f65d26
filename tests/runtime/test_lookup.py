"""Which record serves, when it no longer does, and what a missing compiler means."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.runtime.conftest import GEMM
from tfsearch.core.errors import NoCandidateError, NotRecordedError, RequestError, UnavailableError
from tfsearch.core.records import ServedBy
from tfsearch.core.settings import Settings
from tfsearch.cost.model import Prediction
from tfsearch.db import ArtifactStore, open_store
from tfsearch.ir.hir.named import named_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry
from tfsearch.plugin.target import Device, Problem
from tfsearch.runtime import Fallback, Kernel, empty, serving
from tfsearch.runtime.serving import Missed, Question
from tfsearch.space import Points
from tfsearch.target.null import NullTarget
from tfsearch.target.null import compiler as null_compiler
from tfsearch.target.null.problem import NullProblem


def look(**more: Any) -> Any:
    return tfsearch.lookup("gemm", **{**GEMM, "target": "null", **more})


def inputs() -> tuple[Any, Any]:
    a, b = empty((12, 8), np.dtype("f4")), empty((8, 10), np.dtype("f4"))
    a[...], b[...] = 2, 3
    return a, b


def artifact(home: Settings) -> Any:
    with_store = open_store(home.database_url)
    (only,) = {w.key for w in with_store.workloads()}
    stored = with_store.latest_final(only)
    assert stored is not None
    trial = with_store.trial(stored.final.winner)
    with_store.close()
    assert trial is not None
    assert trial.trial.build is not None
    digest = trial.trial.build.artifact
    return home.artifacts / digest[:2] / digest[2:]


def test_the_winner_of_the_final_is_served(home: Settings) -> None:
    kernel = look()
    assert isinstance(kernel, Kernel)
    assert kernel.served_by is ServedBy.EXACT
    a, b = inputs()
    assert np.array_equal(kernel(a, b), a @ b)
    store = open_store(home.database_url)
    final = store.latest_final(kernel.record.workload.key)
    store.close()
    assert final is not None
    assert kernel.record.trial == final.final.winner
    entry = next(e for e in final.final.entries if e.trial == final.final.winner)
    assert kernel.record.median_us == entry.median_us


def test_a_bound_call_of_a_target_that_copies(home: Settings) -> None:
    a, b = inputs()
    out = empty((12, 10), np.dtype("f4"))
    bound = look().bind(a, b, out=out)
    assert bound() is out
    assert np.array_equal(out, a @ b)
    a[...] = 5
    bound()
    assert np.array_equal(out, a @ b)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"m": 13}, "workload.dims.m"),
        ({"dtype": "f64"}, "workload.dtype"),
        ({"alignment": 64}, "workload.alignment"),
        ({"accuracy": "fast"}, "workload.accuracy"),
        ({"reproducible": False}, "workload.reproducible"),
        ({"constant_inputs": ["b"]}, "workload.constant_inputs"),
        ({"trans_b": True}, "workload.dims.trans_b"),
        ({"flags": ["-O3"]}, "flags"),
        ({"macros": ["X=1"]}, "macros"),
        ({"protocol": "cold"}, "protocol"),
    ],
)
def test_a_miss_names_the_field_that_differs(
    home: Settings, change: dict[str, Any], field: str
) -> None:
    with pytest.raises(Missed) as caught:
        look(**change)
    assert field in caught.value.nearest[0].differs
    assert field in caught.value.message


def test_no_database_is_not_recorded(tmp_path: Any, home: Settings) -> None:
    with pytest.raises(NotRecordedError) as caught:
        look(db=f"sqlite:///{tmp_path / 'other.db'}")
    assert caught.value.code == "db.missing"
    assert not (tmp_path / "other.db").exists()


def test_an_unknown_step_is_refused(home: Settings) -> None:
    with pytest.raises(RequestError, match="bucket and model"):
        look(allow=("guess",))


def test_the_order_is_exact_then_model_then_fallback(home: Settings) -> None:
    a, b = inputs()
    assert look(allow=("model",)).served_by is ServedBy.EXACT
    built = look(m=11, allow=("bucket", "model"))
    assert built.served_by is ServedBy.MODEL
    assert built.record.trial is None
    x = empty((11, 8), np.dtype("f4"))
    x[...] = 1
    assert np.array_equal(built(x, b), x @ b)
    own = look(m=11, fallback=np.matmul)
    assert isinstance(own, Fallback)
    assert own.served_by is ServedBy.FALLBACK
    assert np.array_equal(own(a, b), a @ b)
    out = np.empty((12, 10), "f4")
    assert own(a, b, out=out) is out
    assert np.array_equal(out, a @ b)
    assert np.array_equal(own.bind(a, b)(), a @ b)


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize(("bound_us", "served"), [(0.0, True), (1e9, False)])
def test_a_time_below_the_bound_is_not_served(bound_us: float, served: bool) -> None:
    class BoundedProblem(NullProblem):
        def predict(self, points: Points, *, cold: bool = False) -> Prediction:
            found = super().predict(points, cold=cold)
            return replace(found, bound_us=np.full(len(points), bound_us))

    class Bounded(NullTarget):
        name = "bounded"

        def problem(self, workload: Workload, device: Device) -> Problem:
            return BoundedProblem(workload, device)

    registry.register("bounded", Bounded)
    try:
        if served:
            found = look(target="bounded", allow=("model",))
            assert found.served_by is ServedBy.MODEL
            return
        with pytest.raises(NoCandidateError, match="implausible") as caught:
            look(target="bounded", allow=("model",))
        assert caught.value.code == "lookup.not-correct"
    finally:
        registry.unregister("bounded")


def test_a_changed_compiler_is_a_miss(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    real = null_compiler.NullCompiler.__init__

    def other(self: Any, *arguments: Any) -> None:
        real(self, *arguments)
        programs = {**self.record.programs, "writer": "0" * 64}
        self.record = type(self.record)(self.record.name, self.record.version, programs)

    monkeypatch.setattr(null_compiler.NullCompiler, "__init__", other)
    with pytest.raises(Missed) as caught:
        look()
    assert "toolchain.programs.writer" in caught.value.nearest[0].differs


def test_changed_headers_are_a_miss(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    from dataclasses import replace

    real = null_compiler.NullCompiler.key
    monkeypatch.setattr(
        null_compiler.NullCompiler,
        "key",
        lambda self, *rest: replace(real(self, *rest), headers="f" * 64),
    )
    with pytest.raises(Missed) as caught:
        look()
    assert set(caught.value.nearest[0].differs) == {"build.headers"}


def test_an_edit_of_the_generator_that_changes_no_source_loses_nothing(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NullTarget, "generator_digest", lambda self: "edited")
    assert look().served_by is ServedBy.EXACT


def test_an_edit_of_the_generator_that_changes_the_source_is_a_miss(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from tfsearch.target.null import problem

    real = problem.NullProblem.emit
    monkeypatch.setattr(NullTarget, "generator_digest", lambda self: "edited")
    monkeypatch.setattr(
        problem.NullProblem,
        "emit",
        lambda self, *rest: replace(real(self, *rest), text=real(self, *rest).text + "\n"),
    )
    with pytest.raises(Missed) as caught:
        look()
    assert set(caught.value.nearest[0].differs) == {"build.source"}


def test_a_missing_executable_is_built_again(home: Settings) -> None:
    path = artifact(home)
    before = path.read_bytes()
    path.unlink()
    a, b = inputs()
    assert np.array_equal(look()(a, b), a @ b)
    assert path.read_bytes() == before


def test_a_damaged_executable_is_never_loaded(home: Settings) -> None:
    path = artifact(home)
    before = path.read_bytes()
    path.write_bytes(before.replace(b"forward", b"FORWARD") + b" ")
    a, b = inputs()
    assert np.array_equal(look()(a, b), a @ b)
    assert path.read_bytes() == before


def named_by_a_record(home: Settings, data: bytes) -> str:
    """Put a file into the own store and have the latest final's winner name it; its digest."""
    digest = ArtifactStore(home.artifacts).put(data)
    store = open_store(home.database_url)
    (workload,) = {w.key for w in store.workloads()}
    stored = store.latest_final(workload)
    assert stored is not None
    winner = store.trial(stored.final.winner)
    assert winner is not None
    assert winner.trial.build is not None
    build = replace(winner.trial.build, artifact=digest)
    forged = store.record_trial(replace(winner.trial, index=1000, build=build))
    entries = tuple(
        replace(entry, trial=forged) if entry.trial == stored.final.winner else entry
        for entry in stored.final.entries
    )
    store.record_final(replace(stored.final, winner=forged, entries=entries))
    assert artifact(home) == ArtifactStore(home.artifacts).path(digest)
    store.close()
    return digest


def served(home: Settings) -> bytes:
    """Content of the executable that a lookup loads."""
    question = Question(named_workload("gemm", GEMM), target="null")
    place = serving.resolve(question, home)
    with serving.opened(home) as store:
        return serving.executable(place, serving.exact(place, store)).read_bytes()


def test_a_record_that_names_another_file_of_the_store_serves_what_was_built(
    home: Settings,
) -> None:
    built = artifact(home).read_bytes()
    named_by_a_record(home, b"another kernel of this user")
    assert served(home) == built


def test_what_this_user_tuned_is_found_without_lowering_anything(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lowered(self: Any, *of: Any) -> Any:
        raise AssertionError("a lookup lowered a schedule")

    monkeypatch.setattr(NullTarget, "problem", lowered)
    built = artifact(home).read_bytes()
    assert served(home) == built


def test_an_executable_without_a_note_is_built_again_and_noted(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = artifact(home).read_bytes()
    named_by_a_record(home, b"another kernel of this user")
    shutil.rmtree(home.artifacts / "notes")
    builds: list[object] = []
    real = serving.build
    monkeypatch.setattr(serving, "build", lambda *of: builds.append(of) or real(*of))
    assert served(home) == built
    assert len(builds) == 1
    assert served(home) == built
    assert len(builds) == 1, "the note of the build on demand is found"


def test_without_a_compiler_an_executable_without_a_note_is_unavailable(
    home: Settings, no_compiler: None
) -> None:
    shutil.rmtree(home.artifacts / "notes")
    with pytest.raises(UnavailableError, match="not built by this user") as caught:
        look()
    assert caught.value.code == "lookup.no-compiler"


@pytest.fixture
def no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(self: Any, name: str | None) -> Any:
        raise UnavailableError("toolchain.missing", "no compiler; get one with: apt-get")

    monkeypatch.setattr(NullTarget, "compiler", missing)


def test_without_a_compiler_a_kept_executable_is_served(home: Settings, no_compiler: None) -> None:
    a, b = inputs()
    assert np.array_equal(look()(a, b), a @ b)


def test_without_a_compiler_a_lost_executable_is_unavailable(
    home: Settings, no_compiler: None
) -> None:
    artifact(home).unlink()
    with pytest.raises(UnavailableError, match="apt-get") as caught:
        look()
    assert caught.value.exit_code == 5


def test_without_a_compiler_a_damaged_executable_is_not_loaded(
    home: Settings, no_compiler: None
) -> None:
    artifact(home).write_bytes(b"{}")
    with pytest.raises(UnavailableError, match="content hash"):
        look()


def test_without_a_compiler_another_source_is_a_miss(
    home: Settings, no_compiler: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from tfsearch.target.null import problem

    monkeypatch.setattr(NullTarget, "generator_digest", lambda self: "edited")
    assert look().served_by is ServedBy.EXACT
    real = problem.NullProblem.emit
    monkeypatch.setattr(
        problem.NullProblem, "emit", lambda self, *rest: replace(real(self, *rest), text="{}")
    )
    with pytest.raises(Missed):
        look()


def test_a_compiler_that_is_named_has_to_be_there(home: Settings) -> None:
    with pytest.raises(UnavailableError):
        look(toolchain="tcc")


class Absent(NullTarget):
    name = "absent"

    def devices(self) -> Any:
        return ()

    def absence(self) -> str:
        return "no such card; insert one"


@pytest.fixture
def absent() -> Iterator[str]:
    registry.register("absent", Absent)
    yield "absent"
    registry.unregister("absent")


def test_an_absent_device_is_unavailable_or_the_fallback(home: Settings, absent: str) -> None:
    with pytest.raises(UnavailableError, match="insert one"):
        look(target=absent)
    assert look(target=absent, fallback=np.matmul).served_by is ServedBy.FALLBACK


def test_an_executable_that_other_users_may_replace_is_refused(home: Settings) -> None:
    home.artifacts.chmod(0o777)
    with pytest.raises(RequestError, match="chmod 700"):
        look()
    assert isinstance(ArtifactStore(home.cache), ArtifactStore)


def test_a_bucket_serves_the_shapes_that_its_ranges_contain(
    home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The null target binds constants only, so the range's records are copied from a constant."""
    from tfsearch.ir.hir.named import named_workload

    bucket = named_workload("gemm", {**GEMM, "m": "1..64"}).record
    store = open_store(home.database_url)
    final = store.latest_final(look().record.workload.key)
    assert final is not None
    winner, session = store.trial(final.final.winner), store.session(final.final.session)
    assert winner is not None
    assert session is not None
    fields = replace(session.fields, workload=store.put_workload(bucket))
    store.begin_session(replace(session, id="bucket", fields=fields))
    copied = replace(winner.trial, session="bucket", index=0, workload=bucket.key)
    number = store.record_trial(copied)
    entry = replace(next(e for e in final.final.entries if e.trial == winner.id), trial=number)
    store.record_final(
        replace(final.final, session="bucket", workload=bucket.key, winner=number, entries=(entry,))
    )
    store.close()
    with pytest.raises(NotRecordedError):
        look(m=20)
    kernel = look(m=20, allow=("bucket",))
    assert kernel.served_by is ServedBy.BUCKET
    a, b = empty((20, 8), np.dtype("f4")), inputs()[1]
    a[...] = 4
    assert np.array_equal(kernel(a, b), a @ b)
    with pytest.raises(NotRecordedError):
        look(m=65, allow=("bucket",))


def test_a_miss_of_an_op_never_tuned_compares_it_with_no_other(home: Settings) -> None:
    with pytest.raises(
        Missed, match=r"on null; nothing is recorded for softmax yet; run"
    ) as caught:
        tfsearch.lookup("softmax", rows=12, cols=8, dtype="f32", target="null")
    assert caught.value.nearest[0].differs["workload.op"] == ("softmax", "gemm")


def test_a_miss_of_another_layout_shows_where_the_programs_part(home: Settings) -> None:
    with pytest.raises(Missed) as caught:
        look(strides={"a": (16, 1)})
    assert set(caught.value.nearest[0].differs) == {"workload.program"}
    part = "workload.program is …f32[12,8], b: f32[8,… there, …f32[12,8; strides 16… here"
    assert part in caught.value.message


def test_a_miss_says_absent_and_not_none(home: Settings) -> None:
    with pytest.raises(Missed, match=r"workload\.dims\.batch is absent there, 2 here"):
        look(batch=2)
