"""What a journal keeps comes back as it was, once, whoever brings it and however often."""

from __future__ import annotations

import errno
import os
from dataclasses import replace
from typing import Any, cast

import pytest

from tests.db import make
from tests.tune.helpers import Watcher
from tfsearch.core.errors import NotSavedError, UnavailableError
from tfsearch.core.records import Final, FinalEntry, Trial
from tfsearch.core.settings import Settings
from tfsearch.db import ArtifactStore, SessionStatus, Store
from tfsearch.tune import journal as journals
from tfsearch.tune import recorder as recorders
from tfsearch.tune.journal import Beginning, Ending, Journal, local_id, replay
from tfsearch.tune.recorder import Recorder


@pytest.fixture
def beginning(store: Store) -> Beginning:
    record = make.begun(store)
    (session,) = store.sessions()
    return Beginning(record, session)


def trials(beginning: Beginning) -> list[Trial]:
    return [make.trial(beginning.workload, index) for index in range(3)]


def final(beginning: Beginning) -> Final:
    entries = tuple(
        FinalEntry(local_id(index), 3.0, (2.5, 3.5), 1.0 + index, (0.9, 1.1)) for index in (1, 2)
    )
    one = make.trial(beginning.workload, 0)
    assert one.measurement is not None
    return Final(one.session, one.workload, local_id(1), entries, one.measurement.protocol, "now")


def left(home: Settings, store: Store, beginning: Beginning) -> Journal:
    """A journal with a whole session, as its process left it."""
    made = Journal(home.home, store.url, beginning)
    for entry in (*trials(beginning), final(beginning)):
        made.append(entry)
    made.append(Ending(beginning.session.id, SessionStatus.FINISHED, "then"))
    made.close()
    return made


def test_every_record_survives_exactly(home: Settings, store: Store, beginning: Beginning):
    made = left(home, store, beginning)
    head, entries = journals._read(made.path)
    assert head == {"schema": 1, "database": store.url}
    assert entries == [
        beginning,
        *trials(beginning),
        final(beginning),
        Ending(beginning.session.id, SessionStatus.FINISHED, "then"),
    ]


def test_a_replay_writes_all_of_it_once(home: Settings, store: Store, beginning: Beginning):
    made = left(home, store, beginning)
    copy = made.path.read_bytes()
    assert replay(home.home, store) == 1
    assert not made.path.exists()
    made.path.write_bytes(copy)
    assert replay(home.home, store) == 1
    assert [one.trial for one in store.trials()] == trials(beginning)
    assert store.stats().finals == 1
    found = store.latest_final(beginning.workload.key)
    assert found is not None
    assert store.trial(found.final.winner) == store.trials()[1]
    (session,) = store.sessions()
    assert (session.status, session.finished_at) == (SessionStatus.FINISHED, "then")


def test_a_line_that_was_cut_off_is_none(home: Settings, store: Store, beginning: Beginning):
    made = Journal(home.home, store.url, beginning)
    for entry in trials(beginning):
        made.append(entry)
    made.close()
    made.path.write_bytes(made.path.read_bytes()[:-40])
    replay(home.home, store)
    assert [one.trial for one in store.trials()] == trials(beginning)[:2]


def test_the_journals_of_others_stay(home: Settings, store: Store, beginning: Beginning):
    other = left(home, cast("Store", Elsewhere()), beginning)
    assert replay(home.home, store) == 0
    assert other.path.exists()
    other.path.unlink()
    running = Journal(home.home, store.url, beginning)
    running.append(trials(beginning)[0])
    assert replay(home.home, store) == 0
    assert store.trials() == []
    running.close()
    assert replay(home.home, store) == 1


class Elsewhere:
    url = "sqlite:///elsewhere.db"


def test_a_place_that_was_taken_meanwhile_costs_no_trial(
    home: Settings, store: Store, beginning: Beginning
):
    made = left(home, store, beginning)
    copy = made.path.read_bytes()
    taken = replace(trials(beginning)[1], message="measured by whoever resumed it")
    store.record_trial(trials(beginning)[0])
    store.record_trial(taken)
    for _ in range(2):
        made.path.write_bytes(copy)
        replay(home.home, store)
        first, second, third = trials(beginning)
        now = {one.trial.index: one.trial for one in store.trials()}
        assert now == {0: first, 1: taken, 2: replace(second, index=2), 3: replace(third, index=3)}


