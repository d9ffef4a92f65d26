"""Wrong and broken kernels, really compiled and run: each ends in its status, none is best."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.system.planted import BY_FAULT, WRONG, K, M, N, fragile_compiler
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.job import Limits
from tfsearch.plugin import registry
from tfsearch.tune import AllFailedError, TuneReport, TuneRequest, building, tune

pytestmark = pytest.mark.xdist_group("planted")

QUICK = Limits(deadline_s=8.0, budget_s=0.1)
GEMM = {"m": M, "n": N, "k": K, "dtype": "f32"}


def one_point() -> dict[str, object]:
    """A point of the space, the fault left open."""
    target = registry.get("planted")
    space = target.problem(build_workload("gemm", GEMM), target.devices()[0]).space
    (point,) = space.fix({"units": 1, "fault": "none"}).sample(1, np.random.default_rng(0))
    return {k: v for k, v in point.params.items() if k != "fault"}


def _tune(home: Settings, fix: dict[str, object], **options: object) -> TuneReport:
    request = TuneRequest(
        build_workload("gemm", GEMM),
        target="planted",
        policy="exhaustive",
        baseline=False,
        limits=QUICK,
        **{"trials": 100, "fix": fix, **options},  # type: ignore[arg-type]
    )
    store = open_store(home.database_url)
    try:
        return tune(request, store=store, settings=home)
    finally:
        store.close()


@pytest.mark.slow
def test_every_fault_ends_in_its_status_and_only_the_right_kernel_is_best(
    home: Settings, planted: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(building, "COMPILE_TIMEOUT_S", 10.0)
    compiler = str(fragile_compiler(tmp_path))
    report = _tune(home, one_point(), toolchain=compiler)
    store = open_store(home.database_url)
    trials = {str(t.trial.schedule.params["fault"]): t.trial for t in store.trials()}
    store.close()
    assert {fault: trial.status for fault, trial in trials.items()} == BY_FAULT
    assert report.best is not None
    assert report.best.schedule.params["fault"] == "none"
    assert report.trials.total == len(BY_FAULT)
    for fault, trial in trials.items():
        assert (trial.measurement is not None) == (fault == "none")
        assert fault == "none" or (trial.code and trial.message), fault
        if fault in WRONG:
            assert trial.verification is not None
            assert not trial.verification.passed


def test_every_candidate_failing_is_an_error_with_the_table(home: Settings, planted: str) -> None:
    fix = one_point()
    del fix["unroll"]
    with pytest.raises(AllFailedError) as caught:
        _tune(home, {**fix, "fault": "zeros"}, trials=2)
    assert caught.value.exit_code == 3
    (line,) = caught.value.table
    assert (line.status, line.count) == (Status.WRONG, 2)
    assert "output c" in line.message
