"""Eight trials for a new shape after 20 tuned neighbours, against 64 for it alone.

Twenty f32 products (one thread) are tuned with few trials each into one database. Each new shape
is then tuned with 8 trials in a copy of that database in which a model was trained (``warm``), with
8 in a copy without (``hints``), and with 64 in an empty one (``cold``). The winners, and the best
of the first 8 cold trials (``cold8``), meet interleaved in one run; the ratio is taken round by
round. The shapes are fixed below.

The work can be done in parts, each a run of its own on a quiet machine, over one folder:

    python benchmarks/warm_start.py --folder F --neighbours 0:7
    python benchmarks/warm_start.py --folder F --new 0:1
    python benchmarks/warm_start.py --folder F --report reports/search/warm-start.jsonl --assert

Without ``--neighbours``, ``--new`` or ``--report`` it does all of it.
"""

from __future__ import annotations

import argparse
import json
import math
import sqlite3
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from _program import begin, end, parser, say
from x86_common import batches_for, bind_all, build_all, machine_facts

from tfsearch.core.records import ScheduleRecord
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.measure.statistics import ratio_interval
from tfsearch.space import Point
from tfsearch.target.x86 import target
from tfsearch.target.x86.runner import SELECTOR, make
from tfsearch.tune import TuneReport, TuneRequest, tune
from tfsearch.tune.learn import train

Shape = tuple[int, int, int]

NEIGHBOURS: tuple[Shape, ...] = (
    (192, 256, 320),
    (256, 256, 256),
    (256, 512, 384),
    (320, 320, 640),
    (384, 384, 384),
    (384, 768, 256),
    (448, 320, 512),
    (512, 512, 512),
    (512, 256, 768),
    (512, 768, 384),
    (576, 448, 640),
    (640, 640, 320),
    (640, 384, 896),
    (704, 512, 448),
    (768, 768, 768),
    (768, 320, 512),
    (896, 640, 384),
    (960, 512, 640),
    (300, 500, 700),
    (500, 700, 300),
)
NEW: tuple[Shape, ...] = (
    (480, 480, 480),
    (320, 448, 576),
    (400, 600, 500),
    (640, 512, 704),
    (832, 448, 320),
    (576, 704, 512),
)
NAME = "neighbours.db"
TRIALS = 16
WARM, COLD = 8, 64
ROUNDS = 201
OVERALL, EACH = 0.99, 0.95
"""Least geometric mean of cold over warm, and least single ratio, that count as a match."""


def workload_of(shape: Shape) -> Workload:
    """The product of one shape."""
    m, n, k = shape
    return build_workload("gemm", {"m": m, "n": n, "k": k, "dtype": "f32"})


def tuned(shape: Shape, trials: int, database: Path, seed: int) -> tuple[TuneReport, list[Any]]:
    """A session on one thread, and its trials in order."""
    places = Settings(database.parent, f"sqlite:///{database}")
    request = TuneRequest(
        workload_of(shape),
        target="x86",
        trials=trials,
        fix={"units": 1},
        baseline=False,
        seed=seed,
    )
    store = open_store(places.database_url)
    try:
        report = tune(request, store=store, settings=places)
        return report, [stored.trial for stored in store.trials(session=report.session)]
    finally:
        store.close()


