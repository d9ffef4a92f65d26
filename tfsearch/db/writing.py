"""Inserts. Each function runs inside the caller's write transaction."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Executable, Insert, Select, Table, bindparam, select
from sqlalchemy.dialects import sqlite

from tfsearch.core import keys
from tfsearch.core.errors import InternalError
from tfsearch.core.records import BuildKey, BuildRecord, Final, MeasurementKey, Trial
from tfsearch.db import codec, schema


def insert_or_ignore(connection: Connection, table: Table, values: Mapping[str, Any]) -> None:
    """Insert a row unless one with the same unique key is there."""
    connection.execute(_insert_or_ignore(connection.dialect.name, table), dict(values))


# Statements are built once: building them costs more than running them on SQLite.
@cache
def _insert_or_ignore(dialect: str, table: Table) -> Insert:
    if dialect == "postgresql":
        from sqlalchemy.dialects import postgresql  # SQLite's users do not wait for it

        return postgresql.insert(table).on_conflict_do_nothing()
    return sqlite.insert(table).on_conflict_do_nothing()


@cache
def _insert_returning_id(table: Table) -> Executable:
    return table.insert().returning(table.c.id)


@cache
def _id_where(table: Table, names: tuple[str, ...]) -> Select[Any]:
    return select(table.c.id).where(*(table.c[name] == bindparam(name) for name in names))


def _find(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
    return connection.execute(_id_where(table, tuple(values)), dict(values)).scalar()


def intern(connection: Connection, column: Column[str], key: str, values: Mapping[str, Any]) -> int:
    """Id of the row whose unique ``column`` is ``key``, inserted if it is new."""
    found = id_of(connection, column, key)
    if found is None:
        insert_or_ignore(connection, column.table, values)
        found = id_of(connection, column, key)
    if found is None:
        raise InternalError("db.not-inserted", f"{column.table.name} did not take {key}")
    return found


def id_of(connection: Connection, column: Column[str], key: str) -> int | None:
    """Id of the row whose unique ``column`` is ``key``, or ``None``."""
    return _find(connection, column.table, {column.name: key})


def workload_id(connection: Connection, key: str) -> int:
    """Id of a workload; ``InternalError`` when it was never put."""
    found = id_of(connection, schema.workloads.c.key, key)
    if found is None:
        raise InternalError("db.unknown-workload", f"workload {key} was not put into the store")
    return found


def session_id(connection: Connection, name: str) -> int:
    """Id of a session; ``InternalError`` when it was never begun."""
    found = id_of(connection, schema.sessions.c.name, name)
    if found is None:
        raise InternalError("db.unknown-session", f"session {name} was not begun in the store")
    return found


def insert_trial(connection: Connection, trial: Trial) -> int:
    """Insert a trial with everything it refers to; the same trial again returns its id."""
    check_trial(trial)
    values = codec.outcome_values(trial)
    session = session_id(connection, trial.session)
    known = _trial_at(connection, session, trial, values["content"])
    if known is not None:
        return known
    key, build = trial.measurement_key, trial.build
    build_key = key.build if key else build.key if build else None
    build_key_id = _build_key_id(connection, build_key) if build_key else None
    values |= {
        "session_id": session,
        "workload_id": workload_id(connection, trial.workload),
        "schedule_id": _schedule_id(connection, trial),
        "context_id": _context_id(connection, key, key.protocol) if key else None,
        "build_key_id": build_key_id,
        "build_id": _build_id(connection, build_key_id, build) if build and build_key_id else None,
    }
    insert_or_ignore(connection, schema.trials, values)
    inserted = _trial_at(connection, session, trial, values["content"])
    if inserted is None:
        raise InternalError("db.not-inserted", f"trial {trial.session}/{trial.index} vanished")
    if trial.measurement is not None:
        samples = {
            "trial_id": inserted,
            "protocol": trial.measurement.protocol,
            "samples": codec.pack(trial.measurement.samples_us),
            "conditions": codec.mapping(trial.measurement.conditions),
        }
        insert_or_ignore(connection, schema.measurements, samples)
    return inserted


def check_trial(trial: Trial) -> None:
    """``InternalError`` for what no honest driver records."""
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


_TRIAL_AT = select(schema.trials.c.id, schema.trials.c.content).where(
    schema.trials.c.session_id == bindparam("session_id"),
    schema.trials.c.position == bindparam("position"),
)


def _trial_at(connection: Connection, session: int, trial: Trial, content: str) -> int | None:
    place = {"session_id": session, "position": trial.index}
    row = connection.execute(_TRIAL_AT, place).first()
    if row is None:
        return None
    if row.content != content:
        raise InternalError(
            "db.different-trial",
            f"trial {trial.session}/{trial.index} is recorded already with another content",
        )
    return int(row.id)


def _schedule_id(connection: Connection, trial: Trial) -> int:
    schedule, table = trial.schedule, schema.schedules
    found = id_of(connection, table.c.key, schedule.key)
    if found is not None:
        return found
    head = {
        "schema": schedule.schema,
        "program": schedule.program,
        "workload": schedule.workload,
        "target": schedule.target,
        "recipe": schedule.recipe,
        "recipe_version": schedule.recipe_version,
    }
    key = keys.digest("schedule-head", head)
    head_id = intern(connection, schema.schedule_heads.c.key, key, {"key": key, **head})
    params = codec.mapping(schedule.params)
    values = {"key": schedule.key, "head_id": head_id, "params": params}
    return intern(connection, table.c.key, schedule.key, values)


def _environment_id(connection: Connection, build: BuildKey) -> int:
    toolchain = codec.toolchain_values(build.toolchain)
    digest = toolchain["digest"]
    fields = {
        "target": build.target,
        "features": list(build.features),
        "flags": list(build.flags),
        "toolchain": digest,
    }
    key = keys.digest("environment", fields)
    found = id_of(connection, schema.environments.c.key, key)
    if found is not None:
        return found
    values = {
        "key": key,
        "target": build.target,
        "features": codec.strings(build.features),
        "flags": codec.strings(build.flags),
        "toolchain_id": intern(connection, schema.toolchains.c.digest, digest, toolchain),
    }
    return intern(connection, schema.environments.c.key, key, values)


def _context_id(connection: Connection, measurement: MeasurementKey, protocol: str) -> int:
    environment = _environment_id(connection, measurement.build)
    device = codec.device_values(measurement.device)
    device_id = intern(connection, schema.devices.c.key, device["key"], device)
    return context_id(connection, environment, device_id, protocol, measurement.verifier)


def context_id(
    connection: Connection, environment: int, device: int, protocol: str, verifier: int
) -> int:
    """Id of what a lookup names beside its workload."""
    values = {
        "environment_id": environment,
        "device_id": device,
        "protocol": protocol,
        "verifier": verifier,
    }
    table = schema.contexts
    found = _find(connection, table, values)
    if found is None:
        insert_or_ignore(connection, table, values)
        found = _find(connection, table, values)
    if found is None:
        raise InternalError("db.not-inserted", f"{table.name} did not take a row")
    return found


def _build_key_id(connection: Connection, build: BuildKey) -> int:
    key = build.key
    found = id_of(connection, schema.build_keys.c.key, key)
    if found is not None:
        return found
    values = {
        "key": key,
        "environment_id": _environment_id(connection, build),
        "source": build.source,
        "launch": build.launch,
        "macros": codec.strings(build.macros),
        "headers": build.headers,
    }
    return intern(connection, schema.build_keys.c.key, key, values)


def _build_id(connection: Connection, build_key_id: int, build: BuildRecord) -> int:
    table = schema.builds
    values = {
        "build_key_id": build_key_id,
        "artifact": build.artifact,
        "seconds": build.seconds,
        "resources": codec.mapping(build.resources),
        "log": build.log,
    }
    found = _find(connection, table, values)
    if found is not None:
        return found
    return int(connection.execute(_insert_returning_id(table), values).scalar_one())


def insert_final(connection: Connection, final: Final) -> int:
    """Insert a final; the same final again returns its id.

    Its winner has to be one of its entries, ok and verified.
    """
    workload = workload_id(connection, final.workload)
    if final.winner not in {entry.trial for entry in final.entries}:
        raise InternalError("db.inconsistent-final", "a final's winner is one of its entries")
    trials, contexts = schema.trials, schema.contexts
    rows = connection.execute(
        select(
            trials.c.id,
            trials.c.status,
            trials.c.verified,
            trials.c.workload_id,
            contexts.c.environment_id,
            contexts.c.device_id,
            contexts.c.verifier,
        )
        .select_from(trials.outerjoin(contexts, contexts.c.id == trials.c.context_id))
        .where(trials.c.id.in_([entry.trial for entry in final.entries]))
    ).all()
    found = {row.id: row for row in rows}
    for entry in final.entries:
        row = found.get(entry.trial)
        if row is None or row.status != "ok" or row.workload_id != workload:
            raise InternalError(
                "db.inconsistent-final", f"trial {entry.trial} is not an ok trial of the workload"
            )
    winner = found[final.winner]
    if winner.verified != 1:
        raise InternalError("db.inconsistent-final", f"winner {final.winner} is not verified")
    finals = schema.finals
    values = {
        "session_id": session_id(connection, final.session),
        "workload_id": workload,
        "context_id": context_id(
            connection, winner.environment_id, winner.device_id, final.protocol, winner.verifier
        ),
        "winner_id": final.winner,
        "protocol": final.protocol,
        "finished_at": final.finished_at,
        "conditions": codec.mapping(final.conditions),
    }
    known = _find(connection, finals, values)
    if known is not None:
        return known  # a second delivery: no session has two finals with these values
    inserted = int(connection.execute(_insert_returning_id(finals), values).scalar_one())
    connection.execute(
        schema.final_entries.insert(),
        [
            {
                "final_id": inserted,
                "position": position,
                "trial_id": entry.trial,
                "median_us": entry.median_us,
                "ci_low_us": entry.ci_us[0],
                "ci_high_us": entry.ci_us[1],
                "ratio": entry.ratio,
                "ratio_low": entry.ratio_ci[0],
                "ratio_high": entry.ratio_ci[1],
            }
            for position, entry in enumerate(final.entries)
        ],
    )
    return inserted
