"""``tfsearch space``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.lookup import workload_json
from tfsearch.cli.output import Output, table
from tfsearch.core.errors import NoCandidateError, NotRecordedError, UnavailableError

if TYPE_CHECKING:
    from tfsearch.space import Space

COUNT_S = 10.0
"""How long points are counted before their number is estimated."""


@click.command(epilog=shared.WORKLOAD_HELP)
@shared.optional_workload
@shared.space_option
@click.option(
    "--list",
    "listed",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Print the first N legal points as well [default: none].",
)
@shared.target_options
@shared.build_options
@shared.fix_option
@shared.db_option
@shared.json_option
@click.pass_obj
def space(
    output: Output, op: str | None, pairs: tuple[str, ...], listed: int, **options: Any
) -> int:
    """Count the schedules of a workload, and say why the others are rejected.

    Needs no device. With a recorded best, schedules whose bound says that they cannot beat it
    are counted as pruned. With --space FILE the space is the file's: a T1 definition in JSON, our
    TOML, or T4 results (…T4.json, ….json.gz), whose recorded configurations are the legal ones.
    What cannot be counted in ten seconds is estimated, which is said.
    """
    document = (
        _of_file(op, pairs, options)
        if options["space_file"] is not None
        else _of_workload(op, pairs, options)
    )
    found = document.pop("space")
    if listed:
        document["configurations"] = _first(found, listed)
    if document["legal"] == 0 and not document["estimated"]:
        error = NoCandidateError(
            "space.no-legal", f"none of the {document['points']} schedules of this space is legal"
        )
        output.fail(document, _lines(document), error)
    output.emit(document, _lines(document))
    return 0


def _of_file(op: str | None, pairs: tuple[str, ...], options: Mapping[str, Any]) -> dict[str, Any]:
    """The document of a space file; its kernel is not looked at."""
    from tfsearch.space import Space
    from tfsearch.space.file import is_results, read_space_file
    from tfsearch.tune.request import fixed_space

    _, constants = shared.kernel_words(op, pairs)
    if is_results(options["space_file"]):
        return _of_results(options["space_file"], constants, options)
    file = read_space_file(options["space_file"], constants)
    whole = fixed_space(Space((file.space,)), shared.pairs_of(options["fixes"], "parameter"))
    return {
        "file": str(file.path),
        "constants": dict(file.constants),
        "parameters": {
            p.name: {"kind": p.kind, "values": list(p.seen)} for p in whole.recipes[0].parameters
        },
        **_counted(whole, 0),
        "refusals": [],
        "incumbent_us": None,
    }


def _of_results(
    path: str, constants: Mapping[str, str], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of T4 results."""
    from tfsearch.core.errors import RequestError
    from tfsearch.space.file import read_results
    from tfsearch.tune.request import fixed_space

    if constants:
        raise RequestError(
            "kernel.constant", f"{path} holds results, which have no constants to replace"
        )
    found = read_results(path)
    whole = fixed_space(found.space, shared.pairs_of(options["fixes"], "parameter"))
    return {
        "file": path,
        "constants": {},
        "parameters": {
            p.name: {"kind": p.kind, "values": list(p.seen)} for p in whole.recipes[0].parameters
        },
        **_counted(whole, 0),
        "refusals": [],
        "incumbent_us": None,
    }


def _of_workload(
    op: str | None, pairs: tuple[str, ...], options: Mapping[str, Any]
) -> dict[str, Any]:
    """The document of an op's space on a target."""
    from tfsearch.cli.bound import Bound, bind
    from tfsearch.search.scan import scan

    if op is None:
        raise click.UsageError("Missing argument 'OP', or --space FILE")
    bound: Bound = bind(op, pairs, options)
    pruned = 0
    incumbent = _incumbent_us(bound, options)
    if incumbent is not None and bound.space.count().legal:
        pruned = scan(bound, incumbent_us=incumbent).pruned
    return {
        "workload": workload_json(bound.workload.record),
        "target": bound.target.name,
        "device": bound.device.record.name,
        **_counted(bound.space, pruned),
        "refusals": [refusal.to_json() for refusal in bound.problem.refusals],
        "incumbent_us": incumbent,
    }


def _counted(found: Space, pruned: int) -> dict[str, Any]:
    """Counts, reasons and recipes; ``space`` is for the caller to take out."""
    counts = found.count_within(COUNT_S)
    reasons = _reasons(found)
    return {
        "space": found,
        "points": counts.points,
        "legal": counts.legal,
        "estimated": not counts.exact,
        "error": counts.error if math.isfinite(counts.error) else None,
        "pruned": pruned,
        "rejected": dict(counts.rejected),
        "reasons": {code: reasons.get(code, "") for code in counts.rejected},
        "recipes": [
            {"name": r.name, "version": r.version, "points": r.points} for r in found.recipes
        ],
    }


def _first(found: Space, wanted: int) -> list[dict[str, Any]]:
    """The first legal points, in the order of the space."""
    out: list[dict[str, Any]] = []
    for points in found.chunks(min(wanted, 1 << 14)):
        for row in range(min(len(points), wanted - len(out))):
            out.append({"recipe": points.recipe.name, "params": points.params(row)})
        if len(out) == wanted:
            break
    return out


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


def _reasons(space: Space) -> dict[str, str]:
    """What each constraint asks for; a reason that only repeats the condition is left out."""
    return {
        c.code: c.expression.text if c.reason.startswith(c.expression.text) else c.reason
        for recipe in space.recipes
        for c in recipe.constraints
    }


def _lines(document: Mapping[str, Any]) -> list[str]:
    rejected, reasons = document["rejected"], document["reasons"]
    lines = [
        f"points     {document['points']}",
        f"legal      {_legal(document)}",
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
    rows = document.get("configurations", [])
    several = len({row["recipe"] for row in rows}) > 1
    for row in rows:
        text = " ".join(f"{name}={value}" for name, value in row["params"].items())
        lines.append(f"{row['recipe']} {text}" if several else text)
    return lines


def _legal(document: Mapping[str, Any]) -> str:
    if not document["estimated"]:
        return str(document["legal"])
    if document["error"] is None:
        return f"none found in a sample; not counted, that takes more than {COUNT_S:g} s"
    return (
        f"about {document['legal']:.4g} (estimated, ±{200 * document['error']:.2g} %; "
        f"counting takes more than {COUNT_S:g} s)"
    )


def _plain(reason: str) -> str:
    """A reason without one point's numbers: its parameters by name."""
    return reason.replace("{", "").replace("}", "")
