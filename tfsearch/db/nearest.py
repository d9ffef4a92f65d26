"""On a miss: which recorded winners come closest, and what differs."""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection

from tfsearch.core import keys
from tfsearch.core.records import DeviceRecord, ToolchainRecord, WorkloadRecord
from tfsearch.db import codec, select
from tfsearch.db.records import BestQuery, Nearest
from tfsearch.db.schema import workloads

_SAME_OP_LIMIT = 2000
_OTHER_OP_LIMIT = 200
_CLOSE_WORKLOADS = 32


def nearest(connection: Connection, query: BestQuery, limit: int) -> list[Nearest]:
    """Winners of finals with the fewest differing fields, nearest first.

    On a tie those of which only the program's text differs come first, then the fastest.

    Looks at the workload itself, then at up to 2,000 tuned workloads of the same op (the most
    recent ones), then at other ops; where the workload has no final, its verified trials stand
    in. So the cost depends on how many workloads there are, not on how many trials.
    """
    wanted = _wanted(query)
    found: dict[int, Nearest] = {}
    rows = list(connection.execute(select.final_winners(_close_workloads(connection, query))))
    if not any(row.workload_key == query.workload.key for row in rows):
        key = {"workload": query.workload.key}
        rows += connection.execute(select.fastest_by_context(), key)
    for row in rows:
        differs = _differences(query, wanted, row)
        if differs:
            found[row.id] = Nearest(differs, row.id, row.median_us)
    ordered = sorted(found.values(), key=_order)
    return ordered[:limit]


def _order(near: Nearest) -> tuple[int, bool, float]:
    return len(near.differs), "workload.program" not in near.differs, near.median_us


def _close_workloads(connection: Connection, query: BestQuery) -> list[int]:
    base = select.NEAR_WORKLOADS.order_by(workloads.c.id.desc())
    same_op = workloads.c.op == query.workload.op
    rows = list(connection.execute(base.where(same_op).limit(_SAME_OP_LIMIT)))
    same = base.where(workloads.c.key == query.workload.key)  # it may be older than the limit
    rows += connection.execute(same)
    if not rows:
        rows = list(connection.execute(base.limit(_OTHER_OP_LIMIT)))
    counted = {row.id: _distance(query.workload, row) for row in rows}
    return sorted(counted, key=lambda one: (counted[one], -one))[:_CLOSE_WORKLOADS]


def _distance(wanted: WorkloadRecord, row: Any) -> int:
    """How many fields differ, cheaply: this runs for thousands of workloads."""
    dims = codec.load(row.dims)
    count = sum(dims.get(name) != wanted.dims.get(name) for name in {*dims, *wanted.dims})
    count += row.op != wanted.op
    count += row.dtype != wanted.dtype
    count += row.accuracy != wanted.accuracy.value
    count += bool(row.reproducible) != wanted.reproducible
    count += row.alignment != wanted.alignment
    count += row.constant_inputs != codec.strings(wanted.constant_inputs)
    return count or int(row.program != wanted.program)


def _workload_differences(wanted: WorkloadRecord, row: Any) -> dict[str, tuple[object, object]]:
    if row.workload_key == wanted.key:
        return {}  # labels are not part of the identity
    found = codec.workload_of(row)
    # Labels say more than two program texts; the texts differ on their own only as a last resort.
    out = keys.differences(_labels(wanted), _labels(found), "workload.")
    identity, other = _identity(wanted), _identity(found)
    if out:
        del identity["program"], other["program"]
    out.update(keys.differences(identity, other, "workload."))
    return out


def _identity(workload: WorkloadRecord) -> dict[str, object]:
    """The fields of the key; the text of a user's kernel, which is JSON, as fields of its own."""
    fields = workload.key_fields()
    if workload.program.startswith("{"):
        fields["program"] = codec.load(workload.program)
    return fields


def _labels(workload: WorkloadRecord) -> dict[str, object]:
    return {"op": workload.op, "dims": workload.dims, "dtype": workload.dtype}


def _device(device: DeviceRecord) -> dict[str, object]:
    return device.key_fields()


def _toolchain(toolchain: ToolchainRecord) -> dict[str, object]:
    return {"name": toolchain.name, "programs": toolchain.programs}


def _wanted(query: BestQuery) -> dict[str, object]:
    fields = {
        "target": query.target,
        "device": _device(query.device),
        "toolchain": _toolchain(query.toolchain) if query.toolchain else None,
        "flags": query.flags,
        "features": query.features,
        "macros": query.macros,
        "headers": query.headers,
        "protocol": query.protocol,
        "verifier": query.verifier,
    }
    return {name: value for name, value in fields.items() if value is not None}


def _differences(
    query: BestQuery, wanted: dict[str, object], row: Any
) -> dict[str, tuple[object, object]]:
    found: dict[str, object] = {
        "target": row.build_target,
        "device": _device(codec.device_of(row)),
        "toolchain": _toolchain(codec.toolchain_of(row)),
        "flags": codec.load(row.flags),
        "features": codec.load(row.build_features),
        "macros": codec.load(row.macros),
        "headers": row.headers,
        "protocol": row.context_protocol,
        "verifier": row.verifier,
    }
    out = _workload_differences(query.workload, row)
    out.update(keys.differences(wanted, {name: found[name] for name in wanted}))
    return out
