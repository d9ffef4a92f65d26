"""Enumerating, checking and ranking: points a second on one core, and memory of a huge space.

The f32 512³ contraction of this machine's processor: its space is bound anew for every repetition,
then all legal points are enumerated (which checks every constraint), their times predicted and
the best 2048 kept, as a session does before its first trial. The figure is legal points over
the process's CPU time, on one core; the Cartesian product is many times larger.

Then a space of 10^8 points, nearly all legal, goes the same way in a process of its own, once with
constraints that link all parameters and once with none; its figure is the peak resident set.

Marks: 2 million legal points a second; under 500 MB.

    python benchmarks/rank_speed.py --assert > reports/x86/rank-speed.jsonl
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
from _program import begin, end, parser, say

from tfsearch.ir.hir.builtins import build_workload
from tfsearch.search import scan
from tfsearch.space import Constraint, Kind, Parameter, Points, RecipeSpace, Space
from tfsearch.target.x86 import target

POINTS_PER_S = 2e6
PEAK_BYTES = 500e6
VALUES = 10
KINDS = ("linked", "free")


def ranked(size: int) -> dict[str, Any]:
    """One pass over the space of a square f32 contraction, bound for this pass alone."""
    workload = build_workload("gemm", {"m": size, "n": size, "k": size, "dtype": "f32"})
    problem = target.problem(workload, target.devices()[0])
    wall, used = time.perf_counter(), time.process_time()
    found = scan(problem)
    used, wall = time.process_time() - used, time.perf_counter() - wall
    return {
        "size": size,
        "points": problem.space.points,
        "legal": found.legal,
        "kept": len(found.pool),
        "cpu_s": used,
        "wall_s": wall,
        "legal_per_s": found.legal / used,
    }


@dataclass(frozen=True)
class Times:
    """Predicted times of a batch."""

    estimate_us: np.ndarray[Any, np.dtype[np.float64]]
    bound_us: np.ndarray[Any, np.dtype[np.float64]]


class Huge:
    """A problem of ``VALUES ** parameters`` points with a made-up, cheap model of time."""

    def __init__(self, parameters: int, kind: str) -> None:
        values = tuple(range(1, VALUES + 1))
        domains = tuple(Parameter(f"p{i}", values, Kind.ORDINAL) for i in range(parameters))
        linked = tuple(
            Constraint(f"huge.c{i}", f"p{i} * p{i + 1} <= 95", "") for i in range(parameters - 1)
        )
        recipe = RecipeSpace("huge", 1, domains, (), linked if kind == "linked" else ())
        self.space = Space((recipe,))

    def predict(self, points: Points) -> Times:
        """A time that every parameter changes."""
        weights = [1.0 + 0.1 * i for i in range(len(points.codes))]
        total = np.zeros(len(points))
        for weight, column in zip(weights, points.codes.values(), strict=True):
            total += weight * column
        return Times(1.0 + total, np.full(len(points), 0.5))


def huge(parameters: int, kind: str) -> dict[str, Any]:
    """One pass over a huge space, and this process's peak resident set."""
    problem = Huge(parameters, kind)
    used = time.process_time()
    found = scan(problem)
    used = time.process_time() - used
    counts = problem.space.count()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "kind": kind,
        "points": counts.points,
        "legal": counts.legal,
        "seen": found.legal,
        "cpu_s": used,
        "legal_per_s": found.legal / used,
        "peak_bytes": peak * (1 if sys.platform == "darwin" else 1024),
    }


def in_a_process(parameters: int, kind: str) -> dict[str, Any]:
    """:func:`huge` in a fresh process, whose peak is nobody else's."""
    words = [sys.executable, __file__, "--huge", kind, "--parameters", str(parameters)]
    return json.loads(subprocess.run(words, stdout=subprocess.PIPE, check=True).stdout)


def arguments() -> argparse.Namespace:
    """The options."""
    made = parser(__doc__)
    made.add_argument("--size", type=int, default=512)
    made.add_argument("--repeats", type=int, default=5)
    made.add_argument("--parameters", type=int, default=8, help="of ten values each, huge space")
    made.add_argument("--huge", choices=KINDS, help=argparse.SUPPRESS)
    args = made.parse_args()
    if args.quick:
        args.size, args.repeats, args.parameters = 16, 1, 5
    return args


def main() -> int:
    """Time the scans, then watch the memory."""
    args = arguments()
    if args.huge:
        print(json.dumps(huge(args.parameters, args.huge)))
        return 0
    begin("rank_speed", args)
    # After the processor was looked at: the space is that of all its units.
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-1:])
    rates: list[float] = []
    ranked(args.size)
    for _ in range(args.repeats):
        one = ranked(args.size)
        rates.append(one["legal_per_s"])
        say(one)
    rows = [in_a_process(args.parameters, kind) for kind in KINDS]
    for one in rows:
        say(one)
    marks = {
        "2 million legal points a second": statistics.median(rates) >= POINTS_PER_S,
        "every legal point of the huge space was seen": all(r["seen"] == r["legal"] for r in rows),
        "under 500 MB": all(r["peak_bytes"] < PEAK_BYTES for r in rows),
    }
    return end(args, marks, legal_per_s=statistics.median(rates))


if __name__ == "__main__":
    sys.exit(main())
