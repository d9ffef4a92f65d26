"""How well the cost model ranks: recall of the first 16, correlation, the space's spread.

For each shape a session of 16 trials is run with the ranked policy; then its candidates, the top
of the plain ranking and uniform legal candidates are all built and timed interleaved. The best of
all and the best of each list meet in a final of many rounds, whose winner is the best known: the
least of hundreds of medians would be a lucky one. Prints one JSON object per shape, and one per
candidate with ``--candidates``.

    python benchmarks/x86_ranking.py --top 100 --uniform 100 --units 1
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from x86_common import Built, batches_for, bind_all, build_all, machine_facts

from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin.target import Problem
from tfsearch.search.scan import predict_points
from tfsearch.space import Point, Space
from tfsearch.target.x86 import target
from tfsearch.target.x86.runner import SELECTOR, make
from tfsearch.tune import TuneRequest, tune

FIRST = 16
FINALISTS, EACH, FINAL_ROUNDS = 10, 4, 201
"""How many of all and of each list meet in the final, and its rounds, if time allows."""

SHAPES = (
    (128, 128, 128),
    (256, 256, 256),
    (512, 512, 512),
    (1024, 1024, 1024),
    (4, 4096, 4096),
    (16, 4096, 4096),
    (127, 333, 1001),
    (64, 2048, 512),
    (2048, 64, 512),
    (100, 100, 8000),
)


def ranked(problem: Problem, space: Space, count: int) -> list[tuple[Point, float]]:
    """The first ``count`` points by predicted time."""
    heap: list[tuple[float, int, Point]] = []
    serial = 0
    for points in space.chunks():
        estimate = problem.predict(points).estimate_us
        keep = np.argsort(estimate, kind="stable")[:count]
        for row in keep:
            serial += 1
            entry = (-float(estimate[row]), -serial, points.point(int(row)))
            if len(heap) < count:
                heapq.heappush(heap, entry)
            elif entry > heap[0]:
                heapq.heapreplace(heap, entry)
            else:
                break
    return [(point, -cost) for cost, _, point in sorted(heap, key=lambda e: (-e[0], -e[1]))]


def uniform(problem: Problem, space: Space, count: int, seed: int) -> list[tuple[Point, float]]:
    """Uniform legal points with their predicted times."""
    sample = space.sample(count, np.random.default_rng(seed))
    out: list[tuple[Point, float]] = []
    for batch in sample.batches:
        estimate = problem.predict(batch).estimate_us
        out += [(batch.point(row), float(estimate[row])) for row in range(len(batch))]
    return out


def measure(workload: Workload, built: Sequence[Built], rounds: int, seconds: float) -> Any:
    """Median microseconds of each candidate, timed interleaved."""
    runner = make(SELECTOR)
    kernels = [b.loaded for b in built]
    arguments = bind_all(workload, kernels)
    batches = batches_for(runner, kernels, arguments)
    deadline = time.monotonic() + seconds
    times = []
    for index in range(rounds):
        times.append(runner.time(kernels, arguments, batches, 1, cold=False, seed=index)[0])
        if time.monotonic() > deadline and index >= 4:
            break
    return np.median(np.array(times) / np.array(batches) / 1e3, axis=0)


def proposed(workload: Workload, units: int, seed: int) -> list[Point]:
    """The candidates of a session of 16 trials, in a database of its own."""
    fix = {"units": units} if units else {}
    request = TuneRequest(
        workload, target="x86", trials=FIRST, fix=fix, baseline=False, finalists=1, seed=seed
    )
    with tempfile.TemporaryDirectory() as folder:
        store = open_store(f"sqlite:///{folder}/ranking.db")
        tune(request, store=store)
        schedules = [stored.trial.schedule for stored in store.trials()]
        store.close()
    return [Point(schedule.recipe, dict(schedule.params)) for schedule in schedules]


def predicted_of(problem: Problem, points: Sequence[Point]) -> list[tuple[Point, float]]:
    """Points with their predicted times."""
    estimate, _ = predict_points(problem, points)
    return list(zip(points, (float(us) for us in estimate), strict=True))


def rank_correlation(a: Any, b: Any) -> float:
    """Spearman's coefficient."""
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (a, b)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1]) if len(a) > 2 else float("nan")


