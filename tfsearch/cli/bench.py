"""``tfsearch bench``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output, microseconds
from tfsearch.core.errors import NoCandidateError


@click.command(epilog=shared.WORKLOAD_HELP)
@shared.workload_arguments
@shared.target_options
@shared.build_options
@click.option("--seed", type=int, default=0, metavar="N", help="Seed of inputs and of the order.")
@shared.db_option
@shared.json_option
@click.pass_obj
def bench(output: Output, op: str, pairs: tuple[str, ...], seed: int, **options: Any) -> int:
    """Compare the recorded best of a workload with the target's baseline.

    Both are verified and then timed in interleaved rounds in one process. The speedup is the
    median of time(baseline) / time(best) over rounds, with its 95 % interval.
    """
    from tfsearch.cli.lookup import best_json, workload_json
    from tfsearch.runtime.serving import exact, executable, opened, record_of, resolve

    question = shared.question_of(op, pairs, options)
    place = resolve(question, shared.settings_of(options["db"]))
    with opened(place.settings) as store:
        found = exact(place, store)
    record = record_of(question.workload, found)
    comparison, baseline = _compare(place, found, executable(place, found), seed)
    own = comparison.standings[0].outcome
    document = {
        "workload": workload_json(question.workload.record),
        "target": place.target.name,
        "device": place.device.record.name,
        "best": best_json(place, record, "database"),
        "measured": _standing_json(comparison.standings[0]),
        "baseline": None if baseline is None else _baseline_json(comparison.standings[1]),
        "baseline_note": "" if baseline else f"{place.target.name} has no baseline for this",
        "decided": comparison.decided,
        "conditions": dict(comparison.conditions),
    }
    if own.measurement is None:
        error = NoCandidateError(
            own.code or "bench.failed",
            f"the recorded best ended as {own.status.value} here: {own.message}",
        )
        output.fail(document, _lines(document), error)
    output.emit(document, _lines(document))
    return 0


def _compare(place: Any, found: Any, path: Any, seed: int) -> tuple[Any, Any]:
    from tfsearch.measure.job import Limits
    from tfsearch.measure.worker import Measurer
    from tfsearch.plugin.jobs import measure_job
    from tfsearch.space import Point

    problem = place.problem()
    schedule = found.stored.trial.schedule
    point = Point(schedule.recipe, dict(schedule.params))
    job = measure_job(
        problem,
        point,
        path,
        found.launch,
        protocol=place.question.protocol,
        limits=Limits(deadline_s=120.0, budget_s=20.0),
        seed=seed,
    )
    baseline = problem.baseline()
    locks = place.settings.home / "locks"
    with Measurer(place.target.runner, place.device.selector, lock_folder=locks) as measurer:
        return measurer.benchmark(job, [] if baseline is None else [baseline]), baseline


def _standing_json(standing: Any) -> dict[str, Any]:
    found = standing.outcome.measurement
    return {
        "status": standing.outcome.status.value,
        "message": standing.outcome.message,
        "median_us": None if found is None else found.median_us,
        "ci_us": None if found is None else list(found.ci_us),
        "samples": 0 if found is None else len(found.samples_us),
    }


def _baseline_json(standing: Any) -> dict[str, Any]:
    return {
        "name": standing.name,
        **_standing_json(standing),
        "speedup": standing.ratio,
        "speedup_ci": None if standing.ratio_ci is None else list(standing.ratio_ci),
    }


def _lines(document: Mapping[str, Any]) -> list[str]:
    own, base = document["measured"], document["baseline"]
    lines = [f"best       {microseconds(own['median_us'])} ({own['samples']} samples)"]
    if base is None:
        return [*lines, f"baseline   none: {document['baseline_note']}"]
    if base["median_us"] is None:
        return [*lines, f"baseline   {base['name']} {base['status']}: {base['message']}"]
    low, high = base["speedup_ci"]
    return [
        *lines,
        f"baseline   {base['name']} {microseconds(base['median_us'])}",
        f"speedup    {base['speedup']:.3f} (95 % interval {low:.3f} to {high:.3f})",
    ]
