"""Inserts. Each function runs inside the caller's write transaction."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from sqlalchemy import Column, Connection, Executable, Insert, Select, Table, bindparam, select
from sqlalchemy.dialects import sqlite

from tfsearch.core.errors import InternalError
from tfsearch.core.records import Final
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


def insert_new(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
    """Insert a row and return its id; None when one with the same unique key is there."""
    made = _insert_new(connection.dialect.name, table)
    return connection.execute(made, dict(values)).scalar()


@cache
def _insert_new(dialect: str, table: Table) -> Executable:
    return _insert_or_ignore(dialect, table).returning(table.c.id)


def insert(connection: Connection, table: Table, values: Mapping[str, Any]) -> int:
    """Insert a row and return its id."""
    return int(connection.execute(_insert_returning_id(table), dict(values)).scalar_one())


def find(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
    """Id of a row with exactly these values, or ``None``."""
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
    return find(connection, column.table, {column.name: key})


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
    found = find(connection, table, values)
    if found is None:
        insert_or_ignore(connection, table, values)
        found = find(connection, table, values)
    if found is None:
        raise InternalError("db.not-inserted", f"{table.name} did not take a row")
    return found


def insert_final(connection: Connection, final: Final, *, final_id: int | None = None) -> int:
    """Insert a final; its winner has to be one of its entries, ok and verified.

    Without ``final_id`` it gets the next id.
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
        **({} if final_id is None else {"id": final_id}),
    }
    inserted = insert(connection, finals, values)
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
