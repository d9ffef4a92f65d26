"""The measuring process: owns a runner, takes jobs as JSON lines, answers with JSON lines.

Its standard output and error are a pipe that only carries noise: whatever a candidate prints
cannot reach the protocol, which has descriptors of its own. It ends with its parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from tfsearch.core import errors
from tfsearch.core.errors import RequestError, TfsearchError, UnavailableError
from tfsearch.measure.bench import Context, import_factory
from tfsearch.measure.clock import BACK, REFERENCE
from tfsearch.measure.compare import Baseline, benchmark, final
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.measure.protocols import Calibrating, Roomy, Runner
from tfsearch.measure.run import measure

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>

IDLE_S = 0.005

Reply = Mapping[str, Any]


def serve(config: Mapping[str, Any]) -> None:
    """Run until the command pipe closes. ``config`` comes from :mod:`tfsearch.measure.worker`."""
    _tie_to_parent(config["parent"], config["alive"])
    replies = os.fdopen(config["reply"], "w", encoding="utf-8")

    def send(message: Reply) -> None:
        replies.write(json.dumps(message) + "\n")
        replies.flush()

    try:
        runner = _make_runner(config["runner"], config["selector"])
    except TfsearchError as error:
        send(_error(error))
        return
    send({"kind": "ready"})
    context = Context(runner)
    try:
        with os.fdopen(config["command"], encoding="utf-8") as commands:
            for line in commands:
                send(_answer(json.loads(line), runner, context, send))
    finally:
        runner.close()


def _make_runner(path: str, selector: str) -> Runner:
    factory = import_factory(path)
    try:
        return factory(selector)
    except OSError as error:
        raise UnavailableError("device.unavailable", f"device {selector}: {error}") from error


def _answer(
    command: Mapping[str, Any], runner: Runner, context: Context, send: Callable[[Reply], None]
) -> Reply:
    last = "start"

    def report(phase: str) -> None:
        nonlocal last
        if phase not in (REFERENCE, BACK):
            last = phase
        send({"kind": "phase", "phase": phase or last})

    try:
        result = _execute(command, runner, context, report)
        return {"kind": "result", "result": result, "occupied": _occupied()}
    except TfsearchError as error:
        return _error(error)
    except Exception as error:  # noqa: BLE001 - the boundary of the process: told to the parent
        place = traceback.extract_tb(error.__traceback__)[-1]
        text = f"{type(error).__name__}: {error} ({place.filename}:{place.lineno})"
        return {"kind": "exception", "message": text}


def _occupied() -> bool:
    """Whether a job left processes behind, or threads that go on using the processor."""
    with contextlib.suppress(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)
        return True
    before = time.process_time()
    time.sleep(IDLE_S)
    return time.process_time() - before > IDLE_S / 5


def _execute(
    command: Mapping[str, Any], runner: Runner, context: Context, report: Callable[[str], None]
) -> Any:
    if command["kind"] == "probe":
        return dict(runner.probe(command["names"]))
    if command["kind"] == "calibrate":
        if not isinstance(runner, Calibrating):
            raise RequestError("calibrate.unsupported", "this device is not measured")
        return {name: dict(fact) for name, fact in runner.calibrate().items()}
    jobs = [MeasureJob.from_json(item) for item in command["jobs"]]
    if isinstance(runner, Roomy):
        room = runner.room()
        jobs = [replace(job, limits=job.limits.fitted(room)) for job in jobs]
    with _MemoryLimit(jobs[0].limits):
        if command["kind"] == "measure":
            return measure(jobs[0], runner, context, report).to_json()
        if command["kind"] == "final":
            return final(jobs, runner, context, report).to_json()
        made = [
            (item["name"], Baseline(item["name"], item["factory"]).make(jobs[0]))
            for item in command["baselines"]
        ]
        return benchmark(jobs[0], made, runner, context, report).to_json()


def _error(error: TfsearchError) -> Reply:
    """An error by the name of its family, which the other process knows too."""
    family = next(kind for kind in type(error).__mro__ if kind.__module__ == errors.__name__)
    return {
        "kind": "error",
        "class": family.__name__,
        "code": error.code,
        "message": error.message,
    }


class _MemoryLimit:
    """Bounds the address space that a job may add, where the system can (Linux)."""

    def __init__(self, limits: Limits) -> None:
        self._bytes = limits.memory_bytes
        self._old: tuple[int, int] | None = None

    def __enter__(self) -> None:
        if self._bytes <= 0 or not sys.platform.startswith("linux"):
            return
        import resource

        with open("/proc/self/statm", encoding="ascii") as file:
            pages = int(file.read().split()[0])
        self._old = resource.getrlimit(resource.RLIMIT_AS)
        wanted = pages * resource.getpagesize() + self._bytes
        hard = self._old[1]
        if hard != resource.RLIM_INFINITY:
            wanted = min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_AS, (wanted, hard))

    def __exit__(self, *_: object) -> None:
        if self._old is not None:
            import resource

            resource.setrlimit(resource.RLIMIT_AS, self._old)


def _tie_to_parent(parent: int, alive: int) -> None:
    """End when the parent does: by signal where the kernel offers it, by a pipe everywhere."""
    import resource

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    hard = resource.getrlimit(resource.RLIMIT_CORE)[1]
    resource.setrlimit(resource.RLIMIT_CORE, (0, hard))
    if sys.platform.startswith("linux"):
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)

    def watch() -> None:
        # Nothing is ever written: the read returns when the parent's end is closed.
        os.read(alive, 1)
        os.killpg(0, signal.SIGKILL)

    threading.Thread(target=watch, daemon=True).start()
