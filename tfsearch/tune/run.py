"""``tune``: one request from beginning to end."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from tfsearch.core import settings as core_settings
from tfsearch.core.errors import (
    NoCandidateError,
    RequestError,
    TfsearchError,
    UnavailableError,
)
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.cost.rates import rates_of
from tfsearch.db import ArtifactStore, Store
from tfsearch.db.records import SessionRecord, SessionStatus, StoredTrial
from tfsearch.measure.executor import Executor, LocalExecutor
from tfsearch.measure.worker import Measurer
from tfsearch.plugin import identity
from tfsearch.plugin.jobs import bound_us
from tfsearch.plugin.kernel import NO_PROOF, KernelProblem
from tfsearch.search import make_policy, scan
from tfsearch.search.scan import Scan
from tfsearch.space import Point
from tfsearch.tune.building import Builder
from tfsearch.tune.final import Finalist, Outcome, run_baseline, run_final
from tfsearch.tune.fleet import Fleet
from tfsearch.tune.hints import similar_points
from tfsearch.tune.interrupt import Interrupts
from tfsearch.tune.learn import learned_for
from tfsearch.tune.noise import Noise, noise_of
from tfsearch.tune.observer import Observer, Silent, Stage, Started
from tfsearch.tune.ownership import is_gone, own_name
from tfsearch.tune.prepare import Failure
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.report import (
    AllFailedError,
    BaselineResult,
    Best,
    SpaceSummary,
    TrialSummary,
    TuneReport,
)
from tfsearch.tune.request import Plan, TuneRequest, resolve
from tfsearch.tune.session import Done, Loop, now

START_WAIT_S = 60.0
"""How long a session that begins waits for a server that does not answer."""
COUNT_S = 120.0
"""How long a space may take to be counted before it is refused: nothing is searched uncounted."""


def tune(
    request: TuneRequest,
    *,
    store: Store | None = None,
    settings: Settings | None = None,
    observer: Observer | None = None,
    unsaved: TfsearchError | None = None,
) -> TuneReport:
    """Find the fastest correct kernel, prove it, record it.

    Without a ``store`` nothing is recorded; ``unsaved`` then is the error that opening it gave,
    which the report repeats. The report's ``exit_code`` is 0, 6 (not saved) or 130 (Ctrl-C).

    Raises ``RequestError`` (2), ``NoCandidateError`` (3; :class:`AllFailedError` with a table
    when candidates were tried), ``UnavailableError`` (5).
    """
    started = time.monotonic()
    watcher = observer or Silent()
    places = settings or core_settings.load()
    recorder = Recorder(store, ArtifactStore(places.artifacts), watcher, unsaved, home=places.home)
    if request.fleet is None:
        plan = resolve(request)
        with Interrupts() as interrupts:
            return _Tuning(plan, recorder, places, watcher, interrupts, started).run()
    with Fleet(request) as fleet, Interrupts() as interrupts:
        plan = resolve(request, fleet.place())
        return _Tuning(plan, recorder, places, watcher, interrupts, started, fleet).run()


@dataclass(frozen=True)
class _Incumbent:
    """The recorded winner that still is what would be built now, and a point of this space."""

    stored: StoredTrial
    point: Point

    @property
    def median_us(self) -> float:
        measurement = self.stored.trial.measurement
        return 0.0 if measurement is None else measurement.median_us


class _Tuning:
    def __init__(
        self,
        plan: Plan,
        recorder: Recorder,
        places: Settings,
        observer: Observer,
        interrupts: Interrupts,
        started: float,
        fleet: Fleet | None = None,
    ) -> None:
        self.plan = replace(plan, learned=learned_for(plan, recorder, observer))
        self.fleet = fleet
        self.recorder = recorder
        self.places = places
        self.observer = observer
        self.interrupts = interrupts
        self.started = started
        self.hints: list[Point] = []

    def run(self) -> TuneReport:
        plan = self.plan
        self.observer.stage(Stage.ENUMERATE)
        with self.interrupts.waiting():
            counts = plan.space.count_within(COUNT_S)
        if not counts.exact:
            raise RequestError(
                "tune.space-too-large",
                f"the {counts.points} points of this space cannot be counted in {COUNT_S:g} s "
                f"(about {counts.legal:.3g} are legal); fix some parameters or constrain them more",
            )
        if counts.legal == 0:
            reasons = ", ".join(f"{code}: {count}" for code, count in counts.rejected.items())
            raise NoCandidateError(
                "tune.no-legal",
                f"none of the {counts.points} schedules of this space is legal ({reasons})",
            )
        if not self.recorder.replay() and self.recorder.wait(START_WAIT_S, self._stop):
            self.recorder.replay()
        incumbent = self._incumbent()
        best_us = None if incumbent is None else incumbent.median_us
        with self.interrupts.waiting():
            found = scan(plan, incumbent_us=best_us)
        space = SpaceSummary(counts.points, counts.legal, found.pruned, counts.rejected)
        self.observer.started(
            Started(
                workload=plan.workload.label,
                target=plan.target.name,
                device=plan.device.record.name,
                points=counts.points,
                legal=counts.legal,
                pruned=found.pruned,
                trials_limit=plan.request.trials_limit,
                seconds_limit=plan.request.seconds,
            )
        )
        session, earlier = self._session()
        with self._executor() as executor, Builder(plan, self.recorder, self.fleet) as builder:
            return self._search(session, earlier, incumbent, found, space, executor, builder)

    def _stop(self) -> bool:
        return self.interrupts.requested

    def _executor(self) -> Executor:
        if self.fleet is not None:
            return self.fleet.open(self.plan, self.recorder.store)
        measurer = Measurer(
            self.plan.target.runner,
            self.plan.device.selector,
            lock_folder=self.places.home / "locks",
        )
        return LocalExecutor(measurer)

    def _search(
        self,
        session: str,
        earlier: list[StoredTrial],
        incumbent: _Incumbent | None,
        found: Scan,
        space: SpaceSummary,
        executor: Executor,
        builder: Builder,
    ) -> TuneReport:
        plan, request = self.plan, self.plan.request
        best_us = None if incumbent is None else incumbent.median_us
        policy = make_policy(
            request.policy_name,
            plan,
            seed=request.seed,
            incumbent_us=best_us,
            first=found,
            hints=[*self.hints, *similar_points(plan, self.recorder)],
            facts=plan.facts,
            budget={"trials": request.trials_limit, "seconds": request.seconds},
            notice=self.observer.warning,
        )
        loop = Loop(
            plan,
            session,
            policy,
            self.recorder,
            builder,
            executor,
            self.observer,
            self.interrupts,
            floor_us=found.floor_us,
            incumbent_us=best_us,
            started=self.started,
        )
        if earlier:
            self.observer.stage(Stage.RESUME)
            loop.resume(earlier)
        self.observer.stage(Stage.SEARCH)
        try:
            loop.run()
        finally:
            policy.close()
        outcome, baseline, note = self._decide(session, loop, incumbent, executor, builder)
        best = self._best(loop, incumbent, outcome)
        self._finish(loop, best)
        if best is not None:
            best = replace(best, trial=self.recorder.id_of(best.trial))
        failed = loop.failures
        return TuneReport(
            workload=plan.workload,
            target=plan.target.name,
            device=plan.device.record,
            toolchain=plan.compiler.record,
            space=space,
            trials=TrialSummary(
                total=len(loop.done),
                ok=len(loop.done) - sum(failed.values()),
                failed=dict(failed),
                reused=loop.reused,
            ),
            best=best,
            baseline=baseline,
            baseline_note=note,
            elapsed_s=time.monotonic() - self.started,
            session=session,
            stopped=loop.stopped,
            interrupted=self.interrupts.requested,
            unsaved=self.recorder.unsaved,
            lost=loop.lost,
            final=None if outcome is None else outcome.comparison,
            noise=_noise(loop, best, outcome),
            proof=NO_PROOF if isinstance(plan.problem, KernelProblem) else "",
        )

    def _decide(
        self,
        session: str,
        loop: Loop,
        incumbent: _Incumbent | None,
        executor: Executor,
        builder: Builder,
    ) -> tuple[Outcome | None, BaselineResult | None, str]:
        """The final and the baseline, unless Ctrl-C asks for what is known now."""
        if self.interrupts.requested:
            return None, None, "interrupted"
        if loop.lost is not None:
            return None, None, loop.lost.message
        self.observer.stage(Stage.FINAL)
        outcome: Outcome | None = None
        try:
            with self.interrupts.waiting():
                finalists = self._finalists(loop, incumbent, builder)
            with self.interrupts.waiting():
                outcome = run_final(
                    self.plan,
                    executor,
                    self.recorder,
                    self.observer,
                    finalists,
                    session,
                    now(),
                )
            if outcome is None:
                return None, None, "no finalist"
            with self.interrupts.waiting():
                baseline, note = run_baseline(self.plan, executor, outcome.winner)
        except KeyboardInterrupt:
            if not self.interrupts.requested:
                raise
            return outcome, None, "interrupted"
        except UnavailableError as error:
            loop.lost = error
            return outcome, None, error.message
        return outcome, baseline, note

    def _incumbent(self) -> _Incumbent | None:
        """The recorded best, if it still holds; else its schedule is only a hint."""
        plan = self.plan
        query = plan.query  # needs the compiler, whose absence is no fault of the database
        stored = self.recorder.read(lambda store: store.best(query))
        if stored is None:
            return None
        verdict = identity.still_current(
            stored.trial,
            target=plan.target,
            problem=lambda: plan.problem,
            compiler=plan.compiler,
            flags=plan.request.flags,
            macros=plan.request.macros,
            store=self.recorder.store,
            artifacts=self.recorder.artifacts,
        )
        schedule = stored.trial.schedule
        names = [recipe.name for recipe in plan.space.recipes]
        point = Point(schedule.recipe, dict(schedule.params))
        if schedule.recipe not in names or plan.space.check(point):
            return None
        if not verdict.current:
            self.hints.append(point)
            return None
        return _Incumbent(stored, point)

    def _session(self) -> tuple[str, list[StoredTrial]]:
        """The session to work in: an unfinished one of a process that is gone, or a new one."""
        plan, recorder = self.plan, self.recorder
        if plan.request.resume and recorder.replayed:
            known = recorder.read(lambda store: store.resumable_session(plan.fields))
            if known is not None and self._claim(known):
                trials = recorder.read(lambda store: store.trials(session=known.id)) or []
                recorder.begin(plan.workload, known)
                return known.id, trials
        stamp = datetime.now(UTC).strftime("%Y%m%d-%H%M%S")
        record = SessionRecord(
            id=f"{stamp}-{uuid.uuid4().hex[:12]}",
            fields=plan.fields,
            owner=own_name(),
            started_at=now(),
            details={
                "trials": plan.request.trials_limit,
                "seconds": plan.request.seconds,
                "prove": plan.request.prove,
            },
        )
        recorder.begin(plan.workload, record)
        return record.id, []

    def _claim(self, known: SessionRecord) -> bool:
        free = known.status is SessionStatus.INTERRUPTED or is_gone(known.owner)
        if not free:
            return False
        taken = self.recorder.read(
            lambda store: store.claim_session(
                known.id, expected_owner=known.owner, owner=own_name()
            )
        )
        if taken is None and self.recorder.wait(START_WAIT_S, self._stop):
            # The answer was lost, perhaps not the change.
            session = self.recorder.read(lambda store: store.session(known.id))
            return session is not None and session.owner == own_name()
        return bool(taken)

    def _finalists(
        self, loop: Loop, incumbent: _Incumbent | None, builder: Builder
    ) -> list[Finalist]:
        """The best few by median, one per build, and the incumbent; built again if need be."""
        chosen: list[Done] = []
        seen: set[str] = set()
        for one in _by_median(loop.done):
            build = one.trial.build
            if build is not None and build.key.key not in seen:
                seen.add(build.key.key)
                chosen.append(one)
            if len(chosen) == self.plan.request.finalists:
                break
        if incumbent is not None:
            build = incumbent.stored.trial.build
            if build is not None and build.key.key not in seen:
                chosen.append(Done(incumbent.stored.id, incumbent.stored.trial, fresh=False))
        out: list[Finalist] = []
        for one in chosen:
            finalist = self._finalist(one, builder)
            if finalist is not None:
                out.append(finalist)
        return out

    def _finalist(self, one: Done, builder: Builder) -> Finalist | None:
        plan, trial = self.plan, one.trial
        assert trial.build is not None
        try:
            source = identity.lowered_source(plan.problem, plan.target.name, trial.schedule)
            key = plan.compiler.key(source, plan.request.flags, plan.request.macros)
        except UnavailableError:
            raise
        except TfsearchError as error:
            self.observer.warning(error.code, f"trial {trial.index}: {error.message}")
            return None
        builder.start(source, key)
        built = builder.wait(key)
        if isinstance(built, Failure) or key.key != trial.build.key.key:
            why = built.message if isinstance(built, Failure) else "its build key has changed"
            self.observer.warning("final.not-built", f"trial {trial.index}: {why}")
            return None
        self.recorder.keep_source(source, built.record)
        point = Point(trial.schedule.recipe, dict(trial.schedule.params))
        return Finalist(
            id=one.id,
            trial=replace(trial, build=built.record),
            point=point,
            path=built.path,
            launch=source.launch,
            fresh=one.fresh,
        )

    def _best(
        self, loop: Loop, incumbent: _Incumbent | None, outcome: Outcome | None
    ) -> Best | None:
        """The final's winner; without a final the best median known."""
        if outcome is not None:
            one = Done(outcome.winner.id, outcome.winner.trial, outcome.winner.fresh)
            return self._report(one, outcome.median_us, outcome.ci_us, outcome.max_error)
        known = list(_by_median(loop.done))
        if incumbent is not None:
            known.append(Done(incumbent.stored.id, incumbent.stored.trial, fresh=False))
            known = list(_by_median(known))
        if not known or known[0].trial.measurement is None:
            return None
        measurement = known[0].trial.measurement
        return self._report(known[0], measurement.median_us, measurement.ci_us, None)

    def _report(
        self,
        one: Done,
        median_us: float,
        ci_us: tuple[float, float],
        max_error: float | None,
    ) -> Best:
        trial = one.trial
        verification = trial.verification
        if max_error is None and verification is not None:
            max_error = verification.max_error
        point = Point(trial.schedule.recipe, dict(trial.schedule.params))
        lowest = bound_us(self.plan.problem, point, self.plan.request.protocol)
        rates = rates_of(self.plan.request.workload.flops, median_us, lowest)
        return Best(
            schedule=trial.schedule,
            median_us=median_us,
            ci_us=ci_us,
            tflops=rates.tflops,
            roofline_fraction=rates.roofline_fraction,
            verified=verification is not None and verification.passed,
            max_error=max_error,
            source="measured" if one.fresh else "database",
            trial=one.id,
        )

    def _finish(self, loop: Loop, best: Best | None) -> None:
        """Set the session's state; having found nothing is an error, once all is recorded."""
        if self.interrupts.requested or loop.lost is not None:
            self.recorder.finish(SessionStatus.INTERRUPTED, "", self._stop)
            if best is None and loop.lost is not None:
                raise loop.lost
            return
        status = SessionStatus.FINISHED if best is not None else SessionStatus.FAILED
        self.recorder.finish(status, now(), self._stop)
        if best is None:
            table = loop.failed_table()
            if not table:
                raise NoCandidateError(
                    "tune.no-trial",
                    f"no candidate was measured before the session ended ({loop.stopped}); "
                    "allow more trials or seconds",
                )
            raise AllFailedError(table)


def _noise(loop: Loop, best: Best | None, outcome: Outcome | None) -> Noise | None:
    """How steady the machine was when the best was timed in this session."""
    if outcome is not None and outcome.comparison.reference is not None:
        standing = outcome.comparison.standings[outcome.comparison.reference]
        if standing.outcome.measurement is not None:
            return noise_of(standing.outcome.measurement, outcome.comparison)
    for one in loop.done:
        measurement = one.trial.measurement
        if one.fresh and best is not None and one.id == best.trial and measurement is not None:
            return noise_of(measurement, None)
    return None


def _by_median(done: Sequence[Done]) -> list[Done]:
    """Verified trials, uncensored ones first, then by median."""
    ok = [
        one
        for one in done
        if one.trial.status is Status.OK
        and one.trial.measurement is not None
        and one.trial.verification is not None
        and one.trial.verification.passed
    ]
    return sorted(
        ok,
        key=lambda one: (
            one.trial.measurement is None or one.trial.measurement.censored,
            0.0 if one.trial.measurement is None else one.trial.measurement.median_us,
        ),
    )
