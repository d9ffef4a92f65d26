"""The joined statements, built once so that SQLAlchemy compiles each of them once."""

from __future__ import annotations

from functools import cache
from typing import Any, cast

from sqlalchemy import (
    ColumnElement,
    FromClause,
    Select,
    and_,
    bindparam,
    func,
    literal_column,
    or_,
    select,
)
from sqlalchemy.sql.selectable import ScalarSelect

from tfsearch.db.schema import (
    build_keys,
    builds,
    contexts,
    devices,
    environments,
    finals,
    measurements,
    schedule_heads,
    schedules,
    sessions,
    sources,
    toolchains,
    trials,
    workloads,
)


def is_servable(table: FromClause = trials) -> ColumnElement[bool]:
    """Status ok and verification passed, spelt as the partial index spells it."""
    return and_(table.c.status == literal_column("'ok'"), table.c.verified == literal_column("1"))


_BUILT_COLUMNS: list[ColumnElement[Any]] = [
    build_keys.c.macros,
    build_keys.c.headers,
    environments.c.target.label("build_target"),
    environments.c.features.label("build_features"),
    environments.c.flags,
    toolchains.c.name.label("toolchain_name"),
    toolchains.c.version.label("toolchain_version"),
    toolchains.c.programs,
]
"""What a build was made with, beside its source: macros, headers, target, flags, toolchain."""


def build_columns() -> list[ColumnElement[Any]]:
    """Columns that :func:`tfsearch.db.codec.build_key_of` and ``build_of`` read."""
    return [
        build_keys.c.source,
        build_keys.c.launch,
        *_BUILT_COLUMNS,
        builds.c.artifact,
        builds.c.seconds,
        builds.c.resources,
        builds.c.log,
    ]


_DEVICE_COLUMNS = [
    devices.c.name.label("device_name"),
    devices.c.kind,
    devices.c.model,
    devices.c.features.label("device_features"),
    devices.c.units,
    devices.c.memory_bytes,
    devices.c.partitioning,
    devices.c.driver,
    contexts.c.protocol.label("context_protocol"),
    contexts.c.verifier,
]

_WORKLOAD_COLUMNS: list[ColumnElement[Any]] = [
    workloads.c.key.label("workload_key"),
    workloads.c.op,
    workloads.c.dims,
    workloads.c.dtype,
    workloads.c.program,
    workloads.c.accuracy,
    workloads.c.reproducible,
    workloads.c.alignment,
    workloads.c.constant_inputs,
]
"""The key, and the columns that :func:`tfsearch.db.codec.workload_of` reads."""

_TRIAL_COLUMNS: list[ColumnElement[Any]] = [
    *trials.c,
    sessions.c.name.label("session"),
    workloads.c.key.label("workload_key"),
    schedules.c.key.label("schedule_key"),
    schedules.c.params,
    schedule_heads.c.schema,
    schedule_heads.c.program,
    schedule_heads.c.workload.label("schedule_workload"),
    schedule_heads.c.target.label("schedule_target"),
    schedule_heads.c.recipe,
    schedule_heads.c.recipe_version,
    build_keys.c.key.label("build_key"),
    *build_columns(),
    *_DEVICE_COLUMNS,
    measurements.c.protocol.label("measurement_protocol"),
    measurements.c.samples,
    measurements.c.conditions,
]

TRIAL_JOIN = (
    trials.join(sessions, sessions.c.id == trials.c.session_id)
    .join(workloads, workloads.c.id == trials.c.workload_id)
    .join(schedules, schedules.c.id == trials.c.schedule_id)
    .join(schedule_heads, schedule_heads.c.id == schedules.c.head_id)
    .outerjoin(build_keys, build_keys.c.id == trials.c.build_key_id)
    .outerjoin(environments, environments.c.id == build_keys.c.environment_id)
    .outerjoin(toolchains, toolchains.c.id == environments.c.toolchain_id)
    .outerjoin(builds, builds.c.id == trials.c.build_id)
    .outerjoin(contexts, contexts.c.id == trials.c.context_id)
    .outerjoin(devices, devices.c.id == contexts.c.device_id)
    .outerjoin(measurements, measurements.c.trial_id == trials.c.id)
)


def trial_select() -> Select[Any]:
    """Everything :func:`tfsearch.db.codec.trial_of` reads, one row a trial."""
    return select(*_TRIAL_COLUMNS).select_from(TRIAL_JOIN)


TRIAL_BY_ID = trial_select().where(trials.c.id == bindparam("trial"))
DUPLICATE = (
    trial_select()
    .where(schedules.c.key == bindparam("schedule"), workloads.c.key == bindparam("workload"))
    .where(trials.c.measurement_key == bindparam("measurement_key"))
    .where(trials.c.status.in_(bindparam("statuses", expanding=True)))
    .order_by(trials.c.id.desc())
    .limit(1)
)
BUILD_BY_KEY = (
    select(*build_columns())
    .select_from(
        builds.join(build_keys, build_keys.c.id == builds.c.build_key_id)
        .join(environments, environments.c.id == build_keys.c.environment_id)
        .join(toolchains, toolchains.c.id == environments.c.toolchain_id)
    )
    .where(build_keys.c.key == bindparam("key"))
    .order_by(builds.c.id.desc())
    .limit(1)
)
SOURCE = select(sources).where(
    sources.c.schedule == bindparam("schedule"), sources.c.generator == bindparam("generator")
)


