"""The store: every method is one transaction, committed when it returns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Select, select, update

from tfsearch.core.errors import InternalError, NotRecordedError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import (
    BuildRecord,
    Final,
    MeasurementKey,
    Refusal,
    Status,
    Trial,
    WorkloadRecord,
)
from tfsearch.db import codec, learning, leases, maintain, recording, schema, writing
from tfsearch.db import select as statements
from tfsearch.db.artifacts import ArtifactStore
from tfsearch.db.engine import Database
from tfsearch.db.nearest import nearest
from tfsearch.db.records import (
    BestQuery,
    GcReport,
    Lease,
    ModelRecord,
    Nearest,
    Problem,
    ProofRecord,
    SessionFields,
    SessionRecord,
    SessionStatus,
    SourceRecord,
    StoredFinal,
    StoredTrial,
    StoreStats,
    Timing,
)
from tfsearch.db.schema import sessions, trials, workloads


class Store:
    """Records in one database; made by :func:`tfsearch.db.open_store`.

    Thread-safe, usable in forked children, and picklable: the copy reopens by URL. Methods that
    write raise ``NotSavedError`` (``db.read-only``, ``db.locked``, ``db.disk-full``,
    ``db.io-error``); all methods may raise ``UnavailableError`` when a server goes away.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    def __reduce__(self) -> tuple[Callable[[str, bool, float], Store], tuple[str, bool, float]]:
        if self._database.in_memory:
            raise TypeError("an in-memory store cannot be reopened by URL")
        url = self._database.url.render_as_string(hide_password=False)
        return _reopen, (url, self.read_only, self._database.timeout_s)

    @property
    def url(self) -> str:
        """The URL without its password, for people."""
        return self._database.url.render_as_string(hide_password=True)

    @property
    def database(self) -> Database:
        """Connections and transactions, for other modules of this layer."""
        return self._database

    @property
    def read_only(self) -> bool:
        """Whether every write raises ``NotSavedError("db.read-only")``."""
        return self._database.read_only

    def close(self) -> None:
        """Close idle connections. A later call opens new ones."""
        self._database.dispose()

    # Sessions

    def begin_session(self, record: SessionRecord) -> None:
        """Record a new session; its workload has to be put first.

        The same id with the same identity again changes nothing; with another identity it is an
        ``InternalError``.
        """

        def work(connection: Connection) -> None:
            known = _session(connection, record.id)
            if known is not None and known.fields != record.fields:
                raise InternalError(
                    "db.different-session", f"session {record.id} exists with another identity"
                )
            if known is None:
                workload = writing.workload_id(connection, record.fields.workload)
                values = {**codec.session_values(record), "workload_id": workload}
                connection.execute(sessions.insert().values(values))

        self._database.write(work)

    def session(self, session_id: str) -> SessionRecord | None:
        """A session by id."""
        return self._database.read(lambda connection: _session(connection, session_id))

    def sessions(self, *, limit: int | None = None, offset: int = 0) -> list[SessionRecord]:
        """Sessions, latest first."""
        query = _SESSIONS.order_by(sessions.c.id.desc()).limit(limit).offset(offset)
        return self._all(query, codec.session_of)

    def resumable_session(self, fields: SessionFields) -> SessionRecord | None:
        """The latest session with this identity that did not finish or fail."""
        query = _SESSIONS.where(sessions.c.key == fields.key, statements.RESUMABLE)
        found = self._all(query.order_by(sessions.c.id.desc()).limit(1), codec.session_of)
        return found[0] if found else None

    def claim_session(self, session_id: str, *, expected_owner: str, owner: str) -> bool:
        """Take a session over from ``expected_owner``; ``False`` if another was faster.

        A compare-and-swap: of two processes that both try, exactly one gets ``True``. The status
        becomes ``RUNNING``.
        """

        def work(connection: Connection) -> bool:
            done = connection.execute(
                update(sessions)
                .where(sessions.c.name == session_id, sessions.c.owner == expected_owner)
                .where(statements.RESUMABLE)
                .values(owner=owner, status=SessionStatus.RUNNING.value)
            )
            return done.rowcount == 1

        return self._database.write(work)

    def finish_session(
        self,
        session_id: str,
        status: SessionStatus = SessionStatus.FINISHED,
        *,
        finished_at: str = "",
    ) -> None:
        """Set a session's state; ``InternalError`` when it is unknown."""

        def work(connection: Connection) -> None:
            done = connection.execute(
                update(sessions)
                .where(sessions.c.name == session_id)
                .values(status=status.value, finished_at=finished_at)
            )
            if done.rowcount != 1:
                raise InternalError("db.unknown-session", f"session {session_id} was not begun")

        self._database.write(work)

    # Workloads

    def put_workload(self, record: WorkloadRecord) -> str:
        """Record a workload and return its key; the labels of the first one with a key stay."""
        values = codec.workload_values(record)
        self._database.write(
            lambda connection: writing.intern(connection, workloads.c.key, record.key, values)
        )
        return record.key

    def workload(self, key: str) -> WorkloadRecord | None:
        """A workload by key."""
        found = self._all(select(workloads).where(workloads.c.key == key), codec.workload_of)
        return found[0] if found else None

    def workloads(
        self, *, op: str | None = None, limit: int | None = None, offset: int = 0
    ) -> list[WorkloadRecord]:
        """Workloads, latest first, of one op or of all."""
        query = select(workloads).order_by(workloads.c.id.desc()).limit(limit).offset(offset)
        if op is not None:
            query = query.where(workloads.c.op == op)
        return self._all(query, codec.workload_of)

    # Trials

    def record_trial(self, trial: Trial) -> int:
        """Record a trial and return its id; durable when this returns.

        The session has to be begun and the workload put. A second delivery of the same trial
        returns the same id and changes nothing; another trial under the same (session, index) is
        an ``InternalError``.
        """
        return recording.record_trial(self._database, trial)

    def trial(self, trial_id: int) -> StoredTrial | None:
        """A trial by id."""
        return self._database.read(lambda connection: _trial(connection, trial_id))

    def trials(
        self,
        *,
        session: str | None = None,
        workload: str | None = None,
        status: Status | None = None,
        limit: int | None = None,
        offset: int = 0,
    ) -> list[StoredTrial]:
        """Trials in the order of their recording, of a session, a workload, a status, or all."""
        query = statements.trial_select().order_by(trials.c.id).limit(limit).offset(offset)
        if session is not None:
            query = query.where(sessions.c.name == session)
        if workload is not None:
            query = query.where(workloads.c.key == workload)
        if status is not None:
            query = query.where(trials.c.status == status.value)
        return self._all(query, _stored)

    def duplicate(
        self,
        workload: str,
        schedule: str,
        measurement_key: MeasurementKey | str,
        *,
        statuses: Collection[Status] = (Status.OK,),
    ) -> StoredTrial | None:
        """The latest trial of a schedule (by key) of a workload under a measurement key."""
        text = measurement_key if isinstance(measurement_key, str) else measurement_key.key
        values = {
            "workload": workload,
            "schedule": schedule,
            "measurement_key": text,
            "statuses": [status.value for status in statuses],
        }
        found = self._all(statements.DUPLICATE, _stored, values)
        return found[0] if found else None

    # Finals and lookup

    def record_final(self, final: Final) -> int:
        """Record a final and return its id; the winner has to be verified."""
        return self._database.write(lambda connection: writing.insert_final(connection, final))

    def latest_final(
        self,
        workload_key: str,
        *,
        target: str | None = None,
        device_key: str | None = None,
        toolchain: str | None = None,
        flags: tuple[str, ...] | None = None,
        protocol: str | None = None,
        verifier: int | None = None,
    ) -> StoredFinal | None:
        """The latest final of a workload with a verified winner; ``None`` matches any value."""
        values = {
            "target": target,
            "device": device_key,
            "toolchain": toolchain,
            "flags": None if flags is None else codec.strings(flags),
            "protocol": protocol,
            "verifier": verifier,
        }

        def work(connection: Connection) -> StoredFinal | None:
            row = _latest(connection, workload_key, values, {})
            return None if row is None else _final(connection, row.id)

        return self._database.read(work)

    def best(self, query: BestQuery) -> StoredTrial | None:
        """The winner of the latest matching final; ``None`` when there is no final.

        Only a trial with status ok whose verification passed is ever returned.
        ``NotRecordedError`` (``db.altered-record``) when it is not what was recorded.
        """

        def work(connection: Connection) -> StoredTrial | None:
            row = _latest(connection, query.workload.key, *_fields(query))
            return None if row is None else _servable(connection, row.winner_id, query)

        return self._database.read(work)

    def fastest_verified(self, query: BestQuery) -> StoredTrial | None:
        """The verified trial with the smallest median, final or not; censored ones do not count.

        ``NotRecordedError`` as for :meth:`best`.
        """

        def work(connection: Connection) -> StoredTrial | None:
            values, build = _fields(query)
            given, statement = _given(values, build, statements.fastest_select)
            parameters = {"workload": query.workload.key, **given}
            found = connection.execute(statement, parameters).scalar()
            return None if found is None else _servable(connection, found, query)

        return self._database.read(work)

    def nearest(self, query: BestQuery, limit: int = 3) -> list[Nearest]:
        """After a miss: the recorded winners with the fewest differing fields, nearest first."""
        return self._database.read(lambda connection: nearest(connection, query, limit))

    # Builds, sources, launches, proofs

    def find_build(self, build_key: str) -> BuildRecord | None:
        """The latest build with a key, so that its artifact can be reused."""
        found = self._all(
            statements.BUILD_BY_KEY,
            lambda row: codec.build_of(row, codec.build_key_of(row)),
            {"key": build_key},
        )
        return found[0] if found else None

    def record_source(self, record: SourceRecord) -> None:
        """Record what a generator emits for a schedule.

        A generator that emitted something else for it before is an ``InternalError``: its
        digest does not cover what it depends on.
        """

        def work(connection: Connection) -> None:
            writing.insert_or_ignore(connection, schema.sources, vars(record))
            found = _source(connection, record.schedule, record.generator)
            if found != record:
                raise InternalError(
                    "db.different-source",
                    f"generator {record.generator} emitted another source for schedule "
                    f"{record.schedule} before",
                )

        self._database.write(work)

    def generator_source(self, schedule_key: str, generator: str) -> SourceRecord | None:
        """What the generator with this digest emits for a schedule, if it did so before."""
        return self._database.single(
            lambda connection: _source(connection, schedule_key, generator)
        )

    def record_launch(self, spec: LaunchSpec) -> str:
        """Keep a launch specification under its digest, which is returned."""
        values = {"digest": spec.digest, "spec": codec.dump(spec.to_json())}
        self._database.write(
            lambda connection: writing.insert_or_ignore(connection, schema.launches, values)
        )
        return spec.digest

    def launch(self, digest: str) -> LaunchSpec | None:
        """A launch specification by digest; one that was altered is not there."""
        table = schema.launches
        query = select(table.c.spec).where(table.c.digest == digest)
        found = self._all(query, lambda row: LaunchSpec.from_json(codec.load(row.spec)))
        return next((spec for spec in found if spec.digest == digest), None)

    def record_proof(self, record: ProofRecord) -> None:
        """Record a verdict; a later one on the same shape by the same prover replaces it."""
        table = schema.proofs
        key = {"shape": record.shape, "prover": record.prover}
        verdict = {"ok": int(record.ok), "refusals": codec.refusals(record.refusals)}

        def work(connection: Connection) -> None:
            writing.insert_or_ignore(connection, table, {**key, **verdict})
            connection.execute(
                update(table)
                .where(table.c.shape == record.shape, table.c.prover == record.prover)
                .values(verdict)
            )

        self._database.write(work)

    def proof(self, shape_hash: str, prover_version: str) -> ProofRecord | None:
        """The verdict of a prover version on a recipe shape."""
        table = schema.proofs
        query = select(table).where(table.c.shape == shape_hash, table.c.prover == prover_version)
        found = self._all(query, _proof)
        return found[0] if found else None

    # Devices

    def tend_leases(
        self,
        holder: str,
        *,
        hold: Mapping[str, int],
        want: Mapping[str, Lease | None],
        free: Mapping[str, int],
    ) -> dict[str, Lease]:
        """One round of a holder over its devices; see :func:`tfsearch.db.leases.tend`."""
        return self._database.write(
            lambda connection: leases.tend(connection, holder, hold=hold, want=want, free=free)
        )

    # Learned models

    def timings(self, target: str, *, most: int) -> list[Timing]:
        """The latest ``most`` verified times of a target, in the order of their recording."""
        return self._database.read(lambda connection: learning.timings(connection, target, most))

    def put_model(self, record: ModelRecord) -> None:
        """Keep a learned model; a later one for the same fields replaces it."""
        self._database.write(lambda connection: learning.put_model(connection, record))

    def model(self, key: str) -> ModelRecord | None:
        """The learned model for the fields of this digest.

        ``NotRecordedError`` (``model.damaged``) when it is not what was written.
        """
        return self._database.read(lambda connection: learning.model(connection, key))

    def models(self) -> list[ModelRecord]:
        """All learned models that can be read; :meth:`verify` names the others."""
        return self._database.read(learning.models)

    # Maintenance

    def stats(self) -> StoreStats:
        """Row counts and size."""
        return maintain.stats(self._database)

    def verify(self, artifacts: ArtifactStore | Path | str | None = None) -> list[Problem]:
        """Everything that is wrong with the database, and with its artifacts if given."""
        return maintain.verify(self._database, _artifacts(artifacts))

    def gc(
        self,
        artifacts: ArtifactStore | Path | str,
        *,
        max_bytes: int | None = None,
        max_age_days: float | None = None,
        max_files: int | None = None,
        dry_run: bool = False,
    ) -> GcReport:
        """Bound an artifact folder, least recently used first; records are never touched.

        An artifact that the winner of a latest final needs always stays.
        """
        store = artifacts if isinstance(artifacts, ArtifactStore) else ArtifactStore(artifacts)
        limits = maintain.Limits(max_bytes, max_age_days, max_files)
        return maintain.collect(self._database, store, limits, dry_run=dry_run)

    def _all(
        self,
        query: Select[Any],
        decode: Callable[[codec.AnyRow], Any],
        values: Mapping[str, Any] | None = None,
    ) -> list[Any]:
        return self._database.single(
            lambda connection: [decode(row) for row in connection.execute(query, values)]
        )


