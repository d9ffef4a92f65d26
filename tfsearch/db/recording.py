"""Recording a trial: everything it refers to, in one transaction that is as short as it can be.

All encoding is done before the transaction begins. Rows that the trials of a session share (the
session, its workload, the compiler, the device) are looked up once a connection: :class:`Ids`
remembers what a committed transaction saw. Where the database can do the rest in one statement
(:mod:`tfsearch.db.statement`), that statement is the whole transaction: one message to the server
and one answer. It records nothing when anything is not as expected; the general way then decides.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, bindparam, select

from tfsearch.core import keys
from tfsearch.core.errors import InternalError
from tfsearch.core.records import BuildKey, BuildRecord, MeasurementKey, ScheduleRecord, Trial
from tfsearch.db import codec, schema, statement, writing
from tfsearch.db.engine import Database

_KNOWN = "tfsearch_ids"
_MOST = 4096
"""Ids that a connection remembers; then it begins anew."""


class Ids:
    """Ids of rows by what identifies them, as one connection has seen them.

    They live and end with the connection to the database, so they never outlive a server's restart
    or a fork. What a transaction finds is kept only after its commit: an id that was undone may
    become another row's. Rows of these tables are never changed or deleted.
    """

    def __init__(self, connection: Connection) -> None:
        self._kept: dict[Hashable, int] = connection.info.setdefault(_KNOWN, {})
        self._new: dict[Hashable, int] = {}

    def get(self, what: Hashable) -> int | None:
        """The id, if this connection has seen it."""
        found = self._kept.get(what)
        return self._new.get(what) if found is None else found

    def add(self, what: Hashable, number: int) -> int:
        """Note an id that this transaction sees; it is returned."""
        self._new[what] = number
        return number

    def keep(self) -> None:
        """The transaction is committed: remember what it saw."""
        if len(self._kept) + len(self._new) > _MOST:
            self._kept.clear()
        self._kept.update(self._new)


@dataclass(frozen=True)
class Row:
    """A trial, encoded: ``outcome`` for its own row, values for the rows it refers to.

    ``head``, ``environment`` and ``context`` name shared rows in :class:`Ids`; None: it has none.
    """

    trial: Trial
    outcome: Mapping[str, Any]
    schedule: Mapping[str, Any]
    head: Hashable
    build_key: BuildKey | None
    key: Mapping[str, Any] | None
    environment: Hashable
    build: Mapping[str, Any] | None
    context: Hashable
    measurement: Mapping[str, Any] | None


def record_trial(database: Database, trial: Trial) -> int:
    """Record a trial and return its id; see :meth:`tfsearch.db.store.Store.record_trial`."""
    row = encoded(trial)
    if not database.is_sqlite:
        number = database.single(lambda connection: _at_once(connection, row), writing=True)
        if number is not None:
            return number

    def work(connection: Connection) -> tuple[int, Ids]:
        ids = Ids(connection)
        return _insert(connection, row, ids), ids

    number, ids = database.write(work)
    ids.keep()
    return number


def insert_trial(connection: Connection, trial: Trial) -> int:
    """Insert a trial in the caller's transaction; the same trial again returns its id."""
    return _insert(connection, encoded(trial), Ids(connection))


def encoded(trial: Trial) -> Row:
    """A trial as column values. ``InternalError`` for what no honest driver records."""
    _check(trial)
    key, build, measured, schedule = (
        trial.measurement_key,
        trial.build,
        trial.measurement,
        trial.schedule,
    )
    of = key.build if key else build.key if build else None
    environment = None if of is None else _environment(of)
    return Row(
        trial=trial,
        outcome=codec.outcome_values(trial),
        schedule={"key": schedule.key, "params": codec.mapping(schedule.params)},
        head=("head", *_head(schedule).values()),
        build_key=of,
        key=None if of is None else _key_values(of),
        environment=environment,
        build=None if build is None else _build_values(build),
        context=None if key is None else _context(key, environment),
        measurement=None
        if measured is None
        else {
            "protocol": measured.protocol,
            "samples": codec.pack(measured.samples_us),
            "conditions": codec.mapping(measured.conditions),
        },
    )


