"""What a call costs beyond the kernel: prebound, checked, dispatched, each step by itself.

The kernel does nothing (two nanoseconds of C), so every figure is overhead: medians over
repetitions, nanoseconds a call. Then the wall time of warm processes: help and a lookup. Run it on
an idle machine; the load is printed beside the figures.

Mark: a prebound call with ``out=`` costs at most 3 µs above the C call.

    python benchmarks/call_overhead.py --assert > reports/x86/call-overhead.jsonl
"""

from __future__ import annotations

import ctypes
import os
import statistics
import subprocess
import sys
import tempfile
import time
import timeit
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from _program import begin, end, parser, say

import tfsearch
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import ScheduleRecord, ServedBy, Status
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.runtime import Kernel, empty
from tfsearch.runtime.arrays import Checked, address
from tfsearch.runtime.kernelrecord import KernelRecord
from tfsearch.runtime.native import NativeEntry
from tfsearch.runtime.operator import Operator
from tfsearch.toolchain import find

M, N, K = 96, 96, 96
REPEATS = 15
PREBOUND_NS = 3000.0
SOURCE = "int nothing(void **args) { (void)args; return 0; }\n"


class Nothing:
    """A native artifact whose entry returns at once."""

    def __init__(self, folder: Path) -> None:
        out = folder / "nothing.so"
        result = find().compile_shared(SOURCE, out=out)
        if result.status is not Status.OK:
            sys.exit(result.message)
        self._library = ctypes.CDLL(str(out))
        arguments = (_argument("a", M, K, "in"), _argument("b", K, N, "in"),
                     _argument("c", M, N, "out"))  # fmt: skip
        self.launch = LaunchSpec(EntrySpec("nothing", arguments, 1, 4096))

    def tail(self, entry: EntrySpec) -> Sequence[int]:
        del entry
        return (0, 0)

    def entry_address(self, symbol: str) -> int:
        return ctypes.cast(self._library[symbol], ctypes.c_void_p).value or 0

    def bind(self, inputs: Any) -> Any:
        raise NotImplementedError(inputs)

    def call(self, arguments: Any) -> None:
        raise NotImplementedError(arguments)


def _argument(name: str, rows: int, columns: int, io: str) -> ArgumentSpec:
    return ArgumentSpec(name, "f32", (rows, columns), (columns, 1), io, 16)


def cost(function: Callable[[], object], calls: int) -> float:
    """Median nanoseconds of a call."""
    times = timeit.repeat(function, number=calls, repeat=REPEATS)
    return statistics.median(times) / calls * 1e9


def calls(folder: Path, count: int) -> dict[str, float]:
    """Costs of every way to call, and of the steps of a dispatched one."""
    work = build_workload("gemm", {"m": M, "n": N, "k": K, "dtype": "f32"}, alignment=16)
    schedule = ScheduleRecord("gemm", work.key, "none", "nothing", 1, {})
    loaded = Nothing(folder)
    kernel = Kernel(KernelRecord(work.record, "none", schedule), loaded, ServedBy.EXACT)
    a, b, c = (empty((M, N), np.dtype("f4")) for _ in range(3))
    bound = kernel.bind(a, b, out=c)
    gemm = Operator("gemm", fallback=lambda *_, **__: c)
    gemm.kernel(a, b)
    check, entry = Checked(loaded.launch.main.arguments[0]), NativeEntry(loaded, loaded.launch.main)
    places = [address(x) for x in (a, b, c)]
    return {
        "prebound call, out": cost(bound, count),
        "checked call, out": cost(lambda: kernel(a, b, out=c), count),
        "checked call, new output": cost(lambda: kernel(a, b), count),
        "dispatched call, to a fallback that does nothing": cost(lambda: gemm(a, b), count),
        "step: key of two arrays": cost(lambda: gemm._key([a, b], None, {}, None), count),
        "step: check one array": cost(lambda: check.address(a), count),
        "step: allocate an output": cost(lambda: empty((M, N), np.dtype("f4")), count),
        "step: frame and C call": cost(lambda: entry.call(places), count),
        "for comparison: np.add of two numbers, out": cost(
            lambda: np.add(a[0, :1], b[0, :1], out=c[0, :1]), count
        ),
    }


def processes(repeats: int) -> dict[str, float]:
    """Median seconds of warm processes."""
    program = [sys.executable, "-c", "import sys; from tfsearch.cli import main; sys.exit(main())"]
    look = ["lookup", "gemm", "m=64", "n=64", "k=64", "dtype=f32"]
    tfsearch.tune("gemm", m=64, n=64, k=64, dtype="f32", trials=2, baseline=False)
    out: dict[str, float] = {}
    for name, words in (("help", ["--help"]), ("lookup", look)):
        times: list[float] = []
        for _ in range(repeats):
            start = time.perf_counter()
            subprocess.run([*program, *words], check=True, stdout=subprocess.DEVNULL)
            times.append(time.perf_counter() - start)
        out[name] = statistics.median(times)
    return out


def main() -> int:
    """Time the calls, then the processes."""
    made = parser(__doc__)
    made.add_argument("--calls", type=int, default=20_000)
    made.add_argument("--processes", type=int, default=9)
    args = made.parse_args()
    if args.quick:
        args.calls, args.processes = 50, 0
    begin("call_overhead", args)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TFSEARCH_HOME"] = folder
        os.environ.pop("TFSEARCH_DB", None)
        costs = calls(Path(folder), args.calls)
        say({"ns_per_call": costs})
        if args.processes:
            say({"process_s": processes(args.processes)})
    return end(args, {"a prebound call within 3 µs": costs["prebound call, out"] <= PREBOUND_NS})


if __name__ == "__main__":
    sys.exit(main())
