"""110 matrix products on an H200 against PyTorch and the best of cuBLASLt's first heuristics.

    python benchmarks/h200_matmul.py REPORT.jsonl [--db URL] [--only WORD] [--trials N]
        [--seconds S] [--assert] [--quick]

Every row (``h200_matmul_rows.py``) is tuned, then compared in a process of its own that is killed
after a time: its whole output is checked against float64 on the card, then pairs of batches, on
random numbers and arguments rotated beyond the L2, with PyTorch and the fastest of the first 16
algorithms of cuBLASLt. Rows that the report has are skipped, so several runs fill it; a row that no
run completed is missing from it. Prints JSON lines, the marks last.
"""

from __future__ import annotations

import argparse
import importlib
import json
import math
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent), str(HERE)]

from h200_matmul_rows import LARGE, MEDIUM, ODD, ROWS, SKINNY, Row  # noqa: E402

WHOLE = "8192x17408x5120"
HEURISTICS = 16
CAP = 2.0
HALF_WIDTH, LEAST_ROUNDS, MOST_ROUNDS = 0.005, 12, 240
BATCH_US = 2000.0
ROTATED_BYTES, MOST_SETS = 256 << 20, 64
LIMIT_S = 120.0
COPIED_BYTES = 1 << 30
HEAVY_BYTES = 128 << 20
MARKS = {"torch": (1.15, 0.99), "cublaslt": (1.05, 0.97)}
"""Least geometric mean, and what no row's interval lies below."""


def say(**line: Any) -> None:
    """Print one JSON line at once."""
    print(json.dumps(line, default=str), flush=True)


def main() -> int:
    """Parse the command line, fill the report, hold it to the marks."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("report", type=Path)
    parser.add_argument("--db", help="where records go (default: the user's database)")
    parser.add_argument("--only", default="", help="rows whose names or classes hold this")
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--seconds", type=float, default=540.0)
    parser.add_argument("--assert", dest="asserted", action="store_true")
    parser.add_argument("--quick", action="store_true", help="two small rows")
    parser.add_argument("--worker", type=int, default=-1, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker >= 0:
        return work(ROWS[args.worker], args)
    until = time.time() + args.seconds
    done = recorded(args.report)
    chosen = [i for i, row in enumerate(ROWS) if args.only in f"{row.name} {row.kind}"]
    if args.quick:
        chosen = sorted(chosen, key=lambda i: ROWS[i].flops)[:2]
    for index in chosen:
        row = ROWS[index]
        if row.name in done or time.time() > until - 10:
            continue
        line = measured(index, args, min(LIMIT_S, until - time.time()))
        say(**line)
        if "failed" not in line:
            done[row.name] = line
            with args.report.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
    marks = judged([done[ROWS[i].name] for i in chosen if ROWS[i].name in done], len(chosen))
    met = all(value is not False for value in marks.values()) and None not in marks.values()
    say(marks=marks, met=met, rows=len(done))
    return 0 if met or not args.asserted else 1


def recorded(report: Path) -> dict[str, dict[str, Any]]:
    """The report's rows by name."""
    if not report.exists():
        return {}
    lines = report.read_text(encoding="utf-8").splitlines()
    return {line["row"]: line for line in map(json.loads, lines)}


