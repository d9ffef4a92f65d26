"""``tfsearch space``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.lookup import workload_json
from tfsearch.cli.output import Output, table
from tfsearch.core.errors import NoCandidateError, NotRecordedError, UnavailableError


@click.command(epilog=shared.WORKLOAD_HELP)
@shared.workload_arguments
@shared.target_options
@shared.build_options
@shared.fix_option
@shared.db_option
@shared.json_option
@click.pass_obj
def space(output: Output, op: str, pairs: tuple[str, ...], **options: Any) -> int:
    """Count the schedules of a workload, and say why the others are rejected.

    Needs no device. With a recorded best, schedules whose bound says that they cannot beat it
    are counted as pruned.
    """
    from tfsearch.cli.bound import Bound, bind
    from tfsearch.search.scan import scan

    bound: Bound = bind(op, pairs, options)
    counts = bound.space.count()
    pruned = 0
    incumbent = _incumbent_us(bound, options)
    if incumbent is not None and counts.legal:
        pruned = scan(bound, incumbent_us=incumbent).pruned
    reasons = _reasons(bound.space)
    document = {
        "workload": workload_json(bound.workload.record),
        "target": bound.target.name,
        "device": bound.device.record.name,
        "points": counts.points,
        "legal": counts.legal,
        "pruned": pruned,
        "rejected": dict(counts.rejected),
        "reasons": {code: reasons.get(code, "") for code in counts.rejected},
        "recipes": [
            {"name": r.name, "version": r.version, "points": r.points} for r in bound.space.recipes
        ],
        "refusals": [refusal.to_json() for refusal in bound.problem.refusals],
        "incumbent_us": incumbent,
    }
    if counts.legal == 0:
        error = NoCandidateError(
            "space.no-legal", f"none of the {counts.points} schedules of this space is legal"
        )
        output.fail(document, _lines(document), error)
    output.emit(document, _lines(document))
    return 0


def _incumbent_us(bound: Any, options: Mapping[str, Any]) -> float | None:
    """The recorded best of this workload here, microseconds."""
    from tfsearch.runtime.serving import opened, resolve

    question = shared.question_about(bound.workload, bound.target.name, options)
    places = shared.settings_of(options["db"])
    try:
        place = resolve(question, places)
        with opened(places) as store:
            stored = store.best(place.query())
    except (NotRecordedError, UnavailableError):
        return None  # no device here, or nothing recorded yet: there is no incumbent
    if stored is None or stored.trial.measurement is None:
        return None
    return stored.trial.measurement.median_us


def _reasons(space: Any) -> dict[str, str]:
    return {c.code: c.reason for recipe in space.recipes for c in recipe.constraints}


def _lines(document: Mapping[str, Any]) -> list[str]:
    rejected, reasons = document["rejected"], document["reasons"]
    lines = [
        f"points     {document['points']}",
        f"legal      {document['legal']}",
        f"pruned     {document['pruned']}",
        f"rejected   {sum(rejected.values())}",
    ]
    lines += table(
        (
            (str(count), code, _plain(reasons[code]))
            for code, count in sorted(rejected.items(), key=lambda item: -item[1])
        ),
        "           ",
    )
    lines += [f"refused    {r['where']}: {r['message']}" for r in document["refusals"]]
    return lines


def _plain(reason: str) -> str:
    """A reason without one point's numbers: its parameters by name."""
    return reason.replace("{", "").replace("}", "")
