"""``tfsearch lookup``."""

from __future__ import annotations

import contextlib
from typing import Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output, table
from tfsearch.core.errors import NotRecordedError, RequestError


@click.command(epilog=shared.WORKLOAD_HELP)
@shared.optional_workload
@shared.kernel_options
@shared.target_options
@shared.build_options
@click.option(
    "--allow",
    multiple=True,
    metavar="STEP",
    help="Also serve from a bucket (a recorded range) or model (built now); repeatable.",
)
@shared.db_option
@shared.json_option
@click.pass_obj
def lookup(output: Output, op: str | None, pairs: tuple[str, ...], **options: Any) -> int:
    """Print the recorded kernel that serves a workload here, and what served it.

    Exact unless --allow says more; exit code 4 and the nearest records otherwise. With --space
    FILE the kernel is your own: tfsearch lookup kernel.c --space kernel.toml
    """
    from tfsearch.runtime.serving import check_allow, resolve

    allow = check_allow(options["allow"])
    workload, flags = shared.asked(op, pairs, options)
    if allow and options["space_file"] is not None:
        raise RequestError("lookup.allow", "a user's own kernel is served exactly; drop --allow")
    question = shared.question_about(workload, options["target"], options, flags)
    places = shared.settings_of(options["db"])
    place = resolve(question, places)
    try:
        record, served_by = _served(place, allow)
    except NotRecordedError as error:
        _miss(output, question, error)
        raise
    best = best_json(place, record, "measured" if record.trial is None else "database")
    document = {
        "workload": workload_json(question.workload.record),
        "target": place.target.name,
        "best": best,
        "served_by": served_by,
    }
    output.emit(document, _lines(document, record))
    return 0


def _served(place: Any, allow: tuple[str, ...]) -> tuple[Any, str]:
    """The record that serves, its executable at hand, and the step that found it."""
    from tfsearch.runtime.serving import exact, executable, opened, record_of

    try:
        with opened(place.settings) as store:
            found = exact(place, store)
        executable(place, found)
        return record_of(place.question.workload, found), "exact"
    except NotRecordedError:
        if not allow:
            raise
    from tfsearch.runtime.serve import serve

    kernel: Any = serve(place.question, place.settings, allow=allow)
    return kernel.record, kernel.served_by.value


def _miss(output: Output, question: Any, error: NotRecordedError) -> None:
    nearest = [item.to_json() for item in getattr(error, "nearest", ())]
    document = {
        "workload": workload_json(question.workload.record),
        "best": None,
        "served_by": None,
        "nearest": nearest,
        "error": {"code": error.code, "message": error.message, "exit_code": error.exit_code},
    }
    if output.as_json:
        output.emit(document, ())


def workload_json(workload: Any) -> dict[str, Any]:
    """A workload as commands print it."""
    return {
        "key": workload.key,
        "op": workload.op,
        "dims": dict(workload.dims),
        "dtype": workload.dtype,
    }


def best_json(place: Any, record: Any, source: str) -> dict[str, Any]:
    """``best`` of a served kernel; ``tflops`` and ``roofline_fraction`` are null where unknown."""
    from tfsearch.cost.rates import rates_of

    median = record.median_us
    lowest = _known_bound_us(place, record.schedule)
    rates = rates_of(place.question.workload.flops, median, lowest)
    return {
        "schedule": record.schedule.to_json(),
        "median_us": median,
        "ci_us": None if record.ci_us is None else list(record.ci_us),
        "tflops": rates.tflops,
        "roofline_fraction": rates.roofline_fraction,
        "verified": True,
        "max_error": record.max_error,
        "source": source,
        "trial": record.trial,
        "build": dict(record.build),
    }


def _known_bound_us(place: Any, schedule: Any) -> float:
    """The bound of one schedule; kept, because binding a problem costs more than a lookup."""
    from tfsearch.core import keys

    fields = {
        "schedule": schedule.key,
        "generator": place.target.generator_digest(),
        "device": place.device.record.key,
        "protocol": place.question.protocol,
    }
    path = place.settings.cache / "bounds" / keys.digest("bound", fields)[:32]
    try:
        return float(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        from tfsearch.plugin.jobs import bound_us
        from tfsearch.space import Point

        point = Point(schedule.recipe, dict(schedule.params))
        found = bound_us(place.problem(), point, place.question.protocol)
    with contextlib.suppress(OSError):  # a cache: a read-only or full disk only costs time
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.write_text(repr(found), encoding="ascii")
    return found


def _lines(document: dict[str, Any], record: Any) -> list[str]:
    from tfsearch.cli.tune import time_text

    return [
        f"workload   {record.workload.label}",
        f"target     {document['target']}",
        f"served by  {document['served_by']}",
        f"best       {time_text(record.median_us, record.ci_us)}",
        f"schedule   {record.schedule.recipe}",
        *table(((n, str(v)) for n, v in sorted(record.schedule.params.items())), "           "),
    ]