class Broken:
    """A store that is away while ``error`` is set."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.error: Exception | None = None
        self.after_commit = False
        self.calls = 0

    def __getattr__(self, name: str) -> Any:
        real = getattr(self._store, name)
        if not callable(real):
            return real

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls += 1
            if self.error is not None and self.after_commit:
                real(*arguments, **options)
            if self.error is not None:
                raise self.error
            return real(*arguments, **options)

        return call


GONE = UnavailableError("db.unreachable", "away")


@pytest.fixture
def broken(store: Store) -> Broken:
    return Broken(store)


@pytest.fixture
def recorder(
    broken: Broken, home: Settings, beginning: Beginning, monkeypatch: pytest.MonkeyPatch
) -> Recorder:
    monkeypatch.setattr(recorders, "END_WAIT_S", 0.0)
    monkeypatch.setattr(recorders, "PAUSES_S", (0.0,) * 6)
    made = Recorder(cast("Store", broken), ArtifactStore(home.artifacts), Watcher(), home=home.home)
    made.begin(beginning.workload, beginning.session)
    return made


@pytest.mark.parametrize("after_commit", [False, True])
def test_an_outage_in_a_session_loses_and_repeats_nothing(
    recorder: Recorder, broken: Broken, store: Store, beginning: Beginning, after_commit: bool
):
    first, second, third = trials(beginning)
    assert recorder.trial(first) > 0
    broken.error, broken.after_commit = GONE, after_commit
    assert recorder.trial(second) == local_id(1)
    assert recorder.unsaved is GONE
    broken.error = None
    assert recorder.trial(third) > 0
    assert recorder.unsaved is None
    recorder.final(final(beginning))
    recorder.finish(SessionStatus.FINISHED, "then")
    assert [one.trial for one in store.trials()] == [first, second, third]
    assert store.trial(recorder.id_of(local_id(1))) == store.trials()[1]
    assert store.stats().finals == 1
    assert recorder.unsaved is None


def test_what_is_kept_is_on_the_disk_at_once(
    recorder: Recorder, broken: Broken, store: Store, home: Settings, beginning: Beginning
):
    """The driver may be killed at any time."""
    broken.error = GONE
    for one in trials(beginning):
        recorder.trial(one)
    (path,) = (home.home / "journal").iterdir()
    copy = home.home / "journal" / "copy.jsonl"  # the first one belongs to a process that runs
    copy.write_bytes(path.read_bytes())
    replay(home.home, store)
    assert [one.trial for one in store.trials()] == trials(beginning)


def test_a_server_that_is_away_is_not_asked_all_the_time(
    recorder: Recorder, broken: Broken, beginning: Beginning, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(recorders, "PAUSES_S", (60.0,) * 6)
    broken.error = GONE
    recorder.trial(trials(beginning)[0])
    before = broken.calls
    for _ in range(100):
        recorder.read(lambda store: store.best)
        recorder.trial(trials(beginning)[1])
    assert broken.calls == before


def test_without_room_for_a_journal_memory_keeps_it_up_to_a_bound(
    recorder: Recorder,
    broken: Broken,
    store: Store,
    beginning: Beginning,
    monkeypatch: pytest.MonkeyPatch,
):
    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(journals.os, "fsync", full)
    monkeypatch.setattr(recorders, "MOST_HELD", 3)
    broken.error = NotSavedError("db.disk-full", "full")
    first, second, third = trials(beginning)
    recorder.trial(first)
    recorder.trial(second)
    with pytest.raises(UnavailableError, match="could be written nowhere") as caught:
        recorder.trial(third)
    assert caught.value.code == "session.no-room"
    broken.error = None
    recorder.finish(SessionStatus.INTERRUPTED, "")
    assert [one.trial for one in store.trials()] == [first, second, third]
    assert recorder.unsaved is None
