"""A ladder of ring kernels on an H200: each step in a process of its own that may be killed.

    python benchmarks/h200_ring_check.py [--only WORD] [--timeout S] [--compile-only] [--assert]

From one tile and one instruction's width over slots, steps, edges, consumers, turns, operand
orders, clusters and epilogues to a full persistent kernel. What fails says how it is wrong: which
blocks, which slices of the sum, which factor looks transposed or unswizzled, or that nothing came
back in time. Prints JSON lines and, last, a table.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from _ring_faults import faults  # noqa: E402

WORKERS = int(os.environ.get("TFSEARCH_WORKERS", "16"))
GUARD = 4096
"""Bytes before and behind the result."""
POISON = 0xFF
HOST_FLOPS = 4e10
"""Above as many, rows of the result are sampled."""
SAMPLED = 192
ONE: dict[str, Any] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "stages": 2, "consumers": 1,
    "scheme": "cooperative", "high": 1, "wide": 1, "group": 1, "units": 132, "epilogue": "direct",
}  # fmt: skip
TWO = {"tile_m": 128, "tile_n": 128, "stages": 4, "consumers": 2}


@dataclass(frozen=True)
class Step:
    """One rung: sizes, what differs of the smallest point, options of the product."""

    name: str
    sizes: tuple[int, int, int]
    changes: dict[str, Any] = field(default_factory=dict[str, Any])
    options: dict[str, str] = field(default_factory=dict[str, str])


_A, _B = {"trans_a": "true"}, {"trans_b": "false"}
LADDER: tuple[Step, ...] = (
    Step("one tile, one step", (64, 64, 64)),
    Step("one tile, 8 columns", (64, 8, 64), {"tile_n": 8}),
    Step("one tile, 40 columns", (64, 40, 64), {"tile_n": 40}),
    Step("one tile, 256 columns", (64, 256, 64), {"tile_n": 256}),
    Step("part of a depth", (64, 64, 8)),
    Step("two steps in two slots", (64, 64, 128)),
    Step("slots are used again", (64, 64, 640), {"stages": 3}),
    Step("eight slots", (64, 64, 2048), {"stages": 8}),
    Step("long steps", (64, 64, 1024), {"tile_k": 256, "stages": 2}),
    Step("edges", (61, 51, 136)),
    Step("two consumers", (128, 128, 512), TWO),
    Step("three consumers", (192, 64, 512), {"tile_m": 192, "consumers": 3, "stages": 4}),
    Step("two blocks", (256, 64, 512), {"tile_m": 256, "consumers": 2, "stages": 3}),
    Step("a tile for every unit", (1536, 1408, 256), TWO),
    Step("persistent", (2048, 2304, 512), TWO),
    Step("persistent with edges", (2000, 2104, 520), {**TWO, "group": 8}),
    Step("ping-pong", (128, 64, 512), {"scheme": "pingpong", "consumers": 2, "stages": 4}),
    Step(
        "ping-pong, persistent", (2048, 2304, 512),
        {**TWO, "tile_m": 64, "scheme": "pingpong"},
    ),
    Step("first factor across", (64, 64, 128), {}, _A),
    Step("second factor across", (64, 64, 128), {}, _B),
    Step("second across, four blocks", (64, 256, 128), {"tile_n": 256}, _B),
    Step("both across", (256, 256, 512), TWO, {**_A, **_B}),
    Step("cluster above", (256, 64, 64), {"tile_m": 128, "consumers": 2, "high": 2}),
    Step("cluster beside", (64, 128, 64), {"wide": 2}),
    Step("cluster above, slots again", (256, 128, 1024), {**TWO, "high": 2}),
    Step("cluster beside, slots again", (128, 256, 1024), {**TWO, "wide": 2}),
    Step("clusters, persistent", (2048, 2304, 512), {**TWO, "high": 2, "group": 4}),
    Step("clusters with edges", (2000, 2104, 520), {**TWO, "wide": 2}),
    Step("clusters, both across", (2048, 2304, 512), {**TWO, "high": 2}, {**_A, **_B}),
    Step(
        "clusters, ping-pong", (2048, 2304, 512),
        {**TWO, "tile_m": 64, "scheme": "pingpong", "high": 2},
    ),
    Step("staged", (64, 64, 64), {"epilogue": "staged"}),
    Step("staged, three boxes", (64, 192, 64), {"tile_n": 192, "epilogue": "staged"}),
    Step("staged, edges", (100, 200, 136), {"epilogue": "staged"}),
    Step("staged, persistent", (2048, 2304, 512), {**TWO, "epilogue": "staged"}),
    Step("f16", (256, 256, 512), TWO, {"dtype": "f16", "out_dtype": "f16"}),
    Step("f32 results", (256, 256, 512), TWO, {"out_dtype": "f32"}),
    Step("odd columns", (250, 253, 512), TWO),
    Step("all of it", (4096, 4096, 4096), {
        "tile_m": 128, "tile_n": 256, "stages": 4, "consumers": 2, "high": 2, "group": 16,
    }),
    Step("all of it, staged", (4096, 4096, 4096), {
        "tile_m": 128, "tile_n": 192, "stages": 4, "consumers": 2, "high": 2, "group": 16,
        "epilogue": "staged",
    }),
)  # fmt: skip


def say(**line: Any) -> None:
    """Print one JSON line at once."""
    print(json.dumps(line, default=str), flush=True)


def main() -> int:
    """Parse the command line and climb."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", default="", help="steps whose names hold this")
    parser.add_argument("--timeout", type=float, default=20.0, help="seconds of a step")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--assert", dest="asserted", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(json.loads(Path(args.worker).read_text(encoding="utf-8")))
    steps = [step for step in LADDER if args.only in step.name]
    found: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="h200-ring-") as name:
        folder = Path(name)
        with ThreadPoolExecutor(WORKERS) as pool:
            jobs = list(pool.map(lambda one: build(one[1], folder, one[0]), enumerate(steps)))
        for number, (step, job) in enumerate(zip(steps, jobs, strict=True)):
            if "failed" in job or args.compile_only:
                verdict = job.get("failed", "built")
            else:
                path = folder / f"{number}.json"
                path.write_text(json.dumps(job), encoding="utf-8")
                verdict = verdict_of(path, args.timeout)
            found[step.name] = verdict
            say(step=step.name, verdict=verdict, resources=job.get("resources"), **job["point"])
    width = max(map(len, found), default=0)
    for title, verdict in found.items():
        print(f"{title:{width}s}  {verdict.splitlines()[0]}")
    good = all(verdict in ("right", "built") for verdict in found.values())
    return 0 if good or not args.asserted else 1


