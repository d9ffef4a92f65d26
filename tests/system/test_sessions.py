"""Whole sessions on this processor: tune, look up, run again warm, edit, prove bounds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tfsearch
from tests.system.conftest import GEMM, at_home
from tfsearch.core.records import Accuracy, ServedBy, Status
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.db.records import StoredTrial
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.measure.job import Limits
from tfsearch.plugin import registry
from tfsearch.runtime import Kernel, empty
from tfsearch.search.scan import predict_points
from tfsearch.space import Point
from tfsearch.target.x86 import X86Target, target
from tfsearch.target.x86.compiler import X86Compiler
from tfsearch.tune import TuneReport

QUICK: Mapping[str, Any] = {
    "target": "x86",
    "baseline": False,
    "limits": Limits(deadline_s=120.0, budget_s=0.1),
}


def tuned(**options: Any) -> TuneReport:
    return tfsearch.tune("gemm", **{**GEMM, **QUICK, **options})


def looked_up(**options: Any) -> Kernel:
    kernel = tfsearch.lookup("gemm", **{**GEMM, "target": "x86", **options})
    assert isinstance(kernel, Kernel)
    return kernel


@pytest.fixture
def compiled(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The sources that were compiled."""
    real, texts = X86Compiler.compile, []

    def compile(self: X86Compiler, source: Any, *rest: Any, **more: Any) -> Any:
        texts.append(source.text)
        return real(self, source, *rest, **more)

    monkeypatch.setattr(X86Compiler, "compile", compile)
    return texts


def trials_of(home: Settings) -> list[StoredTrial]:
    store = open_store(home.database_url)
    try:
        return store.trials()
    finally:
        store.close()


def inputs_of(dtype: str = "f32") -> dict[str, Any]:
    """Aligned arrays of normal numbers."""
    program = build_workload("gemm", {**GEMM, "dtype": dtype}).program
    rng = np.random.default_rng(3)
    found = {i.name: empty(i.type.sizes, i.type.dtype.numpy) for i in program.inputs}
    for array in found.values():
        array[...] = rng.standard_normal(array.shape)
    return found


def test_lookup_serves_exactly_the_winner_and_it_computes_the_program(home: Settings) -> None:
    report = tuned(trials=4)
    assert report.exit_code == 0
    best = report.best
    assert best is not None
    assert best.verified
    kernel = looked_up()
    assert kernel.served_by is ServedBy.EXACT
    assert kernel.record.trial == best.trial
    assert kernel.record.schedule == best.schedule
    arrays = inputs_of()
    (expected,) = evaluate(build_workload("gemm", GEMM).program, arrays)
    np.testing.assert_allclose(kernel(*arrays.values()), expected, rtol=1e-4, atol=1e-4)


def test_cold_then_warm_twice_on_one_database_and_artifact_store(
    home: Settings, compiled: list[str]
) -> None:
    for round_ in range(2):
        before = len(compiled)
        report = tuned(trials=3)
        assert report.best is not None
        # A later final over the same trials may find another of two equally fast ones ahead.
        assert looked_up().record.trial == report.best.trial
        assert report.trials.reused == (3 if round_ else 0)
        assert len(compiled) - before == (0 if round_ else 3)
    store = open_store(home.database_url)
    assert store.verify(home.artifacts) == []
    store.close()


class Refactored(X86Target):
    """After an edit of the generator that changes no source."""

    def generator_digest(self) -> str:
        return "0" * 64


@pytest.fixture
def refactored() -> Iterator[None]:
    registry.register("x86", X86Target)
    yield
    registry.unregister("x86")


def test_an_edit_that_leaves_the_source_equal_loses_no_record(
    home: Settings, compiled: list[str], refactored: None
) -> None:
    report = tuned(trials=2)
    assert report.best is not None
    registry.register("x86", Refactored)
    count = len(compiled)
    assert looked_up().record.trial == report.best.trial
    again = tuned(trials=2)
    assert again.trials.reused == 2
    assert len(compiled) == count


def test_accuracy_classes_are_tuned_apart_and_both_verify(home: Settings) -> None:
    found = {}
    for accuracy in Accuracy:
        report = tuned(trials=1, accuracy=accuracy.value, epilogue="bias+tanh")
        assert report.best is not None
        assert report.best.verified
        found[accuracy] = report.best.trial
    assert len(set(found.values())) == 2
    for accuracy, trial in found.items():
        kernel = looked_up(accuracy=accuracy.value, epilogue="bias+tanh")
        assert kernel.record.trial == trial


def test_the_bound_is_never_above_a_measured_time(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        home = at_home(tmp_path, patch)
        for dtype, size in (("f32", 96), ("f64", 64)):
            shape = {"m": size, "n": size, "k": size, "dtype": dtype}
            report = tuned(trials=4, policy="random", **shape)
            assert report.best is not None
        measured = [t.trial for t in trials_of(home) if t.trial.status is Status.OK]
    assert len(measured) >= 6
    device = target.devices()[0]
    for trial in measured:
        size, dtype = (96, "f32") if "f32" in trial.schedule.recipe else (64, "f64")
        options = {"m": size, "n": size, "k": size, "dtype": dtype}
        problem = target.problem(build_workload("gemm", options), device)
        point = Point(trial.schedule.recipe, trial.schedule.params)
        _, bound = predict_points(problem, [point])
        assert trial.measurement is not None
        assert bound[0] <= min(trial.measurement.samples_us)


@pytest.mark.parametrize("dtype", ["bf16", "i8"])
def test_other_types_are_tuned_and_served(home: Settings, dtype: str) -> None:
    report = tuned(trials=1, dtype=dtype)
    assert report.best is not None
    assert looked_up(dtype=dtype).record.trial == report.best.trial


def test_a_constant_factor_is_prepared_once_and_again_when_it_is_new(home: Settings) -> None:
    constant = {"constant_inputs": ("b",)}
    report = tuned(trials=1, fix={"pack_b": "ahead"}, **constant)
    assert report.best is not None
    kernel = looked_up(**constant)
    arrays = inputs_of()
    a, b = arrays["a"], arrays["b"]
    np.testing.assert_allclose(kernel(a, b), a @ b, rtol=1e-4, atol=1e-4)
    other = empty(b.shape, b.dtype)
    other[...] = b * 2
    np.testing.assert_allclose(kernel(a, other), a @ other, rtol=1e-4, atol=1e-4)


def test_what_was_measured_survives_a_workload_of_the_same_program_and_other_labels(
    home: Settings,
) -> None:
    report = tuned(trials=1)
    assert report.best is not None
    same = replace(build_workload("gemm", GEMM), op="renamed", options={})
    assert same.key == report.workload.key
