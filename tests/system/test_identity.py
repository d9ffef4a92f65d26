"""Each field of the keys of builds and measurements, flipped: a miss that names the field."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import pytest

from tests.system.conftest import GEMM, at_home
from tfsearch.core import keys
from tfsearch.core.records import (
    BuildKey,
    DeviceRecord,
    MeasurementKey,
    ToolchainRecord,
    Trial,
    WorkloadRecord,
)
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.trace import trace
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits
from tfsearch.plugin import registry
from tfsearch.plugin.target import Compiler, Device, Problem, Source
from tfsearch.runtime.serve import serve
from tfsearch.runtime.serving import Missed, Question, resolve
from tfsearch.target.x86 import X86Target, clib
from tfsearch.target.x86.compiler import X86Compiler
from tfsearch.tune import TuneRequest, tune

pytestmark = pytest.mark.xdist_group("identity")

FLAGS = ("-fno-unroll-loops", "-fno-tree-vectorize")
MACROS = ("FIRST=1", "SECOND=2")


@dataclass(frozen=True)
class Tuned:
    home: Settings
    question: Question
    trial: Trial
    winner: int


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    """One workload tuned with one trial, shared by all flips: a lookup only reads."""
    with pytest.MonkeyPatch.context() as patch:
        home = at_home(tmp_path_factory.mktemp("flips"), patch)
        workload = build_workload("gemm", GEMM)
        options: dict[str, Any] = {"target": "x86", "toolchain": "gcc"}
        options |= {"flags": FLAGS, "macros": MACROS}
        limits = Limits(budget_s=0.1)
        request = TuneRequest(workload, trials=1, baseline=False, limits=limits, **options)
        store = open_store(home.database_url)
        report = tune(request, store=store, settings=home)
        assert report.best is not None
        stored = store.trial(report.best.trial)
        assert stored is not None
        store.close()
        yield Tuned(home, Question(workload, **options), stored.trial, stored.id)


@pytest.fixture
def target_named_x86() -> Iterator[Callable[[type[X86Target]], None]]:
    """Puts another class in the place of the target."""
    yield lambda kind: registry.register("x86", kind)
    registry.unregister("x86")


def missed(tuned: Tuned, question: Question | None = None) -> dict[str, tuple[object, object]]:
    """What differs in the nearest record of a lookup that misses."""
    with pytest.raises(Missed) as caught:
        serve(question or tuned.question, tuned.home)
    assert caught.value.nearest
    return dict(caught.value.nearest[0].differs)


def test_nothing_flipped_is_served(tuned: Tuned) -> None:
    kernel: Any = serve(tuned.question, tuned.home)
    assert kernel.record.trial == tuned.winner


# What a question says --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"flags": (*FLAGS, "-O2")}, "flags"),
        ({"flags": FLAGS[:1]}, "flags"),
        ({"flags": FLAGS[::-1]}, "flags"),
        ({"macros": ("FIRST=1", "SECOND=3")}, "macros"),
        ({"macros": MACROS[::-1]}, "macros"),
        ({"macros": ()}, "macros"),
        ({"protocol": "cold"}, "protocol"),
    ],
)
def test_a_flip_in_the_question_misses_by_that_field(
    tuned: Tuned, change: dict[str, Any], field: str
) -> None:
    assert set(missed(tuned, replace(tuned.question, **change))) == {field}


def test_another_compiler_misses_by_its_name_and_programs(tuned: Tuned) -> None:
    if shutil.which("clang") is None:
        pytest.skip("needs clang")
    differs = missed(tuned, replace(tuned.question, toolchain="clang"))
    assert differs["toolchain.name"] == ("clang", "gcc")
    assert any(name.startswith("toolchain.programs.") for name in differs)


def _with_strides(workload: Workload) -> Workload:
    m, n, k = (int(GEMM[name]) for name in "mnk")
    kind = workload.dtype
    inputs = {"a": TensorType(kind, (m, k), (k + 3, 1)), "b": TensorType(kind, (k, n))}
    program = trace(lambda a, b: {"c": a @ b}, inputs, "gemm")
    return replace(workload, program=program)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        (lambda w: build_workload("gemm", {**GEMM, "dtype": "f64"}), "workload.dtype"),
        (lambda w: build_workload("gemm", {**GEMM, "m": 10}), "workload.dims.m"),
        (_with_strides, "workload.program"),
        (lambda w: replace(w, alignment=64), "workload.alignment"),
        (lambda w: replace(w, accuracy=type(w.accuracy)("fast")), "workload.accuracy"),
        (lambda w: replace(w, reproducible=False), "workload.reproducible"),
        (lambda w: replace(w, constant_inputs=("b",)), "workload.constant_inputs"),
    ],
    ids=["dtype", "size", "stride", "alignment", "accuracy", "reproducible", "constant"],
)
def test_a_flip_in_the_workload_misses_by_that_field(
    tuned: Tuned, change: Callable[[Workload], Workload], field: str
) -> None:
    other = change(tuned.question.workload)
    assert other.key != tuned.question.workload.key
    assert set(missed(tuned, replace(tuned.question, workload=other))) == {field}


# What the machine is ---------------------------------------------------------------------------


@pytest.mark.parametrize("field", [f.name for f in fields(DeviceRecord)])
def test_a_flip_in_the_device_misses_by_that_field(
    tuned: Tuned, field: str, target_named_x86: Callable[[type[X86Target]], None]
) -> None:
    class Elsewhere(X86Target):
        def devices(self) -> tuple[Device, ...]:
            (device,) = super().devices()
            return (replace(device, record=_flipped(device.record, field)),)

    target_named_x86(Elsewhere)
    assert set(missed(tuned)) == {f"device.{field}"}


def _flipped(record: Any, field: str) -> Any:
    value = getattr(record, field)
    others: dict[type, Callable[[Any], Any]] = {
        str: lambda v: v + "x",
        int: lambda v: v + 1,
        tuple: lambda v: (*v, "x"),
        bool: lambda v: not v,
    }
    return replace(record, **{field: others[type(value)](value)})


@pytest.mark.parametrize("role", ["driver", "cc1", "as", "ld", "flags"])
def test_another_program_behind_the_compiler_misses_by_its_role(
    tuned: Tuned, role: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = X86Compiler.record.fget
    assert real is not None

    def record(self: X86Compiler) -> ToolchainRecord:
        found: ToolchainRecord = real(self)
        assert role in found.programs, sorted(found.programs)
        return replace(found, programs={**found.programs, role: "0" * 64})

    monkeypatch.setattr(X86Compiler, "record", property(record))
    assert set(missed(tuned)) == {f"toolchain.programs.{role}"}


def test_the_version_text_of_a_compiler_is_for_people(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = X86Compiler.record.fget
    assert real is not None
    changed = property(lambda self: replace(real(self), version="another text"))
    monkeypatch.setattr(X86Compiler, "record", changed)
    kernel: Any = serve(tuned.question, tuned.home)
    assert kernel.record.trial == tuned.winner


# What is built ---------------------------------------------------------------------------------


def test_an_edited_header_misses_and_its_restoration_serves_again(
    tuned: Tuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "include"
    shutil.copytree(clib.include_dir(), folder, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(clib, "include_dir", lambda: folder)
    header = folder / "maths_memory.h"
    before = header.read_text(encoding="utf-8")
    header.write_text(before + "/* edited */\n", encoding="utf-8")
    assert set(missed(tuned)) == {"build.headers"}
    header.write_text(before, encoding="utf-8")
    kernel: Any = serve(tuned.question, tuned.home)
    assert kernel.record.trial == tuned.winner


EDITS: dict[str, Callable[[Source], Source]] = {
    "source": lambda s: replace(s, text=s.text + "\n"),
    "launch": lambda s: replace(s, launch=replace(s.launch, attributes={"edited": True})),
    "features": lambda s: replace(s, features=(*s.features, "x")),
}


@pytest.mark.parametrize("field", [*EDITS, "flags of the source"])
def test_a_flip_in_what_is_emitted_misses_by_that_field(
    tuned: Tuned, field: str, target_named_x86: Callable[[type[X86Target]], None]
) -> None:
    edit = EDITS.get(field, lambda s: replace(s, flags=(*s.flags, "-g")))

    class Edited(X86Target):
        def generator_digest(self) -> str:
            return "0" * 64

        def problem(self, workload: Workload, device: Device) -> Problem:
            found = super().problem(workload, device)
            emit = found.emit
            found.emit = lambda module, point: edit(emit(module, point))  # type: ignore[method-assign]
            return found

    target_named_x86(Edited)
    expected = "source" if field == "flags of the source" else field
    assert set(missed(tuned)) == {f"build.{expected}"}


def test_another_target_misses_by_its_name(tuned: Tuned) -> None:
    class Other(X86Target):
        name = "other"

    registry.register("other", Other)
    try:
        assert set(missed(tuned, replace(tuned.question, target="other"))) == {"target"}
    finally:
        registry.unregister("other")


def test_another_verifier_version_misses_by_that_field(tuned: Tuned) -> None:
    query = resolve(tuned.question, tuned.home).query()
    store = open_store(tuned.home.database_url)
    found = store.best(query)
    assert found is not None
    newer = replace(query, verifier=query.verifier + 1)
    assert store.best(newer) is None
    (nearest, *_) = store.nearest(newer)
    store.close()
    assert set(nearest.differs) == {"verifier"}


# Keys alone ------------------------------------------------------------------------------------


def _flips(key: MeasurementKey) -> Iterator[tuple[str, MeasurementKey]]:
    for field in fields(BuildKey):
        if field.name != "toolchain":
            yield f"build.{field.name}", replace(key, build=_flipped(key.build, field.name))
    for name in ("name", "programs"):
        toolchain = key.build.toolchain
        value = {**toolchain.programs, "as": "0"} if name == "programs" else "x"
        changed = replace(key.build, toolchain=replace(toolchain, **{name: value}))
        yield f"toolchain.{name}", replace(key, build=changed)
    for field in fields(DeviceRecord):
        yield f"device.{field.name}", replace(key, device=_flipped(key.device, field.name))
    for name in ("protocol", "verifier"):
        yield name, _flipped(key, name)


def test_every_field_of_a_measurement_key_changes_it(tuned: Tuned) -> None:
    key = tuned.trial.measurement_key
    assert key is not None
    found = {"": key.key, **{name: other.key for name, other in _flips(key)}}
    assert len(set(found.values())) == len(found)
    builds = {n: o.build.key for n, o in _flips(key) if n.startswith(("build", "toolchain"))}
    assert len({*builds.values(), key.build.key}) == len(builds) + 1
    for name, other in _flips(key):
        assert len(keys.differences(key.key_fields(), other.key_fields())) == 1, name


def test_every_field_of_a_workload_but_its_labels_changes_its_key(tuned: Tuned) -> None:
    record = tuned.question.workload.record
    labels = {"op", "dims", "dtype"}
    for field in fields(WorkloadRecord):
        if field.name in labels:
            continue
        if field.name == "accuracy":
            other = replace(record, accuracy=type(record.accuracy)("fast"))
        else:
            other = _flipped(record, field.name)
        assert other.key != record.key, field.name
    assert replace(record, op="x", dims={}, dtype="x").key == record.key


def test_a_compiler_computes_the_key_that_was_recorded(tuned: Tuned) -> None:
    place = resolve(tuned.question, tuned.home)
    compiler: Compiler | None = place.compiler
    assert compiler is not None
    problem = place.problem()
    from tfsearch.plugin.identity import lowered_source

    source = lowered_source(problem, "x86", tuned.trial.schedule)
    assert tuned.trial.build is not None
    assert compiler.key(source, FLAGS, MACROS) == tuned.trial.build.key