def _check(trial: Trial) -> None:
    place = f"trial {trial.session}/{trial.index}"
    key, build, measured = trial.measurement_key, trial.build, trial.measurement
    if key and build and key.build.key != build.key.key:
        raise InternalError(
            "db.inconsistent-trial", f"{place}: its measurement key names another build"
        )
    if measured is None:
        return
    if not measured.samples_us:
        raise InternalError("db.inconsistent-trial", f"{place}: ok without a sample")
    times = (measured.median_us, *measured.ci_us, *measured.samples_us)
    if not all(math.isfinite(time) for time in times) or measured.median_us <= 0:
        raise InternalError(
            "db.inconsistent-trial", f"{place}: times must be finite and the median positive"
        )


def _head(schedule: ScheduleRecord) -> dict[str, Any]:
    return {
        "schema": schedule.schema,
        "program": schedule.program,
        "workload": schedule.workload,
        "target": schedule.target,
        "recipe": schedule.recipe,
        "recipe_version": schedule.recipe_version,
    }


def _environment(build: BuildKey) -> Hashable:
    shared = (build.target, build.features, build.flags, build.toolchain.digest)
    return ("environment", *shared)


def _context(key: MeasurementKey, environment: Hashable) -> Hashable:
    return ("context", environment, key.device.key, key.protocol, key.verifier)


def _key_values(build: BuildKey) -> dict[str, Any]:
    return {
        "key": build.key,
        "source": build.source,
        "launch": build.launch,
        "macros": codec.strings(build.macros),
        "headers": build.headers,
    }


def _build_values(build: BuildRecord) -> dict[str, Any]:
    return {
        "artifact": build.artifact,
        "seconds": build.seconds,
        "resources": codec.mapping(build.resources),
        "log": build.log,
    }


def _at_once(connection: Connection, row: Row) -> int | None:
    """Record by one statement; None when it recorded nothing.

    That is so when a shared row is not known yet, when the trial is there already, and when a row
    that the trial needs was committed by another session in this moment.
    """
    ids = Ids(connection)
    needed = {
        "session_id": ("session", row.trial.session),
        "workload_id": ("workload", row.trial.workload),
        "head_id": row.head,
        "context_id": row.context,
        "environment_id": row.environment,
    }
    shared = {name: None if what is None else ids.get(what) for name, what in needed.items()}
    if any(number is None and needed[name] is not None for name, number in shared.items()):
        return None
    parts = {"key": row.key, "build": row.build, "measurement": row.measurement}
    text = statement.record_text(
        connection.dialect, tuple(name for name, part in parts.items() if part is not None)
    )
    values = {**shared, **row.outcome}
    for prefix, part in (("schedule", row.schedule), *parts.items()):
        values |= {f"{prefix}_{name}": value for name, value in (part or {}).items()}
    found = connection.exec_driver_sql(text, values).scalar()
    return None if found is None else int(found)