def neighbour(shape: Shape, database: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Tune one of the neighbours."""
    started = time.monotonic()
    report, trials = tuned(shape, args.trials, database, args.seed)
    assert report.best is not None
    return {
        "neighbour": list(shape),
        "trials": len(trials),
        "best_us": report.best.median_us,
        "tune_s": time.monotonic() - started,
        "params": dict(report.best.schedule.params),
    }


def copied(database: Path, folder: Path) -> Path:
    """A copy of a database in a folder of its own."""
    folder.mkdir()
    made = folder / "warm.db"
    with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(made)) as new:
        old.backup(new)
    return made


def learned(database: Path) -> dict[str, Any]:
    """Train the models of a database; the verdicts by recipe."""
    store = open_store(f"sqlite:///{database}")
    try:
        models = train(store, target)
        for model in models:
            store.put_model(model.record)
    finally:
        store.close()
    return {model.fields["recipe"]: model.verdict.to_json() for model in models}


def best_of(trials: Sequence[Any]) -> ScheduleRecord:
    """The schedule of the fastest of these trials."""
    timed = [t for t in trials if t.measurement is not None and not t.measurement.censored]
    return min(timed, key=lambda t: t.measurement.median_us).schedule


def searched_alone(shape: Shape, folder: Path, args: argparse.Namespace) -> tuple[Any, list[Any]]:
    """The winner of a session in a database that holds nothing else, and the session's trials.

    A session that the folder already has is not run again: its winner meets the others anyway.
    """
    database = folder / f"cold-{'x'.join(map(str, shape))}" / "cold.db"
    if database.exists():
        store = open_store(f"sqlite:///{database}")
        try:
            final = store.latest_final(workload_of(shape).key)
            trials = [stored.trial for stored in store.trials()]
            winner = None if final is None else store.trial(final.final.winner)
        finally:
            store.close()
        if winner is not None and len(trials) == args.cold:
            return winner.trial.schedule, trials
    database.parent.mkdir(exist_ok=True)
    report, trials = tuned(shape, args.cold, database, args.seed)
    assert report.best is not None
    return report.best.schedule, trials


def new_shape(shape: Shape, folder: Path, args: argparse.Namespace) -> dict[str, Any]:
    """Tune a new shape warm and cold, and let the winners meet."""
    cold, alone = searched_alone(shape, folder, args)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="tfsearch-warm-") as text:
        copy = copied(folder / NAME, Path(text) / "warm")
        models = learned(copy)
        learn_s = time.monotonic() - started
        warm, tried = tuned(shape, args.warm, copy, args.seed)
        warm_s = time.monotonic() - started - learn_s
        plain = copied(folder / NAME, Path(text) / "hints")
        hints, _ = tuned(shape, args.warm, plain, args.seed)
        assert warm.best is not None
        assert hints.best is not None
        met = {
            "warm": warm.best.schedule,
            "hints": hints.best.schedule,
            "cold": cold,
            f"cold{args.warm}": best_of(alone[: args.warm]),
        }
        found = final(shape, met, args)
    return {
        "shape": list(shape),
        "trials": {"warm": len(tried), "cold": len(alone)},
        "warm_s": warm_s,
        "learn_s": learn_s,
        "models": models,
        **found,
        "warm_us": [None if t.measurement is None else t.measurement.median_us for t in tried],
        "params": {name: dict(schedule.params) for name, schedule in met.items()},
    }


def final(
    shape: Shape, met: Mapping[str, ScheduleRecord], args: argparse.Namespace
) -> dict[str, Any]:
    """Times and ratios over ``warm`` of named schedules, from interleaved rounds."""
    workload = workload_of(shape)
    problem = target.problem(workload, target.devices()[0])
    points = [Point(schedule.recipe, dict(schedule.params)) for schedule in met.values()]
    distinct = list(dict.fromkeys(points))
    built = build_all(problem, [(point, 0.0) for point in distinct], target.compiler(None), 2)
    assert len(built) == len(distinct)
    kernels = [one.loaded for one in built]
    runner = make(SELECTOR)
    arguments = bind_all(workload, kernels)
    batches = batches_for(runner, kernels, arguments)
    rounds = [
        runner.time(kernels, arguments, batches, 1, cold=False, seed=index)[0]
        for index in range(args.rounds)
    ]
    each = np.array(rounds) / np.array(batches) / 1e3
    column = {name: distinct.index(point) for name, point in zip(met, points, strict=True)}
    out: dict[str, Any] = {"us": {n: float(np.median(each[:, c])) for n, c in column.items()}}
    for name in met:
        if name != "warm" and column[name] != column["warm"]:
            ratio = ratio_interval(each[:, column[name]], each[:, column["warm"]])
            out[f"{name}_over_warm"] = [ratio.median, ratio.low, ratio.high]
        elif name != "warm":
            out[f"{name}_over_warm"] = [1.0, 1.0, 1.0]
    return out


def marks_of(rows: Sequence[Mapping[str, Any]]) -> tuple[dict[str, bool | None], dict[str, Any]]:
    """The marks, and what they rest on, of the lines of new shapes."""
    if not rows:
        return {"cold over warm": None}, {}
    sides = [name for name in rows[0] if name.endswith("_over_warm")]
    ratios = {name: [float(row[name][0]) for row in rows] for name in sides}
    mean, least = _geometric(ratios["cold_over_warm"]), min(ratios["cold_over_warm"])
    marks: dict[str, bool | None] = {
        f"geometric mean of cold over warm at least {OVERALL}": mean >= OVERALL,
        f"each at least {EACH}": least >= EACH,
    }
    summary = {name: _geometric(values) for name, values in ratios.items()}
    summary["least"] = least
    return marks, summary


def _geometric(values: Sequence[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values))


def _part(text: str, rows: Sequence[Shape]) -> Sequence[Shape]:
    low, _, high = text.partition(":")
    return rows[int(low or 0) : int(high or len(rows))]


def main() -> int:
    """Do the parts asked for."""
    made = parser(__doc__)
    made.add_argument("--folder", default="", help="where the parts meet")
    made.add_argument("--neighbours", metavar="FROM:TO", help="tune these of the 20 neighbours")
    made.add_argument("--new", metavar="FROM:TO", help="compare these of the new shapes")
    made.add_argument("--report", metavar="FILE", help="write what the parts found, and the marks")
    made.add_argument("--trials", type=int, default=TRIALS, help="of each neighbour")
    made.add_argument("--warm", type=int, default=WARM)
    made.add_argument("--cold", type=int, default=COLD)
    made.add_argument("--rounds", type=int, default=ROUNDS)
    made.add_argument("--seed", type=int, default=0)
    args = made.parse_args()
    neighbours, new = NEIGHBOURS, NEW
    if args.quick:
        neighbours, new = ((24, 16, 32), (16, 24, 16)), ((24, 24, 16),)
        args.trials, args.warm, args.cold, args.rounds = 2, 2, 3, 5
    begin("warm_start", args)
    folder = Path(args.folder or tempfile.mkdtemp(prefix="tfsearch-warm-"))
    folder.mkdir(parents=True, exist_ok=True)
    database, held = folder / NAME, folder / "lines.jsonl"
    everything = args.neighbours is None and args.new is None and args.report is None

    def keep(line: dict[str, Any]) -> None:
        say(line)
        with held.open("a") as file:
            file.write(json.dumps({**line, "machine": machine_facts()}, default=str) + "\n")

    if args.neighbours is not None or everything:
        for shape in _part(args.neighbours or ":", neighbours):
            keep(neighbour(shape, database, args))
    if args.new is not None or everything:
        for shape in _part(args.new or ":", new):
            keep(new_shape(shape, folder, args))
    lines = [json.loads(line) for line in held.read_text().splitlines()] if held.exists() else []
    rows = [line for line in lines if "shape" in line]
    marks, summary = marks_of(rows)
    if args.report is not None:
        text = [json.dumps(line) for line in [*lines, {"marks": marks, **summary}]]
        Path(args.report).parent.mkdir(parents=True, exist_ok=True)
        Path(args.report).write_text("\n".join(text) + "\n")
    return end(args, marks, **summary)


if __name__ == "__main__":
    sys.exit(main())
