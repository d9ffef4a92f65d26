"""Records for the tests of the store."""

from __future__ import annotations

from dataclasses import replace

from tfsearch.core.records import (
    VERIFIER_VERSION,
    BuildKey,
    BuildRecord,
    DeviceRecord,
    Final,
    FinalEntry,
    Measurement,
    MeasurementKey,
    ScheduleRecord,
    Status,
    ToolchainRecord,
    Trial,
    Verification,
    WorkloadRecord,
)
from tfsearch.db import BestQuery, SessionFields, SessionRecord, Store

TOOLCHAIN = ToolchainRecord("gcc", "gcc 12.2", {"driver": "a" * 64, "cc1": "b" * 64})
DEVICE = DeviceRecord("Xeon", "cpu", "6/207/2", ("avx2", "fma"), 2, 8 << 30, "", "6.1")
PROTOCOL = "cold/1"


def workload(m: int = 512, **changes) -> WorkloadRecord:
    text = f"program gemm m={m}"
    return replace(WorkloadRecord("gemm", {"m": m, "n": 512}, "f32", text), **changes)


def session(record: WorkloadRecord, name: str = "s1", **changes) -> SessionRecord:
    fields = SessionFields(
        workload=record.key,
        target="x86",
        device=DEVICE.key,
        toolchain=TOOLCHAIN.digest,
        flags=("-O3",),
        policy="ranked",
        seed=7,
        space="f" * 64,
    )
    return SessionRecord(name, replace(fields, **changes), owner="host:1", details={"trials": 16})


def build_key(tile: int = 8, **changes) -> BuildKey:
    key = BuildKey(
        source=f"source-{tile}",
        launch="launch",
        target="x86",
        features=("avx2",),
        flags=("-O3", "-march=native"),
        macros=(),
        toolchain=TOOLCHAIN,
        headers="headers",
    )
    return replace(key, **changes)


def schedule(record: WorkloadRecord, tile: int = 8) -> ScheduleRecord:
    params = {"tile": tile, "pack": True, "order": "mnk"}
    return ScheduleRecord(record.program, record.key, "x86", "contraction", 1, params)


def trial(
    record: WorkloadRecord,
    index: int = 0,
    *,
    name: str = "s1",
    tile: int | None = None,
    median: float = 10.0,
    key: BuildKey | None = None,
    device: DeviceRecord = DEVICE,
    protocol: str = PROTOCOL,
    verifier: int = VERIFIER_VERSION,
    artifact: str = "c" * 64,
    passed: bool = True,
    censored: bool = False,
) -> Trial:
    tile = index if tile is None else tile
    key = key or build_key(tile)
    samples = (median, median + 0.1, median + 0.2, 1 / 3)
    return Trial(
        session=name,
        index=index,
        workload=record.key,
        schedule=schedule(record, tile),
        status=Status.OK,
        predicted_us=median / 2,
        generator="generator-1",
        measurement_key=MeasurementKey(key, device, protocol, verifier),
        build=BuildRecord(key, artifact, 0.5, {"registers": 16}, "a warning"),
        verification=Verification(passed, 0.25, {"exact": 0.0, "normal": 0.25}),
        measurement=Measurement(
            samples, median, (median - 0.5, median + 0.5), protocol, censored, {"probe": 1.5}
        ),
        finished_at="2030-01-01T00:00:00Z",
    )


def failed(record: WorkloadRecord, index: int, status: Status, *, name: str = "s1") -> Trial:
    return Trial(
        session=name,
        index=index,
        workload=record.key,
        schedule=schedule(record, index),
        status=status,
        code="build.failed",
        where="kernel.c:3",
        message="unknown type",
        verification=Verification(False, float("nan"), {"exact": float("inf")}, "3 wrong")
        if status is Status.WRONG
        else None,
    )


def final(record: WorkloadRecord, winner: int, *others: int, name: str = "s1", **changes) -> Final:
    entries = tuple(
        FinalEntry(one, 10.0 + at, (9.5 + at, 10.5 + at), 1.0 + at / 10, (1.0, 1.2))
        for at, one in enumerate((winner, *others))
    )
    made = Final(name, record.key, winner, entries, PROTOCOL, "2030-01-01", {"drift": 0.01})
    return replace(made, **changes)


def query(record: WorkloadRecord, **changes) -> BestQuery:
    made = BestQuery(record, "x86", DEVICE, TOOLCHAIN, ("-O3", "-march=native"), PROTOCOL)
    return replace(made, **changes)


def begun(store: Store, m: int = 512, name: str = "s1", **changes) -> WorkloadRecord:
    """A workload put and a session begun."""
    record = workload(m, **changes)
    store.put_workload(record)
    store.begin_session(session(record, name))
    return record
