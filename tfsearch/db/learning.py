"""What learning needs of the database: measured times, and the models made of them.

A model is a row of ``meta`` whose name begins with ``model`` and holds the digest of the fields
that it is valid for. Its value is JSON: the fields, the document, and the digest of both.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from sqlalchemy import ColumnElement, Connection, bindparam, select, update

from tfsearch.core import keys
from tfsearch.core.errors import InternalError, NotRecordedError
from tfsearch.db import codec, schema, writing
from tfsearch.db import select as statements
from tfsearch.db.records import ModelRecord, Timing

PREFIX = "model "

_TIMING_COLUMNS: list[ColumnElement[Any]] = [
    schema.workloads.c.key.label("workload"),
    schema.environments.c.key.label("environment"),
    schema.devices.c.key.label("device"),
    schema.contexts.c.protocol,
    schema.trials.c.generator,
    schema.trials.c.median_us,
    schema.trials.c.censored,
    schema.schedules.c.params,
    schema.schedule_heads.c.schema,
    schema.schedule_heads.c.program,
    schema.schedule_heads.c.workload.label("schedule_workload"),
    schema.schedule_heads.c.target.label("schedule_target"),
    schema.schedule_heads.c.recipe,
    schema.schedule_heads.c.recipe_version,
]
_TIMINGS = (
    select(*_TIMING_COLUMNS)
    .select_from(
        schema.trials.join(schema.workloads, schema.workloads.c.id == schema.trials.c.workload_id)
        .join(schema.schedules, schema.schedules.c.id == schema.trials.c.schedule_id)
        .join(schema.schedule_heads, schema.schedule_heads.c.id == schema.schedules.c.head_id)
        .join(schema.contexts, schema.contexts.c.id == schema.trials.c.context_id)
        .join(schema.environments, schema.environments.c.id == schema.contexts.c.environment_id)
        .join(schema.devices, schema.devices.c.id == schema.contexts.c.device_id)
    )
    .where(statements.is_servable(), schema.environments.c.target == bindparam("target"))
    .order_by(schema.trials.c.id.desc())
    .limit(bindparam("most"))
)


def timings(connection: Connection, target: str, most: int) -> list[Timing]:
    """The latest ``most`` verified times of a target, in the order of their recording."""
    rows = connection.execute(_TIMINGS, {"target": target, "most": most}).all()
    return [
        Timing(
            workload=row.workload,
            environment=row.environment,
            device=row.device,
            protocol=row.protocol,
            generator=row.generator,
            schedule=codec.schedule_of(row),
            median_us=row.median_us,
            censored=bool(row.censored),
        )
        for row in reversed(rows)
    ]


def put_model(connection: Connection, record: ModelRecord) -> None:
    """Write a model, in place of an earlier one for the same fields."""
    body = {"fields": dict(record.fields), "document": dict(record.document)}
    values = {
        "name": PREFIX + record.key,
        "value": codec.dump({**body, "digest": _digest(body)}),
    }
    table = schema.meta
    writing.insert_or_ignore(connection, table, values)
    connection.execute(
        update(table).where(table.c.name == values["name"]).values(value=values["value"])
    )


def model(connection: Connection, key: str) -> ModelRecord | None:
    """The model for the fields of this digest.

    ``NotRecordedError`` (``model.damaged``) when it is not what was written.
    """
    table = schema.meta
    query = select(table.c.name, table.c.value).where(table.c.name == PREFIX + key)
    row = connection.execute(query).first()
    return None if row is None else _read(row.name, row.value)


def models(connection: Connection) -> list[ModelRecord]:
    """All models that can be read, in the order of their keys."""
    return [found for _, found in _all(connection) if isinstance(found, ModelRecord)]


def damaged_models(connection: Connection) -> list[tuple[str, str]]:
    """(name, what is wrong) of every model that cannot be used."""
    return [(name, found) for name, found in _all(connection) if isinstance(found, str)]


def _all(connection: Connection) -> list[tuple[str, ModelRecord | str]]:
    """(name, the model or what is wrong with it) in the order of names."""
    table = schema.meta
    out: list[tuple[str, ModelRecord | str]] = []
    query = select(table.c.name, table.c.value).where(table.c.name.startswith(PREFIX))
    for name, value in connection.execute(query.order_by(table.c.name)):
        try:
            out.append((name, _read(name, value)))
        except NotRecordedError as error:
            out.append((name, error.message))
    return out


def _read(name: str, value: str) -> ModelRecord:
    try:
        body = codec.load(value)
        fields, document, digest = body["fields"], body["document"], body["digest"]
        record = ModelRecord(_mapping(fields), _mapping(document))
        whole = digest == _digest({"fields": fields, "document": document})
        whole = whole and name == PREFIX + record.key
    except (InternalError, KeyError, TypeError):
        whole, record = False, ModelRecord({}, {})
    if not whole:
        raise NotRecordedError(
            "model.damaged",
            f"the learned model {name.removeprefix(PREFIX)[:12]}… was altered after it was written "
            "and is not used; train it again with tfsearch db model --train",
        )
    return record


def _mapping(value: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise TypeError("not a mapping")
    return cast("dict[str, Any]", value)


def _digest(body: Mapping[str, Any]) -> str:
    return keys.digest_bytes(codec.dump(body).encode())
