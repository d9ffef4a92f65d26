"""A shared machine is noticed: samples are marked, and what others used is recorded."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time

import pytest

from tests.measure.helpers import job
from tests.measure.simulated import SimulatedRunner
from tfsearch.core.records import Status
from tfsearch.measure import bench
from tfsearch.measure.machine import Usage, preemptions, shared, usage
from tfsearch.measure.run import measure


def test_what_others_used_is_what_this_process_did_not() -> None:
    found = shared(Usage(0.0, 1.0, 100.0, 5.0), Usage(2.0, 2.5, 104.5, 5.5))
    assert found == {"others": 1.5, "stolen": 0.25, "processors": os.cpu_count()}
    assert shared(Usage(0.0, 0.0, 1.0, 0.0), Usage(1.0, 1.0, 1.9, 0.0))["others"] == 0.0


@pytest.mark.parametrize(
    "after", [Usage(1.0, 1.0), Usage(0.001, 0.0, 1.0, 0.0)], ids=["untold", "too short"]
)
def test_what_cannot_be_known_is_not_said(after: Usage) -> None:
    found = shared(Usage(0.0, 0.0, 0.0, 0.0), after)
    assert (found["others"], found["stolen"]) == (None, None)


@pytest.mark.skipif(not os.path.exists("/proc/stat"), reason="needs /proc/stat")
def test_another_process_is_seen() -> None:
    before = usage()
    other = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        for _ in range(50):
            time.sleep(0.2)
            if (shared(before, usage())["others"] or 0.0) > 0.2:
                break
        else:
            pytest.fail("a process that keeps a processor busy was not seen")
    finally:
        other.kill()
        other.wait()
    assert preemptions() >= 0


def test_samples_of_disturbed_groups_are_marked(tmp_path, monkeypatch) -> None:
    noisy = {"share": 0.0001, "most": 40}
    counted = itertools.count()  # once more at every look: every group is disturbed
    monkeypatch.setattr(bench, "preemptions", lambda: next(counted))
    outcome = measure(job(tmp_path, "right", limits=noisy), SimulatedRunner())
    assert outcome.status is Status.OK, outcome.message
    samples = len(outcome.measurement.samples_us)
    assert outcome.measurement.conditions["disturbed"] == list(range(samples))

    looks = iter([0, 1, *[1] * 1000])  # in the first group alone
    monkeypatch.setattr(bench, "preemptions", lambda: next(looks))
    found = measure(job(tmp_path, "right", limits=noisy), SimulatedRunner()).measurement
    marked = found.conditions["disturbed"]
    assert 0 < len(marked) < len(found.samples_us)
    assert marked == list(range(len(marked)))

    monkeypatch.setattr(bench, "preemptions", lambda: 0)
    found = measure(job(tmp_path, "right", limits=noisy), SimulatedRunner()).measurement
    assert found.conditions["disturbed"] == []
    assert {"others", "stolen", "processors"} <= set(found.conditions)
