"""Matrix products on an H200 against PyTorch's cuBLASLt: candidates in the model's order.

    python benchmarks/h200_gemm.py [--shapes MxNxK,...] [--top N] [--seconds S] [--dtype bf16]

For every shape (c[m,n] = a[m,k] . b[n,k]; --b-rows k: b[k,n]) the space is walked and ranked, the
first N candidates are compiled by 16 workers, and a process of its own checks each one's whole
output against float64 on the card and times it in rounds with torch.matmul, on random numbers,
with inputs rotated beyond the L2. A candidate that hangs or fails ends that process; the next one
goes on behind it. Prints JSON lines: candidates, then the best three of a shape in paired rounds.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

SHAPES = "4096x4096x4096,8192x17408x5120,1024x17408x5120,2048x2048x2048,256x17408x5120"
WORKERS = int(os.environ.get("TFSEARCH_WORKERS", "16"))
HANG_S = 15.0
ROTATED_BYTES = 256 << 20
MOST_SETS = 12
KNOWN: tuple[dict[str, Any], ...] = (
    {"tile_m": 128, "tile_n": 256, "tile_k": 64, "stages": 4, "consumers": 2, "group": 8},
    {"tile_m": 128, "tile_n": 256, "stages": 4, "consumers": 2, "group": 16, "high": 2},
    {
        "tile_m": 128,
        "tile_n": 256,
        "stages": 4,
        "consumers": 2,
        "group": 16,
        "high": 2,
        "epilogue": "staged",
    },
    {"tile_m": 256, "tile_n": 128, "tile_k": 64, "stages": 4, "consumers": 2, "group": 8},
    {"tile_m": 128, "tile_n": 128, "stages": 6, "consumers": 2, "group": 8, "high": 2},
    {"tile_m": 64, "tile_n": 256, "stages": 5, "consumers": 2, "scheme": "pingpong", "group": 8},
    {"tile_m": 128, "tile_n": 128, "stages": 6, "consumers": 2, "scheme": "pingpong", "group": 8},
)
"""Points that are tried beside the ranked ones where they are legal."""
USUAL = {
    "tile_k": 64, "scheme": "cooperative", "high": 1, "wide": 1, "group": 1, "units": 132,
    "epilogue": "direct",
}  # fmt: skip


def say(**line: Any) -> None:
    """Print one JSON line at once."""
    print(json.dumps(line, default=str), flush=True)


def main() -> int:
    """Parse the command line and run."""
    text = __doc__ or ""
    parser = argparse.ArgumentParser(description=text.partition("\n")[0])
    parser.add_argument("--shapes", default=SHAPES)
    parser.add_argument("--top", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=165.0)
    parser.add_argument("--dtype", default="bf16", choices=("bf16", "f16"))
    parser.add_argument("--b-rows", default="n", choices=("n", "k"), help="b is [n,k] or [k,n]")
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return work(json.loads(Path(args.worker).read_text(encoding="utf-8")))
    return drive(args)


# Enumerating and compiling -----------------------------------------------------------------------


def ranked(problem: Any, count: int) -> list[tuple[Any, float]]:
    """The first points by estimate, few of which differ in the order of tiles alone."""
    from tfsearch.search.scan import scan

    pool = scan(problem, keep=2048).pool
    out: list[tuple[Any, float]] = []
    seen: dict[tuple[Any, ...], int] = {}
    for row in range(len(pool)):
        point = pool.point(row)
        key = tuple(
            point.params[n] for n in ("tile_m", "tile_n", "consumers", "scheme", "epilogue")
        )
        if seen.get(key, 0) < 2:
            seen[key] = seen.get(key, 0) + 1
            out.append((point, float(pool.estimate_us[row])))
        if len(out) == count:
            break
    return out


def known(problem: Any) -> list[tuple[Any, float]]:
    """Points that are always tried."""
    from tfsearch.space import Point

    out: list[tuple[Any, float]] = []
    for params in KNOWN:
        point = Point("ring", {**USUAL, **params})
        if not problem.space.check(point):
            out.append((point, 0.0))
    return out


def build(problem: Any, point: Any, folder: Path, name: str) -> dict[str, Any]:
    """Verify, emit and compile one point."""
    from tfsearch.prove.verify import verify
    from tfsearch.target.cuda import compilers, target

    started = time.time()
    device = target.nominal()
    module = problem.lower(point)
    refused = verify(module, target.atoms(device), target.limits(device))
    if refused:
        return {"status": "refused", "log": str(refused[0])}
    source = problem.emit(module, point)
    (folder / f"{name}.cu").write_text(source.text, encoding="utf-8")
    out = folder / f"{name}.cubin"
    done = compilers.present()[0].compile(source, (), (), out, timeout_s=30.0, memory_bytes=8 << 30)
    return {
        "status": done.status.value,
        "log": done.log[-300:] if done.status.value != "ok" else "",
        "resources": dict(done.resources),
        "compile_s": round(time.time() - started, 2),
        "cubin": str(out),
        "launch": source.launch.to_json(),
    }


def drive(args: argparse.Namespace) -> int:
    """Compile everything, then one process at a time measures."""
    from tfsearch.ir.hir.named import named_workload
    from tfsearch.target.cuda import target

    until = time.time() + args.seconds
    with tempfile.TemporaryDirectory(prefix="h200-gemm-") as name:
        folder = Path(name)
        pool = ThreadPoolExecutor(WORKERS)
        jobs: list[tuple[str, list[tuple[Any, float, Any]]]] = []
        for shape in args.shapes.split(","):
            m, n, k = shape.split("x")
            options = {
                "m": m, "n": n, "k": k, "dtype": args.dtype, "out_dtype": args.dtype,
                "trans_b": "true" if args.b_rows == "n" else "false",
            }  # fmt: skip
            problem = target.problem(named_workload("gemm", options), target.nominal())
            started = time.time()
            points = [*ranked(problem, args.top), *known(problem)]
            counts = problem.space.count()
            say(shape=shape, legal=counts.legal, ranked_s=round(time.time() - started, 2))
            built = [
                (point, us, pool.submit(build, problem, point, folder, f"{shape}-{i}"))
                for i, (point, us) in enumerate(points)
            ]
            jobs.append((shape, built))
        # Nothing is compiled while times are taken.
        for _, built in jobs:
            for _, _, future in built:
                future.result()
        for index, (shape, built) in enumerate(jobs):
            ready: list[dict[str, Any]] = []
            for point, us, future in built:
                found = {"params": dict(point.params), "predicted_us": us, **future.result()}
                if found["status"] == "ok":
                    ready.append(found)
                else:
                    say(shape=shape, failed=found)
            share = (until - time.time()) / (len(jobs) - index)
            if args.compile_only:
                say(shape=shape, built=len(ready), last=ready[-1] if ready else None)
            elif ready and share > 3:
                measure(shape, ready, folder, share, args)
        pool.shutdown()
    return 0


def measure(
    shape: str, ready: list[dict[str, Any]], folder: Path, seconds: float, args: argparse.Namespace
) -> None:
    """Workers one after another until every candidate had its turn or time is up."""
    until = time.time() + seconds
    state = folder / f"{shape}.json"
    progress = folder / f"{shape}.progress"
    left = ready
    while left and time.time() < until - 3:
        job = {
            "shape": shape, "candidates": left, "until": until, "progress": str(progress),
            "dtype": args.dtype, "b_rows": args.b_rows,
        }  # fmt: skip
        state.write_text(json.dumps(job), encoding="utf-8")
        progress.write_text("-1", encoding="utf-8")
        command = [sys.executable, str(Path(__file__).resolve()), "--worker", str(state)]
        try:
            done = subprocess.run(command, timeout=seconds + 20, check=False)
            code = done.returncode
        except subprocess.TimeoutExpired:
            code = -1
        if code == 0:
            return
        at = int(progress.read_text(encoding="utf-8"))
        say(shape=shape, worker_failed=code, at=left[at]["params"] if at >= 0 else None)
        if at < 0:
            return
        left = left[:at] + left[at + 1 :]


# Measuring, in a process of its own --------------------------------------------------------------


class Bench:
    """Inputs, a reference and launches of one shape on the card."""

    def __init__(self, m: int, n: int, k: int, dtype: str, b_rows: str) -> None:
        torch = importlib.import_module("torch")
        self.torch = torch
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.m, self.n, self.k = m, n, k
        self.kind = torch.bfloat16 if dtype == "bf16" else torch.float16
        bytes_ = 2 * (m * k + n * k + m * n)
        self.sets = max(2, min(MOST_SETS, -(-ROTATED_BYTES // bytes_)))
        torch.manual_seed(1)
        make = {"device": "cuda", "dtype": self.kind}
        self.a = [torch.randn(m, k, **make) for _ in range(self.sets)]
        shape = (n, k) if b_rows == "n" else (k, n)
        self.b = [torch.randn(*shape, **make) for _ in range(self.sets)]
        # What is multiplied: [k, n], whichever way it is stored.
        self.right = [b.T if b_rows == "n" else b for b in self.b]
        self.guard = 4096
        self.room = [torch.empty(m * n + 2 * self.guard, **make) for _ in range(self.sets)]
        self.c = [r[self.guard : self.guard + m * n].view(m, n) for r in self.room]
        a, b = self.a[0].double(), self.right[0].double()
        self.reference = a @ b
        # Rounding of the result, and of sums of as many products.
        unit = 2.0**-8 if dtype == "bf16" else 2.0**-11
        self.allowed = self.reference.abs() * unit + (a.abs() @ b.abs()) * 2.0**-18
        del a, b
        from tfsearch.target.cuda.context import Context
        from tfsearch.target.cuda.device import discovery
        from tfsearch.target.cuda.driver import driver

        self.context = Context(driver(), discovery().gpus[0].uuid)

    def launches(self, candidate: dict[str, Any]) -> list[Any]:
        """One launch for every set of arguments."""
        from tfsearch.core.launch import LaunchSpec
        from tfsearch.target.cuda.launching import Configuration, Function, Packed

        launch = LaunchSpec.from_json(candidate["launch"])
        module = self.context.load(Path(candidate["cubin"]).read_bytes())
        how = Configuration.of(launch, launch.main)
        function = Function(self.context, module, launch.main.symbol, how)
        places = {"a": self.a, "b": self.b, "c": self.c}
        out: list[Any] = []
        for i in range(self.sets):
            words = [places[arg.name][i].data_ptr() for arg in launch.main.arguments]
            out.append(Packed(self.context.driver, function, words, 0, launch.main))
        return out

    def faults(self, launch: Any) -> str:
        """What is wrong with a candidate's whole output; empty when nothing is."""
        torch = self.torch
        self.room[0].fill_(float("nan"))
        launch.launch()
        torch.cuda.synchronize()
        edge = torch.cat([self.room[0][: self.guard], self.room[0][-self.guard :]])
        if not bool(edge.isnan().all()):
            return "wrote outside of the result"
        off = (self.c[0].double() - self.reference).abs()
        bad = ~(off <= self.allowed)
        count = int(bad.sum())
        if not count:
            return ""
        place = [int(x) for x in bad.nonzero()[0]]
        most = float(off.max())
        return f"{count} of {bad.numel()} elements wrong, the first at {place}, most {most}"

    def plain(self, i: int) -> None:
        """PyTorch's product on one set of arguments."""
        self.torch.matmul(self.a[i], self.right[i], out=self.c[i])

    def time(self, call: Any, repeat: int) -> float:
        """Microseconds of a call, the average of as many on rotated arguments."""
        events = [self.torch.cuda.Event(enable_timing=True) for _ in range(2)]
        events[0].record()
        for i in range(repeat):
            call(i % self.sets)
        events[1].record()
        events[1].synchronize()
        return events[0].elapsed_time(events[1]) * 1e3 / repeat


