"""Softmax, RMSNorm and LayerNorm f32 against NumPy, and against a copy of the same bytes.

Columns from 32 to 65,536, each with rows for about 4 MB, and with rows for input and output of
twice the last-level cache and more (or what memory allows). Every row is tuned on one unit and on
all, then the winner is timed in rounds of random order beside NumPy on the same arrays: the
target's baseline, and the same maths written in place. Large rows are timed beside a copy
of the input to the output too, with plain and with non-temporal stores; the share is the faster
copy's time over the kernel's, so it counts one read and one write of the data.

Marks: 3 times the baseline everywhere; 0.8 of the copy for large rows. Small cases rotate over two
argument sets; a large one has a single set, which displaces itself from the caches.

    python benchmarks/x86_rowwise.py --trials 16 --assert > reports/x86/rowwise.jsonl
"""

from __future__ import annotations

import argparse
import math
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _copy import KINDS, Copy
from _program import begin, end, parser, say
from x86_common import batches_for, winner

from tfsearch.core import settings
from tfsearch.core.errors import TfsearchError
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.measure.host import HostCallable, host_launch, timed_rounds
from tfsearch.measure.inputs import Pass, make_inputs
from tfsearch.measure.job import Limits
from tfsearch.measure.statistics import ratio_interval
from tfsearch.target.x86 import baseline
from tfsearch.target.x86.device import processor
from tfsearch.target.x86.runner import SELECTOR, make
from tfsearch.tune import TuneRequest, tune

OPS = ("softmax", "rms_norm", "layer_norm")
COLUMNS = (32, 128, 512, 2048, 8192, 65536)
SMALL_BYTES = 4 << 20
BEYOND = 2.0
"""Input and output together, in last-level caches, of a large row."""
MEMORY_SHARE = 1 / 32
"""A large row's input takes no more of the machine's memory: the reference takes far more."""
ELEMENT = 4
REFERENCE = 3 * 32
"""Bytes per element that the references of three verification passes take."""
LEAST_ROUNDS = 9
FASTER, SHARE = 3.0, 0.8
EPS = {"rms_norm": 1e-6, "layer_norm": 1e-5}

Arrays = Mapping[str, np.ndarray[Any, Any]]


def in_place(op: str) -> Callable[[Arrays, Arrays], None]:
    """The op in NumPy by someone who avoids temporaries."""

    def softmax(inputs: Arrays, outputs: Arrays) -> None:
        x, y = inputs["x"], outputs["y"]
        np.subtract(x, x.max(axis=1, keepdims=True), out=y)
        np.exp(y, out=y)
        y /= y.sum(axis=1, keepdims=True)

    def rms_norm(inputs: Arrays, outputs: Arrays) -> None:
        x, y = inputs["x"], outputs["y"]
        mean = np.einsum("ij,ij->i", x, x) / np.float32(x.shape[1])
        np.multiply(x, (1 / np.sqrt(mean + np.float32(EPS[op])))[:, None], out=y)
        y *= inputs["weight"]

    def layer_norm(inputs: Arrays, outputs: Arrays) -> None:
        x, y = inputs["x"], outputs["y"]
        np.subtract(x, x.mean(axis=1, keepdims=True), out=y)
        variance = np.einsum("ij,ij->i", y, y) / np.float32(x.shape[1])
        y *= (1 / np.sqrt(variance + np.float32(EPS[op])))[:, None]
        y *= inputs["weight"]
        y += inputs["bias"]

    return {"softmax": softmax, "rms_norm": rms_norm, "layer_norm": layer_norm}[op]


