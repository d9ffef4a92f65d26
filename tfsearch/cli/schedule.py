"""``tfsearch schedule``: single schedules, ranked, checked, explained, measured, finalized."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tfsearch.cli import options as shared
from tfsearch.cli.lookup import workload_json
from tfsearch.cli.output import Output, microseconds, table
from tfsearch.core.errors import NoCandidateError, RequestError

if TYPE_CHECKING:
    from tfsearch.cli.bound import Bound
    from tfsearch.core.records import Refusal, ScheduleRecord
    from tfsearch.space import Point

F = TypeVar("F", bound=Callable[..., Any])


@click.group(no_args_is_help=False)
def schedule() -> None:
    """Rank, check, explain, measure and finalize single schedules.

    WORDS are a workload (gemm m=512 …), a schedule (a *.json file, JSON text, or - for
    standard input), or both. A schedule alone is enough for workloads in the database and for
    those that `schedule candidates` was asked for. Without a schedule the best-ranked one is
    taken; parameters that a schedule leaves out are searched by rank.
    """


def _common(function: F) -> F:
    words = click.argument("words", nargs=-1)
    for decorator in (shared.json_option, shared.db_option, shared.fix_option):
        function = decorator(function)
    return words(shared.target_options(function))


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@click.option("--top", type=click.IntRange(1, 100_000), default=10, help="How many to print.")
@click.pass_obj
def candidates(output: Output, words: tuple[str, ...], top: int, **options: Any) -> int:
    """The best-ranked schedules of a workload, with predicted times."""
    from tfsearch.cli.bound import remember

    bound, _, _ = _bound(words, options)
    remember(shared.settings_of(options["db"]), bound.workload)
    ranked = bound.best_ranked(top)
    items = [
        {
            "rank": rank,
            "schedule": bound.record(point).to_json(),
            "predicted_us": estimate,
            "bound_us": lowest,
        }
        for rank, (point, estimate, lowest) in enumerate(ranked, start=1)
    ]
    document = {**_head(bound), "candidates": items}
    rows = [
        (f"{rank}", microseconds(estimate), point.recipe_name, _params(point))
        for rank, (point, estimate, _) in enumerate(ranked, start=1)
    ]
    output.emit(document, table([("rank", "predicted", "recipe", "parameters"), *rows]))
    return 0


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@click.pass_obj
def facts(output: Output, words: tuple[str, ...], **options: Any) -> int:
    """The integer facts that a schedule's prediction rests on."""
    bound, record, _ = _bound(words, options)
    point = _chosen(bound, record)
    values = facts_json(bound, point)
    document = {**_head(bound), "schedule": bound.record(point).to_json(), "facts": values}
    output.emit(document, table((name, str(value)) for name, value in values.items()))
    return 0


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@click.option("--prove", is_flag=True, help="Also interpret the schedule's shape at small sizes.")
@click.pass_obj
def check(output: Output, words: tuple[str, ...], prove: bool, **options: Any) -> int:
    """Whether a schedule is legal, and every reason why not; exit code 3 when it is not."""
    from tfsearch.cli.bound import split

    if split(words)[2] is None:
        raise RequestError(
            "request.argument",
            "check needs a schedule: a *.json file, JSON text, or - for standard input; "
            "`tfsearch schedule candidates` prints some",
        )
    bound, record, _ = _bound(words, options)
    assert record is not None
    found = refusals_of(bound, record, prove=prove)
    missing = _open_parameters(bound, record)
    document = {
        **_head(bound),
        "schedule": record.to_json(),
        "legal": not found,
        "open": missing,
        "refusals": [refusal.to_json() for refusal in found],
    }
    lines = [f"{r.code}  {r.where}: {r.message}" for r in found] or ["legal"]
    if missing and not found:
        lines = [f"legal; to be searched: {', '.join(missing)}"]
    if found:
        error = NoCandidateError(found[0].code, f"{found[0].where}: {found[0].message}")
        output.fail(document, lines, error)
    output.emit(document, lines)
    return 0


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@click.pass_obj
def explain(output: Output, words: tuple[str, ...], **options: Any) -> int:
    """The lowered program, what it does, and where its predicted time goes."""
    from tfsearch.cli import explaining

    bound, record, _ = _bound(words, options)
    point = _chosen(bound, record)
    document = {**_head(bound), "schedule": bound.record(point).to_json()}
    document |= explaining.explain(bound, point)
    output.emit(document, explaining.lines(document))
    return 0


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@shared.build_options
@click.pass_obj
def measure(output: Output, words: tuple[str, ...], **options: Any) -> int:
    """Build, verify and time one schedule; nothing is recorded."""
    from tfsearch.cli import building

    bound, record, _ = _bound(words, options)
    point = _chosen(bound, record)
    outcome = building.measured(bound, point, options)
    document = {**_head(bound), "schedule": bound.record(point).to_json()}
    document |= building.outcome_json(bound, point, outcome)
    lines = building.outcome_lines(document)
    if outcome.measurement is None:
        error = NoCandidateError(
            outcome.code or f"measure.{outcome.status.value}",
            f"the schedule ended as {outcome.status.value}: {outcome.message}",
        )
        output.fail(document, lines, error)
    output.emit(document, lines)
    return 0


