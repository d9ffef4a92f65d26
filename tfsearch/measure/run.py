"""Measure one build: load, verify, time, check again."""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfsearch.core import keys
from tfsearch.core.records import Measurement, Status
from tfsearch.measure.audit import require_honest
from tfsearch.measure.bench import (
    Bench,
    Contestant,
    Context,
    Fault,
    Group,
    Report,
    Watch,
    no_report,
    phase,
)
from tfsearch.measure.job import MeasureJob, MeasureOutcome, protocol
from tfsearch.measure.machine import shared, usage
from tfsearch.measure.protocols import Loaded, Runner, device_conditions
from tfsearch.measure.statistics import (
    Interval,
    Split,
    StoppingRule,
    Verdict,
    drift,
    median_interval,
    split_modes,
)

EARLY_CHECKS = 2
"""Outputs are checked after this many groups and after the last one.

Contents come from a small pool, so the last group's may be those that a kernel has kept results
of; the first groups' differ from the bound ones and from one another.
"""
GRACE = 4.0
"""A measurement may take this many times its budget while it has no interval yet: too few samples
of a slow kernel, or none in the fast mode."""


def measure(
    job: MeasureJob,
    runner: Runner,
    context: Context | None = None,
    report: Report = no_report,
) -> MeasureOutcome:
    """Load, verify and time one build on the device that ``runner`` owns.

    A candidate's fault becomes the outcome's status; errors that are not the candidate's (an
    unknown oracle, a broken invariant) are raised. ``report`` is told the name of each phase.
    """
    context = context or Context(runner)
    start = time.monotonic()
    contestant: Contestant | None = None
    try:
        contestant = prepare(job, runner, context, report)
        measurement = _measure(job, runner, contestant, context, report)
    except Fault as fault:
        verification = fault.verification
        if verification is None and contestant is not None:
            verification = contestant.verdict.verification
        return MeasureOutcome(
            fault.status,
            fault.code,
            fault.where,
            str(fault),
            verification,
            None,
            time.monotonic() - start,
        )
    return MeasureOutcome(
        Status.OK,
        verification=contestant.verdict.verification,
        measurement=measurement,
        seconds=time.monotonic() - start,
    )


def prepare(
    job: MeasureJob, runner: Runner, context: Context, report: Report, name: str = ""
) -> Contestant:
    """Load and verify; a :class:`Fault` with the failed verification when it is not right."""
    with phase("load", report):
        loaded = load(job, runner)
    return verified(loaded, job, context, report, name)


def verified(
    loaded: Loaded, job: MeasureJob, context: Context, report: Report, name: str = ""
) -> Contestant:
    """Verify a loaded kernel; a :class:`Fault` when it is not right."""
    with phase("verify", report):
        verifier = context.verifier(job)
        verifier.report = report
        verdict = verifier.verify(loaded, job.verification_seed)
        if verdict.status is not Status.OK:
            raise Fault(
                verdict.status,
                verdict.code,
                verdict.verification.message,
                verification=verdict.verification,
            )
    return Contestant(name, loaded, verifier, verdict, job.lower_bound_us)


def load(job: MeasureJob, runner: Runner) -> Loaded:
    """Load an artifact whose content has the hash that the job names.

    Raises ``OSError`` when the file is missing, is another one, or the loader refuses it.
    """
    path = Path(job.artifact)
    found = keys.digest_bytes(path.read_bytes())
    if found != job.sha256:
        raise OSError(
            f"artifact {path.name} has SHA-256 {found[:16]}…, not {job.sha256[:16]}…: not loaded"
        )
    return runner.load(path, job.launch)


def _measure(
    job: MeasureJob, runner: Runner, contestant: Contestant, context: Context, report: Report
) -> Measurement:
    watch = Watch(runner, job.probes, job.probe_reference, context.fastest)
    bench = Bench(
        runner,
        [contestant],
        protocol(job.protocol),
        job.limits,
        watch,
        seed=job.seed,
        verification_seed=job.verification_seed,
    )
    with phase("bind", report):
        bench.bind()
    with phase("time", report):
        before, then = device_conditions(runner), usage()
        deadline = time.monotonic() + job.limits.budget_s
        bench.calibrate()
        groups, stopped = _take_groups(job, bench, watch, deadline, report)
        around = shared(then, usage())
        device = device_record(before, device_conditions(runner))
    require_right(bench, 0, report)
    measurement = _measurement(job, bench, watch, groups, stopped, {**device, **around})
    with phase("time", report):
        require_plausible(measurement.median_us, job.lower_bound_us)
    audit = require_honest(bench, 0, measurement.median_us, report)
    if audit["audited"]:
        require_right(bench, 0, report)
    return dataclasses.replace(measurement, conditions={**measurement.conditions, "audit": audit})


def require_right(bench: Bench, index: int, report: Report) -> None:
    """A :class:`Fault` when the outputs of the last group are not those of its inputs."""
    contestant = bench.contestants[index]
    with phase("check", report):
        finding = bench.check(index)
        if finding.message:
            before = contestant.verdict.verification
            failed = dataclasses.replace(
                before,
                passed=False,
                max_error=max(finding.max_error, before.max_error),
                message=finding.message,
            )
            raise Fault(Status.WRONG, finding.code, finding.message, verification=failed)


