"""Sixteen processes open one fresh SQLite database at once, round after round.

Prints errors, databases that lack a process's row, and milliseconds from the start signal to each
process's first committed write (median, worst). Databases are made in FOLDER and deleted again.

Mark: no error in 50 rounds of 16 processes, and every process's row in every database.

    python benchmarks/db_first_open.py FOLDER --assert > reports/x86/db-first-open.jsonl
"""

from __future__ import annotations

import multiprocessing
import sqlite3
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

from _program import begin, end, parser, say

from tfsearch.core.records import WorkloadRecord


def process(number: int, urls: list[str], barrier: Any, answers: Any) -> None:
    """Open every database right after the others are ready to, and write one workload."""
    from tfsearch.db import open_store

    for turn, url in enumerate(urls):
        barrier.wait()
        started, problem = time.perf_counter(), ""
        try:
            store = open_store(url)
            store.put_workload(WorkloadRecord("gemm", {"m": number}, "f32", f"program {number}"))
            store.close()
        except Exception:  # noqa: BLE001 - every failure is a row of the result
            problem = traceback.format_exc()
        answers.put((turn, time.perf_counter() - started, problem))
        barrier.wait()


def main() -> int:
    """Run and print; see the module's text."""
    made = parser(__doc__)
    made.add_argument("folder", type=Path)
    made.add_argument("--rounds", type=int, default=50)
    made.add_argument("--processes", type=int, default=16)
    options = made.parse_args()
    if options.quick:
        options.rounds, options.processes = 2, 2
    begin("db_first_open", options)
    options.folder.mkdir(parents=True, exist_ok=True)
    files = [options.folder / f"first-open-{turn}.db" for turn in range(options.rounds)]
    remove(files)
    urls = [f"sqlite:///{file}" for file in files]
    context = multiprocessing.get_context("spawn")
    barrier, answers = context.Barrier(options.processes), context.Queue()
    workers = [
        context.Process(target=process, args=(number, urls, barrier, answers))
        for number in range(options.processes)
    ]
    for worker in workers:
        worker.start()
    got = [answers.get(timeout=300) for _ in range(options.rounds * options.processes)]
    for worker in workers:
        worker.join()
    missing = [url for url in urls if rows(url) != options.processes]
    remove(files)
    times = [1e3 * seconds for _, seconds, _ in got]
    errors = [problem for _, _, problem in got if problem]
    say(
        {
            "sqlite": sqlite3.sqlite_version,
            "errors": errors,
            "databases_lacking_a_row": missing,
            "ms_median": round(statistics.median(times), 2),
            "ms_worst": round(max(times), 2),
        }
    )
    return end(options, {"no error": not errors, "every row is there": not missing})


def rows(url: str) -> int:
    """Workloads in a database."""
    from tfsearch.db import open_store

    store = open_store(url, create=False)
    try:
        return store.stats().workloads
    finally:
        store.close()


def remove(files: list[Path]) -> None:
    """Delete databases with the files beside them."""
    for file in files:
        for suffix in ("", "-wal", "-shm", "-lock"):
            Path(f"{file}{suffix}").unlink(missing_ok=True)


if __name__ == "__main__":
    sys.exit(main())
