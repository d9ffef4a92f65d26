"""The one statement that records a trial on PostgreSQL, as text for the driver."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from sqlalchemy import Dialect, Table

from tfsearch.db import schema

_SHARED = ("session_id", "workload_id", "context_id")
_REFERENCES = ("schedule_id", "build_key_id", "build_id")
_KEY = ("key", "source", "launch", "macros", "headers")
_BUILD = ("artifact", "seconds", "resources", "log")
_MEASUREMENT = ("protocol", "samples", "conditions")


@lru_cache(maxsize=64)
def record_text(dialect: Dialect, parts: tuple[str, ...]) -> str:
    """The statement for trials with these parts: ``key``, ``build``, ``measurement``.

    Its parameters are the outcome's columns and the shared rows' ids by their names; columns of a
    part or of the schedule as PART_COLUMN. It answers the new trial's id, or no row. Every part of
    it sees the state before it, so a row that another transaction commits meanwhile is neither
    inserted nor seen, and no row is the answer: nothing is wrong, nor is the trial recorded.
    """

    def parameter(table: Table, column: str, name: str) -> str:
        kind = table.c[column].type.compile(dialect=dialect)
        return f"CAST(%({name})s AS {kind})"

    def parameters(table: Table, columns: tuple[str, ...], prefix: str) -> str:
        return ", ".join(parameter(table, column, prefix + column) for column in columns)

    def interned(table: Table, columns: tuple[str, ...], prefix: str, reference: str) -> str:
        key = parameter(table, "key", f"{prefix}key")
        return (
            f"new_{prefix}row AS (INSERT INTO {table.name} ({', '.join(columns)}, {reference}) "
            f"SELECT {parameters(table, columns, prefix)}, "
            f"{parameter(table, reference, reference)} FROM free "
            f"ON CONFLICT DO NOTHING RETURNING id), "
            f"{prefix}row AS (SELECT id FROM new_{prefix}row UNION ALL "
            f"SELECT id FROM {table.name} WHERE key = {key} LIMIT 1)"
        )

    trials = schema.trials
    place = parameter(trials, "session_id", "session_id"), parameter(trials, "position", "position")
    steps = [
        "free AS (SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM trials "
        f"WHERE session_id = {place[0]} AND position = {place[1]}))",
        interned(schema.schedules, ("key", "params"), "schedule_", "head_id"),
    ]
    references: dict[str, str] = {"schedule_id": "schedule_row.id"}
    if "key" in parts:
        steps.append(interned(schema.build_keys, _KEY, "key_", "environment_id"))
        references["build_key_id"] = "key_row.id"
    if "build" in parts:
        steps.extend(_build_steps(parameter, parameters))
        references["build_id"] = "build_row.id"
    own = tuple(c.name for c in trials.c if c.name not in ("id", *_SHARED, *_REFERENCES))
    columns = (*_SHARED, *own)
    sources = ["free", *(f"{place.removesuffix('.id')}" for place in references.values())]
    steps.append(
        f"trial AS (INSERT INTO trials ({', '.join((*columns, *references))}) "
        f"SELECT {parameters(trials, columns, '')}, {', '.join(references.values())} "
        f"FROM {', '.join(sources)} ON CONFLICT DO NOTHING RETURNING id)"
    )
    if "measurement" in parts:
        values = parameters(schema.measurements, _MEASUREMENT, "measurement_")
        steps.append(
            f"measured AS (INSERT INTO measurements (trial_id, {', '.join(_MEASUREMENT)}) "
            f"SELECT trial.id, {values} FROM trial)"
        )
    return f"WITH {', '.join(steps)} SELECT id FROM trial"


def _build_steps(parameter: Any, parameters: Any) -> list[str]:
    """An equal build of the key, or a new one."""
    builds = schema.builds
    equal = " AND ".join(
        f"builds.{name} = {parameter(builds, name, f'build_{name}')}" for name in _BUILD
    )
    return [
        "known_build AS (SELECT builds.id FROM builds JOIN key_row "
        f"ON builds.build_key_id = key_row.id WHERE {equal} LIMIT 1)",
        f"new_build AS (INSERT INTO builds (build_key_id, {', '.join(_BUILD)}) "
        f"SELECT key_row.id, {parameters(builds, _BUILD, 'build_')} FROM free, key_row "
        "WHERE NOT EXISTS (SELECT 1 FROM known_build) RETURNING id)",
        "build_row AS (SELECT id FROM new_build UNION ALL SELECT id FROM known_build LIMIT 1)",
    ]