def rows_of(columns: int, large: bool, args: argparse.Namespace) -> int:
    """Rows of a case; at least one, and a whole number of cache lines together."""
    size = SMALL_BYTES
    if large:
        cpu = processor()
        wanted = args.beyond * cpu.caches[-1] / 2
        size = int(min(wanted, MEMORY_SHARE * cpu.memory_bytes)) + ELEMENT * columns
    if args.quick:
        size >>= 8 if large else 6
    return max(1, size // (ELEMENT * columns))


def tuned(op: str, rows: int, columns: int, units: int, args: argparse.Namespace) -> Any:
    """The report of a session, its workload, and the winner as a loaded kernel."""
    workload = build_workload(op, {"rows": rows, "cols": columns, "dtype": "f32"}, alignment=64)
    elements = rows * columns
    limits = Limits(
        deadline_s=args.deadline,
        budget_s=0.2 if args.quick else Limits.budget_s,
        memory_bytes=max(Limits.memory_bytes, processor().memory_bytes // 2),
        argument_bytes=max(Limits.argument_bytes, 4 * ELEMENT * elements),
        reference_bytes=max(Limits.reference_bytes, REFERENCE * elements),
    )
    fix = {"units": 1} if units == 1 else {}
    request = TuneRequest(
        workload,
        target="x86",
        trials=args.trials,
        fix=fix,
        baseline=False,
        seed=args.seed,
        limits=limits,
    )
    store = open_store(args.db or settings.load().database_url)
    try:
        report = tune(request, store=store)
        return workload, report, winner(report, store)
    finally:
        store.close()


def measured(
    op: str, workload: Any, ours: Any, large: bool, units: int, args: argparse.Namespace
) -> tuple[dict[str, np.ndarray[Any, Any]], float]:
    """Microseconds of a call in each round, by name, and the largest difference to NumPy."""
    runner: Any = make(SELECTOR)
    sets = 1 if large else 2
    inputs = [make_inputs(workload.program, Pass.NORMAL, args.seed + i) for i in range(sets)]
    arguments = [ours.bind(one) for one in inputs]
    del inputs
    launch = host_launch(ours.launch)
    hosts = {
        "baseline": HostCallable(baseline.make(workload.record, launch), launch),
        "in_place": HostCallable(in_place(op), launch),
    }
    kernels: dict[str, Any] = {"ours": ours, **hosts}
    own: dict[str, Any] = dict.fromkeys(kernels, arguments)
    if large:
        for kind in KINDS:
            kernels[kind] = copy = Copy(ours.launch, kind, units, args.folder)
            own[kind] = [copy.over(one) for one in arguments]
            copy.call(own[kind][0])
            if not np.array_equal(arguments[0].arrays["x"], arguments[0].arrays["y"]):
                raise SystemExit(f"the {kind} copy on {units} units does not copy")
    batches = [_batch(runner, kernels[name], own[name]) for name in kernels]
    difference = _difference(ours, hosts.values(), arguments[0])
    times: list[Any] = []
    deadline = time.monotonic() + args.seconds
    while len(times) < LEAST_ROUNDS or (
        len(times) < args.rounds and time.monotonic() < deadline
    ):  # fmt: skip
        one = timed_rounds(
            runner, list(kernels.values()), list(own.values()), batches, 1,
            cold=False, seed=args.seed + len(times),
        )  # fmt: skip
        times.append(one[0])
    each = np.array(times) / np.array(batches) / 1e3
    return {name: each[:, column] for column, name in enumerate(kernels)}, difference


def _batch(runner: Any, kernel: Any, arguments: Sequence[Any]) -> int:
    """Calls per timed batch; NumPy takes long enough to be called once."""
    if isinstance(kernel, HostCallable):
        kernel.time_batch(arguments, 1)
        return 1
    return batches_for(runner, [kernel], [arguments])[0]


def _difference(ours: Any, hosts: Any, arguments: Any) -> float:
    """The largest difference between the kernel's output and NumPy's."""
    ours.call(arguments)
    found = arguments.read("y")
    worst = 0.0
    for host in hosts:
        host.call(arguments)
        np.subtract(arguments.arrays["y"], found, out=arguments.arrays["y"])
        worst = max(worst, float(np.abs(arguments.arrays["y"]).max()))
    return worst


def row(op: str, columns: int, large: bool, units: int, args: argparse.Namespace) -> dict[str, Any]:
    """Tune one case and compare."""
    rows = rows_of(columns, large, args)
    started = time.monotonic()
    workload, report, ours = tuned(op, rows, columns, units, args)
    tune_s = time.monotonic() - started
    times, difference = measured(op, workload, ours, large, units, args)
    medians = {name: float(np.median(column)) for name, column in times.items()}
    data = rows * columns * ELEMENT
    out: dict[str, Any] = {
        "op": op,
        "rows": rows,
        "columns": columns,
        "size": "large" if large else "small",
        "bytes": data,
        "units": units,
        "us": medians,
        "gb_per_s": 2 * data / medians["ours"] / 1e3,
        **_ratio("ratio", times["baseline"], times["ours"]),
        **_ratio("ratio_in_place", times["in_place"], times["ours"]),
        "rounds": len(times["ours"]),
        "difference": difference,
        "tune_s": tune_s,
        "trials": report.trials.to_json(),
        "params": dict(report.best.schedule.params),
    }
    if large:
        best = min(KINDS, key=medians.__getitem__)
        out |= _ratio("share_of_copy", times[best], times["ours"])
        out |= {"copy": best, "copy_gb_per_s": 2 * data / medians[best] / 1e3}
        out["caches"] = 2 * data / processor().caches[-1]
    return out


def _ratio(name: str, times: Any, reference: Any) -> dict[str, Any]:
    found = ratio_interval(times, reference)
    return {name: found.median, f"{name}_ci": [found.low, found.high]}


def summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Geometric means, the least of each ratio, and the cases below their mark."""

    def of(name: str) -> dict[str, float]:
        values = [r[name] for r in rows if name in r]
        if not values:
            return {}
        mean = math.exp(sum(map(math.log, values)) / len(values))
        return {"geomean": mean, "least": min(values)}

    def below(name: str, mark: float) -> list[list[Any]]:
        return [
            [r["op"], r["rows"], r["columns"], r["units"], r[name]]
            for r in rows
            if r.get(name, mark) < mark
        ]

    return {
        "ratio": of("ratio"),
        "ratio_in_place": of("ratio_in_place"),
        "share_of_copy": of("share_of_copy"),
        "below_3": below("ratio", FASTER),
        "below_copy": below("share_of_copy", SHARE),
    }


def main() -> int:
    """Run the cases asked for."""
    made = parser(__doc__)
    made.add_argument("--ops", default=",".join(OPS))
    made.add_argument("--columns", default=",".join(map(str, COLUMNS)))
    made.add_argument("--sizes", default="small,large")
    made.add_argument("--units", default="1,all")
    made.add_argument("--trials", type=int, default=16)
    made.add_argument("--rounds", type=int, default=101)
    made.add_argument("--seconds", type=float, default=5.0, help="of comparing one case")
    made.add_argument("--deadline", type=float, default=600.0, help="seconds for one candidate")
    made.add_argument("--beyond", type=float, default=BEYOND, help="last-level caches, large rows")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--db", default="")
    args = made.parse_args()
    if args.quick:
        args.ops, args.columns, args.units = "softmax", "32", "1"
        args.trials, args.rounds, args.seconds = 1, LEAST_ROUNDS, 0.5
    begin("x86_rowwise", args)
    with tempfile.TemporaryDirectory(prefix="tfsearch-copy-") as folder:
        args.folder = Path(folder)
        return run(args)


def run(args: argparse.Namespace) -> int:
    """Measure the cases one after another and sum up."""
    wanted = [1 if word == "1" else processor().units for word in args.units.split(",")]
    failures, rows = 0, list[dict[str, Any]]()
    for op in args.ops.split(","):
        for columns in map(int, args.columns.split(",")):
            for size in args.sizes.split(","):
                for units in dict.fromkeys(wanted):
                    try:
                        rows.append(row(op, columns, size == "large", units, args))
                    except TfsearchError as error:
                        failures += 1
                        where = {"op": op, "columns": columns, "size": size, "units": units}
                        say({**where, "error": error.message})
                        continue
                    say(rows[-1])
    found = summary(rows)
    marks = {
        "every case was measured": failures == 0,
        "3 times NumPy": not found["below_3"] if rows else None,
        "0.8 of a copy": not found["below_copy"] if found["share_of_copy"] else None,
    }
    return end(args, marks, summary=found)


if __name__ == "__main__":
    sys.exit(main())
