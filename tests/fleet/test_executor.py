"""The Ray executor over real nodes: every ticket ends once, whatever is lost on the way."""

from __future__ import annotations

import itertools
import json
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.fleet.conftest import PREFIX, Nodes
from tests.measure import helpers
from tfsearch.core import keys
from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import Status
from tfsearch.measure.executor import Ended
from tfsearch.measure.job import MeasureJob

pytest.importorskip("ray", reason="ray is not installed")
from tfsearch.measure import cluster, fleet
from tfsearch.measure.fleet import RayExecutor

pytestmark = [pytest.mark.fleet, pytest.mark.xdist_group("fleet")]
SIMULATED = "tests.fleet.servers:Simulated"
Connect = Callable[..., list[Any]]


class Jobs:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.log = folder / "log"
        self.log.touch()

    def make(self, number: int, **said: Any) -> MeasureJob:
        path = self.folder / f"{number}.json"
        path.write_text(json.dumps({"number": number, "log": str(self.log), **said}))
        sha256 = keys.digest_bytes(path.read_bytes())
        return MeasureJob(helpers.workload(), str(path), sha256, helpers.launch())

    def lines(self) -> list[list[str]]:
        """[number, device, process] of every time that a job was begun."""
        return [line.split() for line in self.log.read_text().splitlines()]

    def until_begun(self, count: int) -> None:
        deadline = time.monotonic() + 30
        while len(self.lines()) < count:
            assert time.monotonic() < deadline, self.lines()
            time.sleep(0.02)


@pytest.fixture
def jobs(tmp_path: Path) -> Jobs:
    return Jobs(tmp_path)


def ended(executor: RayExecutor, count: int) -> dict[int, Ended]:
    found = [executor.next_ended() for _ in range(count)]
    assert max(Counter(one.ticket for one in found).values()) == 1
    return {one.ticket: one for one in found}


def until_devices(executor: RayExecutor, jobs: Jobs, count: int) -> None:
    """Small jobs until that many devices are there: workers start one after another."""
    deadline = time.monotonic() + 30
    for number in itertools.count(1000):
        if executor.slots == count * fleet.PIPELINE:
            return
        assert time.monotonic() < deadline
        executor.start(number, jobs.make(number, sleep=0.05))
        assert executor.next_ended().ticket == number


def test_every_device_works_and_every_ticket_comes_back_once(connected: Connect, jobs: Jobs):
    connected("a", "b")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        until_devices(executor, jobs, 2)
        for number in range(8):
            executor.start(number, jobs.make(number, sleep=0.1))
        found = ended(executor, 8)
    assert set(found) == set(range(8))
    assert {one.outcome.message for one in found.values()} == {"a", "b"}
    assert len({tuple(line[1:]) for line in jobs.lines()}) == 2


def test_a_lost_worker_costs_its_jobs_only_time(connected: Connect, jobs: Jobs, tmp_path: Path):
    connected("a", "b")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        executor.start(0, jobs.make(0, dies_once=str(tmp_path / "died")))
        for number in range(1, 5):
            executor.start(number, jobs.make(number))
        found = ended(executor, 5)
    assert set(found) == set(range(5))
    assert all(one.outcome.status is Status.LOAD_ERROR for one in found.values())
    assert Counter(number for number, _, _ in jobs.lines())["0"] == 2


def test_a_job_that_takes_every_worker_down_ends_unmeasured(connected: Connect, jobs: Jobs):
    connected("a")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        executor.start(0, jobs.make(0, dies=True))
        assert ended(executor, 1)[0].outcome.status is Status.CANCELLED
        executor.start(1, jobs.make(1))
        assert ended(executor, 1)[1].outcome.status is Status.LOAD_ERROR


def test_what_a_device_said_outlasts_the_end_of_a_process(
    connected: Connect, jobs: Jobs, tmp_path: Path
):
    connected("a")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        executor.start(0, jobs.make(0, busy_once=str(tmp_path / "refused"), dies=True))
        outcome = ended(executor, 1)[0].outcome
    assert outcome.status is Status.CANCELLED
    assert "died" in outcome.message
    assert "a device said: somebody else has it" in outcome.message


def test_a_node_leaves_and_another_joins(nodes: Nodes, connected: Connect, jobs: Jobs):
    first, _ = connected("a", "b")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        for number in range(4):
            executor.start(number, jobs.make(number, sleep=1.0))
        jobs.until_begun(2)
        nodes.remove(first)
        nodes.add({PREFIX + "c": 1.0})
        found = ended(executor, 4)
        assert set(found) == {0, 1, 2, 3}
        assert all(one.outcome.status is Status.LOAD_ERROR for one in found.values())
        assert {one.outcome.message for one in found.values()} <= {"a", "b", "c"}
        until_devices(executor, jobs, 2)
        for number in range(4, 12):
            executor.start(number, jobs.make(number, sleep=0.1))
        messages = {one.outcome.message for one in ended(executor, 8).values()}
    assert messages == {"b", "c"}


def test_without_nodes_it_waits_for_one_and_then_gives_up(
    nodes: Nodes, connected: Connect, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    (only,) = connected("a")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        executor.start(0, jobs.make(0, sleep=1.0))
        jobs.until_begun(1)
        nodes.remove(only)
        nodes.add({PREFIX + "b": 1.0})
        assert ended(executor, 1)[0].outcome.message == "b"
        monkeypatch.setattr(fleet, "NODE_WAIT_S", 3.0)
        nodes.clear()
        executor.start(1, jobs.make(1))
        with pytest.raises(UnavailableError, match="no node has") as caught:
            executor.next_ended()
    assert caught.value.code == "fleet.no-node"


def test_a_device_that_is_gone_is_given_up(
    connected: Connect, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(fleet, "NODE_WAIT_S", 1.0)
    connected("a")
    with RayExecutor(PREFIX, "", server="tests.fleet.servers:Broken") as executor:
        executor.start(0, jobs.make(0))
        assert "unplugged" in executor.next_ended().outcome.message
        executor.start(1, jobs.make(1))
        with pytest.raises(UnavailableError, match="unplugged"):
            executor.next_ended()


def test_an_overdue_worker_is_replaced_and_its_job_ends_once(
    connected: Connect, jobs: Jobs, monkeypatch: pytest.MonkeyPatch
):
    for name in ("LOCK_WAIT_S", "START_S", "REFERENCE_S"):
        monkeypatch.setattr(fleet, name, 0.0)
    connected("a", "b")
    with RayExecutor(PREFIX, "", server=SIMULATED) as executor:
        slow = jobs.make(0, sleep=4.0)
        executor.start(0, replace(slow, limits=replace(slow.limits, deadline_s=1.0)))
        assert set(ended(executor, 1)) == {0}
        executor.start(1, jobs.make(1))
        assert set(ended(executor, 1)) == {1}
    assert len([line for line in jobs.lines() if line[0] == "0"]) >= 2


def test_a_node_with_another_tfsearch_is_refused(nodes: Nodes):
    nodes.add({f"{cluster.VERSION}:0.0.1+0": 1.0}, joins=False)
    with pytest.raises(UnavailableError, match=r"runs tfsearch 0\.0\.1\+0, this is") as caught:
        cluster.connect(nodes.address)
    assert caught.value.code == "fleet.version"
