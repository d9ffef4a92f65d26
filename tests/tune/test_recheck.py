"""A candidate that is suspiciously fast is measured again, and the slower time counts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from tests.tune.helpers import run
from tfsearch.core.records import Measurement, Status
from tfsearch.core.settings import Settings
from tfsearch.db import Store
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import MeasureOutcome
from tfsearch.plugin import registry
from tfsearch.target.null import NullTarget
from tfsearch.target.null.runner import NullRunner
from tfsearch.tune.session import RECHECK_SEED, RECHECKED, confirmed

FLUKE = 64
"""The block whose first measurement is ten times too fast."""


class FlukeTarget(NullTarget):
    name = "fluke"
    runner = "tests.tune.test_recheck:make"


class FlukeRunner(NullRunner):
    def time(self, kernels: Any, *given: Any, seed: int, **options: Any) -> Any:
        times = super().time(kernels, *given, seed=seed, **options)
        for column, kernel in enumerate(kernels):
            if kernel.document["params"]["block"] == FLUKE and seed < RECHECK_SEED:
                times[:, column] //= 10
        return times


def make(selector: str) -> FlukeRunner:
    assert selector == "null"
    return FlukeRunner()


@pytest.fixture
def fluke() -> Iterator[str]:
    registry.register("fluke", FlukeTarget)
    yield "fluke"
    registry.unregister("fluke")


def test_a_fluke_does_not_become_the_best(
    gemm: Workload, store: Store, home: Settings, fluke: str
) -> None:
    fix = {"unroll": 2, "stages": 2, "order": "forward", "lanes": 1}
    run(gemm, store, home, target=fluke, policy="exhaustive", trials=6, fix=fix, finalists=1)
    trials = {t.trial.schedule.params["block"]: t.trial for t in store.trials()}
    assert len(trials) == 6
    told = {
        block: trial.measurement.conditions.get(RECHECKED)
        for block, trial in trials.items()
        if trial.measurement is not None
    }
    first, second = told.pop(FLUKE) or (0.0, 0.0)
    assert second > 5 * first > 0
    assert trials[FLUKE].measurement is not None
    assert trials[FLUKE].measurement.median_us == second
    assert set(told.values()) == {None}


def outcome(median: float) -> MeasureOutcome:
    found = Measurement((median,) * 6, median, (median, median), "warm", conditions={"drift": 1.0})
    return MeasureOutcome(Status.OK, measurement=found)


def test_the_slower_of_two_times_counts_and_a_failure_decides() -> None:
    for pair in ((1.0, 2.0), (2.0, 1.0)):
        found = confirmed(*map(outcome, pair)).measurement
        assert found is not None
        assert found.median_us == 2.0
        assert found.conditions == {"drift": 1.0, RECHECKED: list(pair)}
    wrong = replace(outcome(1.0), status=Status.WRONG, measurement=None, code="verify.wrong")
    assert confirmed(outcome(1.0), wrong) is wrong
