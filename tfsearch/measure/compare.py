"""Interleaved comparisons: finals among builds, and a build against baselines."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tfsearch.core.errors import RequestError
from tfsearch.core.records import Measurement, Status
from tfsearch.measure.bench import (
    Bench,
    Contestant,
    Context,
    Fault,
    Group,
    Report,
    Watch,
    import_factory,
    no_report,
    phase,
)
from tfsearch.measure.host import HostCallable, host_launch
from tfsearch.measure.job import (
    Comparison,
    Limits,
    MeasureJob,
    MeasureOutcome,
    Standing,
    protocol,
)
from tfsearch.measure.machine import shared, usage
from tfsearch.measure.protocols import Loaded, Runner, device_conditions
from tfsearch.measure.run import (
    EARLY_CHECKS,
    device_record,
    disturbed_samples,
    interval_pair,
    machine_conditions,
    mode_conditions,
    prepare,
    require_plausible,
    require_right,
    split_samples,
    verified,
)
from tfsearch.measure.statistics import (
    Interval,
    Ranking,
    Split,
    median_interval,
    rank_paired,
    ratio_interval,
    split_modes,
)

LEAST_ROUNDS = 20
FEWEST_ROUNDS = 6
"""Below this many rounds the extremes of the samples are no 95 % interval of the median."""
PATIENCE = 4
"""How many budgets may be spent to reach them."""
BEATEN = 1.05
"""A participant whose whole interval lies above this ratio sits out the remaining rounds."""
TIE = 0.005

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Baseline:
    """Something to compare with, named by the import path of its factory.

    The factory is called with the workload record and the launch specification of the build it
    is compared with; it returns a loaded kernel (anything with ``bind`` and ``call``), or a host
    function ``f(inputs, outputs)`` that fills the outputs.
    """

    name: str
    factory: str

    def make(self, job: MeasureJob) -> Loaded:
        """The baseline for a job's workload."""
        made = import_factory(self.factory)(job.workload, job.launch)
        return made if hasattr(made, "bind") else HostCallable(made, host_launch(job.launch))


def final(
    jobs: Sequence[MeasureJob],
    runner: Runner,
    context: Context | None = None,
    report: Report = no_report,
) -> Comparison:
    """Compare builds of one workload in interleaved rounds until the winner is decided.

    Every build is verified first; one that fails keeps its status and is not timed. Ratios are
    relative to the winner. Limits and probes are those of the first job; ``limits.most`` bounds
    the rounds. Raises ``RequestError`` without jobs or with jobs of different workloads.
    """
    _require_one_workload(jobs)
    context = context or Context(runner)
    standings: dict[int, MeasureOutcome] = {}
    contestants: dict[int, Contestant] = {}
    for index, job in enumerate(jobs):
        name = str(index)
        try:
            contestants[index] = prepare(job, runner, context, report, name)
        except Fault as fault:
            standings[index] = _failed(fault)
    names = [str(index) for index in range(len(jobs))]
    return _compare(jobs[0], runner, context, report, names, contestants, standings, None)


def benchmark(
    job: MeasureJob,
    baselines: Sequence[tuple[str, Loaded]],
    runner: Runner,
    context: Context | None = None,
    report: Report = no_report,
) -> Comparison:
    """Compare a build (standing 0, the reference) with baselines in interleaved rounds.

    Ratios are time(baseline) / time(build): above 1 the build is faster. A baseline that does
    not verify keeps its status and is not timed.
    """
    context = context or Context(runner)
    standings: dict[int, MeasureOutcome] = {}
    contestants: dict[int, Contestant] = {}
    try:
        contestants[0] = prepare(job, runner, context, report, "build")
    except Fault as fault:
        standings[0] = _failed(fault)
    for index, (name, loaded) in enumerate(baselines, start=1):
        try:
            contestants[index] = verified(loaded, job, context, report, name)
            contestants[index].lower_bound_us = 0.0
        except Fault as fault:
            standings[index] = _failed(fault)
    names = ["build", *(name for name, _ in baselines)]
    return _compare(job, runner, context, report, names, contestants, standings, 0)


