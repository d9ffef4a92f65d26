"""``tfsearch.tune(…)`` from Python."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import tfsearch
from tfsearch.core.errors import NotSavedError, RequestError
from tfsearch.measure.job import Limits
from tfsearch.tune import Interrupted, NotSavedWarning, TrialEnded, open_for_tuning
from tfsearch.tune.observer import Silent

QUICK = {"target": "null", "trials": 2, "limits": Limits(budget_s=0.2), "baseline": False}
GEMM = {"m": 5, "n": 6, "k": 7, "dtype": "f32"}


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TFSEARCH_HOME", str(tmp_path))
    monkeypatch.delenv("TFSEARCH_DB", raising=False)
    return tmp_path


def test_one_call_tunes_and_records(own_home: Path) -> None:
    report = tfsearch.tune("gemm", **GEMM, **QUICK)
    assert report.best is not None
    assert report.workload.op == "gemm"
    assert (own_home / "tfsearch.db").is_file()
    again = tfsearch.tune("gemm", **GEMM, **QUICK)
    assert again.best is not None
    assert again.best.source == "database"


def test_a_function_in_a_file_is_tuned(own_home: Path) -> None:
    (own_home / "model.py").write_text('def scaled(x: "f32[rows, 8]"):\n    return x * 2.0 + 1.0\n')
    report = tfsearch.tune(f"{own_home / 'model.py'}:scaled", rows=5, **QUICK)
    assert report.best is not None


@pytest.mark.parametrize(
    ("op", "options", "code"),
    [
        ("gmem", GEMM, "workload.unknown-op"),
        ("gemm", {**GEMM, "q": 1}, "workload.unknown-option"),
        ("gemm", {"m": 5}, "workload.missing-option"),
        ("gemm", {**GEMM, "m": 0}, "workload.dimension"),
        ("gemm", {**GEMM, "accuracy": "loose"}, "workload.accuracy"),
        ("gemm", {**GEMM, "constant_inputs": "b"}, "workload.constant-input"),
        ("gemm", {**GEMM, "flags": "-O2"}, "tune.option"),
        ("gemm", {**GEMM, "db": "not a url"}, "db.url"),
        ("gemm", {**GEMM, "trials": "3"}, "tune.budget"),
        ("gemm", {**GEMM, "trials": 2.5}, "tune.budget"),
        ("gemm", {**GEMM, "workers": True}, "tune.budget"),
        ("gemm", {**GEMM, "seconds": "3"}, "tune.budget"),
        ("gemm", {**GEMM, "policy": 3}, "policy.unknown"),
        ("gemm", {**GEMM, "seed": "1"}, "tune.seed"),
        ("gemm", {**GEMM, "fix": "rows=1"}, "tune.option"),
        ("gemm", {**GEMM, "db": 7}, "db.url"),
        ("kernel.c", {"target": "null"}, "workload.unknown-op"),
    ],
)
def test_a_wrong_call_is_one_coded_error(op: str, options: dict[str, object], code: str) -> None:
    with pytest.raises(RequestError) as caught:
        tfsearch.tune(op, **{**QUICK, **options})
    assert caught.value.code == code


def test_a_database_that_cannot_be_made_costs_the_record_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from tfsearch.tune import front

    error = NotSavedError("db.read-only", "the folder is read-only")

    def refuse(url: str) -> None:
        raise error

    monkeypatch.setattr(front, "open_store", refuse)
    assert open_for_tuning("sqlite:///x") == (None, error)
    with pytest.warns(NotSavedWarning, match="read-only"):
        report = tfsearch.tune("gemm", **GEMM, **QUICK)
    assert report.best is not None
    assert report.exit_code == 6


def test_ctrl_c_raises_with_the_report() -> None:
    import os
    import signal

    class Impatient(Silent):
        def trial(self, event: TrialEnded) -> None:
            os.kill(os.getpid(), signal.SIGINT)

    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(Interrupted) as caught:
        tfsearch.tune("gemm", **GEMM, **{**QUICK, "trials": 50}, observer=Impatient())
    assert signal.getsignal(signal.SIGINT) is before
    report = caught.value.report
    assert report.interrupted
    assert report.exit_code == 130
    assert report.best is not None
    assert report.trials.total == 1


def test_importing_tfsearch_loads_nothing_heavy() -> None:
    code = (
        "import sys, tfsearch; heavy = {'numpy', 'sqlalchemy', 'rich', 'ml_dtypes', 'optuna'}; "
        "sys.exit(str(heavy & set(sys.modules)) if heavy & set(sys.modules) else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_unknown_names_are_attribute_errors() -> None:
    with pytest.raises(AttributeError, match="nothing"):
        _ = tfsearch.nothing
    with pytest.raises(AttributeError, match="nothing"):
        _ = tfsearch.tune.nothing
    assert "tune" in dir(tfsearch)
