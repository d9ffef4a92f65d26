"""The session loop: one owner of all state changes.

ask → prove → build → verify → time → record → tell. Candidates are compiled ahead in a pool.
Where one is measured at a time they are measured in the order in which they were asked for, so
that equal seeds give equal sessions; an executor with more devices has several under way, whose
trials are recorded as they end. Where kernels run on the cores that compile, nothing is compiled
while one is timed.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tfsearch.core.errors import UnavailableError
from tfsearch.core.records import Status, Trial
from tfsearch.db.records import StoredTrial
from tfsearch.measure.executor import Executor
from tfsearch.measure.job import MeasureJob, MeasureOutcome
from tfsearch.plugin import identity
from tfsearch.plugin.jobs import measure_job
from tfsearch.search import Policy, Result
from tfsearch.space import Point
from tfsearch.tune.building import Builder
from tfsearch.tune.interrupt import Interrupts
from tfsearch.tune.measured import measured_of
from tfsearch.tune.observer import Observer, Progress, TrialEnded
from tfsearch.tune.prepare import Candidate, Failure, Preparer, shortened
from tfsearch.tune.recorder import Built, Recorder
from tfsearch.tune.report import FailedStatus
from tfsearch.tune.request import Plan

FINAL_SHARE = 0.2
"""Share of the seconds that is kept for confirming the best few; the rest explores."""
FINAL_MOST_S = 10.0
SUSPICIOUS = 3.0
"""How many times faster than the best so far a candidate must be to be measured again."""
SUSPICIOUS_AFTER = 3
"""Trials that there must have been: the first ones have nothing to be compared with."""
RECHECK_SEED = 7919
RECHECKED = "recheck"
"""The condition of a measurement that was taken again; it holds both medians."""

# These say the same every time; a crash or a time-out may have been the machine's fault.
ANSWERED = (
    Status.OK,
    Status.COMPILE_ERROR,
    Status.WRONG,
    Status.NONDETERMINISTIC,
    Status.IMPLAUSIBLE,
)


@dataclass(frozen=True)
class Done:
    """A trial of this session with its id; ``fresh`` when this session measured it."""

    id: int
    trial: Trial
    fresh: bool


@dataclass(eq=False)
class Entry:
    """A candidate in flight: ``known`` when the record answers it; ``built`` under measurement,
    for the second time when there is a ``first`` outcome.
    """

    candidate: Candidate
    known: StoredTrial | None = None
    built: Built | None = None
    first: MeasureOutcome | None = None


class Loop:
    """Runs candidates until a budget ends; see the module."""

    def __init__(
        self,
        plan: Plan,
        session: str,
        policy: Policy,
        recorder: Recorder,
        builder: Builder,
        executor: Executor,
        observer: Observer,
        interrupts: Interrupts,
        *,
        floor_us: float,
        incumbent_us: float | None,
        started: float,
    ) -> None:
        self._plan = plan
        self._session = session
        self._policy = policy
        self._recorder = recorder
        self._builder = builder
        self._executor = executor
        self._observer = observer
        self._interrupts = interrupts
        self._preparer = Preparer(plan, recorder)
        self._floor_us = floor_us
        self._started = started
        self._queue: deque[Entry] = deque()
        self._flying: dict[int, Entry] = {}
        self._tickets = 0
        self._asked = 0
        self._next_index = 0
        self.done: list[Done] = []
        self.reused = 0
        self.best_us = incumbent_us
        self.stopped = ""
        self.lost: UnavailableError | None = None

    def resume(self, earlier: list[StoredTrial]) -> None:
        """Take over what the session recorded before: it counts, and is told to the policy.

        Cancelled trials were never measured; their points are asked for again.
        """
        results: list[Result] = []
        for stored in earlier:
            self._next_index = max(self._next_index, stored.trial.index + 1)
            if stored.trial.status is Status.CANCELLED:
                continue
            point = identity.point_of(
                self._plan.problem, self._plan.target.name, stored.trial.schedule
            )
            self._asked += 1
            self._note(Done(stored.id, stored.trial, fresh=True))
            results.append(_result(point, stored.trial))
        self._policy.tell(results)

    def run(self) -> None:
        """Until a budget ends, the space is exhausted, or Ctrl-C; ``stopped`` says which.

        When the device or the compiler goes away the session ends early too, with ``lost`` set.
        """
        try:
            while not self._interrupts.requested:
                self._fill()
                if not self._queue:
                    break
                if self._out_of_time():
                    self.stopped = "seconds"
                    self._land()
                    break
                self._advance()
        except KeyboardInterrupt:
            if not self._interrupts.requested:
                raise
        except UnavailableError as error:
            self.lost = error
            self.stopped = "unavailable"
        if self._interrupts.requested:
            self.stopped = "interrupted"
        self._cancel()

    @property
    def failures(self) -> Counter[Status]:
        """How many trials ended in each status but ok."""
        return Counter(d.trial.status for d in self.done if d.trial.status is not Status.OK)

    def failed_table(self) -> list[FailedStatus]:
        """Counts and first messages by status, the most frequent first."""
        first: dict[Status, Trial] = {}
        for one in self.done:
            first.setdefault(one.trial.status, one.trial)
        return [
            FailedStatus(status, count, first[status].code, first[status].message)
            for status, count in self.failures.most_common()
        ]

    def _fill(self) -> None:
        """Ask for candidates, prepare them, and start their builds."""
        if self._queue and self._plan.device.shares_cpu:
            return
        depth = 2 * max(self._builder.workers, self._executor.slots)
        if self._plan.device.shares_cpu:
            depth = max(4, depth)
        while len(self._queue) < depth and not self._should_stop():
            points = self._policy.ask(1)
            if not points:
                self.stopped = self.stopped or "exhausted"
                return
            self._asked += 1
            self._queue.append(self._admit(points[0]))
            if self._interrupts.requested:
                return

    def _should_stop(self) -> bool:
        limit = self._plan.request.trials_limit
        if limit is not None and self._asked >= limit:
            self.stopped = "trials"
            return True
        if self._out_of_time():
            self.stopped = "seconds"
            return True
        share = 1.0 + self._plan.request.converge
        if self.best_us is not None and 0 < self.best_us <= self._floor_us * share:
            self.stopped = "converged"
            return True
        return False

    def _out_of_time(self) -> bool:
        seconds = self._plan.request.seconds
        if seconds is None:
            return False
        reserve = min(FINAL_MOST_S, FINAL_SHARE * seconds)
        return time.monotonic() - self._started >= seconds - reserve

    def _admit(self, point: Point) -> Entry:
        candidate = self._preparer.prepare(point)
        if candidate.source is None or candidate.key is None:
            return Entry(candidate)
        known = self._recorder.duplicate(
            self._plan.workload.key, candidate.schedule.key, candidate.key, ANSWERED
        )
        if known is None:
            self._builder.start(candidate.source, candidate.key.build)
        return Entry(candidate, known)

    def _advance(self) -> None:
        """Bring one candidate to its end: the first, where one is measured at a time."""
        slots = self._executor.slots
        for entry in self._queue:
            if len(self._flying) >= slots:
                break
            if entry.built is None and not self._launch(entry):
                return
        self._take()

    def _launch(self, entry: Entry) -> bool:
        """Put a candidate under measurement if its build is there; False when it ended instead.

        The build is waited for when nothing else is under measurement.
        """
        candidate = entry.candidate
        if entry.known is not None:
            self.reused += 1
            self._close(entry, Done(entry.known.id, entry.known.trial, fresh=False))
            return False
        if candidate.failure is not None or candidate.source is None or candidate.key is None:
            self._close(entry, self._record(self._trial(candidate, candidate.failure)))
            return False
        if self._flying and not self._builder.ready(candidate.key.build):
            return True
        with self._interrupts.waiting():
            if self._plan.device.shares_cpu:
                self._builder.wait_all()
            built = self._builder.wait(candidate.key.build)
        if isinstance(built, Failure):
            self._close(entry, self._record(self._trial(candidate, built)))
            return False
        entry.built = built
        self._start(entry, built)
        return True

    def _start(self, entry: Entry, built: Built) -> None:
        job = self._job(entry.candidate, built, again=entry.first is not None)
        self._executor.start(self._tickets, job)
        self._flying[self._tickets] = entry
        self._tickets += 1

    def _take(self) -> None:
        """Record the candidate whose measurement ends next."""
        with self._interrupts.waiting():
            ended = self._executor.next_ended()
        entry, outcome = self._flying[ended.ticket], ended.outcome
        if entry.first is None and self._suspicious(outcome) and entry.built is not None:
            entry.first = outcome
            del self._flying[ended.ticket]
            self._start(entry, entry.built)
            return
        if entry.first is not None:
            outcome = confirmed(entry.first, outcome)
        trial = self._trial(entry.candidate, None, entry.built, outcome)
        done = self._record(trial)
        del self._flying[ended.ticket]
        self._close(entry, done)

    def _suspicious(self, outcome: MeasureOutcome) -> bool:
        """Whether a candidate is so much faster than the rest that it is measured again."""
        measurement = outcome.measurement
        if measurement is None or self.best_us is None or len(self.done) < SUSPICIOUS_AFTER:
            return False
        return measurement.median_us * SUSPICIOUS < self.best_us

    def _land(self) -> None:
        """Take what is under measurement, so that no finished measurement is lost."""
        while self._flying and not self._interrupts.requested:
            self._take()

    def _close(self, entry: Entry, done: Done) -> None:
        """Say what became of a candidate everywhere; it leaves the queue."""
        self._note(done)
        self._policy.tell([_result(entry.candidate.point, done.trial)])
        self._announce(done)
        self._queue.remove(entry)

    def _job(self, candidate: Candidate, built: Built, *, again: bool = False) -> MeasureJob:
        """The job of a candidate; ``again``: with other inputs and another order."""
        more = RECHECK_SEED if again else 0
        assert candidate.source is not None
        plan = self._plan
        return measure_job(
            plan.problem,
            candidate.point,
            built.path,
            candidate.source.launch,
            protocol=plan.request.protocol,
            limits=plan.request.limits,
            sha256=built.record.artifact,
            seed=plan.request.seed + self._next_index + len(self._flying) + more,
            verification_seed=plan.request.seed + more,
            incumbent_us=self.best_us,
        )

    def _trial(
        self,
        candidate: Candidate,
        failure: Failure | None,
        built: Built | None = None,
        outcome: MeasureOutcome | None = None,
    ) -> Trial:
        if outcome is not None:
            failure = Failure(outcome.status, outcome.code, outcome.where, outcome.message)
        assert failure is not None
        return Trial(
            session=self._session,
            index=self._next_index,
            workload=self._plan.workload.key,
            schedule=candidate.schedule,
            status=failure.status,
            code=failure.code,
            where=failure.where,
            message=shortened(failure.message),
            predicted_us=candidate.predicted_us,
            generator=self._plan.generator,
            measurement_key=candidate.key,
            build=None if built is None else built.record,
            verification=None if outcome is None else outcome.verification,
            measurement=None if outcome is None else outcome.measurement,
            finished_at=now(),
        )

    def _record(self, trial: Trial) -> Done:
        self._next_index = trial.index + 1
        return Done(self._recorder.trial(trial), trial, fresh=True)

    def _note(self, done: Done) -> None:
        self.done.append(done)
        measurement = done.trial.measurement
        if measurement is None or measurement.censored:
            return
        if self.best_us is None or measurement.median_us < self.best_us:
            self.best_us = measurement.median_us

    def _announce(self, done: Done) -> None:
        trial = done.trial
        self._observer.trial(
            TrialEnded(
                index=trial.index,
                status=trial.status,
                code=trial.code,
                message=trial.message,
                median_us=None if trial.measurement is None else trial.measurement.median_us,
                reused=not done.fresh,
                params=trial.schedule.params,
            )
        )
        elapsed = time.monotonic() - self._started
        self._observer.progress(
            Progress(
                done=len(self.done),
                failed=sum(self.failures.values()),
                reused=self.reused,
                best_us=self.best_us,
                elapsed_s=elapsed,
                seconds_left=self._seconds_left(elapsed),
            )
        )

    def _seconds_left(self, elapsed: float) -> float | None:
        request, count = self._plan.request, len(self.done)
        ends: list[float] = []
        if request.seconds is not None:
            ends.append(max(0.0, request.seconds - elapsed))
        if request.trials_limit is not None and count:
            ends.append(elapsed / count * max(0, request.trials_limit - count))
        return min(ends) if ends else None

    def _cancel(self) -> None:
        """Record what was asked for and not measured, so that nothing is lost without a trace."""
        reasons = {"seconds": "the time limit was reached", "interrupted": "interrupted"}
        reason = reasons.get(self.stopped, "the device went away")
        for entry in self._queue:
            if entry.known is None:
                failure = Failure(Status.CANCELLED, "session.cancelled", "queue", reason)
                self._record(self._trial(entry.candidate, failure))
        self._queue.clear()


def confirmed(first: MeasureOutcome, second: MeasureOutcome) -> MeasureOutcome:
    """Of two measurements of a suspiciously fast candidate the slower one, or the failure."""
    if second.measurement is None or first.measurement is None:
        return second
    slower = max(first, second, key=_median_of)
    assert slower.measurement is not None
    told = {**slower.measurement.conditions, RECHECKED: [_median_of(first), _median_of(second)]}
    return replace(slower, measurement=replace(slower.measurement, conditions=told))


def _median_of(outcome: MeasureOutcome) -> float:
    return 0.0 if outcome.measurement is None else outcome.measurement.median_us


def _result(point: Point, trial: Trial) -> Result:
    measurement = trial.measurement
    return Result(
        point,
        trial.status,
        None if measurement is None else measurement.median_us,
        code=trial.code,
        where=trial.where,
        message=trial.message,
        ci_us=None if measurement is None else measurement.ci_us,
        measured=measured_of(trial),
    )


def now() -> str:
    """The time as recorded: ISO 8601, UTC, seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds")