def build(step: Step, folder: Path, number: int) -> dict[str, Any]:
    """A job for a worker, or why there is none under ``failed``."""
    from tfsearch.core.errors import RequestError
    from tfsearch.ir.hir.named import named_workload
    from tfsearch.prove.verify import verify
    from tfsearch.space import Point
    from tfsearch.target.cuda import compilers, target

    params = {**ONE, **step.changes}
    job: dict[str, Any] = {"point": {**asdict(step), "params": params}}
    m, n, k = step.sizes
    options = {"m": str(m), "n": str(n), "k": str(k), "dtype": "bf16", "out_dtype": "bf16"}
    device = target.nominal()
    try:
        problem = target.problem(
            named_workload("gemm", {**options, "trans_b": "true", **step.options}), device
        )
    except RequestError as error:
        return {**job, "failed": error.message}
    point = Point("ring", params)
    module = problem.lower(point)
    refused = [*problem.space.check(point)]
    refused += verify(module, target.atoms(device), target.limits(device))
    if refused:
        return {**job, "failed": f"refused: {refused[0]}"}
    source = problem.emit(module, point)
    out = folder / f"{number}.cubin"
    done = compilers.present()[0].compile(source, (), (), out, timeout_s=60.0, memory_bytes=8 << 30)
    if done.status.value != "ok":
        return {**job, "failed": f"{done.status.value}: {done.log[-500:]}"}
    return {
        **job, "cubin": str(out), "launch": source.launch.to_json(),
        "resources": dict(done.resources),
    }  # fmt: skip


