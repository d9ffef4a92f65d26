"""Counting, checking and collecting. Nothing here changes a record."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, exc, func, select

from tfsearch.core.errors import TfsearchError
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import ToolchainRecord
from tfsearch.db import codec, learning, schema
from tfsearch.db import select as statements
from tfsearch.db.artifacts import ArtifactStore
from tfsearch.db.engine import Database
from tfsearch.db.errors import sqlite_name
from tfsearch.db.records import GcReport, Problem, StoreStats
from tfsearch.db.schema import finals, trials

_CHUNK = 1000
_DAY_S = 86400.0


def stats(database: Database) -> StoreStats:
    """Row counts and the size of the files."""

    def count(connection: Connection, table: Table) -> int:
        return int(connection.execute(select(func.count()).select_from(table)).scalar_one())

    def work(connection: Connection) -> StoreStats:
        status = trials.c.status
        grouped = connection.execute(select(status, func.count()).group_by(status).order_by(status))
        by_status = {str(name): int(number) for name, number in grouped}
        revision = connection.exec_driver_sql("SELECT version_num FROM alembic_version").scalar()
        return StoreStats(
            url=database.url.render_as_string(hide_password=True),
            revision=str(revision),
            trials=sum(by_status.values()),
            trials_by_status=by_status,
            workloads=count(connection, schema.workloads),
            sessions=count(connection, schema.sessions),
            finals=count(connection, finals),
            devices=count(connection, schema.devices),
            toolchains=count(connection, schema.toolchains),
            builds=count(connection, schema.builds),
            proofs=count(connection, schema.proofs),
            sources=count(connection, schema.sources),
            bytes=_size(connection, database),
        )

    return database.read(work)


def _size(connection: Connection, database: Database) -> int:
    if not database.is_sqlite:
        query = "SELECT pg_database_size(current_database())"
        return int(connection.exec_driver_sql(query).scalar_one())
    if database.in_memory:
        return 0
    files = [Path(f"{database.url.database}{suffix}") for suffix in ("", "-wal")]
    return sum(file.stat().st_size for file in files if file.exists())


def verify(database: Database, artifacts: ArtifactStore | None) -> list[Problem]:
    """Check the file, the references, every digest against its fields, the rules, artifacts.

    Reads every trial: about a tenth of a millisecond each.
    """

    def work(connection: Connection) -> list[Problem]:
        problems: list[Problem] = []
        try:
            if database.is_sqlite:
                problems.extend(_file_problems(connection))
            problems.extend(_key_problems(connection))
            problems.extend(_trial_problems(connection))
            problems.extend(_final_problems(connection))
            problems.extend(
                Problem("verify.model", name, message)
                for name, message in learning.damaged_models(connection)
            )
            if artifacts is not None:
                problems.extend(_artifact_problems(connection, artifacts))
        except exc.DatabaseError as error:
            name = sqlite_name(error)
            if not name.startswith("SQLITE_CORRUPT"):
                raise
            message = f"cannot be read to its end ({name})"
            problems.append(Problem("verify.damaged-file", "database file", message))
        return problems

    return database.read(work)


def _file_problems(connection: Connection) -> Iterator[Problem]:
    for (text,) in connection.exec_driver_sql("PRAGMA integrity_check"):
        if text != "ok":
            yield Problem("verify.damaged-file", "database file", str(text))
    for row in connection.exec_driver_sql("PRAGMA foreign_key_check"):
        yield Problem(
            "verify.dangling-reference",
            f"{row[0]} row {row[1]}",
            f"refers to a row of {row[2]} that does not exist",
        )


def _key_problems(connection: Connection) -> Iterator[Problem]:
    for row in connection.execute(select(schema.workloads)):
        if codec.workload_of(row).key != row.key:
            yield _wrong_digest(f"workload {row.id}", row.key)
    for row in connection.execute(select(schema.toolchains)):
        record = ToolchainRecord(row.name, row.version, codec.load(row.programs))
        if record.digest != row.digest:
            yield _wrong_digest(f"toolchain {row.id}", row.digest)
    for row in connection.execute(select(schema.launches)):
        try:
            found = LaunchSpec.from_json(codec.load(row.spec)).digest
        except (TfsearchError, ValueError, KeyError, TypeError) as error:
            yield Problem("verify.damaged-row", f"launch {row.digest}", f"cannot be read: {error}")
            continue
        if found != row.digest:
            yield _wrong_digest(f"launch {row.digest}", row.digest)
    table = schema.devices
    columns = [table.c.key, table.c.id, *(c for c in table.c if c.name not in ("id", "key"))]
    labels = {"name": "device_name", "features": "device_features"}
    query = select(*(c.label(labels[c.name]) if c.name in labels else c for c in columns))
    for row in connection.execute(query):
        if codec.device_of(row).key != row.key:
            yield _wrong_digest(f"device {row.id}", row.key)


def _trial_problems(connection: Connection) -> Iterator[Problem]:
    for row in _chunked_trials(connection):
        place = f"trial {row.id}"
        if (row.status == "ok") != (row.samples is not None and row.median_us is not None):
            yield Problem(
                "verify.measurement",
                place,
                "a measurement is present exactly when the status is ok",
            )
            continue
        try:
            trial = codec.trial_of(row)
        except (TfsearchError, ValueError, KeyError, TypeError) as error:
            yield Problem("verify.damaged-row", place, f"cannot be read: {error}")
            continue
        if trial.schedule.key != row.schedule_key:
            yield _wrong_digest(f"{place}, schedule", row.schedule_key)
        build = trial.build.key if trial.build else None
        build = trial.measurement_key.build if trial.measurement_key else build
        if build is not None and build.key != row.build_key:
            yield _wrong_digest(f"{place}, build", str(row.build_key))
        key = trial.measurement_key.key if trial.measurement_key else None
        if key != row.measurement_key:
            yield _wrong_digest(f"{place}, measurement", str(row.measurement_key))
        if codec.content(trial) != row.content:
            yield _wrong_digest(f"{place}, content", row.content)


def _chunked_trials(connection: Connection) -> Iterator[Any]:
    last = -1
    while True:
        query = statements.trial_select().where(trials.c.id > last).order_by(trials.c.id)
        rows = connection.execute(query.limit(_CHUNK)).all()
        yield from rows
        if len(rows) < _CHUNK:
            return
        last = rows[-1].id


def _wrong_digest(place: str, stored: str) -> Problem:
    return Problem(
        "verify.wrong-digest", place, f"the stored digest {stored} is not that of its fields"
    )


def _final_problems(connection: Connection) -> Iterator[Problem]:
    query = (
        select(
            finals.c.id,
            finals.c.winner_id,
            (finals.c.workload_id == trials.c.workload_id).label("same_workload"),
            statements.is_servable().label("servable"),
        )
        .join_from(finals, trials, trials.c.id == finals.c.winner_id)
        .order_by(finals.c.id)
    )
    for row in connection.execute(query):
        if not row.servable:
            yield Problem(
                "verify.unverified-winner",
                f"final {row.id}",
                f"its winner, trial {row.winner_id}, is not ok and verified; it is never served",
            )
        if not row.same_workload:
            yield Problem(
                "verify.foreign-winner",
                f"final {row.id}",
                f"its winner, trial {row.winner_id}, belongs to another workload",
            )
    entries = schema.final_entries
    winner = select(entries.c.final_id).where(
        entries.c.final_id == finals.c.id, entries.c.trial_id == finals.c.winner_id
    )
    for (final,) in connection.execute(select(finals.c.id).where(~winner.exists())):
        yield Problem(
            "verify.winner-not-entered", f"final {final}", "its winner is not one of its entries"
        )


def _artifact_problems(connection: Connection, artifacts: ArtifactStore) -> Iterator[Problem]:
    for digest in sorted(_needed(connection)):
        if not artifacts.has(digest):
            yield Problem(
                "verify.artifact-missing",
                f"artifact {digest}",
                "a winner needs it and it is not in the artifact folder; tune again to rebuild it",
            )
    for entry in artifacts.entries():
        try:
            artifacts.get(entry.digest)
        except TfsearchError as error:
            yield Problem("verify.artifact-wrong", f"artifact {entry.digest}", error.message)


def _needed(connection: Connection) -> set[str]:
    """Artifacts of the winners that a lookup can serve: latest of each (workload, context)."""
    # A lookup may also ask for macros or headers, so the latest of each of those counts too.
    build_keys = schema.build_keys
    latest = (
        select(func.max(finals.c.id))
        .join_from(finals, trials, trials.c.id == finals.c.winner_id)
        .join(build_keys, build_keys.c.id == trials.c.build_key_id)
        .where(statements.is_servable())
        .group_by(
            finals.c.workload_id, finals.c.context_id, build_keys.c.macros, build_keys.c.headers
        )
    )
    query = (
        select(schema.builds.c.artifact)
        .join_from(finals, trials, trials.c.id == finals.c.winner_id)
        .join(schema.builds, schema.builds.c.id == trials.c.build_id)
        .where(finals.c.id.in_(latest))
    )
    return set(connection.execute(query).scalars())


@dataclass(frozen=True)
class Limits:
    """Bounds of an artifact folder; ``None`` is no bound."""

    max_bytes: int | None = None
    max_age_days: float | None = None
    max_files: int | None = None


def collect(
    database: Database, artifacts: ArtifactStore, limits: Limits, *, dry_run: bool
) -> GcReport:
    """Delete artifacts beyond the limits, least recently used first, except winners'."""
    needed = database.read(_needed)
    entries = sorted(artifacts.entries(), key=lambda entry: (entry.used_at, entry.digest))
    size, number = sum(entry.bytes for entry in entries), len(entries)
    too_old = None if limits.max_age_days is None else time.time() - limits.max_age_days * _DAY_S
    removed: list[str] = []
    removed_bytes = 0
    for entry in entries:
        if entry.digest in needed:
            continue
        over = (
            (too_old is not None and entry.used_at < too_old)
            or (limits.max_bytes is not None and size > limits.max_bytes)
            or (limits.max_files is not None and number > limits.max_files)
        )
        if not over:
            continue
        if not dry_run:
            artifacts.remove(entry.digest)
        removed.append(entry.digest)
        removed_bytes += entry.bytes
        size -= entry.bytes
        number -= 1
    if not dry_run:
        artifacts.remove_stale_temporaries()
        artifacts.remove_idle_notes()
    over_limit = 0 if limits.max_bytes is None else max(0, size - limits.max_bytes)
    return GcReport(tuple(removed), removed_bytes, number, size, over_limit, dry_run)