def one_shape(shape: tuple[int, int, int], args: argparse.Namespace) -> dict[str, Any]:
    """Everything about one shape."""
    m, n, k = shape
    workload = build_workload("gemm", {"m": m, "n": n, "k": k, "dtype": args.dtype})
    problem = target.problem(workload, target.devices()[0])
    space = problem.space.fix({"units": args.units}) if args.units else problem.space
    counts = space.count()
    started = time.monotonic()
    top = ranked(problem, space, args.top)
    rank_s = time.monotonic() - started
    others = uniform(problem, space, args.uniform, args.seed)
    first = proposed(workload, args.units, args.seed)
    jobs: list[tuple[Point, float]] = []
    seen: set[Point] = set()
    for job in (*top, *predicted_of(problem, first), *others):
        if job[0] not in seen:
            seen.add(job[0])
            jobs.append(job)
    built = build_all(problem, jobs, target.compiler(args.toolchain), args.workers)
    times = measure(workload, built, args.rounds, args.seconds)
    predicted = np.array([b.predicted_us for b in built])
    order = {point: rank for rank, (point, _) in enumerate(top)}
    drawn = {point for point, _ in others}
    chosen = set(first)
    lists = {
        "first16": [row for row, b in enumerate(built) if b.point in chosen],
        "top16": [row for row, b in enumerate(built) if order.get(b.point, FIRST) < FIRST],
        "random16": [row for row, b in enumerate(built) if b.point in drawn][:FIRST],
    }
    uniform_times = [t for b, t in zip(built, times, strict=True) if b.point in drawn]
    least, winner = final(workload, built, times, lists, args)
    best = float(times.min())
    near = times <= 1.5 * best
    if args.candidates:
        for b, t in zip(built, times, strict=True):
            row = {"shape": shape, "rank": order.get(b.point), "recipe": b.point.recipe_name}
            row |= {"params": dict(b.point.params), "us": float(t), "predicted_us": b.predicted_us}
            row["proposed"] = first.index(b.point) if b.point in chosen else None
            print(json.dumps(row))
    known = min(least.values())
    return {
        "shape": list(shape),
        "legal": counts.legal,
        "rank_s": rank_s,
        "measured": len(built),
        "best_us": known,
        "gflops": 2 * m * n * k / known / 1e3,
        **{f"{name}_over_best": least[name] / known for name in lists if name in least},
        "median_over_best": float(np.median(uniform_times)) / best if uniform_times else None,
        "correlation": rank_correlation(predicted, times),
        "correlation_near": rank_correlation(predicted[near], times[near]),
        "winner": {"rank": order.get(winner.point), "params": dict(winner.point.params)},
    }


def final(
    workload: Workload,
    built: Sequence[Built],
    times: Any,
    lists: Mapping[str, Sequence[int]],
    args: argparse.Namespace,
) -> tuple[dict[str, float], Built]:
    """The least microseconds of all and of each list, and the winner, from many rounds."""
    order = [int(row) for row in np.argsort(times)]
    finalists = set(order[:FINALISTS])
    for rows in lists.values():
        finalists |= set(sorted(rows, key=lambda row: float(times[row]))[:EACH])
    meeting = sorted(finalists)
    found = measure(workload, [built[row] for row in meeting], FINAL_ROUNDS, args.seconds)
    again = dict(zip(meeting, (float(us) for us in found), strict=True))
    least = {"all": min(again.values())}
    for name, rows in lists.items():
        if own := [again[row] for row in rows if row in again]:
            least[name] = min(own)
    return least, built[min(again, key=again.__getitem__)]


def main() -> None:
    """Run the shapes asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--top", type=int, default=100)
    parser.add_argument("--uniform", type=int, default=100)
    parser.add_argument("--units", type=int, default=0, help="fix the number of units")
    parser.add_argument("--dtype", default="f32")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--toolchain", default=None)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--candidates", action="store_true")
    parser.add_argument("--shapes", default="", help="like 512x512x512,4x4096x4096")
    args = parser.parse_args()
    shapes = SHAPES
    if args.shapes:
        shapes = tuple(
            tuple(int(d) for d in text.split("x"))  # type: ignore[misc]
            for text in args.shapes.split(",")
        )
    print(json.dumps({"machine": machine_facts()}), flush=True)
    for shape in shapes:
        print(json.dumps(one_shape(shape, args)), flush=True)
    sys.stdout.flush()


if __name__ == "__main__":
    main()
