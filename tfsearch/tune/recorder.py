"""The session's records: written as they come, kept in a journal when the database fails.

A database that becomes read-only, full, locked or unreachable in the middle costs the record,
not the result: what cannot be written is kept (:mod:`tfsearch.tune.journal`), tried again now and
then and at the end, and reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from tfsearch.core import keys
from tfsearch.core.errors import NotSavedError, TfsearchError, UnavailableError
from tfsearch.core.records import (
    BuildRecord,
    Final,
    MeasurementKey,
    Status,
    Trial,
    WorkloadRecord,
)
from tfsearch.db import ArtifactStore, Store
from tfsearch.db.records import (
    ProofRecord,
    SessionRecord,
    SessionStatus,
    SourceRecord,
    StoredTrial,
)
from tfsearch.plugin import identity
from tfsearch.plugin.target import Source
from tfsearch.tune.journal import (
    Beginning,
    Ending,
    Entry,
    Journal,
    apply,
    local_id,
    replay,
    with_ids,
)
from tfsearch.tune.observer import Observer

T = TypeVar("T")


@dataclass(frozen=True)
class Built:
    """A build and where its executable is."""

    record: BuildRecord
    path: Path


PAUSES_S = (0.2, 0.5, 1.0, 2.0, 5.0, 10.0)
"""Between attempts to reach a database that failed; the last one again and again."""
END_WAIT_S = 90.0
"""How long the end of a session waits for a server that does not answer."""
MOST_HELD = 10_000
"""Entries kept in memory where the journal cannot be written either."""
_PATIENT = "db.read-only"
"""Nothing is kept for a database that nobody wants written."""


class Recorder:
    """Writes a session's records. ``unsaved`` tells why something is not in the database.

    ``store`` is None when the database could not even be opened (``unsaved`` then says why).
    Ids of trials that are not saved are negative and unique; :meth:`id_of` knows the real ones.
    The journal is in ``home``.
    """

    def __init__(
        self,
        store: Store | None,
        artifacts: ArtifactStore,
        observer: Observer,
        unsaved: TfsearchError | None = None,
        *,
        home: Path,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.unsaved = unsaved
        self._observer = observer
        self._home = home
        self._beginning: Beginning | None = None
        self._journal: Journal | None = None
        self._held: list[Entry] = []
        self._ids: dict[int, int] = {}
        self._failures = 0
        self._next_try = 0.0
        self.replayed = True
        self._emitted: dict[str, SourceRecord] = {}

    def replay(self) -> bool:
        """Record what earlier sessions could not; False when it stays where it is for now.

        Until it is recorded, none of those sessions may be resumed: ``replayed`` says so.
        """
        store = self.store
        if store is not None and not store.read_only:
            self.replayed = self._ask(lambda: replay(self._home, store)) is not None
        return self.replayed

    def begin(self, workload: WorkloadRecord, session: SessionRecord) -> None:
        """Record the session before its first trial."""
        self._beginning = Beginning(workload, session)
        if self.store is not None and not self.store.read_only:
            self._journal = Journal(self._home, self.store.url, self._beginning)
        self._record(self._beginning)

    def trial(self, trial: Trial) -> int:
        """Record a trial; its id."""
        return self._record(trial) or local_id(trial.index)

    def id_of(self, trial: int) -> int:
        """The id of a trial in the database, if it is there by now."""
        return self._ids.get(trial, trial)

    def final(self, final: Final) -> None:
        """Record a final."""
        self._record(with_ids(final, self._ids))

    def source(self, record: SourceRecord) -> None:
        """Record what the generator emits for a schedule."""
        self._emitted[record.schedule] = record
        self._record(record)

    def keep_source(self, source: Source, build: BuildRecord) -> None:
        """Keep a winner's source for the fast path of lookups, and note what it was emitted for."""

        def keep(store: Store) -> None:
            identity.keep_source(source, build, store, self.artifacts)
            for one in self._emitted.values():
                if one.source == build.key.source:
                    identity.note_source(self.artifacts, one.schedule, one.generator, one.source)

        self._write(keep)

    def proof(self, record: ProofRecord) -> None:
        """Record the verdict on a recipe shape."""
        self._record(record)

    def artifact(self, built: Path, key: str) -> tuple[str, Path]:
        """Keep an executable and note the key of its build: (digest, where it is now)."""
        try:
            digest = self.artifacts.put_file(built)
            self.artifacts.note(key, digest)
        except NotSavedError as error:
            self._lose(error)
            return keys.digest_bytes(built.read_bytes()), built
        return digest, self.artifacts.path(digest)

    def finish(
        self, status: SessionStatus, finished_at: str, stop: Callable[[], bool] = bool
    ) -> None:
        """Write what is still kept and set the session's state.

        A server that does not answer is waited for, until ``stop`` says otherwise. Afterwards
        ``unsaved`` is None exactly when everything is in the database; else its message says
        where it is kept and what to do.
        """
        if self._beginning is None or self.store is None:
            return
        self._record(Ending(self._beginning.session.id, status, finished_at))
        deadline = time.monotonic() + END_WAIT_S
        while self.unsaved is not None and not self._recovered(at_once=True):
            if not isinstance(self.unsaved, UnavailableError) or stop():
                break
            if time.monotonic() >= deadline:
                break
            time.sleep(PAUSES_S[2])
        journal, self._journal = self._journal, None
        if self.unsaved is not None and journal is not None and journal.entries:
            text = (
                f"{self.unsaved.message}; {journal.entries} records are kept in {journal.path}: "
                "the same command records them once the database is well"
            )
            self.unsaved = type(self.unsaved)(self.unsaved.code, text)
        if journal is not None:
            journal.close()

    # What the session asks the database for; no answer when the database is lost.

    def duplicate(
        self, workload: str, schedule: str, key: MeasurementKey, statuses: Collection[Status]
    ) -> StoredTrial | None:
        """The latest trial of the same schedule under the same measurement key."""
        return self.read(lambda store: store.duplicate(workload, schedule, key, statuses=statuses))

    def build(self, key: str) -> Built | None:
        """A recorded build whose artifact this user made, still in the own store and intact."""
        found = self.read(lambda store: store.find_build(key))
        if found is None or not self.artifacts.has(found.artifact):
            return None
        try:
            if self.artifacts.noted(key) != found.artifact:
                return None  # the record names a file of the store that is not this build
            return Built(found, self.artifacts.path(found.artifact))
        except UnavailableError as error:
            self._observer.warning(error.code, f"{error.message}; it is built again")
            return None

    def proof_of(self, shape: str, prover: str) -> ProofRecord | None:
        """The verdict of an earlier session."""
        return self.read(lambda store: store.proof(shape, prover))

    def read(self, query: Callable[[Store], T | None]) -> T | None:
        """Ask the database; None when it has no answer or cannot be read any more."""
        store = self.store
        if store is None:
            return None
        if isinstance(self.unsaved, UnavailableError) and time.monotonic() < self._next_try:
            return None  # each question to a server that is away may take seconds
        return self._ask(lambda: query(store))

    def wait(self, seconds: float, stop: Callable[[], bool] = bool) -> bool:
        """Wait for a server that does not answer; whether the database can be used now."""
        deadline = time.monotonic() + seconds
        while self.unsaved is not None and not self._recovered(at_once=True):
            patient = isinstance(self.unsaved, UnavailableError) and not stop()
            if not patient or time.monotonic() >= deadline:
                return False
            time.sleep(PAUSES_S[2])
        return self.store is not None

    def _record(self, entry: Entry) -> int:
        """Write an entry or keep it; the id of a trial that is in the database, else 0."""
        store = self.store
        if store is None:
            return 0
        if self.unsaved is None or self._recovered():
            found = self._ask(lambda: apply(store, entry, self._ids))
            if found is not None:
                return found
        self._keep(entry)
        return 0

    def _write(self, action: Callable[[Store], T]) -> T | None:
        """Do it now; None when it is not in the database."""
        store = self.store
        if store is None or (self.unsaved is not None and not self._recovered()):
            return None
        return self._ask(lambda: action(store))

    def _ask(self, action: Callable[[], T]) -> T | None:
        try:
            return action()
        except (NotSavedError, UnavailableError) as error:
            self._lose(error)
            return None

    def _lose(self, error: TfsearchError) -> None:
        if self.unsaved is None:
            self._observer.warning(error.code, f"{error.message}; the session goes on unsaved")
            self._failures = 0
        self.unsaved = error
        pause = PAUSES_S[min(self._failures, len(PAUSES_S) - 1)]
        self._failures += 1
        self._next_try = time.monotonic() + pause

    def _keep(self, entry: Entry) -> None:
        """On the disk, or in memory where there is no room; ``UnavailableError``: nowhere."""
        if self._journal is not None and not self._held and not self._is_lasting():
            try:
                self._journal.append(entry)
                return
            except OSError as error:
                self._observer.warning(
                    "session.no-journal",
                    f"{self._journal.path} cannot be written ({error.strerror}): what is "
                    "measured is kept in memory",
                )
        self._held.append(entry)
        if len(self._held) == MOST_HELD:
            raise UnavailableError(
                "session.no-room",
                f"{MOST_HELD} records could be written nowhere; the last reason: {self.unsaved}",
            )

    def _is_lasting(self) -> bool:
        return self.unsaved is not None and self.unsaved.code == _PATIENT

    def _recovered(self, *, at_once: bool = False) -> bool:
        """Try to write what is kept, if it is time to; whether all of it is in the database."""
        store = self.store
        if store is None or (not at_once and time.monotonic() < self._next_try):
            return False
        if self._ask(lambda: self._flush(store)) is None:
            return False
        self.unsaved = None
        return True

    def _flush(self, store: Store) -> bool:
        kept = [] if self._journal is None else self._journal.read()
        first = [] if self._beginning is None else [self._beginning]
        for entry in [*first, *kept, *self._held]:
            apply(store, entry, self._ids)
        self._held.clear()
        if self._journal is not None:
            self._journal.remove()
        return True
