"""How long a newcomer waits: a cold tune, a warm lookup, an import.

``tfsearch tune gemm m=512 n=512 k=512 dtype=f32 --trials 16`` in a fresh home (nothing built,
nothing recorded, compile included) on two cores; then ``tfsearch lookup`` of the same workload in
processes of its own; then ``import tfsearch`` as a fresh interpreter times it. Medians but for the
tune, which is run ``--repeats`` times, each in a home of its own; the slowest counts.

Marks: tune under 30 s; lookup under 0.5 s; import under 0.1 s.

    python benchmarks/tune_times.py --assert > reports/x86/tune-times.jsonl
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from _program import begin, end, parser, say

TUNE_S, LOOKUP_S, IMPORT_S = 30.0, 0.5, 0.1
PROGRAM = (sys.executable, "-c", "import sys; from tfsearch.cli import main; sys.exit(main())")
IMPORT = (
    "import time; begin = time.perf_counter(); import tfsearch; print(time.perf_counter() - begin)"
)


def environment(home: str) -> dict[str, str]:
    """This process's environment with a home of its own."""
    kept = {name: value for name, value in os.environ.items() if name != "TFSEARCH_DB"}
    return {**kept, "TFSEARCH_HOME": home}


def command(words: list[str], home: str) -> tuple[float, Mapping[str, Any]]:
    """Wall seconds of a ``tfsearch`` process, and the document it printed."""
    begun = time.perf_counter()
    done = subprocess.run(
        [*PROGRAM, *words, "--json"],
        env=environment(home),
        capture_output=True,
        text=True,
        check=False,
    )
    seconds = time.perf_counter() - begun
    if done.returncode:
        raise SystemExit(f"tfsearch {' '.join(words)}: exit {done.returncode}: {done.stderr}")
    return seconds, json.loads(done.stdout)


def spread(seconds: list[float]) -> dict[str, float | int]:
    """Median and extremes."""
    return {
        "median_s": statistics.median(seconds),
        "least_s": min(seconds),
        "most_s": max(seconds),
        "processes": len(seconds),
    }


def imports(repeats: int, home: str) -> list[float]:
    """Seconds of ``import tfsearch``, one interpreter each."""
    words = [sys.executable, "-c", IMPORT]
    found: list[float] = []
    for _ in range(repeats):
        done = subprocess.run(words, env=environment(home), stdout=subprocess.PIPE, check=True)
        found.append(float(done.stdout))
    return found


def main() -> int:
    """Run the three and compare."""
    made = parser(__doc__)
    made.add_argument("--size", type=int, default=512)
    made.add_argument("--trials", type=int, default=16)
    made.add_argument("--repeats", type=int, default=3, help="cold tunes")
    made.add_argument("--processes", type=int, default=11, help="lookups, and imports")
    made.add_argument("--cores", type=int, default=2)
    args = made.parse_args()
    if args.quick:
        args.size, args.trials, args.repeats, args.processes = 16, 1, 1, 2
    begin("tune_times", args)
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: args.cores])
    size = str(args.size)
    words = ["gemm", f"m={size}", f"n={size}", f"k={size}", "dtype=f32"]
    tunes: list[float] = []
    lookups: list[float] = []
    loads: list[float] = []
    for repeat in range(args.repeats):
        with tempfile.TemporaryDirectory(prefix="tfsearch-cold-") as home:
            seconds, report = command(["tune", *words, "--trials", str(args.trials), "-q"], home)
            tunes.append(seconds)
            say(
                {
                    "cold_tune_s": seconds,
                    "elapsed_s": report["elapsed_s"],
                    "trials": report["trials"],
                    "legal": report["space"]["legal"],
                    "best_us": report["best"]["median_us"],
                }
            )
            if repeat + 1 == args.repeats:
                first, _ = command(["lookup", *words], home)
                lookups = [command(["lookup", *words], home)[0] for _ in range(args.processes)]
                say({"first_lookup_s": first, "warm_lookup": spread(lookups)})
                loads = imports(args.processes, home)
                say({"import": spread(loads)})
    marks = {
        f"cold tune under {TUNE_S:.0f} s": max(tunes) < TUNE_S,
        f"warm lookup under {LOOKUP_S} s": statistics.median(lookups) < LOOKUP_S,
        f"import under {IMPORT_S} s": statistics.median(loads) < IMPORT_S,
    }
    return end(args, marks)


if __name__ == "__main__":
    sys.exit(main())
