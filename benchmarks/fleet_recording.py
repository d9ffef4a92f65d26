"""What recording a trial costs while many sessions record to one database at a time.

Every session is a process that records its trials at a pace, as sessions that measure do, and
times each call. Afterwards the trials in the database are counted and checked.

Marks: no trial lost, no problem found; p99 of a call at most 50 ms with SQLite and 8 sessions, at
most 20 ms with PostgreSQL and 64. URL names an empty database that is this program's to fill.

    python benchmarks/fleet_recording.py sqlite:///FILE.db --sessions 8 --assert
    python benchmarks/fleet_recording.py postgresql+psycopg://USER@HOST/NAME --sessions 64 --assert
"""

from __future__ import annotations

import itertools
import multiprocessing
import random
import statistics
import sys
import time
from typing import Any

from _program import begin, end, parser, say
from db_million import SESSION, put_session, trials_of

from tfsearch.db import open_store


def session(number: int, url: str, trials: int, per_s: float, barrier: Any, answers: Any) -> None:
    """Record the trials of one session; milliseconds of every call."""
    store = open_store(url)
    put_session(store, number)
    made = list(itertools.islice(trials_of(number), trials))
    barrier.wait()
    chance = random.Random(number)
    took: list[float] = []
    for trial in made:
        time.sleep(chance.uniform(0.0, 2.0 / per_s))
        started = time.perf_counter()
        store.record_trial(trial)
        took.append(1000.0 * (time.perf_counter() - started))
    store.close()
    answers.put(took)


def main() -> int:
    """Run and say."""
    made = parser(__doc__)
    made.add_argument("url")
    made.add_argument("--sessions", type=int, default=8)
    made.add_argument("--trials", type=int, default=10_000, help="of all sessions together")
    made.add_argument("--per-second", type=float, default=100.0, help="of all sessions together")
    args = made.parse_args()
    url = args.url
    del args.url  # it may have a password
    begin("fleet_recording", args)
    sessions = 2 if args.quick else args.sessions
    each = 5 if args.quick else min(SESSION, -(-args.trials // sessions))
    open_store(url).close()
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(sessions), context.Queue()
    processes = [
        context.Process(
            target=session,
            args=(number, url, each, args.per_second / sessions, barrier, answers),
        )
        for number in range(sessions)
    ]
    started = time.perf_counter()
    for process in processes:
        process.start()
    took = [one for _ in processes for one in answers.get(timeout=900)]
    for process in processes:
        process.join()
    store = open_store(url)
    found = sum(len(store.trials(session=f"session-{number}")) for number in range(sessions))
    problems = len(store.verify())
    store.close()
    p99 = statistics.quantiles(took, n=100)[98]
    say(
        {
            "database": url.partition(":")[0],
            "sessions": sessions,
            "trials": len(took),
            "ms": {"median": statistics.median(took), "p99": p99, "max": max(took)},
            "seconds": time.perf_counter() - started,
        }
    )
    whole = not args.quick
    marks = {
        "nothing_lost": found == sessions * each and not problems,
        "p99": p99 <= (50.0 if url.startswith("sqlite") else 20.0) if whole else None,
    }
    return end(args, marks)


if __name__ == "__main__":
    sys.exit(main())
