"""The session's records: written as they come, kept in memory when the database fails.

A database that becomes read-only, full, locked or unreachable in the middle costs the record,
not the result: what cannot be written is held, tried once more at the end, and reported.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, replace
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
from tfsearch.tune.observer import Observer

T = TypeVar("T")


@dataclass(frozen=True)
class Built:
    """A build and where its executable is."""

    record: BuildRecord
    path: Path


class Recorder:
    """Writes a session's records. ``unsaved`` tells why something is not in the database.

    ``store`` is None when the database could not even be opened (``unsaved`` then says why).
    Ids of trials that are not saved are negative and unique.
    """

    def __init__(
        self,
        store: Store | None,
        artifacts: ArtifactStore,
        observer: Observer,
        unsaved: TfsearchError | None = None,
    ) -> None:
        self.store = store
        self.artifacts = artifacts
        self.unsaved = unsaved
        self._observer = observer
        self._session: tuple[WorkloadRecord, SessionRecord] | None = None
        self._trials: dict[int, Trial] = {}
        self._finals: list[Final] = []
        self._emitted: dict[str, SourceRecord] = {}

    def begin(self, workload: WorkloadRecord, session: SessionRecord) -> None:
        """Record the session before its first trial."""
        self._session = (workload, session)
        self._write(lambda store: _begin(store, workload, session))

    def trial(self, trial: Trial) -> int:
        """Record a trial; its id."""
        saved = self._write(lambda store: store.record_trial(trial))
        if saved is not None:
            return saved
        local = -1 - len(self._trials)
        self._trials[local] = trial
        return local

    def final(self, final: Final) -> None:
        """Record a final; entries that are not saved keep it waiting for them."""
        unsaved = final.winner < 0 or any(entry.trial < 0 for entry in final.entries)
        if unsaved or self._write(lambda store: store.record_final(final)) is None:
            self._finals.append(final)

    def source(self, record: SourceRecord) -> None:
        """Record what the generator emits for a schedule."""
        self._emitted[record.schedule] = record
        self._write(lambda store: store.record_source(record))

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
        self._write(lambda store: store.record_proof(record))

    def artifact(self, built: Path, key: str) -> tuple[str, Path]:
        """Keep an executable and note the key of its build: (digest, where it is now)."""
        try:
            digest = self.artifacts.put_file(built)
            self.artifacts.note(key, digest)
        except NotSavedError as error:
            self._lose(error)
            return keys.digest_bytes(built.read_bytes()), built
        return digest, self.artifacts.path(digest)

    def finish(self, status: SessionStatus, finished_at: str) -> None:
        """Write what is still held, once more, and set the session's state.

        Afterwards ``unsaved`` is None exactly when everything is in the database.
        """
        if self._session is None or self.store is None:
            return
        workload, session = self._session
        if self.unsaved is not None:
            try:
                self._flush(self.store, workload, session)
            except (NotSavedError, UnavailableError) as error:
                self.unsaved = error
                return
            self.unsaved = None
        self._write(lambda store: store.finish_session(session.id, status, finished_at=finished_at))

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
        if self.store is None:
            return None
        try:
            return query(self.store)
        except (NotSavedError, UnavailableError) as error:
            self._lose(error)
            return None

    def _write(self, action: Callable[[Store], T]) -> T | None:
        """Do it now; None when it is not in the database."""
        if self.store is None or self.unsaved is not None:
            return None
        try:
            return action(self.store)
        except (NotSavedError, UnavailableError) as error:
            self._lose(error)
            return None

    def _lose(self, error: TfsearchError) -> None:
        if self.unsaved is None:
            self.unsaved = error
            self._observer.warning(error.code, f"{error.message}; the session goes on unsaved")

    def _flush(self, store: Store, workload: WorkloadRecord, session: SessionRecord) -> None:
        _begin(store, workload, session)
        ids: dict[int, int] = {}
        for local, trial in self._trials.items():
            ids[local] = store.record_trial(trial)
        for final in self._finals:
            store.record_final(
                replace(
                    final,
                    winner=ids.get(final.winner, final.winner),
                    entries=tuple(
                        replace(entry, trial=ids.get(entry.trial, entry.trial))
                        for entry in final.entries
                    ),
                )
            )
        self._trials.clear()
        self._finals.clear()


def _begin(store: Store, workload: WorkloadRecord, session: SessionRecord) -> None:
    store.put_workload(workload)
    store.begin_session(session)
