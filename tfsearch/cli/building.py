"""Building and timing for commands that look at one kernel."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tfsearch.cli import options as shared
from tfsearch.cli.output import microseconds
from tfsearch.core.errors import UnavailableError

if TYPE_CHECKING:
    from tfsearch.cli.bound import Bound
    from tfsearch.measure.job import MeasureOutcome
    from tfsearch.runtime.serving import Place
    from tfsearch.space import Point


def place_of(bound: Bound, options: Mapping[str, Any]) -> Place:
    """Where to build: ``UnavailableError`` without the device or a compiler."""
    from tfsearch.runtime.serving import resolve

    question = shared.question_about(bound.workload, bound.target.name, options)
    place = resolve(question, shared.settings_of(options["db"]))
    if place.compiler is None:
        raise UnavailableError("toolchain.missing", place.no_compiler)
    return place


def measured(bound: Bound, point: Point, options: Mapping[str, Any]) -> MeasureOutcome:
    """Verify and time one point in the measuring process."""
    from tfsearch.measure.job import Limits, MeasureOutcome
    from tfsearch.measure.worker import Measurer
    from tfsearch.plugin.jobs import measure_job
    from tfsearch.runtime.serving import BuildFailed, build

    place = place_of(bound, options)
    assert place.compiler is not None
    source = bound.problem.emit(bound.problem.lower(point), point)
    try:
        path = build(place, place.compiler, source)
    except BuildFailed as failed:
        return MeasureOutcome(failed.status, "compile", "compile", failed.first_line)
    protocol = options["protocol"]
    job = measure_job(bound.problem, point, path, source.launch, protocol=protocol, limits=Limits())
    locks = place.settings.home / "locks"
    with Measurer(place.target.runner, place.device.selector, lock_folder=locks) as measurer:
        return measurer.submit(job)


def outcome_json(bound: Bound, point: Point, outcome: MeasureOutcome) -> dict[str, Any]:
    """An outcome as commands print it, beside the prediction."""
    from tfsearch.search.scan import predict_points

    estimates, bounds = predict_points(bound, [point])
    found, proof = outcome.measurement, outcome.verification
    return {
        "status": outcome.status.value,
        "code": outcome.code,
        "where": outcome.where,
        "message": outcome.message,
        "median_us": None if found is None else found.median_us,
        "ci_us": None if found is None else list(found.ci_us),
        "samples": 0 if found is None else len(found.samples_us),
        "censored": None if found is None else found.censored,
        "verified": None if proof is None else proof.passed,
        "max_error": None if proof is None else proof.max_error,
        "predicted_us": float(estimates[0]),
        "bound_us": float(bounds[0]),
        "conditions": {} if found is None else dict(found.conditions),
    }


def outcome_lines(document: Mapping[str, Any]) -> list[str]:
    """An outcome for people."""
    lines = [f"status     {document['status']}"]
    if document["median_us"] is not None:
        lines.append(
            f"median     {microseconds(document['median_us'])} ({document['samples']} samples)"
        )
    lines.append(f"predicted  {microseconds(document['predicted_us'])}")
    if document["message"]:
        lines.append(f"message    {document['message']}")
    return lines
