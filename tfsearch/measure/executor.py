"""Where candidates are measured, as the session sees it: on this machine or somewhere else.

The session starts jobs under tickets of its own and takes what ended, one at a time; every
ticket comes back exactly once. Nothing else of where the work runs reaches the session.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

from tfsearch.core.errors import InternalError
from tfsearch.measure.compare import Baseline
from tfsearch.measure.job import Comparison, MeasureJob, MeasureOutcome
from tfsearch.measure.worker import Measurer


@dataclass(frozen=True)
class Ended:
    """A job that came to its end, whatever became of it."""

    ticket: int
    outcome: MeasureOutcome


class Executor(Protocol):
    """Measures jobs; a context manager. Not for several threads at once.

    All methods raise ``UnavailableError`` when there is nothing left to measure on; never for a
    candidate's fault. After that, or after a ``KeyboardInterrupt``, tickets under way are lost.
    """

    def __enter__(self) -> Self: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    @property
    def slots(self) -> int:
        """How many jobs are worth having under way now, 1 or more; it may change."""
        ...

    def start(self, ticket: int, job: MeasureJob) -> None:
        """Put a job under way."""
        ...

    def next_ended(self) -> Ended:
        """Wait for a job to end; ``InternalError`` when none is under way."""
        ...

    def final(self, jobs: Sequence[MeasureJob]) -> Comparison:
        """See :meth:`tfsearch.measure.worker.Measurer.final`; on one device."""
        ...

    def benchmark(self, job: MeasureJob, baselines: Sequence[Baseline]) -> Comparison:
        """See :meth:`tfsearch.measure.worker.Measurer.benchmark`; on one device."""
        ...


class Leases(Protocol):
    """Which devices this session may measure on now, where others share them; see ``want``."""

    def want(self, device: str) -> None:
        """Ask for a device; returns at once, and the wish stays."""
        ...

    def held(self, device: str) -> bool:
        """Whether this session may measure on the device now."""
        ...

    def usable(self, device: str) -> bool:
        """Whether something may begin on the device now."""
        ...

    def begin(self, device: str) -> bool:
        """Use the device until as many ``end``; False when that may not begin now."""
        ...

    def end(self, device: str) -> None:
        """One use has ended; after the last one others may get the device."""
        ...

    def holder_of(self, device: str) -> str:
        """Who had the device at the last look; "" when nobody had or nothing is known."""
        ...


class LocalExecutor:
    """One device of this machine; a job runs in the caller's thread while its end is awaited."""

    def __init__(self, measurer: Measurer) -> None:
        self._measurer = measurer
        self._waiting: deque[tuple[int, MeasureJob]] = deque()

    def __enter__(self) -> Self:
        self._measurer.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._waiting.clear()
        self._measurer.close()

    @property
    def slots(self) -> int:
        """One: what is measured next is decided when the last result is known."""
        return 1

    def start(self, ticket: int, job: MeasureJob) -> None:
        """Keep the job until its end is awaited."""
        self._waiting.append((ticket, job))

    def next_ended(self) -> Ended:
        """Measure the job that was started first."""
        if not self._waiting:
            raise InternalError("measure.executor", "no job is under way")
        ticket, job = self._waiting.popleft()
        return Ended(ticket, self._measurer.submit(job))

    def final(self, jobs: Sequence[MeasureJob]) -> Comparison:
        """Compare builds interleaved."""
        return self._measurer.final(jobs)

    def benchmark(self, job: MeasureJob, baselines: Sequence[Baseline]) -> Comparison:
        """Compare a build with baselines."""
        return self._measurer.benchmark(job, baselines)
