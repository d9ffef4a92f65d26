"""A database that fails in the middle costs the record, not the result."""

from __future__ import annotations

import errno
import sqlite3
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.tune.helpers import Watcher, run
from tfsearch.core.errors import NotSavedError, UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.db import Store, open_store
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry
from tfsearch.target.null import NullTarget
from tfsearch.tune import TrialEnded, recorder
from tfsearch.tune import run as tune_run

WRITES = ("put_workload", "begin_session", "record_trial", "record_final", "record_source",
          "record_proof", "record_launch", "finish_session")  # fmt: skip


class Failing:
    """A store whose writes fail from the ``after``-th ``record_trial`` on, until ``heal``."""

    def __init__(self, store: Store, after: int, error: Exception) -> None:
        self._store = store
        self._left = after
        self._error = error
        self.healed = False

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if name not in WRITES:
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            if name == "record_trial":
                self._left -= 1
            if self._left < 0 and not self.healed:
                raise self._error
            return real(*arguments, **options)

        return call


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits long for a server."""
    monkeypatch.setattr(recorder, "END_WAIT_S", 1.0)
    monkeypatch.setattr(tune_run, "START_WAIT_S", 1.0)


FULL = NotSavedError("db.disk-full", "no space left")
GONE = UnavailableError("db.unreachable", "the server went away")


@pytest.mark.parametrize("error", [FULL, GONE])
@pytest.mark.parametrize("after", [0, 2])
def test_the_result_is_reported_with_exit_code_6(
    gemm: Workload, store: Store, home: Settings, after: int, error: Exception
) -> None:
    watcher = Watcher()
    failing = Failing(store, after, error)
    report = run(gemm, cast("Store", failing), home, observer=watcher, trials=4)
    assert report.exit_code == 6
    assert report.unsaved is not None
    assert report.unsaved.code == cast("Any", error).code
    assert report.best is not None
    assert report.best.verified
    assert report.trials.ok == 4
    assert len(store.trials()) == after
    assert watcher.warnings == [cast("Any", error).code]
    (kept,) = (home.home / "journal").iterdir()
    assert f"kept in {kept}: the same command records them" in report.unsaved.message

    failing.healed = True
    again = run(gemm, cast("Store", failing), home, trials=4)
    assert list((home.home / "journal").iterdir()) == []
    assert again.exit_code == 0
    assert again.trials.reused == 4, "all of it is answered from the record"
    assert [one.trial.index for one in store.trials()] == [0, 1, 2, 3]
    final = store.latest_final(gemm.key)
    assert final is not None
    assert all(entry.trial > 0 for entry in final.final.entries)
    assert {one.status.value for one in store.sessions()} == {"finished"}


def test_what_was_held_is_written_when_the_database_recovers(
    gemm: Workload, store: Store, home: Settings
) -> None:
    failing = Failing(store, 1, FULL)

    def heal(event: TrialEnded) -> None:
        failing.healed = event.index == 3

    report = run(gemm, cast("Store", failing), home, observer=Watcher(heal), trials=4)
    assert report.exit_code == 0
    assert report.unsaved is None
    assert [t.trial.index for t in store.trials()] == [0, 1, 2, 3]
    final = store.latest_final(gemm.key)
    assert final is not None
    assert all(entry.trial > 0 for entry in final.final.entries)
    (session,) = store.sessions()
    assert session.status.value == "finished"


def _locked(home: Settings) -> Callable[[], None]:
    """Take the write lock from another connection; the result releases it."""
    other = sqlite3.connect(str(home.home / "tfsearch.db"), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    def release() -> None:
        other.execute("ROLLBACK")
        other.close()

    return release


def test_a_database_that_gets_locked_in_the_middle(gemm: Workload, home: Settings) -> None:
    store = open_store(home.database_url, timeout_s=0.2)
    release: list[Callable[[], None]] = []

    def lock(event: TrialEnded) -> None:
        if event.index == 0:
            release.append(_locked(home))

    report = run(gemm, store, home, observer=Watcher(lock))
    assert report.exit_code == 6
    assert report.unsaved is not None
    assert report.unsaved.code == "db.locked"
    assert report.best is not None
    release[0]()
    assert len(store.trials()) == 1
    store.close()


def test_a_read_only_database_is_measured_against_and_not_written(
    gemm: Workload, store: Store, home: Settings
) -> None:
    first = run(gemm, store, home)
    store.close()
    only = open_store(home.database_url, create=False, read_only=True)
    report = run(gemm, only, home)
    assert report.exit_code == 6
    assert report.unsaved is not None
    assert report.unsaved.code == "db.read-only"
    assert report.trials.reused == 3, "what is recorded still answers"
    assert report.best is not None
    assert first.best is not None
    assert report.best.trial == first.best.trial
    only.close()


def test_a_store_that_could_not_be_opened_is_reported(gemm: Workload, home: Settings) -> None:
    error = NotSavedError("db.locked", "locked from the start")
    report = run(gemm, None, home, unsaved=error)
    assert report.exit_code == 6
    assert report.unsaved is error
    assert report.best is not None


class Cramped(NullTarget):
    """A target whose compiler finds the temporary folder full, from the ``left``-th build on."""

    name = "cramped"
    left = 0
    error: Exception = OSError(errno.ENOSPC, "No space left on device")

    def compiler(self, name: str | None) -> Any:
        real = super().compiler(name)

        class Full(type(real)):
            def compile(self, *arguments: Any, **options: Any) -> Any:
                Cramped.left -= 1
                if Cramped.left < 0:
                    raise Cramped.error
                return super().compile(*arguments, **options)

        return Full(self.name)


@pytest.fixture
def cramped(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Cramped]]:
    registry.register("cramped", Cramped)
    monkeypatch.setattr(Cramped, "left", 0)
    yield Cramped
    registry.unregister("cramped")


def test_a_full_temporary_folder_is_no_fault_of_the_candidates(
    gemm: Workload, store: Store, home: Settings, cramped: type[Cramped]
) -> None:
    with pytest.raises(UnavailableError, match=r"temporary folder .* is full.*TMPDIR") as caught:
        run(gemm, store, home, target="cramped")
    assert (caught.value.code, caught.value.exit_code) == ("toolchain.no-room", 5)
    assert all(one.trial.status.value == "cancelled" for one in store.trials())


def test_what_was_measured_before_the_folder_was_full_is_reported(
    gemm: Workload, store: Store, home: Settings, cramped: type[Cramped]
) -> None:
    cramped.left = 2
    report = run(gemm, store, home, target="cramped", trials=6)
    assert report.exit_code == 5
    assert report.lost is not None
    assert report.lost.code == "toolchain.no-room"
    assert report.best is not None