class _Round:
    """The state of one comparison: who is still active, who fell out and why."""

    def __init__(
        self, bench: Bench, watch: Watch, limits: Limits, reference: int | None, report: Report
    ) -> None:
        self.bench = bench
        self.watch = watch
        self.limits = limits
        self.reference = reference
        self.report = report
        self.groups: list[Group] = []
        self.active = list(range(len(bench.contestants)))
        self.faults: dict[int, Fault] = {}
        self.stopped = ""

    def run(self) -> None:
        """Take groups until decided, out of budget, or at the limit of rounds."""
        deadline = time.monotonic() + self.limits.budget_s
        last = deadline + (PATIENCE - 1) * self.limits.budget_s
        while self.active and not self.stopped:
            self.groups.append(self.bench.group(self.active))
            if self.bench.groups <= EARLY_CHECKS:
                for column in list(self.active):
                    self._check(column)
            times = self.times()
            if self.active and len(times) >= LEAST_ROUNDS:
                self._judge(times)
            if self.stopped:
                break
            if sum(len(group.times_us) for group in self.groups) >= self.limits.most:
                self.stopped = "most"
            elif time.monotonic() >= (deadline if self._enough else last):
                self.stopped = "budget"
        for column in list(self.active):
            self._check(column)

    @property
    def _enough(self) -> bool:
        """Whether there are as many rounds as a 95 % interval of a median needs."""
        return sum(len(group.times_us) for group in self.groups) >= FEWEST_ROUNDS

    @property
    def split(self) -> Split:
        """Which of all rounds so far are of the slow mode."""
        before = [group.before for group in self.groups for _ in range(len(group.times_us))]
        after = [group.after for group in self.groups for _ in range(len(group.times_us))]
        return split_modes(before, after, self.watch.fastest)

    def times(self) -> Floats:
        """Rounds of the fast mode [rounds, contestants]; all of them when there is none."""
        everything = np.concatenate([group.times_us for group in self.groups])
        split = self.split
        return everything if split.slow_only else everything[split.kept]

    def ranking(self) -> tuple[Ranking, list[int]] | None:
        """The ranking over the columns without a fault; None when there is nothing to rank.

        A column that was only timed in rounds of the slow mode is not among them.
        """
        if not self.groups:
            return None
        times = self.times()
        columns = [
            k
            for k in range(times.shape[1])
            if k not in self.faults and not np.isnan(times[:, k]).all()
        ]
        if not columns:
            return None
        times = times[:, columns]
        if np.isnan(times).any(axis=0).all():
            times = times[~np.isnan(times).any(axis=1)]
        return (rank_paired(times, TIE), columns) if len(times) else None

    def _judge(self, times: Floats) -> None:
        if self.reference is not None:
            if self.reference in self.faults:
                self.stopped = "reference"
                return
            base = times[:, self.reference]
            widths = [
                ratio_interval(times[:, k], base).half_width
                for k in self.active
                if k != self.reference
            ]
            if all(width <= self.limits.share for width in widths):
                self.stopped = "converged"
            return
        found = rank_paired(times[:, self.active], TIE)
        winner = self.active[found.winner]
        if found.decided:
            self.stopped = "decided"
            return
        beaten = [k for k, r in zip(self.active, found.ratios, strict=True) if r.low > BEATEN]
        if beaten and not self.split.slow_only and self._check(winner):
            for k in beaten:
                self._check(k)
                if k in self.active:
                    self.active.remove(k)

    def _check(self, column: int) -> bool:
        """Check outputs and plausibility now; a participant that fails falls out."""
        contestant = self.bench.contestants[column]
        try:
            with phase("check", self.report):
                require_right(self.bench, column, self.report)
                own = self.times()[:, column]
                own = own[~np.isnan(own)]
                require_plausible(float(np.median(own)), contestant.lower_bound_us)
        except Fault as fault:
            fault.verification = fault.verification or contestant.verdict.verification
            self.faults[column] = fault
            self.active.remove(column)
            return False
        return True


