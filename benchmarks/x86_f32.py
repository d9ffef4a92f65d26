"""f32 matmul against OpenBLAS: 30 shapes, both called from one C loop, interleaved.

Each row is tuned with the given trials, then the winner and OpenBLAS are timed in rounds of
random order in one process. Prints one JSON object per row and a summary.

    python benchmarks/x86_f32.py --threads 1 --trials 32 > reports/x86/f32-1.jsonl
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from _openblas import OpenBlas, corename, set_threads
from x86_common import batches_for, bind_all, machine_facts, winner

from tfsearch.core import settings
from tfsearch.core.errors import TfsearchError
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.statistics import ratio_interval
from tfsearch.target.x86.runner import SELECTOR, X86Loaded, X86Runner, make
from tfsearch.tune import TuneRequest, tune

ROWS: dict[str, tuple[tuple[int, int, int], ...]] = {
    "square": (
        (32, 32, 32),
        (48, 48, 48),
        (64, 64, 64),
        (96, 96, 96),
        (128, 128, 128),
        (192, 192, 192),
        (256, 256, 256),
        (384, 384, 384),
        (512, 512, 512),
        (768, 768, 768),
        (1024, 1024, 1024),
        (2048, 2048, 2048),
    ),
    "skinny": (
        (1, 4096, 4096),
        (4, 4096, 4096),
        (16, 4096, 4096),
        (1, 1024, 1024),
        (4, 1024, 4096),
        (16, 4096, 1024),
    ),
    "odd": (
        (127, 333, 1001),
        (33, 65, 129),
        (255, 257, 259),
        (61, 509, 97),
        (1000, 1000, 1000),
    ),
    "long k": ((32, 32, 8192), (64, 64, 16384), (100, 100, 8000)),
    "wide n": ((64, 8192, 64), (32, 4096, 256), (128, 8192, 128), (256, 4096, 64)),
}
CAP = 2.0
PYTHON_FROM = 96
PYTHON_ROUNDS = 15
REST_S = 0.2
"""Seconds between two sides that use several threads."""
ALIGNMENT = 64
"""Bytes to which the arguments of both are aligned."""


def row(
    kind: str, shape: tuple[int, int, int], args: argparse.Namespace, store: Any, folder: Path
) -> dict[str, Any]:
    """Tune one shape and compare."""
    m, n, k = shape
    workload = build_workload("gemm", {"m": m, "n": n, "k": k, "dtype": "f32"}, alignment=ALIGNMENT)
    fix = {"units": 1} if args.threads == 1 else {}
    started = time.monotonic()
    request = TuneRequest(
        workload, target="x86", trials=args.trials, fix=fix, baseline=False, seed=args.seed
    )
    report = tune(request, store=store)
    tune_s = time.monotonic() - started
    ours = winner(report, store)
    blas = OpenBlas(m, n, k, ours.launch, folder)
    runner = make(SELECTOR)
    kernels = [ours, blas]
    arguments = bind_all(workload, kernels, seed=7)
    batches = batches_for(runner, kernels, arguments)
    times = []
    deadline = time.monotonic() + args.seconds
    index = 0
    shuffler = random.Random(args.seed)
    while index < 15 or (time.monotonic() < deadline and index < args.rounds):
        if args.threads == 1:
            times.append(runner.time(kernels, arguments, batches, 1, cold=False, seed=index)[0])
        else:
            times.append(apart(runner, kernels, arguments, batches, shuffler))
        index += 1
    each = np.array(times) / np.array(batches) / 1e3
    ratio = ratio_interval(each[:, 1], each[:, 0])
    wrong = float(np.abs(arguments[0][0].read("c") - arguments[1][0].read("c")).max())
    return {
        "class": kind,
        "shape": list(shape),
        "ours_us": float(np.median(each[:, 0])),
        "openblas_us": float(np.median(each[:, 1])),
        "gflops": 2 * m * n * k / float(np.median(each[:, 0])) / 1e3,
        "ratio": ratio.median,
        "ratio_ci": [ratio.low, ratio.high],
        "python_ratio": python_ratio(ours, arguments[0][0], batches[0])
        if min(m, n, k) >= PYTHON_FROM
        else None,
        "rounds": index,
        "difference": wrong,
        "tune_s": tune_s,
        "params": dict(report.best.schedule.params),
    }


def apart(
    runner: X86Runner, kernels: Any, arguments: Any, batches: Any, shuffler: random.Random
) -> list[int]:
    """One round of batches, each after a rest: threads of the other side spin for a while.

    OpenBLAS's own spin for 2^28 cycles, a tenth of a second. An untimed batch wakes the threads of
    the side at hand.
    """
    out = [0] * len(kernels)
    for side in shuffler.sample(range(len(kernels)), len(kernels)):
        time.sleep(REST_S)
        for _ in range(2):
            one = runner.time(
                [kernels[side]], [arguments[side]], [batches[side]], 1, cold=False, seed=0
            )
        out[side] = int(one[0, 0])
    return out


def python_ratio(ours: X86Loaded, bound: Any, calls: int) -> float:
    """Time of ``np.matmul(a, b, out=c)`` over that of our call, both from Python, interleaved."""
    a, b, c = (bound.arrays[name] for name in ("a", "b", "c"))
    pointers, call = bound.packed.array, ours.main
    ratios = []
    for _ in range(PYTHON_ROUNDS):
        start = time.perf_counter_ns()
        for _ in range(calls):
            call(pointers)
        middle = time.perf_counter_ns()
        for _ in range(calls):
            np.matmul(a, b, out=c)
        ratios.append((time.perf_counter_ns() - middle) / (middle - start))
    return float(np.median(ratios))


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means of the capped ratios, overall and by class, and the rows that fall short."""

    def mean(of: list[dict[str, Any]]) -> float:
        return math.exp(sum(math.log(min(r["ratio"], CAP)) for r in of) / len(of))

    classes = {kind: [r for r in rows if r["class"] == kind] for kind in ROWS}
    return {
        "geomean": mean(rows),
        "classes": {kind: mean(of) for kind, of in classes.items() if of},
        "below_0.95": [r["shape"] for r in rows if r["ratio_ci"][1] < 0.95],
    }


def main() -> None:
    """Run the rows asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1, help="1, or 0 for all cores")
    parser.add_argument("--trials", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=201)
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--classes", default=",".join(ROWS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--db", default="")
    args = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="tfsearch-openblas-"))
    facts = machine_facts()
    set_threads(args.threads or facts["units"])
    store = open_store(args.db or settings.load().database_url)
    print(json.dumps({"machine": facts, "openblas": corename(), "args": vars(args)}), flush=True)
    rows: list[dict[str, Any]] = []
    for kind in args.classes.split(","):
        for shape in ROWS[kind]:
            try:
                rows.append(row(kind, shape, args, store, folder))
            except TfsearchError as error:
                print(json.dumps({"shape": list(shape), "error": error.message}), flush=True)
                continue
            print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"summary": summary(rows)}), flush=True)


if __name__ == "__main__":
    main()