_SESSIONS = select(sessions, workloads.c.key.label("workload_key")).join_from(
    sessions, workloads, workloads.c.id == sessions.c.workload_id
)


def _reopen(url: str, read_only: bool, timeout_s: float) -> Store:
    from tfsearch.db.opening import open_store

    return open_store(url, create=False, read_only=read_only, timeout_s=timeout_s)


def _artifacts(value: ArtifactStore | Path | str | None) -> ArtifactStore | None:
    return value if value is None or isinstance(value, ArtifactStore) else ArtifactStore(value)


def _session(connection: Connection, session_id: str) -> SessionRecord | None:
    row = connection.execute(_SESSIONS.where(sessions.c.name == session_id)).first()
    return None if row is None else codec.session_of(row)


def _stored(row: codec.AnyRow) -> StoredTrial:
    return StoredTrial(row.id, codec.trial_of(row))


def _trial(connection: Connection, trial_id: int) -> StoredTrial | None:
    row = connection.execute(statements.TRIAL_BY_ID, {"trial": trial_id}).first()
    return None if row is None else _stored(row)


def _servable(connection: Connection, trial_id: int, query: BestQuery) -> StoredTrial | None:
    """A trial for a question, if its row is still the one that was written for it.

    Its fields decide which executable is loaded, so an edited row must not be believed.
    """
    row = connection.execute(statements.TRIAL_BY_ID, {"trial": trial_id}).first()
    if row is None:
        return None
    stored = _stored(row)
    if stored.trial.workload != query.workload.key or codec.content(stored.trial) != row.content:
        raise NotRecordedError(
            "db.altered-record",
            f"trial {trial_id} was altered after it was recorded and is not served; run tfsearch "
            "tune again (tfsearch db verify shows what else was altered)",
        )
    return stored


