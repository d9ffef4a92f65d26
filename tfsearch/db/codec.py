"""Between records and column values. Floats survive exactly; nothing is pickled."""

from __future__ import annotations

import json
import math
import struct
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Row

from tfsearch.core import keys
from tfsearch.core.errors import InternalError
from tfsearch.core.records import (
    Accuracy,
    BuildKey,
    BuildRecord,
    DeviceRecord,
    Final,
    FinalEntry,
    Measurement,
    MeasurementKey,
    Refusal,
    ScheduleRecord,
    Status,
    ToolchainRecord,
    Trial,
    Verification,
    WorkloadRecord,
)
from tfsearch.db.records import SessionFields, SessionRecord, SessionStatus

AnyRow = Row[Any]


def dump(value: object) -> str:
    """Canonical JSON text; unlike :func:`keys.canonical` it holds floats, NaN and infinities."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    except (TypeError, ValueError) as error:
        raise InternalError("db.not-json", f"a record holds something else: {error}") from error


def mapping(value: Mapping[str, Any]) -> str:
    """Canonical JSON text of a mapping of any kind."""
    return dump(dict(value))


def strings(value: Sequence[str]) -> str:
    """Canonical JSON text of an ordered list of strings."""
    return dump(list(value))


def load(text: str) -> Any:
    """Inverse of :func:`dump`; ``InternalError("db.damaged-row")`` for anything else."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise InternalError("db.damaged-row", f"a row holds malformed JSON: {error}") from error


def pack(samples: Sequence[float]) -> bytes:
    """Little-endian float64, 8 bytes a sample."""
    return struct.pack(f"<{len(samples)}d", *samples)


def unpack(data: bytes) -> tuple[float, ...]:
    """Inverse of :func:`pack`."""
    if len(data) % 8:
        raise InternalError("db.damaged-row", f"{len(data)} bytes of samples are not whole floats")
    return struct.unpack(f"<{len(data) // 8}d", data)


def workload_values(record: WorkloadRecord) -> dict[str, Any]:
    """Column values of ``workloads``."""
    return {
        "key": record.key,
        "op": record.op,
        "dims": mapping(record.dims),
        "dtype": record.dtype,
        "program": record.program,
        "accuracy": record.accuracy.value,
        "reproducible": int(record.reproducible),
        "alignment": record.alignment,
        "constant_inputs": strings(record.constant_inputs),
    }


def workload_of(row: AnyRow) -> WorkloadRecord:
    """Record of a ``workloads`` row."""
    return WorkloadRecord(
        op=row.op,
        dims=load(row.dims),
        dtype=row.dtype,
        program=row.program,
        accuracy=Accuracy(row.accuracy),
        reproducible=bool(row.reproducible),
        alignment=row.alignment,
        constant_inputs=tuple(load(row.constant_inputs)),
    )


def toolchain_values(record: ToolchainRecord) -> dict[str, Any]:
    """Column values of ``toolchains``."""
    return {
        "digest": record.digest,
        "name": record.name,
        "version": record.version,
        "programs": mapping(record.programs),
    }


def device_values(record: DeviceRecord) -> dict[str, Any]:
    """Column values of ``devices``."""
    return {"key": record.key, **vars(record), "features": strings(record.features)}


def session_values(record: SessionRecord) -> dict[str, Any]:
    """Column values of ``sessions`` but for ``workload_id``."""
    fields = record.fields
    return {
        "name": record.id,
        "key": fields.key,
        "target": fields.target,
        "device": fields.device,
        "toolchain": fields.toolchain,
        "flags": strings(fields.flags),
        "policy": fields.policy,
        "seed": fields.seed,
        "space": fields.space,
        "status": record.status.value,
        "owner": record.owner,
        "started_at": record.started_at,
        "finished_at": record.finished_at,
        "details": mapping(record.details),
    }


def session_of(row: AnyRow) -> SessionRecord:
    """Record of a ``sessions`` row joined with ``workload_key``."""
    return SessionRecord(
        id=row.name,
        fields=SessionFields(
            workload=row.workload_key,
            target=row.target,
            device=row.device,
            toolchain=row.toolchain,
            flags=tuple(load(row.flags)),
            policy=row.policy,
            seed=row.seed,
            space=row.space,
        ),
        status=SessionStatus(row.status),
        owner=row.owner,
        started_at=row.started_at,
        finished_at=row.finished_at,
        details=load(row.details),
    )


def refusals(values: Sequence[Refusal]) -> str:
    """Canonical JSON text of refusals."""
    return dump([refusal.to_json() for refusal in values])