def verdict_of(path: Path, timeout_s: float) -> str:
    """``right``, or what became of the worker."""
    command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(path)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired:
        return f"hangs: nothing came back in {timeout_s:g} s"
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return f"fails with {done.returncode}: {last}"
    return str(json.loads(lines[-1])["verdict"])


def work(job: dict[str, Any]) -> int:
    """Run one kernel twice and look at its whole result, or at rows of a large one."""
    from tfsearch.core.launch import LaunchSpec
    from tfsearch.ir.dtypes import DType
    from tfsearch.target.cuda.context import Context
    from tfsearch.target.cuda.device import discovery
    from tfsearch.target.cuda.driver import driver
    from tfsearch.target.cuda.launching import Configuration, Function, Packed

    launch = LaunchSpec.from_json(job["launch"])
    context = Context(driver(), discovery().gpus[0].uuid)
    module = context.load(Path(job["cubin"]).read_bytes())
    how = Configuration.of(launch, launch.main)
    function = Function(context, module, launch.main.symbol, how)
    generator = np.random.default_rng(1)
    host: dict[str, Any] = {}
    words: list[int] = []
    room = 0
    for argument in launch.main.arguments:
        kind = DType(argument.dtype)
        size = int(np.prod(argument.shape)) * kind.bytes
        if argument.io == "out":
            room = context.allocate(size + 2 * GUARD)
            words.append(room + GUARD)
            host[argument.name] = np.zeros(argument.shape, kind.numpy)
        else:
            host[argument.name] = generator.standard_normal(argument.shape).astype(kind.numpy)
            words.append(context.allocate(size))
            context.upload(words[-1], host[argument.name])
    packed = Packed(context.driver, function, words, 0, launch.main)
    c = host["c"]
    raw = np.empty(c.nbytes + 2 * GUARD, np.uint8)
    results: list[Any] = []
    for _ in range(2):
        context.fill(room, POISON, raw.nbytes)
        packed.launch()
        context.synchronise()
        context.download(room, raw)
        if not ((raw[:GUARD] == POISON).all() and (raw[-GUARD:] == POISON).all()):
            say(verdict="bytes outside of the result are written")
            return 0
        results.append(raw[GUARD:-GUARD].copy())
    lines = looked_at(results[0].view(c.dtype).reshape(c.shape), host, job["point"]["options"])
    if not lines and (results[0] != results[1]).any():
        lines = ["right once, but two runs differ"]
    say(verdict="\n".join(lines) or "right")
    return 0


def looked_at(c: Any, host: dict[str, Any], options: dict[str, str]) -> list[str]:
    """What is wrong of a result."""
    a, b = (host[name].astype(np.float64) for name in ("a", "b"))
    a = a.T if options.get("trans_a") == "true" else a
    b = b.T if options.get("trans_b") == "false" else b
    got = c.astype(np.float64)
    if 2.0 * a.shape[0] * b.shape[0] * a.shape[1] > HOST_FLOPS:
        rows = np.sort(np.random.default_rng(2).choice(a.shape[0], SAMPLED, replace=False))
        a, got = a[rows], got[rows]
    unit = {"bfloat16": 2.0**-8, "float16": 2.0**-11}.get(c.dtype.name, 2.0**-22)
    allowed = np.abs(a @ b.T) * unit + (np.abs(a) @ np.abs(b).T) * 2.0**-18
    return faults(got, a, b, allowed)


if __name__ == "__main__":
    sys.exit(main())
