"""The killable owner of a device: a candidate's fault becomes a status, never the session's end."""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tfsearch.core import errors
from tfsearch.core.errors import InternalError, TfsearchError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.measure.clock import READ_ONLY, REFERENCE, REFERENCE_S
from tfsearch.measure.compare import Baseline
from tfsearch.measure.job import (
    Comparison,
    MeasureJob,
    MeasureOutcome,
    Standing,
    protocol,
)
from tfsearch.measure.locks import DeviceLock
from tfsearch.measure.process import Ended, Garbled, MeasuringProcess, Overdue, environment

LOCK_WAIT_S = 120.0
START_S = 60.0
PROBE_S = 60.0
CALIBRATE_S = 300.0

# After anything else the process may carry damage that a later candidate would be blamed for.
_HARMLESS = frozenset({Status.OK, Status.LOAD_ERROR})


@dataclass(frozen=True)
class _Failure:
    status: Status
    code: str
    where: str
    message: str
    seconds: float

    def outcome(self) -> MeasureOutcome:
        return MeasureOutcome(
            self.status, self.code, self.where, self.message, seconds=self.seconds
        )


class Measurer:
    """Runs measure jobs in a process of its own, one at a time, restarting it after faults.

    ``runner_path`` is ``package.module:factory``, called in that process with ``selector``. The
    device is locked for the duration of each job (files in ``lock_folder``), so several
    sessions on one host take turns. ``threads``: how many threads numerical libraries in that
    process may use. Use it as a context manager; it may be shared by threads.

    Raises ``UnavailableError`` when the process or the device does not start or is held by
    somebody else for longer than ``lock_wait_s``; never for a candidate's fault.
    """

    def __init__(
        self,
        runner_path: str,
        selector: str,
        *,
        lock_folder: Path,
        lock_wait_s: float = LOCK_WAIT_S,
        threads: int = 1,
        extra_environment: Mapping[str, str] | None = None,
    ) -> None:
        self.runner_path = runner_path
        self.selector = selector
        self._lock_folder = lock_folder
        self._lock_wait_s = lock_wait_s
        self._environment = environment(threads, extra_environment or {})
        self._process: MeasuringProcess | None = None
        self._turn = threading.Lock()
        self._state = threading.Lock()
        self._busy = False
        self._cancelled = False
        self._occupied = False

    def __enter__(self) -> Self:
        with self._turn:
            self._ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process; a later job starts another one."""
        with self._turn:
            self._discard(grace_s=1.0)

    @property
    def pid(self) -> int | None:
        """Process id of the measuring process, None when none runs."""
        process = self._process
        return None if process is None else process.pid

    def submit(self, job: MeasureJob) -> MeasureOutcome:
        """Measure one build; blocks for at most its deadline and the wait for the device."""
        answer = self._request(
            {"kind": "measure", "jobs": [job.to_json()]},
            job.limits.deadline_s,
            lambda data: Status(data["status"]) in _HARMLESS,
        )
        if isinstance(answer, _Failure):
            return answer.outcome()
        return MeasureOutcome.from_json(answer)

    def final(self, jobs: Sequence[MeasureJob]) -> Comparison:
        """Compare builds interleaved; see :func:`tfsearch.measure.compare.final`.

        The first job's limits hold. A crash or a hang is every participant's status: who caused
        it cannot be told.
        """
        if not jobs:
            raise errors.RequestError("measure.final-empty", "a final needs at least one build")
        names = [str(index) for index in range(len(jobs))]
        payload = {"kind": "final", "jobs": [job.to_json() for job in jobs]}
        return self._compare(payload, jobs[0], names)

    def benchmark(self, job: MeasureJob, baselines: Sequence[Baseline]) -> Comparison:
        """Compare a build with baselines; see :func:`tfsearch.measure.compare.benchmark`."""
        payload = {
            "kind": "benchmark",
            "jobs": [job.to_json()],
            "baselines": [{"name": b.name, "factory": b.factory} for b in baselines],
        }
        return self._compare(payload, job, ["build", *(b.name for b in baselines)])

    def probe(self, names: Sequence[str]) -> dict[str, float]:
        """Speeds of the machine now, by probe name, unit per second.

        Raises ``UnavailableError`` when the probe itself fails.
        """
        answer = self._request({"kind": "probe", "names": list(names)}, PROBE_S, lambda _: True)
        if isinstance(answer, _Failure):
            raise UnavailableError("measure.probe", f"probing {self.selector}: {answer.message}")
        return answer

    def calibrate(self) -> dict[str, dict[str, Any]]:
        """Facts of the device as measured now; see :class:`tfsearch.measure.protocols.Calibrating`.

        ``RequestError`` for a device that is not measured, ``UnavailableError`` when it fails.
        """
        answer = self._request({"kind": "calibrate"}, CALIBRATE_S, lambda _: True)
        if isinstance(answer, _Failure):
            raise UnavailableError(
                "measure.calibrate", f"measuring {self.selector}: {answer.message}"
            )
        return answer

    def cancel(self) -> None:
        """From another thread: kill the job that runs now; its status becomes ``cancelled``."""
        with self._state:
            if self._busy and self._process is not None:
                self._cancelled = True
                self._process.kill()

    def _compare(
        self, payload: Mapping[str, Any], job: MeasureJob, names: Sequence[str]
    ) -> Comparison:
        answer = self._request(
            payload,
            job.limits.deadline_s,
            lambda data: all(
                Status(item["outcome"]["status"]) in _HARMLESS for item in data["standings"]
            ),
        )
        if isinstance(answer, _Failure):
            standings = tuple(Standing(name, answer.outcome()) for name in names)
            return Comparison(standings, None, False, protocol(job.protocol).key)
        return Comparison.from_json(answer)

    def _request(
        self, payload: Mapping[str, Any], deadline_s: float, harmless: Callable[[Any], bool]
    ) -> Any:
        device = f"{self.runner_path}({self.selector})"
        lock = DeviceLock(self._lock_folder, device, wait_s=self._lock_wait_s)
        with self._turn, lock:
            try:
                return self._run(payload, deadline_s, harmless)
            except BaseException:
                # Ctrl-C included: whatever still runs must not outlive the request.
                self._discard()
                raise

    def _run(
        self, payload: Mapping[str, Any], deadline_s: float, harmless: Callable[[Any], bool]
    ) -> Any:
        while True:
            process = self._ready()
            fresh = process.jobs == 0
            process.jobs += 1
            start = time.monotonic()
            with self._in_progress():
                answer = self._exchange(process, payload, start + deadline_s)
                cancelled = self._cancelled
            if not isinstance(answer, _Failure):
                if self._occupied or not harmless(answer):
                    self._discard()
                return answer
            self._discard()
            if cancelled:
                seconds = time.monotonic() - start
                return _Failure(
                    Status.CANCELLED, "measure.cancelled", answer.where, "cancelled", seconds
                )
            ended = answer.status in (Status.CRASH, Status.OUT_OF_MEMORY)
            if fresh or not ended:
                return answer
            # An earlier candidate may have damaged the process: judge this one in a fresh one.

    @contextlib.contextmanager
    def _in_progress(self) -> Iterator[None]:
        with self._state:
            self._busy, self._cancelled = True, False
        try:
            yield
        finally:
            with self._state:
                self._busy = False

    def _exchange(
        self, process: MeasuringProcess, payload: Mapping[str, Any], deadline: float
    ) -> Any:
        phase = "start"
        start = time.monotonic()
        limit, left = deadline - start, 0.0

        def failure(status: Status, code: str, message: str) -> _Failure:
            return _Failure(status, code, phase, message, time.monotonic() - start)

        try:
            process.send(payload)
            while True:
                message = process.receive(deadline)
                match message.get("kind"):
                    case "phase":
                        now = time.monotonic()
                        if phase == REFERENCE:
                            deadline = now + left
                        phase = str(message["phase"])
                        if phase == REFERENCE:
                            left, deadline = max(0.0, deadline - now), now + REFERENCE_S
                    case "result":
                        self._occupied = bool(message["occupied"])
                        return message["result"]
                    case "error":
                        raise _rebuilt(message)
                    case "exception":
                        text = f"in phase {phase}: {message['message']}"
                        return failure(Status.CRASH, "measure.exception", text)
                    case other:
                        raise Garbled(repr(other))
        except Ended as ended:
            return failure(*_classify(ended, phase))
        except Overdue:
            text = f"no result within {limit:.3g} s; killed in phase {phase}"
            if phase == REFERENCE:
                text = f"the reference took longer than {REFERENCE_S:.3g} s"
            return failure(Status.TIMEOUT, "measure.timeout", text)
        except Garbled as garbled:
            text = f"the measuring process wrote something that is no message: {garbled}"
            return failure(Status.CRASH, "measure.garbled", text)

    def _ready(self) -> MeasuringProcess:
        if self._process is not None:
            return self._process
        process = MeasuringProcess(self.runner_path, self.selector, self._environment)
        try:
            message = process.receive(time.monotonic() + START_S)
            if message.get("kind") == "error":
                raise _rebuilt(message)
        except (Ended, Overdue, Garbled) as error:
            noise = error.noise if isinstance(error, Ended) else str(error)
            process.close()
            raise UnavailableError(
                "measure.start",
                f"the measuring process of {self.runner_path}({self.selector}) did not start: "
                f"{noise or type(error).__name__}",
            ) from error
        except BaseException:
            process.close()
            raise
        with self._state:
            self._process = process
        return process

    def _discard(self, grace_s: float = 0.0) -> None:
        with self._state:
            process, self._process = self._process, None
        if process is not None:
            process.close(grace_s)


def _classify(ended: Ended, phase: str) -> tuple[Status, str, str]:
    """Status, code and message of a process that ended without an answer."""
    said = f"; it printed: {ended.noise}" if ended.noise else ""
    if ended.returncode >= 0:
        text = f"the process exited with code {ended.returncode} in phase {phase}{said}"
        return Status.CRASH, "measure.exit", text
    number = -ended.returncode
    try:
        name = signal.Signals(number).name
    except ValueError:
        name = f"signal {number}"
    if number == signal.SIGKILL:
        text = f"killed by the system in phase {phase}, as it does when memory runs out{said}"
        return Status.OUT_OF_MEMORY, "measure.killed", text
    if phase == READ_ONLY and number in (signal.SIGSEGV, signal.SIGBUS):
        text = f"it writes to its inputs: killed by {name} while they were read-only{said}"
        return Status.WRONG, "verify.input-written", text
    return Status.CRASH, "measure.crash", f"killed by {name} in phase {phase}{said}"


def _rebuilt(message: Mapping[str, Any]) -> TfsearchError:
    """The error that the measuring process raised, as the same class."""
    kind = getattr(errors, str(message["class"]), InternalError)
    return kind(message["code"], message["message"])
