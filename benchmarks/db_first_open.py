"""Sixteen processes open one fresh SQLite database at once, round after round.

    python benchmarks/db_first_open.py FOLDER [--rounds 50] [--processes 16]

Prints one JSON document: rounds, processes, errors (must be empty), milliseconds from the start
signal to each process's first committed write (median, worst). Databases are made in FOLDER and
deleted again. Exit code 1 when there was an error.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import platform
import sqlite3
import statistics
import sys
import time
import traceback
from pathlib import Path
from typing import Any

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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--processes", type=int, default=16)
    options = parser.parse_args()
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
    print(
        json.dumps(
            {
                "benchmark": "db_first_open",
                "machine": platform.processor() or platform.machine(),
                "sqlite": sqlite3.sqlite_version,
                "rounds": options.rounds,
                "processes": options.processes,
                "errors": errors,
                "databases_lacking_a_row": missing,
                "ms_median": round(statistics.median(times), 2),
                "ms_worst": round(max(times), 2),
            },
            indent=2,
        )
    )
    return 1 if errors or missing else 0


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