def _context_conditions(names: tuple[str, ...]) -> list[ColumnElement[bool]]:
    """Named fields of ``contexts`` and the tables behind it equal the parameters of their name."""
    columns: dict[str, ColumnElement[Any]] = {
        "target": environments.c.target,
        "flags": environments.c.flags,
        "features": environments.c.features,
        "toolchain": toolchains.c.digest,
        "device": devices.c.key,
        "protocol": contexts.c.protocol,
        "verifier": contexts.c.verifier,
    }
    return [columns[name] == bindparam(name) for name in names]


_CONTEXT_JOIN = (
    contexts.join(environments, environments.c.id == contexts.c.environment_id)
    .join(toolchains, toolchains.c.id == environments.c.toolchain_id)
    .join(devices, devices.c.id == contexts.c.device_id)
)
_WORKLOAD_ID: ScalarSelect[int] = (
    select(workloads.c.id).where(workloads.c.key == bindparam("workload")).scalar_subquery()
)


@cache
def latest_final_select(names: tuple[str, ...], build: tuple[str, ...]) -> Select[Any]:
    """Id and winner of the latest final of ``:workload`` in matching contexts.

    ``names`` and ``build`` name the given fields of the context and of the winner's build.

    The inner statement is one index step per context, so its cost does not depend on how many
    trials or finals there are. Only winners that may be served count.
    """
    inner, winner, key = finals.alias("f2"), trials.alias("t2"), build_keys.alias("b2")
    latest = (
        select(inner.c.id)
        .select_from(
            inner.join(winner, winner.c.id == inner.c.winner_id).join(
                key, key.c.id == winner.c.build_key_id
            )
        )
        .where(
            inner.c.workload_id == _WORKLOAD_ID,
            inner.c.context_id == contexts.c.id,
            is_servable(winner),
            *_build_conditions(key, build),
        )
        .order_by(inner.c.id.desc())
        .limit(1)
        .correlate(contexts)
        .scalar_subquery()
    )
    statement = (
        select(finals.c.id, finals.c.winner_id)
        .select_from(_CONTEXT_JOIN.join(finals, finals.c.id == latest))
        .where(*_context_conditions(names))
        .order_by(finals.c.id.desc())
        .limit(1)
    )
    return cast("Select[Any]", statement)  # its type differs between SQLAlchemy 2.0 and 2.1


@cache
def fastest_select(names: tuple[str, ...], build: tuple[str, ...]) -> Select[Any]:
    """Id of the fastest servable, uncensored trial of ``:workload`` in matching contexts."""
    inner, key = trials.alias("t2"), build_keys.alias("b2")
    fastest = (
        select(inner.c.id)
        .select_from(inner.join(key, key.c.id == inner.c.build_key_id))
        .where(
            inner.c.workload_id == _WORKLOAD_ID,
            inner.c.context_id == contexts.c.id,
            is_servable(inner),
            inner.c.censored == 0,
            *_build_conditions(key, build),
        )
        .order_by(inner.c.median_us, inner.c.id)
        .limit(1)
        .correlate(contexts)
        .scalar_subquery()
    )
    return (
        select(trials.c.id)
        .select_from(_CONTEXT_JOIN.join(trials, trials.c.id == fastest))
        .where(*_context_conditions(names))
        .order_by(trials.c.median_us, trials.c.id)
        .limit(1)
    )


def _build_conditions(key: FromClause, names: tuple[str, ...]) -> list[ColumnElement[bool]]:
    return [key.c[name] == bindparam(name) for name in names]


NEAREST_COLUMNS: list[ColumnElement[Any]] = [
    trials.c.id,
    trials.c.median_us,
    *_WORKLOAD_COLUMNS,
    *_BUILT_COLUMNS,
    *_DEVICE_COLUMNS,
]


def final_winners(workload_ids: list[int]) -> Select[Any]:
    """Winners of the latest final of each (workload, context) of some workloads."""
    latest = (
        select(func.max(finals.c.id))
        .where(finals.c.workload_id.in_(workload_ids))
        .group_by(finals.c.workload_id, finals.c.context_id)
    )
    joined = (
        finals.join(trials, trials.c.id == finals.c.winner_id)
        .join(workloads, workloads.c.id == finals.c.workload_id)
        .join(build_keys, build_keys.c.id == trials.c.build_key_id)
        .join(contexts, contexts.c.id == finals.c.context_id)
        .join(environments, environments.c.id == contexts.c.environment_id)
        .join(toolchains, toolchains.c.id == environments.c.toolchain_id)
        .join(devices, devices.c.id == contexts.c.device_id)
    )
    return (
        select(*NEAREST_COLUMNS).select_from(joined).where(finals.c.id.in_(latest), is_servable())
    )


def fastest_by_context() -> Select[Any]:
    """The fastest servable trial of ``:workload`` in every context it was measured in."""
    inner = trials.alias("t2")
    fastest = (
        select(inner.c.id)
        .where(
            inner.c.workload_id == _WORKLOAD_ID,
            inner.c.context_id == contexts.c.id,
            is_servable(inner),
        )
        .order_by(inner.c.median_us)
        .limit(1)
        .correlate(contexts)
        .scalar_subquery()
    )
    joined = (
        _CONTEXT_JOIN.join(trials, trials.c.id == fastest)
        .join(workloads, workloads.c.id == trials.c.workload_id)
        .join(build_keys, build_keys.c.id == trials.c.build_key_id)
    )
    return select(*NEAREST_COLUMNS).select_from(joined)


NEAR_WORKLOADS: Select[Any] = select(workloads.c.id, *_WORKLOAD_COLUMNS).where(
    select(finals.c.id).where(finals.c.workload_id == workloads.c.id).exists()
)

RESUMABLE = or_(
    sessions.c.status == literal_column("'running'"),
    sessions.c.status == literal_column("'interrupted'"),
)
