"""Compiling candidates ahead of their measurement, and finding what was compiled before."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from types import TracebackType

from tfsearch.core.errors import TfsearchError, UnavailableError
from tfsearch.core.records import BuildKey, BuildRecord, Status
from tfsearch.measure.pool import CompilePool, Done
from tfsearch.plugin import identity
from tfsearch.plugin.target import CompileOutcome, Source
from tfsearch.toolchain.room import delivering
from tfsearch.tune.fleet import Fleet
from tfsearch.tune.ownership import work_folder
from tfsearch.tune.prepare import Failure, shortened
from tfsearch.tune.recorder import Built, Recorder
from tfsearch.tune.request import Plan

COMPILE_TIMEOUT_S = 120.0
COMPILE_MEMORY_BYTES = 4 << 30


class Builder:
    """Compiles in a pool, here or on a ``fleet``; a context manager that leaves no files."""

    def __init__(self, plan: Plan, recorder: Recorder, fleet: Fleet | None = None) -> None:
        self._plan = plan
        self._recorder = recorder
        self._fleet = fleet
        slots = fleet.build_slots if fleet is not None else os.cpu_count() or 1
        self.workers = plan.request.workers or max(1, slots)
        self._pool: CompilePool[CompileOutcome] = CompilePool(self.workers)
        with delivering():
            self._folder = work_folder()
        self._known: dict[str, Built] = {}
        self._running: set[str] = set()
        self._done: dict[str, Done[CompileOutcome]] = {}

    def __enter__(self) -> Builder:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._pool.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def start(self, source: Source, key: BuildKey) -> None:
        """Begin to compile, unless a build with this key is known or on its way."""
        tag = key.key
        if tag in self._known or tag in self._running or tag in self._done:
            return
        recorded = self._recorder.build(tag)
        if recorded is not None:
            self._known[tag] = recorded
            return
        self._running.add(tag)
        place = self._folder / tag
        # Results count against the pool's bound, and nobody else collects them.
        while not self._pool.submit(tag, self._compile, source, key, place, timeout_s=0):
            self._collect()

    def wait(self, key: BuildKey) -> Built | Failure:
        """The outcome of a build that was started; a failure has the compiler's status.

        ``UnavailableError`` when the compiler is gone or has no room to work in.
        """
        tag = key.key
        while tag not in self._known and tag not in self._done:
            self._collect()
        if tag in self._known:
            return self._known[tag]
        error = self._done[tag].error
        if isinstance(error, UnavailableError):
            raise error
        if isinstance(error, identity.BuildChanged):
            return Failure(Status.CANCELLED, error.code, "compile", error.message)
        if isinstance(error, TfsearchError):
            return Failure(Status.COMPILE_ERROR, error.code, "compile", shortened(error.message))
        if error is not None:
            text = shortened(f"{type(error).__name__}: {error}")
            return Failure(Status.COMPILE_CRASH, "compile.exception", "compile", text)
        outcome = self._done[tag].result()
        if outcome.status is not Status.OK:
            code = f"compile.{outcome.status.value.removeprefix('compile_')}"
            return Failure(outcome.status, code, "compile", shortened(outcome.log))
        artifact, path = self._recorder.artifact(self._folder / tag, tag)
        record = BuildRecord(key, artifact, outcome.seconds, outcome.resources, outcome.log)
        self._known[tag] = Built(record, path)
        return self._known[tag]

    def ready(self, key: BuildKey) -> bool:
        """Whether :meth:`wait` would answer at once."""
        while (done := self._pool.next_done(0)) is not None:
            self._keep(done)
        return key.key in self._known or key.key in self._done

    def wait_all(self) -> None:
        """Until nothing is being compiled: for devices that share the compiler's cores."""
        while self._running:
            self._collect()

    def _collect(self) -> None:
        done = self._pool.next_done()
        if done is not None:
            self._keep(done)

    def _keep(self, done: Done[CompileOutcome]) -> None:
        tag = str(done.tag)
        self._running.discard(tag)
        self._done[tag] = done

    def _compile(self, source: Source, key: BuildKey, out: Path) -> CompileOutcome:
        request = self._plan.request
        with delivering():
            if self._fleet is not None:
                return self._fleet.compile(
                    self._plan,
                    source,
                    key,
                    out,
                    timeout_s=COMPILE_TIMEOUT_S,
                    memory_bytes=COMPILE_MEMORY_BYTES,
                )
            outcome = self._plan.compiler.compile(
                source,
                request.flags,
                request.macros,
                out,
                timeout_s=COMPILE_TIMEOUT_S,
                memory_bytes=COMPILE_MEMORY_BYTES,
            )
        if outcome.status is Status.OK:
            now = self._plan.compiler.key(source, request.flags, request.macros)
            identity.require_unchanged(key, now)
        return outcome
