"""Trials as T4 results: every status, times in milliseconds, the latest of a configuration."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.db.make import failed, trial, workload
from tfsearch.core.records import Status, Trial
from tfsearch.db.records import StoredTrial
from tfsearch.db.t4 import t4_results

WORK = workload()
INVALIDITY = {
    Status.REFUSED: ("constraints", "InvalidConfig"),
    Status.COMPILE_ERROR: ("compile", "CompilationFailedConfig"),
    Status.COMPILE_TIMEOUT: ("compile", "CompilationFailedConfig"),
    Status.WRONG: ("correctness", "RuntimeFailedConfig"),
    Status.NONDETERMINISTIC: ("correctness", "RuntimeFailedConfig"),
    Status.IMPLAUSIBLE: ("correctness", "RuntimeFailedConfig"),
    Status.TIMEOUT: ("timeout", "RuntimeFailedConfig"),
    Status.CRASH: ("runtime", "RuntimeFailedConfig"),
    Status.LOAD_ERROR: ("runtime", "RuntimeFailedConfig"),
    Status.OUT_OF_MEMORY: ("runtime", "RuntimeFailedConfig"),
    Status.DEVICE_ERROR: ("runtime", "RuntimeFailedConfig"),
}


def results(*trials: Trial) -> list[dict]:
    return t4_results(StoredTrial(i, one) for i, one in enumerate(trials))["results"]


def test_a_measured_trial_has_its_samples_in_milliseconds() -> None:
    one = replace(trial(WORK, tile=8, median=10.0), finished_at="2030-01-01T00:00:00+00:00")
    document = t4_results([StoredTrial(1, one)])
    assert document["schema_version"] == "1.0.0"
    assert document["metadata"] == {"timeunit": "milliseconds"}
    (found,) = document["results"]
    assert one.measurement is not None
    assert one.build is not None
    assert found["configuration"] == {"tile": 8, "pack": True, "order": "mnk"}
    assert found["times"]["runtimes"] == [us / 1e3 for us in one.measurement.samples_us]
    assert found["times"]["compilation"] == one.build.seconds * 1e3
    assert found["measurements"] == [{"name": "time", "value": 0.01, "unit": "ms"}]
    assert (found["invalidity"], found["correctness"]) == ("correct", 1)
    assert found["timestamp"] == "2030-01-01T00:00:00+00:00"
    assert found["objectives"] == ["time"]


@pytest.mark.parametrize("status", INVALIDITY)
def test_a_failed_trial_says_how(status: Status) -> None:
    (found,) = results(failed(WORK, 3, status))
    invalidity, stand_in = INVALIDITY[status]
    assert (found["invalidity"], found["correctness"]) == (invalidity, 0)
    assert found["measurements"][0]["value"] == stand_in
    assert found["times"]["runtimes"] == []


def test_a_configuration_stands_once_with_its_latest_trial_and_cancelled_ones_not_at_all() -> None:
    first, second = trial(WORK, 0, tile=8, median=10.0), trial(WORK, 1, tile=8, median=20.0)
    found = results(first, second, failed(WORK, 5, Status.CANCELLED), trial(WORK, 2, tile=16))
    assert [one["configuration"]["tile"] for one in found] == [8, 16]
    assert found[0]["measurements"][0]["value"] == 0.02


def test_decimals_are_numbers_and_recipes_are_told_apart() -> None:
    one = trial(WORK, 0)
    params = {"share": "0.5", "tiny": "1e-05", "name": "v1.5x", "tile": 4}
    one = replace(one, schedule=replace(one.schedule, params=params))
    (found,) = results(one)
    assert found["configuration"] == {"share": 0.5, "tiny": 1e-05, "name": "v1.5x", "tile": 4}
    other = trial(WORK, 1, tile=9)
    other = replace(other, schedule=replace(other.schedule, recipe="map"))
    assert {row["configuration"]["recipe"] for row in results(one, other)} == {
        "contraction",
        "map",
    }