def work(job: dict[str, Any]) -> int:
    """Check and time the candidates of one shape."""
    m, n, k = map(int, job["shape"].split("x"))
    bench = Bench(m, n, k, job["dtype"], job["b_rows"])
    progress = Path(job["progress"])
    torch = bench.torch
    card = torch.cuda.get_device_name()
    say(shape=job["shape"], card=card, torch=torch.__version__, sets=bench.sets)
    beat = [time.time()]
    threading.Thread(target=_watch, args=(beat,), daemon=True).start()
    right: list[tuple[dict[str, Any], list[Any]]] = []
    rate = 2e-6 * m * n * k
    for index, candidate in enumerate(job["candidates"]):
        if time.time() > job["until"] - 4 and right:
            break
        progress.write_text(str(index), encoding="utf-8")
        beat[0] = time.time()
        launches = bench.launches(candidate)
        fault = bench.faults(launches[0])
        if fault:
            say(shape=job["shape"], params=candidate["params"], wrong=fault)
        else:
            right.append((candidate, launches))
    progress.write_text("-1", encoding="utf-8")
    beat[0] = time.time() + 1e6
    if not right:
        return 0
    first = bench.time(bench.plain, 3)
    repeat = max(1, min(64, int(1500 / max(first, 1.0))))
    rounds: list[list[float]] = [[] for _ in range(len(right) + 1)]
    calls = [bench.plain, *(_caller(launches) for _, launches in right)]
    for _ in range(4):
        for which in np.random.permutation(len(calls)):
            rounds[which].append(bench.time(calls[which], repeat))
    medians = [float(np.median(times)) for times in rounds]
    for (candidate, _), us in zip(right, medians[1:], strict=True):
        say(
            shape=job["shape"], params=candidate["params"], us=round(us, 2),
            predicted_us=round(candidate["predicted_us"], 2), tflops=round(rate / us, 1),
            torch_us=round(medians[0], 2), ratio=round(medians[0] / us, 4),
            registers=candidate["resources"].get("registers"),
            spilled=candidate["resources"].get("spilled"),
            compile_s=candidate["compile_s"],
        )  # fmt: skip
    order = sorted(range(len(right)), key=lambda i: medians[i + 1])[:3]
    for i in order:
        _final(bench, job, right[i], calls[i + 1], repeat, rate)
    return 0


def _caller(launches: list[Any]) -> Any:
    return lambda i: launches[i].launch()


def _watch(beat: list[float]) -> None:
    """End the process when a candidate hangs."""
    while True:
        time.sleep(0.5)
        if time.time() - beat[0] > HANG_S:
            os._exit(9)


def _final(
    bench: Bench, job: dict[str, Any], one: Any, call: Any, repeat: int, rate: float
) -> None:
    """Paired rounds with PyTorch: the median ratio and its 95 % half-width."""
    ratios: list[float] = []
    ours: list[float] = []
    for turn in range(30):
        if time.time() > job["until"] and turn >= 8:
            break
        both = [bench.plain, call]
        flip = turn % 2
        times = [bench.time(both[flip], repeat), bench.time(both[1 - flip], repeat)]
        plain, mine = times[flip], times[1 - flip]
        ratios.append(plain / mine)
        ours.append(mine)
    spread = 1.96 * 1.2533 * float(np.std(ratios)) / len(ratios) ** 0.5
    us = float(np.median(ours))
    say(
        shape=job["shape"], final=one[0]["params"], us=round(us, 2), tflops=round(rate / us, 1),
        ratio=round(float(np.median(ratios)), 4), half_width=round(spread, 4), rounds=len(ratios),
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())
