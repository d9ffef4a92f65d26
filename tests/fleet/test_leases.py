"""The executor begins nothing on a device that another session has."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from tests.fleet.conftest import PREFIX
from tests.fleet.test_executor import SIMULATED, Connect, Jobs, ended, jobs
from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import Status

pytest.importorskip("ray", reason="ray is not installed")
from tfsearch.measure import cluster, fleet
from tfsearch.measure.fleet import RayExecutor

pytestmark = [pytest.mark.fleet, pytest.mark.xdist_group("fleet")]
__all__ = ["jobs"]


class Granted:
    """Leases that a test grants and takes away."""

    def __init__(self) -> None:
        self.wanted: list[str] = []
        self.granted = True
        self.uses: Counter[str] = Counter()

    def want(self, device: str) -> None:
        self.wanted.append(device)

    def held(self, device: str) -> bool:
        return self.granted

    def usable(self, device: str) -> bool:
        return self.granted

    def begin(self, device: str) -> bool:
        if self.granted:
            self.uses[device] += 1
        return self.granted

    def end(self, device: str) -> None:
        self.uses[device] -= 1

    def holder_of(self, device: str) -> str:
        return "elsewhere:1:2"


def later(seconds: float, work: Callable[[], Any]) -> None:
    threading.Timer(seconds, work).start()


def test_a_job_waits_for_the_lease_of_a_device(connected: Connect, jobs: Jobs):
    connected("a")
    leases = Granted()
    leases.granted = False
    with RayExecutor(PREFIX, "", server=SIMULATED, leases=leases) as executor:
        (device,) = leases.wanted
        assert device.startswith("(a)@")
        executor.start(0, jobs.make(0))
        later(1.0, lambda: setattr(leases, "granted", True))
        begun = time.monotonic()
        assert set(ended(executor, 1)) == {0}
        assert time.monotonic() - begun >= 0.9
    assert +leases.uses == Counter()


def test_a_lost_lease_ends_what_is_under_way_and_costs_the_job_nothing(
    connected: Connect, jobs: Jobs
):
    connected("a")
    leases = Granted()
    with RayExecutor(PREFIX, "", server=SIMULATED, leases=leases) as executor:
        executor.start(0, jobs.make(0, sleep=3.0))
        for count in range(1, 1 + cluster.ATTEMPTS):
            later(1.5, lambda: setattr(leases, "granted", False))
            later(2.5, lambda: setattr(leases, "granted", True))
            while len(jobs.lines()) < 1 + count:
                executor._poll()
        found = ended(executor, 1)
    assert found[0].outcome.status is Status.LOAD_ERROR, "it was measured in the end"
    assert len({process for _, _, process in jobs.lines()}) == len(jobs.lines())
    assert +leases.uses == Counter()


def test_a_device_that_never_comes_free_is_an_error_that_names_its_holder(
    connected: Connect, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleet, "LEASE_WAIT_S", 1.0)
    connected("a")
    leases = Granted()
    leases.granted = False
    with RayExecutor(PREFIX, "", server=SIMULATED, leases=leases) as executor:
        executor.start(0, jobs.make(0))
        with pytest.raises(
            UnavailableError, match="session process elsewhere:1:2 has it"
        ) as caught:
            executor.next_ended()
    assert caught.value.code == "device.leased"


def test_nodes_that_reach_one_device_do_not_use_it_at_once(connected: Connect, jobs: Jobs):
    connected("a", "a")
    leases = Granted()
    with RayExecutor(PREFIX, "", server=SIMULATED, leases=leases) as executor:
        deadline = time.monotonic() + 30
        while len(executor._workers) < 2:
            assert time.monotonic() < deadline
            executor._poll()
        assert executor.slots == fleet.PIPELINE
        for number in range(4):
            executor.start(number, jobs.make(number))
        ended(executor, 4)
    assert len({process for _, _, process in jobs.lines()}) == 1
