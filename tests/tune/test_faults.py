"""Every way in which a candidate can fail is its trial's status, and the session goes on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tune.faulty import BY_FAULT, ONE_POINT, WRONG
from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import Store
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits, MeasureJob, MeasureOutcome
from tfsearch.measure.worker import Measurer
from tfsearch.tune import AllFailedError, TuneReport, TuneRequest, tune

QUICK = Limits(deadline_s=2.0, budget_s=0.5)


def _tune(
    workload: Workload, store: Store, home: Settings, target: str, **options: Any
) -> TuneReport:
    request = TuneRequest(
        workload,
        target=target,
        policy="exhaustive",
        baseline=False,
        limits=QUICK,
        **{"fix": ONE_POINT, "trials": 100, **options},
    )
    return tune(request, store=store, settings=home)


def test_every_fault_becomes_its_status_and_the_session_goes_on(
    gemm: Workload, store: Store, home: Settings, faulty: str
) -> None:
    report = _tune(gemm, store, home, faulty)
    trials = {str(t.trial.schedule.params["fault"]): t.trial for t in store.trials()}
    assert {fault: trial.status for fault, trial in trials.items()} == BY_FAULT
    assert report.trials.total == len(BY_FAULT)
    assert report.trials.ok == 1
    assert sum(report.trials.failed.values()) == len(BY_FAULT) - 1
    assert set(report.trials.failed) | {Status.OK, Status.CANCELLED} == set(Status)
    for fault, trial in trials.items():
        assert (trial.measurement is not None) == (fault == "none")
        assert fault == "none" or (trial.code and trial.message), fault
    best = report.best
    assert best is not None
    assert best.schedule.params["fault"] == "none"
    assert best.verified


@pytest.mark.parametrize("fault", WRONG)
def test_a_planted_wrong_kernel_is_never_best_and_never_served(
    gemm: Workload, store: Store, home: Settings, faulty: str, fault: str
) -> None:
    with pytest.raises(AllFailedError) as caught:
        _tune(gemm, store, home, faulty, fix={**ONE_POINT, "fault": fault})
    assert caught.value.table[0].status is Status.WRONG
    (stored,) = store.trials()
    assert stored.trial.measurement is None
    assert stored.trial.verification is not None
    assert not stored.trial.verification.passed
    assert store.latest_final(gemm.key) is None


def test_all_candidates_failing_is_reported_as_such(
    gemm: Workload, store: Store, home: Settings, faulty: str
) -> None:
    fix = {name: value for name, value in ONE_POINT.items() if name != "stages"}
    with pytest.raises(AllFailedError, match="4 compile_error") as caught:
        _tune(gemm, store, home, faulty, fix={**fix, "fault": "compile_error"})
    error = caught.value
    assert (error.exit_code, error.code) == (3, "tune.all-failed")
    (line,) = error.table
    assert (line.status, line.count) == (Status.COMPILE_ERROR, 4)
    assert line.message == "planted compile_error"
    (session,) = store.sessions()
    assert session.status.value == "failed"


@pytest.mark.parametrize("after", [0, 2])
def test_a_device_that_goes_away_ends_the_session_with_what_is_known(
    gemm: Workload,
    store: Store,
    home: Settings,
    monkeypatch: pytest.MonkeyPatch,
    after: int,
) -> None:
    real, calls = Measurer.submit, [0]

    def submit(self: Measurer, job: MeasureJob) -> MeasureOutcome:
        calls[0] += 1
        if calls[0] > after:
            raise UnavailableError("measure.start", "the device fell off the bus")
        return real(self, job)

    monkeypatch.setattr(Measurer, "submit", submit)
    fix = {name: value for name, value in ONE_POINT.items() if name != "stages"}
    if after == 0:
        with pytest.raises(UnavailableError, match="fell off"):
            _tune(gemm, store, home, "null", fix=fix)
    else:
        report = _tune(gemm, store, home, "null", fix=fix)
        assert report.exit_code == 5
        assert report.best is not None
        assert report.trials.ok == 2
    (session,) = store.sessions()
    assert session.status.value == "interrupted"
    monkeypatch.undo()
    resumed = _tune(gemm, store, home, "null", fix=fix)
    assert resumed.session == session.id
    assert resumed.trials.ok == 4