def _fields(query: BestQuery) -> tuple[dict[str, Any], dict[str, Any]]:
    context = {
        "target": query.target,
        "device": query.device.key,
        "toolchain": query.toolchain and query.toolchain.digest,
        "flags": codec.strings(query.flags),
        "features": None if query.features is None else codec.strings(query.features),
        "protocol": query.protocol,
        "verifier": query.verifier,
    }
    macros = None if query.macros is None else codec.strings(query.macros)
    return context, {"macros": macros, "headers": query.headers}


def _given(
    values: dict[str, Any],
    build: dict[str, Any],
    statement: Callable[[tuple[str, ...], tuple[str, ...]], Select[Any]],
) -> tuple[dict[str, Any], Select[Any]]:
    """The parameters that are given, and the statement that uses exactly those."""
    context = {name: value for name, value in values.items() if value is not None}
    extra = {name: value for name, value in build.items() if value is not None}
    return {**context, **extra}, statement(tuple(context), tuple(extra))


def _latest(
    connection: Connection, workload: str, values: dict[str, Any], build: dict[str, Any]
) -> codec.AnyRow | None:
    given, statement = _given(values, build, statements.latest_final_select)
    return connection.execute(statement, {"workload": workload, **given}).first()


def _final(connection: Connection, final_id: int) -> StoredFinal:
    finals, entries = schema.finals, schema.final_entries
    row = connection.execute(
        select(finals, sessions.c.name, workloads.c.key)
        .join_from(finals, sessions, sessions.c.id == finals.c.session_id)
        .join(workloads, workloads.c.id == finals.c.workload_id)
        .where(finals.c.id == final_id)
    ).one()
    rows = connection.execute(
        select(entries).where(entries.c.final_id == final_id).order_by(entries.c.position)
    )
    final = codec.final_of(row, row.name, row.key, rows)
    return StoredFinal(final_id, final)


def _source(connection: Connection, schedule: str, generator: str) -> SourceRecord | None:
    values = {"schedule": schedule, "generator": generator}
    row = connection.execute(statements.SOURCE, values).first()
    return None if row is None else SourceRecord(*row)


def _proof(row: codec.AnyRow) -> ProofRecord:
    refusals = tuple(Refusal(**item) for item in codec.load(row.refusals))
    return ProofRecord(row.shape, row.prover, bool(row.ok), refusals)
