"""What recording a trial costs while many sessions record to one database at a time.

Every session is a process that has made its trials before the clock starts and has recorded the
first few of them, and it ends when all have recorded, so neither its start and end nor the first
use of a statement is timed. Two loads:

- ``spaced``: a session records a trial every ``--every-ms`` on average (uniformly from half of it
  to half more), as one that measures in between does. It sleeps meanwhile: what compiling and
  measuring take of the machine is not simulated.
- ``closed``: every session records the next trial at once, which no session that measures does.
  Latency then is (sessions) / (throughput), so throughput is what this load shows.

Clients and server share the machine. Afterwards every trial is read back and compared with what
was recorded, bit for bit, each in its place once, under the id that the session was told; and the
database verifies itself (digests, references).

Marks: nothing lost, altered or there twice; p99 of a call under the spaced load at most 50 ms with
SQLite and 8 sessions, at most 20 ms with PostgreSQL and 64; at most 2 ms of the session's processor
time a call. URL names an empty database that is this program's to fill.

    python benchmarks/fleet_recording.py sqlite:///FILE.db --sessions 8 --assert
    python benchmarks/fleet_recording.py postgresql+psycopg://USER@HOST/NAME --sessions 64 --assert
"""

from __future__ import annotations

import multiprocessing
import random
import statistics
import sys
import time
from dataclasses import dataclass
from typing import Any

from _program import begin, end, parser, say
from db_million import put_session, trials_of

from tfsearch.db import Store, open_store

WARM = 8
"""Trials of a session that are recorded before the clock starts, and checked like all others."""
LOADS = ("spaced", "closed")
CPU_MS = 2.0


@dataclass(frozen=True)
class Told:
    """What a session saw: ids by index, milliseconds of its timed calls, its begin and end."""

    number: int
    ids: list[int]
    took_ms: list[float]
    cpu_ms: float
    began: float
    ended: float


def session(number: int, url: str, trials: int, every_s: float, barrier: Any, answers: Any) -> None:
    """Record the trials of one session; put a :class:`Told` into ``answers``."""
    store = open_store(url)
    put_session(store, number)
    made = list(trials_of(number, WARM + trials))
    ids = [store.record_trial(trial) for trial in made[:WARM]]
    chance = random.Random(number)
    barrier.wait()
    took: list[float] = []
    spent = 0.0
    if every_s:
        time.sleep(chance.uniform(0.0, every_s))  # sessions do not start in step
    began = time.monotonic()
    for trial in made[WARM:]:
        if every_s:
            time.sleep(chance.uniform(0.5 * every_s, 1.5 * every_s))
        used, started = time.process_time(), time.perf_counter()
        ids.append(store.record_trial(trial))
        took.append(1000.0 * (time.perf_counter() - started))
        spent += time.process_time() - used
    ended = time.monotonic()
    barrier.wait()  # nor is the end of a session's process timed by those that still record
    store.close()
    answers.put(Told(number, ids, took, 1000.0 * spent / trials, began, ended))


def run(url: str, first: int, sessions: int, trials: int, every_s: float) -> list[Told]:
    """Run sessions ``first``, ``first`` + 1, …, each with so many timed trials."""
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(sessions), context.Queue()
    processes = [
        context.Process(target=session, args=(number, url, trials, every_s, barrier, answers))
        for number in range(first, first + sessions)
    ]
    for process in processes:
        process.start()
    told = [answers.get(timeout=900) for _ in processes]
    for process in processes:
        process.join()
    return told


def line(load: str, told: list[Told], every_s: float) -> dict[str, Any]:
    """What is printed of a load."""
    took = sorted(one for each in told for one in each.took_ms)
    seconds = max(each.ended for each in told) - min(each.began for each in told)
    cut = statistics.quantiles(took, n=100)
    return {
        "load": load,
        "sessions": len(told),
        "trials": len(took),
        "offered_per_s": round(len(told) / every_s, 1) if every_s else None,
        "recorded_per_s": round(len(took) / seconds, 1),
        "ms": {
            "p50": statistics.median(took),
            "p90": cut[89],
            "p99": cut[98],
            "p99.9": took[int(0.999 * len(took))],
            "max": took[-1],
        },
        "client_cpu_ms": statistics.mean(each.cpu_ms for each in told),
    }


def wrong(store: Store, told: list[Told]) -> list[str]:
    """What of the sessions' trials is not in the database as it was recorded, or is there twice."""
    problems: list[str] = []
    for each in told:
        name = f"session-{each.number}"
        found = store.trials(session=name)
        made = list(trials_of(each.number, len(each.ids)))
        if [(one.id, one.trial) for one in found] != list(zip(each.ids, made, strict=True)):
            problems.append(f"{name}: {len(found)} trials found, {len(made)} recorded, or altered")
    return problems


def main() -> int:
    """Run and say."""
    made = parser(__doc__)
    made.add_argument("url")
    made.add_argument("--sessions", type=int, default=8)
    made.add_argument("--trials", type=int, default=10_000, help="timed, of all sessions together")
    made.add_argument("--every-ms", type=float, default=250.0, help="between trials of a session")
    made.add_argument("--load", choices=LOADS, action="append", help="both if not given")
    args = made.parse_args()
    url = args.url
    del args.url  # it may have a password
    begin("fleet_recording", args)
    sessions = 2 if args.quick else args.sessions
    each = 5 if args.quick else -(-args.trials // sessions)
    store = open_store(url)
    told: list[Told] = []
    lines: dict[str, dict[str, Any]] = {}
    for load in args.load or LOADS:
        every_s = args.every_ms / 1000.0 if load == "spaced" else 0.0
        ran = run(url, len(told), sessions, each, every_s)
        lines[load] = line(load, ran, every_s)
        say({"database": url.partition(":")[0], **lines[load]})
        told += ran
    problems = [*wrong(store, told), *map(str, store.verify())]
    recorded = sum(len(one.ids) for one in told)
    total = store.stats().trials
    store.close()
    say({"recorded": recorded, "in_database": total, "problems": problems[:5]})
    spaced = None if args.quick else lines.get("spaced")
    marks = {
        "nothing_lost": total == recorded and not problems,
        "p99": spaced and spaced["ms"]["p99"] <= (50.0 if url.startswith("sqlite") else 20.0),
        "client_cpu": spaced and spaced["client_cpu_ms"] <= CPU_MS,
    }
    return end(args, marks)


if __name__ == "__main__":
    sys.exit(main())