def _compare(
    job: MeasureJob,
    runner: Runner,
    context: Context,
    report: Report,
    names: Sequence[str],
    contestants: Mapping[int, Contestant],
    failed: Mapping[int, MeasureOutcome],
    reference: int | None,
) -> Comparison:
    outcomes = dict(failed)
    columns = sorted(contestants)
    start = time.monotonic()
    if not columns or (reference is not None and reference not in contestants):
        for index in columns:
            outcomes[index] = MeasureOutcome(
                Status.CANCELLED, "measure.no-reference", "time", "nothing to compare with"
            )
        return _comparison(job, names, outcomes, {}, None, False, {})
    watch = Watch(runner, job.probes, job.probe_reference, context.fastest)
    bench = Bench(
        runner,
        [contestants[index] for index in columns],
        protocol(job.protocol),
        job.limits,
        watch,
        seed=job.seed,
        verification_seed=job.verification_seed,
    )
    own = None if reference is None else columns.index(reference)
    state = _Round(bench, watch, job.limits, own, report)
    try:
        with phase("bind", report):
            bench.bind()
        with phase("time", report):
            before, then = device_conditions(runner), usage()
            bench.calibrate()
            state.run()
            around = shared(then, usage())
            device = {**device_record(before, device_conditions(runner)), **around}
    except Fault as fault:
        outcomes.update({index: _failed(fault) for index in columns})
        return _comparison(job, names, outcomes, {}, None, False, {})
    for column, fault in state.faults.items():
        outcomes[columns[column]] = _failed(fault)
    conditions = {
        **machine_conditions(),
        **device,
        "probes": watch.conditions(),
        "waits": watch.waits,
        "stopped": state.stopped,
        "groups": len(state.groups),
        "sets": bench.set_count,
        "seconds": time.monotonic() - start,
    }
    for column, index in enumerate(columns):
        if index not in outcomes:
            outcomes[index] = _outcome(job, state, column)
    ratios, leader, decided = _ratios(state, columns)
    return _comparison(job, names, outcomes, ratios, leader, decided, conditions)


def _ratios(state: _Round, columns: Sequence[int]) -> tuple[dict[int, Interval], int | None, bool]:
    """Ratios by participant, the reference participant, and whether the order is decided."""
    if state.reference is not None:
        if state.reference in state.faults:
            return {}, None, False
        times = state.times()
        base = times[:, state.reference]
        ratios = {
            columns[k]: ratio_interval(times[:, k], base)
            for k in range(len(columns))
            if k not in state.faults
        }
        apart = all(
            r.low > 1 or r.high < 1 or (r.low >= 1 - TIE and r.high <= 1 + TIE)
            for k, r in ratios.items()
            if k != columns[state.reference]
        )
        return ratios, columns[state.reference], apart
    ranked = state.ranking()
    if ranked is None:
        return {}, None, False
    ranking, kept = ranked
    ratios = {columns[k]: r for k, r in zip(kept, ranking.ratios, strict=True)}
    return ratios, columns[kept[ranking.winner]], ranking.decided


def _outcome(job: MeasureJob, state: _Round, column: int) -> MeasureOutcome:
    contestant = state.bench.contestants[column]
    samples, split = split_samples(state.groups, column, state.watch.fastest)
    present = ~np.isnan(samples)
    own = Split(split.kept[present], split.aside[present])
    kept = samples[present] if own.slow_only else samples[present & split.kept]
    found = median_interval(kept)
    measurement = Measurement(
        tuple(float(x) for x in kept),
        found.median,
        interval_pair(found),
        protocol(job.protocol).key,
        conditions={
            **mode_conditions(samples[present], own),
            "disturbed": disturbed_samples(state.groups, split, present),
            "batch": contestant.batch,
        },
    )
    return MeasureOutcome(
        Status.OK, verification=contestant.verdict.verification, measurement=measurement
    )


def _failed(fault: Fault) -> MeasureOutcome:
    return MeasureOutcome(fault.status, fault.code, fault.where, str(fault), fault.verification)


def _comparison(
    job: MeasureJob,
    names: Sequence[str],
    outcomes: Mapping[int, MeasureOutcome],
    ratios: Mapping[int, Interval],
    reference: int | None,
    decided: bool,
    conditions: Mapping[str, object],
) -> Comparison:
    standings = tuple(
        Standing(
            name,
            outcomes[index],
            ratios[index].median if index in ratios else None,
            interval_pair(ratios[index]) if index in ratios else None,
        )
        for index, name in enumerate(names)
    )
    return Comparison(standings, reference, decided, protocol(job.protocol).key, dict(conditions))


def _require_one_workload(jobs: Sequence[MeasureJob]) -> None:
    if not jobs:
        raise RequestError("measure.final-empty", "a final needs at least one build")
    first = jobs[0]
    for job in jobs[1:]:
        if job.workload.key != first.workload.key or job.sizes != first.sizes:
            raise RequestError(
                "measure.final-mixed", "the builds of a final compute the same workload"
            )
        if job.protocol != first.protocol:
            raise RequestError(
                "measure.final-mixed",
                f"the builds of a final share a protocol, not {first.protocol} and {job.protocol}",
            )
