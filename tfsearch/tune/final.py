"""The final: the best few and the incumbent, interleaved; then the winner beside the baseline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Final, FinalEntry, Status, Trial
from tfsearch.measure.executor import Executor
from tfsearch.measure.job import Comparison, MeasureJob
from tfsearch.plugin.jobs import measure_job
from tfsearch.space import Point
from tfsearch.tune.observer import Observer
from tfsearch.tune.recorder import Recorder
from tfsearch.tune.report import BaselineResult
from tfsearch.tune.request import Plan

DEADLINE_EACH = 0.25
"""Share of a single measurement's deadline that each participant adds to a comparison's."""


@dataclass(frozen=True)
class Finalist:
    """A verified build of a point on its way into the final; ``id`` is its trial's."""

    id: int
    trial: Trial
    point: Point
    path: Path
    launch: LaunchSpec
    fresh: bool


@dataclass(frozen=True)
class Outcome:
    """The winner with its time in the final (microseconds)."""

    winner: Finalist
    median_us: float
    ci_us: tuple[float, float]
    max_error: float | None
    comparison: Comparison


def run_final(
    plan: Plan,
    executor: Executor,
    recorder: Recorder,
    observer: Observer,
    finalists: Sequence[Finalist],
    session: str,
    finished_at: str,
) -> Outcome | None:
    """Compare the finalists and record the final; None when nobody got through it.

    A participant that fails falls out; when a crash takes the whole final down, it is run again
    with each half, so that one bad build does not decide for the others.
    """
    comparison, present = _surviving(plan, executor, finalists)
    if comparison is None or comparison.reference is None:
        return None
    for one, standing in zip(present, comparison.standings, strict=True):
        if standing.outcome.status is not Status.OK:
            observer.warning(
                f"final.{standing.outcome.status.value}",
                f"trial {one.trial.index} fell out of the final: {standing.outcome.message}",
            )
    winner = present[comparison.reference]
    standing = comparison.standings[comparison.reference]
    measurement = standing.outcome.measurement
    if measurement is None:
        return None
    entries = tuple(
        FinalEntry(
            trial=one.id,
            median_us=other.outcome.measurement.median_us,
            ci_us=other.outcome.measurement.ci_us,
            ratio=other.ratio,
            ratio_ci=other.ratio_ci,
        )
        for one, other in zip(present, comparison.standings, strict=True)
        if other.outcome.measurement is not None
        and other.ratio is not None
        and other.ratio_ci is not None
    )
    recorder.final(
        Final(
            session=session,
            workload=plan.workload.key,
            winner=winner.id,
            entries=entries,
            protocol=comparison.protocol,
            finished_at=finished_at,
            conditions={**comparison.conditions, "decided": comparison.decided},
        )
    )
    verification = standing.outcome.verification
    return Outcome(
        winner,
        measurement.median_us,
        measurement.ci_us,
        None if verification is None else verification.max_error,
        comparison,
    )


def run_baseline(
    plan: Plan, executor: Executor, winner: Finalist
) -> tuple[BaselineResult | None, str]:
    """The baseline in interleaved pairs with the winner, or why there is none."""
    if not plan.request.baseline:
        return None, "not asked for"
    baseline = plan.problem.baseline()
    if baseline is None:
        return None, f"target {plan.target.name} has no baseline for this workload"
    comparison = executor.benchmark(_job(plan, winner, 2), [baseline])
    standing = comparison.standings[1]
    measurement = standing.outcome.measurement
    if measurement is None or standing.ratio is None:
        outcome = standing.outcome
        return None, f"{baseline.name}: {outcome.status.value}: {outcome.message}"
    ours = comparison.standings[0].outcome.measurement
    return (
        BaselineResult(
            baseline.name,
            measurement.median_us,
            standing.ratio,
            standing.ratio_ci or (standing.ratio, standing.ratio),
            winner_us=measurement.median_us if ours is None else ours.median_us,
        ),
        "",
    )


def _surviving(
    plan: Plan, executor: Executor, finalists: Sequence[Finalist]
) -> tuple[Comparison | None, Sequence[Finalist]]:
    """A comparison that has a winner, over as many finalists as allow one."""
    if not finalists:
        return None, finalists
    jobs = [_job(plan, one, len(finalists)) for one in finalists]
    comparison = executor.final(jobs)
    if comparison.reference is not None or len(finalists) == 1:
        return comparison, finalists
    middle = (len(finalists) + 1) // 2
    kept: list[Finalist] = []
    for half in (finalists[:middle], finalists[middle:]):
        found, present = _surviving(plan, executor, half)
        if found is not None and found.reference is not None:
            kept.append(present[found.reference])
    if not kept:
        return None, finalists
    return executor.final([_job(plan, one, len(kept)) for one in kept]), kept


def _job(plan: Plan, one: Finalist, count: int) -> MeasureJob:
    build = one.trial.build
    if build is None:
        raise ValueError(f"finalist {one.id} has no build")
    limits = plan.request.limits
    return measure_job(
        plan.problem,
        one.point,
        one.path,
        one.launch,
        protocol=plan.request.protocol,
        limits=replace(limits, deadline_s=limits.deadline_s * (1.0 + DEADLINE_EACH * count)),
        sha256=build.artifact,
        seed=plan.request.seed,
        verification_seed=plan.request.seed + 1,
    )