def outcome_values(trial: Trial) -> dict[str, Any]:
    """The columns of ``trials`` that hold no reference to another table."""
    check, measured = trial.verification, trial.measurement
    return {
        "position": trial.index,
        "status": trial.status.value,
        "code": trial.code,
        "place": trial.where,
        "message": trial.message,
        "predicted_us": trial.predicted_us,
        "generator": trial.generator,
        "measurement_key": trial.measurement_key.key if trial.measurement_key else None,
        "verified": int(check.passed) if check else None,
        # SQLite has no NaN: NULL beside a verdict means not a number.
        "max_error": check.max_error if check and not math.isnan(check.max_error) else None,
        "passes": mapping(check.passes) if check else None,
        "verification_message": check.message if check else None,
        "median_us": measured.median_us if measured else None,
        "ci_low_us": measured.ci_us[0] if measured else None,
        "ci_high_us": measured.ci_us[1] if measured else None,
        "sample_count": len(measured.samples_us) if measured else None,
        "censored": int(measured.censored) if measured else None,
        "finished_at": trial.finished_at,
        "content": content(trial),
    }


def content(trial: Trial) -> str:
    """Digest over everything in a trial (a toolchain by its content, not its version text)."""
    build, measured, check = trial.build, trial.measurement, trial.verification
    text = dump(
        {
            **trial.head_json(),
            "generator": trial.generator,
            "measurement_key": trial.measurement_key and trial.measurement_key.key,
            "build": build
            and [build.key.key, build.artifact, build.seconds, dict(build.resources), build.log],
            "verification": check
            and [check.passed, check.max_error, dict(check.passes), check.message],
            "measurement": measured
            and [
                list(measured.samples_us),
                measured.median_us,
                list(measured.ci_us),
                measured.protocol,
                measured.censored,
                dict(measured.conditions),
            ],
            "finished_at": trial.finished_at,
        }
    )
    return keys.digest_bytes(text.encode())


def toolchain_of(row: AnyRow) -> ToolchainRecord:
    """Toolchain of a joined row."""
    return ToolchainRecord(row.toolchain_name, row.toolchain_version, load(row.programs))


def build_key_of(row: AnyRow) -> BuildKey:
    """Build key of a joined row."""
    return BuildKey(
        source=row.source,
        launch=row.launch,
        target=row.build_target,
        features=tuple(load(row.build_features)),
        flags=tuple(load(row.flags)),
        macros=tuple(load(row.macros)),
        toolchain=toolchain_of(row),
        headers=row.headers,
    )


def build_of(row: AnyRow, key: BuildKey) -> BuildRecord:
    """Build of a joined row."""
    return BuildRecord(key, row.artifact, row.seconds, load(row.resources), row.log)


def device_of(row: AnyRow) -> DeviceRecord:
    """Device of a joined row."""
    return DeviceRecord(
        name=row.device_name,
        kind=row.kind,
        model=row.model,
        features=tuple(load(row.device_features)),
        units=row.units,
        memory_bytes=row.memory_bytes,
        partitioning=row.partitioning,
        driver=row.driver,
    )


def schedule_of(row: AnyRow) -> ScheduleRecord:
    """Schedule of a joined row."""
    return ScheduleRecord(
        program=row.program,
        workload=row.schedule_workload,
        target=row.schedule_target,
        recipe=row.recipe,
        recipe_version=row.recipe_version,
        params=load(row.params),
        schema=row.schema,
    )


def final_of(row: AnyRow, session: str, workload: str, entries: Iterable[AnyRow]) -> Final:
    """A row of ``finals`` and its entries in their order; trials by the database's ids."""
    return Final(
        session=session,
        workload=workload,
        winner=row.winner_id,
        entries=tuple(
            FinalEntry(
                trial=entry.trial_id,
                median_us=entry.median_us,
                ci_us=(entry.ci_low_us, entry.ci_high_us),
                ratio=entry.ratio,
                ratio_ci=(entry.ratio_low, entry.ratio_high),
            )
            for entry in entries
        ),
        protocol=row.protocol,
        finished_at=row.finished_at,
        conditions=load(row.conditions),
    )


def trial_of(row: AnyRow) -> Trial:
    """Trial of a row of :func:`tfsearch.db.select.trial_select`."""
    build_key = build_key_of(row) if row.build_key_id is not None else None
    key = None
    if row.context_id is not None and build_key is not None:
        key = MeasurementKey(build_key, device_of(row), row.context_protocol, row.verifier)
    check = None
    if row.verified is not None:
        error = math.nan if row.max_error is None else row.max_error
        check = Verification(bool(row.verified), error, load(row.passes), row.verification_message)
    measured = None
    if row.samples is not None:
        measured = Measurement(
            samples_us=unpack(row.samples),
            median_us=row.median_us,
            ci_us=(row.ci_low_us, row.ci_high_us),
            protocol=row.measurement_protocol,
            censored=bool(row.censored),
            conditions=load(row.conditions),
        )
    try:
        return Trial(
            session=row.session,
            index=row.position,
            workload=row.workload_key,
            schedule=schedule_of(row),
            status=Status(row.status),
            code=row.code,
            where=row.place,
            message=row.message,
            predicted_us=row.predicted_us,
            generator=row.generator,
            measurement_key=key,
            build=build_of(row, build_key) if row.artifact is not None and build_key else None,
            verification=check,
            measurement=measured,
            finished_at=row.finished_at,
        )
    except ValueError as error:
        raise InternalError("db.damaged-row", f"trial {row.id}: {error}") from error
