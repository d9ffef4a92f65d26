"""One session at a time on a device, whatever clocks and the database do."""

from __future__ import annotations

import threading
import time
from typing import Any, cast

import pytest

from tfsearch.core.errors import UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.db import Store, open_store
from tfsearch.tune import leasing
from tfsearch.tune.leasing import DeviceLeases

DEVICE = "runner(gpu)@host"


class Clock:
    """A steady clock that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class Lossy:
    """A store that is away, or loses the answer to what it has done."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.away = False
        self.loses_answer = False

    def tend_leases(self, *arguments: Any, **options: Any) -> Any:
        if self.away:
            raise UnavailableError("db.unreachable", "away")
        found = self._store.tend_leases(*arguments, **options)
        if self.loses_answer:
            raise UnavailableError("db.unreachable", "lost in the middle of a commit")
        return found


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """No thread: the test does the rounds."""
    ended = threading.Thread(target=lambda: None)
    ended.start()
    monkeypatch.setattr(DeviceLeases, "_started", lambda _: ended)


@pytest.fixture
def lossy(store: Store) -> Lossy:
    return Lossy(store)


@pytest.fixture
def pair(lossy: Lossy, store: Store, clock: Clock, quiet: None) -> list[DeviceLeases]:
    made = [DeviceLeases(cast("Store", lossy), clock), DeviceLeases(store, clock)]
    for one in made:
        one.want(DEVICE)
        one.look()
    return made


def pass_time(clock: Clock, seconds: float, *looking: DeviceLeases) -> None:
    for _ in range(int(seconds)):
        clock.now += 1.0
        for one in looking:
            one.look()


def test_one_has_it_and_keeps_it_while_it_lives(pair: list[DeviceLeases], clock: Clock):
    first, second = pair
    assert (first.held(DEVICE), second.held(DEVICE)) == (True, False)
    assert second.holder_of(DEVICE) == first.holder
    assert first.begin(DEVICE)
    pass_time(clock, 100, first, second)
    assert (first.held(DEVICE), second.held(DEVICE)) == (True, False)


def test_a_session_that_waits_gets_its_turn(pair: list[DeviceLeases], clock: Clock):
    first, second = pair
    assert first.begin(DEVICE)
    assert not second.begin(DEVICE)
    pass_time(clock, 5, first, second)
    assert first.held(DEVICE), "what is under way is waited for"
    assert not first.usable(DEVICE)
    assert not first.begin(DEVICE), "and nothing more begins"
    first.end(DEVICE)
    first.look()
    assert not first.held(DEVICE)
    second.look()
    assert second.begin(DEVICE)
    first.look()
    assert not first.held(DEVICE)


def test_a_session_that_does_not_use_its_device_gives_it_to_who_waits(
    pair: list[DeviceLeases], clock: Clock
):
    """As when it waits for a compiler, with nobody there to ask it."""
    first, second = pair
    pass_time(clock, 4, first, second)
    assert second.held(DEVICE)
    assert not first.held(DEVICE)


def test_nobody_has_to_leave_a_device_that_nobody_wants(store: Store, clock: Clock, quiet: None):
    only = DeviceLeases(store, clock)
    only.want(DEVICE)
    only.look()
    pass_time(clock, 100, only)
    assert only.held(DEVICE)
    assert only.usable(DEVICE)


def test_the_lease_of_a_session_that_is_gone_runs_out(pair: list[DeviceLeases], clock: Clock):
    _, second = pair
    pass_time(clock, leasing.EXPIRE_S - 1, second)
    assert not second.held(DEVICE)
    pass_time(clock, 3, second)
    assert second.held(DEVICE)


def test_a_session_without_the_database_stops_before_another_one_begins(
    pair: list[DeviceLeases], lossy: Lossy, clock: Clock
):
    first, second = pair
    lossy.away = True
    for _ in range(100):
        pass_time(clock, 1, first, second)
        assert not (first.held(DEVICE) and second.held(DEVICE))
    assert second.held(DEVICE)
    lossy.away = False
    pass_time(clock, 1, first)
    assert not first.held(DEVICE)


def test_a_lease_does_not_run_out_while_nobody_could_prove_anything(
    pair: list[DeviceLeases], clock: Clock
):
    """The database was away for all: the first look after that begins anew."""
    first, second = pair
    clock.now += 100
    second.look()
    assert not second.held(DEVICE)
    assert not first.held(DEVICE)
    pass_time(clock, 1, first, second)
    assert first.held(DEVICE)


def test_a_clock_that_is_set_changes_nothing(
    pair: list[DeviceLeases], clock: Clock, monkeypatch: pytest.MonkeyPatch
):
    first, second = pair
    assert first.begin(DEVICE)
    for jump in (-1e9, 1e9):
        monkeypatch.setattr(time, "time", lambda jump=jump: jump)
        pass_time(clock, 2, first, second)
        assert (first.held(DEVICE), second.held(DEVICE)) == (True, False)


def test_a_lease_whose_grant_was_not_heard_of_is_not_lost(
    lossy: Lossy, store: Store, clock: Clock, quiet: None
):
    first = DeviceLeases(cast("Store", lossy), clock)
    first.want(DEVICE)
    lossy.loses_answer = True
    first.look()
    assert not first.held(DEVICE)
    lossy.loses_answer = False
    first.look()
    assert first.held(DEVICE)


def test_a_process_that_was_stopped_has_lost_its_lease_when_it_goes_on(
    pair: list[DeviceLeases], clock: Clock
):
    first, second = pair
    pass_time(clock, leasing.EXPIRE_S + 2, second)
    assert second.held(DEVICE)
    assert not first.held(DEVICE), "before its first look"
    first.look()
    assert not first.held(DEVICE)


def test_closing_gives_everything_back(pair: list[DeviceLeases], clock: Clock):
    first, second = pair
    first.close()
    second.look()
    assert second.held(DEVICE)


def test_the_thread_takes_turns_by_itself(home: Settings, monkeypatch: pytest.MonkeyPatch):
    for name in ("POLL_S", "BEAT_S", "TURN_S", "REST_S"):
        monkeypatch.setattr(leasing, name, 0.05)
    stores = [open_store(home.database_url) for _ in range(2)]
    both = [DeviceLeases(one) for one in stores]
    turns: list[int] = []
    deadline = time.monotonic() + 30
    for one in both:
        one.want(DEVICE)
    while len(turns) < 4:
        assert time.monotonic() < deadline, turns
        having = [index for index, one in enumerate(both) if one.held(DEVICE)]
        assert len(having) <= 1
        if having and turns[-1:] != having:
            turns += having
        time.sleep(0.01)
    for one, store in zip(both, stores, strict=True):
        one.close()
        store.close()
    assert turns in ([0, 1, 0, 1], [1, 0, 1, 0])