def measured(index: int, args: argparse.Namespace, limit_s: float) -> dict[str, Any]:
    """The line of one row, from a process of its own; ``failed`` says why there is none."""
    command = [sys.executable, str(Path(__file__).resolve()), str(args.report)]
    command += ["--worker", str(index), "--trials", str(args.trials)]
    command += ["--db", args.db] if args.db else []
    name = ROWS[index].name
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return {"row": name, "failed": f"nothing came back in {limit_s:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"row"')]
    if done.returncode or not lines:
        last = (done.stderr.strip().splitlines() or ["nothing was said"])[-1]
        return {"row": name, "failed": f"exit code {done.returncode}: {last}"}
    return json.loads(lines[-1])


# What the marks say ------------------------------------------------------------------------------


def mean(ratios: list[float]) -> float:
    """Geometric mean of ratios, each capped."""
    return math.exp(sum(math.log(min(r, CAP)) for r in ratios) / len(ratios))


def judged(lines: list[dict[str, Any]], wanted: int) -> dict[str, bool | None]:
    """Marks by name: met, missed, or None where nothing was measured."""
    marks: dict[str, bool | None] = {"every row measured": len(lines) == wanted}
    for against, (least, floor) in MARKS.items():
        found = [line for line in lines if line.get(against)]
        ratios = [line[against]["ratio"] for line in found]
        marks[f"{against}: geometric mean >= {least}"] = mean(ratios) >= least if ratios else None
        tops = [line[against]["ratio"] + line[against]["half_width"] for line in found]
        marks[f"{against}: no row below {floor}"] = min(tops) >= floor if tops else None
        for kind in (LARGE, MEDIUM, SKINNY, ODD):
            own = [line[against]["ratio"] for line in found if line["kind"] == kind]
            marks[f"{against}: {kind} >= 1.00"] = mean(own) >= 1.0 if own else None
    whole = next((line for line in lines if line["row"] == WHOLE), None)
    marks[f"{WHOLE} >= 1.00"] = (
        None if whole is None else whole["torch"]["ratio"] + whole["torch"]["half_width"] >= 1.0
    )
    heavy = [line for line in lines if line["m"] <= 16 and 2 * line["n"] * line["k"] >= HEAVY_BYTES]
    shares = [line["copy_share"] for line in heavy]
    marks["m <= 16: >= 90 % of the copy rate"] = min(shares) >= 0.9 if shares else None
    return marks


# One row, in a process of its own ----------------------------------------------------------------


class Setting:
    """Arguments of one row on the card, enough sets of them to be beyond the L2."""

    def __init__(self, row: Row) -> None:
        torch = self.torch = importlib.import_module("torch")
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
        torch.manual_seed(1)
        self.row = row
        make = {"device": "cuda", "dtype": torch.bfloat16}
        self.sets = max(2, min(MOST_SETS, -(-ROTATED_BYTES // row.bytes)))
        a = (row.k, row.m) if row.a_across else (row.m, row.k)
        b = (row.k, row.n) if row.b_across else (row.n, row.k)
        self.a = [torch.randn(*a, **make) for _ in range(self.sets)]
        self.b = [torch.randn(*b, **make) for _ in range(self.sets)]
        self.c = [torch.empty(row.m, row.n, **make) for _ in range(self.sets)]
        self.left = [x.T if row.a_across else x for x in self.a]
        self.right = [x if row.b_across else x.T for x in self.b]

    def torch_call(self, i: int) -> None:
        """PyTorch's product."""
        self.torch.matmul(self.left[i], self.right[i], out=self.c[i])

    def fault(self, call: Any) -> str:
        """What is wrong with the whole output of a call."""
        torch, c = self.torch, self.c[0]
        a, b = self.left[0].double(), self.right[0].double()
        wanted = a @ b
        allowed = wanted.abs() * 2.0**-8 + (a.abs() @ b.abs()) * 2.0**-18
        c.fill_(float("nan"))
        call(0)
        torch.cuda.synchronize()
        wrong = ~((c.double() - wanted).abs() <= allowed)
        if not bool(wrong.any()):
            return ""
        place = [int(x) for x in wrong.nonzero()[0]]
        return f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, the first at {place}"

    def time(self, call: Any, repeat: int) -> float:
        """Microseconds of a call in a batch on rotated arguments."""
        first, last = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        first.record()
        for i in range(repeat):
            call(i % self.sets)
        last.record()
        last.synchronize()
        return first.elapsed_time(last) * 1e3 / repeat

    def pairs(self, mine: Any, other: Any) -> dict[str, float]:
        """Median ratio other/mine of interleaved batches, its half-width, and both times."""
        first = max(1.0, self.time(other, 3), self.time(mine, 3))
        repeat = max(1, min(256, int(BATCH_US / first)))
        times: list[tuple[float, float]] = []
        width, ratios = math.inf, np.ones(1)
        while len(times) < LEAST_ROUNDS or (width > HALF_WIDTH and len(times) < MOST_ROUNDS):
            if len(times) % 2:
                ours = self.time(mine, repeat)
                times.append((ours, self.time(other, repeat)))
            else:
                theirs = self.time(other, repeat)
                times.append((self.time(mine, repeat), theirs))
            ratios = np.array([b / a for a, b in times])
            width = 1.96 * 1.2533 * float(ratios.std()) / len(ratios) ** 0.5
        mine_us, other_us = np.median(np.array(times), axis=0)
        return {
            "ratio": round(float(np.median(ratios)), 4), "half_width": round(width, 4),
            "us": round(float(mine_us), 3), "other_us": round(float(other_us), 3),
            "rounds": len(times),
        }  # fmt: skip

    def copy_rate(self) -> float:
        """Bytes read and written in a microsecond by a copy."""
        torch = self.torch
        source = torch.empty(COPIED_BYTES, device="cuda", dtype=torch.uint8).random_()
        target = torch.empty_like(source)
        us = sorted(self.time(lambda _: target.copy_(source), 4) for _ in range(5))[2]
        return 2 * COPIED_BYTES / us


def work(row: Row, args: argparse.Namespace) -> int:
    """Tune one row, check it, compare it, print its line."""
    import tfsearch

    options: dict[str, Any] = {
        "m": row.m, "n": row.n, "k": row.k, "dtype": "bf16", "out_dtype": "bf16",
        "trans_a": row.a_across, "trans_b": not row.b_across, "target": "cuda",
    }  # fmt: skip
    where = {"db": args.db} if args.db else {}
    started = time.time()
    report = tfsearch.tune("gemm", **options, trials=args.trials, **where)
    tuned_s = time.time() - started
    kernel = tfsearch.lookup("gemm", **options, **where)
    setting = Setting(row)
    sets = zip(setting.a, setting.b, setting.c, strict=True)
    bound = [kernel.bind(a, b, out=c) for a, b, c in sets]

    def mine(i: int) -> None:
        bound[i]()

    fault = setting.fault(mine)
    if fault:
        print(fault, file=sys.stderr)
        return 1
    torch = setting.torch
    against = setting.pairs(mine, setting.torch_call)
    say(
        row=row.name, **asdict(row), card=torch.cuda.get_device_name(), library=torch.__version__,
        params=dict(report.best.schedule.params), tuned_s=round(tuned_s, 1), torch=against,
        cublaslt=heuristics(setting, mine), tflops=round(row.flops / against["us"] * 1e-6, 1),
        copy_share=round(row.bytes / against["us"] / setting.copy_rate(), 4),
    )  # fmt: skip
    return 0


def heuristics(setting: Setting, mine: Any) -> dict[str, Any] | None:
    """Pairs with the fastest algorithm of cuBLASLt; None where the library takes none."""
    from _cublaslt import WORKSPACE, Product

    row, torch = setting.row, setting.torch
    room = torch.empty(WORKSPACE, device="cuda", dtype=torch.uint8)
    try:
        product = Product(
            row.m, row.n, row.k, a_across=row.a_across, b_across=row.b_across, count=HEURISTICS,
            workspace=room.data_ptr(),
        )  # fmt: skip
    except OSError as error:
        print(f"{row.name}: {error}", file=sys.stderr)
        return None
    stream = torch.cuda.current_stream().cuda_stream
    sets = list(zip(setting.a, setting.b, setting.c, strict=True))
    places = [(a.data_ptr(), b.data_ptr(), c.data_ptr()) for a, b, c in sets]

    def call(which: int) -> Any:
        return lambda i: product.run(which, *places[i], stream)

    timed: list[tuple[float, int]] = []
    for which in range(len(product.algorithms)):
        if setting.fault(call(which)):
            continue
        setting.time(call(which), 2)
        timed.append((min(setting.time(call(which), 8) for _ in range(3)), which))
    if not timed:
        return None
    best = min(timed)[1]
    return {**setting.pairs(mine, call(best)), "algorithm": best, "of": len(timed)}


if __name__ == "__main__":
    sys.exit(main())