def require_plausible(median_us: float, lower_bound_us: float) -> None:
    """A :class:`Fault` for a time that no correct kernel can reach."""
    if median_us < lower_bound_us:
        raise Fault(
            Status.IMPLAUSIBLE,
            "measure.implausible",
            f"median {median_us:.4g} us is below the sound lower bound of {lower_bound_us:.4g} us",
        )


def _take_groups(
    job: MeasureJob, bench: Bench, watch: Watch, deadline: float, report: Report
) -> tuple[list[Group], str]:
    rule = StoppingRule(
        share=job.limits.share,
        most=job.limits.most,
        incumbent=job.incumbent_us,
        lost_ratio=job.limits.lost_ratio,
    )
    groups: list[Group] = []
    grace = job.limits.budget_s * (GRACE - 1)
    while True:
        groups.append(bench.group([0]))
        if bench.groups <= EARLY_CHECKS:
            require_right(bench, 0, report)
        samples, split = split_samples(groups, 0, watch.fastest)
        verdict = rule.judge(samples[split.kept])
        if verdict is not Verdict.CONTINUE:
            return groups, verdict.value
        now = time.monotonic()
        enough = not split.slow_only and np.count_nonzero(split.kept) >= StoppingRule.lost_least
        if now >= deadline + (0.0 if enough else grace):
            return groups, "budget"


def split_samples(
    groups: Sequence[Group], column: int, reference: Mapping[str, float]
) -> tuple[np.ndarray[Any, np.dtype[np.float64]], Split]:
    """All samples of a contestant in order, and which of them are from the slow mode."""
    samples = [group.times_us[:, column] for group in groups]
    before = [group.before for group in groups for _ in range(len(group.times_us))]
    after = [group.after for group in groups for _ in range(len(group.times_us))]
    return np.concatenate(samples), split_modes(before, after, reference)


def _measurement(
    job: MeasureJob,
    bench: Bench,
    watch: Watch,
    groups: Sequence[Group],
    stopped: str,
    device: Mapping[str, Any],
) -> Measurement:
    samples, split = split_samples(groups, 0, watch.fastest)
    kept = samples if split.slow_only else samples[split.kept]
    found = median_interval(kept)
    too_few = stopped == "budget" and found.count < StoppingRule.lost_least
    conditions = {
        **machine_conditions(),
        **device,
        **mode_conditions(samples, split),
        "disturbed": disturbed_samples(groups, split, np.ones(len(samples), np.bool_)),
        "probes": watch.conditions(),
        "waits": watch.waits,
        "stopped": stopped,
        "groups": len(groups),
        "batch": bench.contestants[0].batch,
        "sets": bench.set_count,
        "guards": bench.contestants[0].verdict.guarded,
        "reference": bench.content(0).place,
    }
    return Measurement(
        tuple(float(x) for x in kept),
        found.median,
        (found.low, found.high),
        protocol(job.protocol).key,
        censored=stopped == Verdict.LOST.value or too_few,
        conditions=conditions,
    )


def mode_conditions(samples: np.ndarray[Any, np.dtype[np.float64]], split: Split) -> dict[str, Any]:
    """What a measurement says about modes: set-aside samples with their count, and drift.

    ``mode`` is ``slow`` when no sample was taken in the fast mode and the slow ones had to serve.
    """
    kept = samples if split.slow_only else samples[split.kept]
    return {
        "mode": "slow" if split.slow_only else "fast",
        "set_aside": 0 if split.slow_only else split.set_aside,
        "set_aside_us": [] if split.slow_only else [float(x) for x in samples[split.aside]],
        "drift": drift(kept),
    }


def disturbed_samples(
    groups: Sequence[Group], split: Split, present: np.ndarray[Any, np.dtype[np.bool_]]
) -> list[int]:
    """Positions among the kept samples of those whose group was disturbed.

    ``split`` and ``present`` are over all samples; the kept ones are those that are present and not
    of the slow mode, or all that are present where there is no other mode.
    """
    marks = np.array([group.disturbed for group in groups for _ in range(len(group.times_us))])
    kept = present if split.slow_only else present & split.kept
    return [int(i) for i in np.flatnonzero(marks[kept])]


def device_record(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """What the device told before and after timing, as one condition; none where it tells nothing.

    What is the same both times is said once.
    """
    if not before and not after:
        return {}
    same = {name: value for name, value in after.items() if before.get(name) == value}
    return {
        "device": {
            **same,
            "before": {name: value for name, value in before.items() if name not in same},
            "after": {name: value for name, value in after.items() if name not in same},
        }
    }


def machine_conditions() -> dict[str, Any]:
    """Load average over a minute and the clock of the first core in MHz, None if unreadable."""
    return {
        "load": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "frequency_mhz": _frequency_mhz(),
    }


def _frequency_mhz() -> float | None:
    scaling = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
    if scaling.exists():
        return int(scaling.read_text()) / 1000.0
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("cpu MHz"):
                return float(line.partition(":")[2])
    return None


def interval_pair(found: Interval) -> tuple[float, float]:
    """The ends of an interval."""
    return (found.low, found.high)
