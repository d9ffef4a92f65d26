"""Jobs for the fake runner."""

from __future__ import annotations

import dataclasses
import json

from tfsearch.core import keys
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import WorkloadRecord
from tfsearch.measure.job import Limits, MeasureJob

RUNNER = "tests.measure.fake_runner:make"
M, N, K = 7, 5, 9


def gemm_text(m=M, n=N, k=K, dtype="f32", out=None):
    out = out or dtype
    acc = "i32" if dtype == "i8" else "f32"
    lines = [
        f"program main(a: {dtype}[{m},{k}], b: {dtype}[{k},{n}]) -> (c: {out}[{m},{n}]) {{",
        f'  %2 = contract(%0, %1) {{dims = "mk,kn->mn", acc = {acc}}} : {acc}[{m},{n}]',
    ]
    if out != acc:
        lines.append(f"  %3 = cast(%2) : {out}[{m},{n}]")
    return "\n".join([*lines, f"  return %{len(lines)}", "}"]) + "\n"


def workload(**fields):
    base = WorkloadRecord("gemm", {"m": M, "n": N, "k": K}, "f32", gemm_text())
    return dataclasses.replace(base, **fields)


def launch(m=M, n=N, k=K, dtype="f32", out=None):
    def spec(name, shape, io, kind):
        return ArgumentSpec(name, kind, shape, (shape[1], 1), io, 64)

    return LaunchSpec(
        EntrySpec(
            "kernel",
            (
                spec("a", (m, k), "in", dtype),
                spec("b", (k, n), "in", dtype),
                spec("c", (m, n), "out", out or dtype),
            ),
            1,
            0,
        )
    )


LIMITS = Limits(deadline_s=20, budget_s=0.5, share=0.5, most=40, memory_bytes=2 << 30)


def job(folder, kernel, *, limits=None, work=None, spec=None, options=None, **fields):
    path = folder / f"{kernel}.json"
    path.write_text(json.dumps({"kernel": kernel, **(options or {})}))
    made = dataclasses.replace(LIMITS, **(limits or {}))
    return MeasureJob(
        work or workload(),
        str(path),
        keys.digest_bytes(path.read_bytes()),
        spec or launch(),
        limits=made,
        **fields,
    )