@schedule.command(epilog=shared.WORKLOAD_HELP)
@_common
@click.option(
    "--trace", "folder", metavar="DIR", help="Write the program after every lowering stage there."
)
@click.pass_obj
def finalize(output: Output, words: tuple[str, ...], folder: str | None, **options: Any) -> int:
    """The finished kernel of a schedule: TIR, source, launch, resources. Needs no device."""
    from tfsearch.cli import explaining

    bound, record, _ = _bound(words, options)
    point = _chosen(bound, record)
    finished = explaining.finalize(bound, point, folder)
    document = {**_head(bound), "schedule": bound.record(point).to_json(), **finished}
    output.emit(
        document,
        [
            f"// schedule {bound.record(point).key}",
            document["tir"].rstrip(),
            f"// source ({document['language']})",
            document["source"].rstrip(),
            "// launch",
            *table(explaining.launch_rows(document["launch"])),
            "// resources",
            *table((n, str(v)) for n, v in document["resources"].items()),
        ],
    )
    return 0


def _bound(
    words: Sequence[str], options: Mapping[str, Any]
) -> tuple[Bound, ScheduleRecord | None, Mapping[str, Any]]:
    """The bound workload and the schedule, if one is given."""
    from tfsearch.cli.bound import bind_workload, read_schedule, split, workload_for

    op, pairs, text = split(words)
    record = None if text is None else read_schedule(text)
    workload = workload_for(op, pairs, record, options.get("db"))
    named = dict(options)
    if record is not None and not named.get("target"):
        named["target"] = record.target
    bound = bind_workload(workload, named)
    if record is not None:
        _require_same(bound, record)
    return bound, record, named


def _require_same(bound: Bound, record: ScheduleRecord) -> None:
    """``RequestError`` for a schedule of another target or workload."""
    if record.target != bound.target.name:
        raise RequestError(
            "schedule.target",
            f"the schedule is for target {record.target}, not {bound.target.name}",
        )
    own = bound.workload.key
    if record.workload != own:
        raise RequestError(
            "schedule.workload",
            f"the schedule is for workload {record.workload[:12]}…, not {own[:12]}…",
        )


def _open_parameters(bound: Bound, record: ScheduleRecord) -> list[str]:
    """Parameters that the schedule leaves to the search."""
    for recipe in bound.space.recipes:
        if recipe.name == record.recipe:
            return [name for name in recipe.by_name if name not in record.params]
    return []


def refusals_of(
    bound: Bound, record: ScheduleRecord, *, prove: bool = False
) -> tuple[Refusal, ...]:
    """Everything that makes a schedule illegal; parameters it leaves out may take any value."""
    from tfsearch.cli.explaining import prove_shape, verify_point
    from tfsearch.core.records import Refusal
    from tfsearch.space import Point

    names = [recipe.name for recipe in bound.space.recipes]
    if record.recipe not in names:
        return bound.space.check(Point(record.recipe, dict(record.params)))
    recipe = bound.space.recipe(record.recipe)
    if recipe.version != record.recipe_version:
        text = (
            f"version {record.recipe_version} of recipe {recipe.name} is not the one of this "
            f"release, {recipe.version}"
        )
        return (Refusal("schedule.recipe-version", "recipe_version", text),)
    missing = _open_parameters(bound, record)
    point = Point(record.recipe, dict(record.params))
    if missing:
        found = tuple(
            r for r in recipe.domain_refusals(point.params) if r.code != "space.missing-parameter"
        )
        if found:
            return found
        part = bound.space.only(record.recipe).fix(point.params)
        counts = part.count()
        if counts.legal == 0:
            return tuple(
                Refusal(code, "params", f"refuses all {count} ways to complete the schedule")
                for code, count in counts.rejected.items()
            )
        point = bound.with_space(part).best_ranked()[0][0]
    found = bound.space.check(point) or verify_point(bound, point)
    return found or (prove_shape(bound, point) if prove else ())


def _chosen(bound: Bound, record: ScheduleRecord | None) -> Point:
    """The schedule's point, or the best-ranked completion; refused ones are exit code 3."""
    from tfsearch.space import Point

    if record is None:
        return bound.best_ranked()[0][0]
    refused = refusals_of(bound, record)
    if refused:
        raise NoCandidateError(refused[0].code, f"{refused[0].where}: {refused[0].message}")
    if not _open_parameters(bound, record):
        return Point(record.recipe, dict(record.params))
    part = bound.space.only(record.recipe).fix(record.params)
    return bound.with_space(part).best_ranked()[0][0]


def facts_json(bound: Bound, point: Point) -> dict[str, Any]:
    """Facts of one point as plain numbers."""
    from tfsearch.search.scan import points_of

    (_, batch), *_ = points_of(bound.problem.space, [point])
    return {name: column[0].item() for name, column in bound.problem.facts(batch).items()}


def _head(bound: Bound) -> dict[str, Any]:
    return {
        "workload": workload_json(bound.workload.record),
        "target": bound.target.name,
        "device": bound.device.record.name,
    }


def _params(point: Point) -> str:
    return " ".join(f"{name}={value}" for name, value in point.params.items())
