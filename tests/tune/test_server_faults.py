"""A real PostgreSQL server that goes away in the middle of a session."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.postgres import OwnServer, own_server
from tests.tune.helpers import Watcher, run
from tfsearch.core.errors import UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.db import Store, open_store
from tfsearch.ir.workload import Workload
from tfsearch.tune import TrialEnded, recorder
from tfsearch.tune import run as tune_run


@pytest.fixture(scope="module")
def server() -> Iterator[OwnServer]:
    with own_server() as made:
        yield made


@pytest.fixture
def kept(server: OwnServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    monkeypatch.setattr(recorder, "END_WAIT_S", 1.0)
    monkeypatch.setattr(tune_run, "START_WAIT_S", 1.0)
    store = open_store(server.url)
    yield store
    store.close()


@pytest.fixture
def home(tmp_path: Path, server: OwnServer) -> Settings:
    return Settings(tmp_path, server.url)


def whole(store: Store, workload: Workload, count: int) -> None:
    """Every trial is there once, in one finished session with its final."""
    trials = [one.trial for one in store.trials(workload=workload.key)]
    assert sorted(one.index for one in trials) == list(range(count))
    assert len({one.schedule.key for one in trials}) == count
    final = store.latest_final(workload.key)
    assert final is not None
    assert final.final.winner in {one.id for one in store.trials(workload=workload.key)}
    states = [s.status.value for s in store.sessions() if s.fields.workload == workload.key]
    assert states == ["finished"]
    assert store.verify() == []


def sized(m: int) -> Workload:
    from tfsearch.ir.hir.builtins import build_workload

    return build_workload("gemm", {"m": m, "n": 6, "k": 7, "dtype": "f32"})


def test_a_server_that_restarts_in_the_middle_costs_nothing(
    server: OwnServer, kept: Store, home: Settings
):
    def restart(event: TrialEnded) -> None:
        if event.index == 1:
            server.stop()
            server.start()

    report = run(sized(11), kept, home, observer=Watcher(restart), trials=5)
    assert (report.exit_code, report.unsaved) == (0, None)
    whole(kept, sized(11), 5)


def test_a_server_that_is_away_for_a_while_is_waited_for_at_the_end(
    server: OwnServer, kept: Store, home: Settings, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorder, "END_WAIT_S", 60.0)

    def stop(event: TrialEnded) -> None:
        if event.index == 1:
            server.stop()
            threading.Timer(4.0, server.start).start()

    watcher = Watcher(stop)
    report = run(sized(12), kept, home, observer=watcher, trials=5)
    assert (report.exit_code, report.unsaved) == (0, None)
    assert watcher.warnings == ["db.unreachable"]
    assert report.best is not None
    assert report.best.trial > 0
    whole(kept, sized(12), 5)
    assert list((home.home / "journal").iterdir()) == []


def test_a_server_that_stays_away_costs_exit_code_6_until_the_same_command(
    server: OwnServer, kept: Store, home: Settings
):
    def stop(event: TrialEnded) -> None:
        if event.index == 1:
            server.stop()

    try:
        report = run(sized(13), kept, home, observer=Watcher(stop), trials=5)
    finally:
        server.start()
    assert report.exit_code == 6
    assert report.unsaved is not None
    assert "the same command records them" in report.unsaved.message
    again = run(sized(13), kept, home, trials=5, resume=False)
    assert again.trials.reused == 5
    trials = [one.trial for one in kept.trials(workload=sized(13).key)]
    assert sorted(one.index for one in trials) == list(range(5))
    assert kept.verify() == []


def test_a_driver_that_is_killed_while_the_server_is_away_loses_nothing(
    server: OwnServer, kept: Store, home: Settings
):
    child = os.fork()
    if child == 0:

        def stop(event: TrialEnded) -> None:
            if event.index == 1:
                server.stop()
            if event.index == 3:
                os.kill(os.getpid(), signal.SIGKILL)

        try:
            run(sized(14), open_store(server.url), home, observer=Watcher(stop), trials=5)
        finally:
            os._exit(1)
    try:
        _, status = os.waitpid(child, 0)
        assert os.WTERMSIG(status) == signal.SIGKILL
    finally:
        server.start()
    report = run(sized(14), kept, home, trials=5)
    assert report.exit_code == 0
    assert report.trials.reused == 0, "the session went on with what the journal had"
    whole(kept, sized(14), 5)


def test_a_server_that_is_away_from_the_start_is_exit_code_5(server: OwnServer):
    server.stop()
    try:
        with pytest.raises(UnavailableError) as caught:
            open_store(server.url)
    finally:
        server.start()
    assert (caught.value.code, caught.value.exit_code) == ("db.unreachable", 5)
