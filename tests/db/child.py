"""Running a function in another process, as another user, or until it is killed."""

from __future__ import annotations

import multiprocessing
import os
import resource
import sqlite3
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

from tests.db import make
from tfsearch.core.errors import TfsearchError
from tfsearch.db import open_store

FORK = multiprocessing.get_context("fork")
NOBODY = 65534


def outcome(work: Callable[[], object]) -> str:
    """``ok`` or the code of the coded error; a traceback for anything else."""
    try:
        work()
    except TfsearchError as error:
        return error.code
    except Exception:  # noqa: BLE001 - the parent's assertion shows it
        return traceback.format_exc()
    return "ok"


def in_child(
    work: Callable[[], object], *, unprivileged: bool = False, file_limit: int | None = None
) -> str:
    """The :func:`outcome` of ``work`` in a forked process."""
    here, there = FORK.Pipe()

    def run() -> None:
        if unprivileged and os.geteuid() == 0:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
        if file_limit is not None:
            resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
        there.send(outcome(work))

    process = FORK.Process(target=run)
    process.start()
    try:
        assert here.poll(30), "the child does not answer"
        return here.recv()
    finally:
        process.join(10)


def open_at_once(url: str, start: object, answers: Connection) -> None:
    """Wait for the others, open, write one workload; sends the outcome."""

    def work() -> None:
        store = open_store(url)
        store.put_workload(make.workload(os.getpid()))
        store.close()

    start.wait(30)
    answers.send(outcome(work))


def write_forever(url: str, name: str, reports: Connection) -> None:
    """Record trials one after another; reports each index once it is recorded."""
    store = open_store(url)
    record = make.begun(store, 512, name)
    index = len(store.trials(session=name))
    while True:
        store.record_trial(make.trial(record, index, name=name, tile=index % 50))
        reports.send(index)
        index += 1


def write_some(url: str, name: str, count: int) -> None:
    """Record ``count`` trials of one session."""
    store = open_store(url)
    record = make.begun(store, 512, name)
    for index in range(count):
        store.record_trial(make.trial(record, index, name=name))


def hold_lock(path: Path, held: object, release: object) -> None:
    """Hold SQLite's exclusive lock until told to release it."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("BEGIN EXCLUSIVE")
    held.set()
    release.wait(30)
    connection.execute("ROLLBACK")


def drain(reports: Connection, seconds: float) -> list[int]:
    """What arrives on a pipe within some seconds."""
    deadline, out = time.monotonic() + seconds, []
    while (left := deadline - time.monotonic()) > 0:
        if reports.poll(left):
            try:
                out.append(reports.recv())
            except EOFError:
                break
    return out