def _insert(connection: Connection, row: Row, ids: Ids) -> int:
    """The general way, inside a transaction that writes."""
    trial = row.trial
    session = ids.get(("session", trial.session))
    if session is None:
        session = writing.session_id(connection, trial.session)
        ids.add(("session", trial.session), session)
    workload = ids.get(("workload", trial.workload))
    if workload is None:
        workload = writing.workload_id(connection, trial.workload)
        ids.add(("workload", trial.workload), workload)
    schedule = {**row.schedule, "head_id": _head_id(connection, row, ids)}
    build_key = build = context = None
    if row.build_key is not None and row.key is not None:
        environment = _environment_id(connection, row.build_key, row.environment, ids)
        key = {**row.key, "environment_id": environment}
        build_key, fresh = _intern(connection, schema.build_keys.c.key, key)
        if row.build is not None:
            build = _build_id(connection, {**row.build, "build_key_id": build_key}, fresh=fresh)
        if trial.measurement_key is not None:
            context = _context_id(connection, row, trial.measurement_key, environment, ids)
    values = {
        **row.outcome,
        "session_id": session,
        "workload_id": workload,
        "schedule_id": _intern(connection, schema.schedules.c.key, schedule)[0],
        "context_id": context,
        "build_key_id": build_key,
        "build_id": build,
    }
    inserted = writing.insert_new(connection, schema.trials, values)
    if inserted is None:
        return _recorded(connection, session, row)
    if row.measurement is not None:
        connection.execute(_MEASUREMENT, {"trial_id": inserted, **row.measurement})
    return inserted


_MEASUREMENT = schema.measurements.insert()
_TRIAL_AT = select(schema.trials.c.id, schema.trials.c.content).where(
    schema.trials.c.session_id == bindparam("session_id"),
    schema.trials.c.position == bindparam("position"),
)


def _recorded(connection: Connection, session: int, row: Row) -> int:
    """Id of the trial that is in this place already; ``InternalError`` for another one."""
    place = {"session_id": session, "position": row.trial.index}
    found = connection.execute(_TRIAL_AT, place).first()
    name = f"trial {row.trial.session}/{row.trial.index}"
    if found is None:
        raise InternalError("db.not-inserted", f"{name} vanished")
    if found.content != row.outcome["content"]:
        raise InternalError(
            "db.different-trial", f"{name} is recorded already with another content"
        )
    return int(found.id)


def _intern(connection: Connection, column: Any, values: Mapping[str, Any]) -> tuple[int, bool]:
    """Id of the row with this key, and whether it is new: most of these rows are."""
    inserted = writing.insert_new(connection, column.table, values)
    if inserted is not None:
        return inserted, True
    return writing.intern(connection, column, values["key"], values), False


def _head_id(connection: Connection, row: Row, ids: Ids) -> int:
    found = ids.get(row.head)
    if found is not None:
        return found
    fields = _head(row.trial.schedule)
    key = keys.digest("schedule-head", fields)
    column = schema.schedule_heads.c.key
    return ids.add(row.head, writing.intern(connection, column, key, {"key": key, **fields}))


def _environment_id(connection: Connection, build: BuildKey, what: Hashable, ids: Ids) -> int:
    found = ids.get(what)
    if found is not None:
        return found
    toolchain = codec.toolchain_values(build.toolchain)
    digest = toolchain["digest"]
    fields = {
        "target": build.target,
        "features": list(build.features),
        "flags": list(build.flags),
        "toolchain": digest,
    }
    key = keys.digest("environment", fields)
    column = schema.environments.c.key
    found = writing.id_of(connection, column, key)
    if found is None:
        digests = schema.toolchains.c.digest
        values = {
            "key": key,
            "target": build.target,
            "features": codec.strings(build.features),
            "flags": codec.strings(build.flags),
            "toolchain_id": writing.intern(connection, digests, digest, toolchain),
        }
        found = writing.intern(connection, column, key, values)
    return ids.add(what, found)


def _context_id(
    connection: Connection, row: Row, key: MeasurementKey, environment: int, ids: Ids
) -> int:
    found = ids.get(row.context)
    if found is not None:
        return found
    device = codec.device_values(key.device)
    device_id = writing.intern(connection, schema.devices.c.key, device["key"], device)
    found = writing.context_id(connection, environment, device_id, key.protocol, key.verifier)
    return ids.add(row.context, found)


def _build_id(connection: Connection, values: Mapping[str, Any], *, fresh: bool) -> int:
    """Id of an equal build, inserted if there is none: none is, when its key is ``fresh``."""
    table = schema.builds
    found = None if fresh else writing.find(connection, table, values)
    return writing.insert(connection, table, values) if found is None else found
