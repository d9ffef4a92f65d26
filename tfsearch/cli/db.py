"""``tfsearch db``: the database of records and the artifact store beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from tfsearch.cli import options as shared
from tfsearch.cli.exchange import export, import_records, merge
from tfsearch.cli.output import Output, microseconds, table
from tfsearch.cli.records import record_lines
from tfsearch.cli.stored import by_key, opened
from tfsearch.core.errors import NotRecordedError, RequestError

if TYPE_CHECKING:
    from tfsearch.core.records import Trial
    from tfsearch.db import Store, StoredTrial
    from tfsearch.tune.learn import Model


@click.group(no_args_is_help=False)
def db() -> None:
    """Look after the database of records."""


@db.command()
@shared.db_option
@shared.json_option
@click.pass_obj
def stats(output: Output, db: str | None, **_: Any) -> int:
    """Count what the database holds."""
    with opened(db) as (store, _places):
        found = store.stats().to_json()
    rows = [(n, str(v)) for n, v in found.items() if n != "trials_by_status"]
    by_status: Any = found["trials_by_status"]
    rows += [(f"trials {status}", str(count)) for status, count in by_status.items()]
    output.emit(found, table(rows))
    return 0


@db.command(name="list")
@click.option("--what", type=click.Choice(["workloads", "trials", "sessions"]), default="workloads")
@click.option("--op", help="Only workloads of this op.")
@click.option("--workload", metavar="KEY", help="Only trials of this workload (a key's beginning).")
@click.option("--status", help="Only trials with this status.")
@click.option("--limit", type=click.IntRange(1, 1_000_000), default=50, help="How many.")
@click.option("--offset", type=click.IntRange(0), default=0, help="How many to skip.")
@shared.db_option
@shared.json_option
@click.pass_obj
def list_records(output: Output, db: str | None, what: str, **options: Any) -> int:
    """List workloads and sessions (latest first) or trials (in order)."""
    with opened(db) as (store, _):
        if what == "workloads":
            items = _workloads(store, options)
        elif what == "sessions":
            items = _sessions(store, options)
        else:
            items = _trials(store, options)
    columns = list(items[0]) if items else []
    rows = [tuple(columns), *(tuple(_cell(v) for v in item.values()) for item in items)]
    output.emit({what: items}, table(rows) if items else [f"no {what}"])
    return 0


@db.command()
@click.argument("identity")
@shared.db_option
@shared.json_option
@click.pass_obj
def show(output: Output, db: str | None, identity: str, **_: Any) -> int:
    """Show a trial by its number, or a workload by its key (or the key's beginning)."""
    with opened(db) as (store, _places):
        if identity.isascii() and identity.isdigit() and len(identity) < 19:
            stored = store.trial(int(identity))
            if stored is None:
                raise NotRecordedError("db.no-trial", f"there is no trial {identity}")
            document = {"trial": trial_json(stored)}
        else:
            workload = by_key(store, identity)
            final = store.latest_final(workload.key)
            document = {
                "workload": {"key": workload.key, "op": workload.op, "dims": dict(workload.dims),
                             "dtype": workload.dtype, **workload.key_fields()},
                "final": None if final is None else _final_json(final),
            }  # fmt: skip
    output.emit(document, record_lines(document))
    return 0


@db.command()
@shared.db_option
@shared.json_option
@click.pass_obj
def verify(output: Output, db: str | None, **_: Any) -> int:
    """Check the file, every digest, every rule, and the artifacts; exit code 2 if any is wrong."""
    with opened(db) as (store, places):
        problems = store.verify(places.artifacts)
    document = {"ok": not problems, "problems": [p.to_json() for p in problems]}
    if problems:
        error = RequestError(
            "db.problems",
            f"{len(problems)} problems, the first: {problems[0].where}: {problems[0].message}",
        )
        output.fail(document, [f"{p.code}  {p.where}: {p.message}" for p in problems], error)
    output.emit(document, ["ok"])
    return 0


@db.command()
@shared.db_option
@shared.json_option
@click.pass_obj
def upgrade(output: Output, db: str | None, **_: Any) -> int:
    """Bring the schema of an existing database to this release's."""
    from tfsearch.db import upgrade_store

    before, after = upgrade_store(shared.settings_of(db).database_url)
    text = f"schema revision {after}" if before == after else f"schema {before} -> {after}"
    output.emit({"before": before, "after": after}, [text])
    return 0


@db.command()
@click.option("--max-bytes", type=click.IntRange(0), help="Keep the artifacts below this size.")
@click.option("--max-age-days", type=click.FloatRange(0), help="Drop those not used for longer.")
@click.option("--max-files", type=click.IntRange(0), help="Keep at most this many artifacts.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@shared.db_option
@shared.json_option
@click.pass_obj
def gc(output: Output, db: str | None, **options: Any) -> int:
    """Bound the artifact store, least recently used first; records and winners stay."""
    with opened(db) as (store, places):
        report = store.gc(
            places.artifacts,
            max_bytes=options["max_bytes"],
            max_age_days=options["max_age_days"],
            max_files=options["max_files"],
            dry_run=options["dry_run"],
        )
    verb = "would remove" if report.dry_run else "removed"
    text = (
        f"{verb} {len(report.removed)} artifacts ({report.removed_bytes} B); kept {report.kept} "
        f"({report.kept_bytes} B)"
    )
    output.emit(report.to_json(), [text])
    return 0


for one in (export, import_records, merge):
    db.add_command(one)


@db.command()
@click.option("--target", metavar="NAME", help="Target [default: the best one present].")
@click.option("--train", "training", is_flag=True, help="Learn from the records as they are now.")
@shared.db_option
@shared.json_option
@click.pass_obj
def model(output: Output, db: str | None, target: str | None, training: bool, **_: Any) -> int:
    """Show how well learned corrections of the cost model rank, and whether they are used.

    Each recorded workload in turn is ranked by what the others teach. A correction is used by
    tune, for this device and recipe, only where that ranks better than the estimate alone.
    """
    from tfsearch.plugin import registry
    from tfsearch.tune import learn

    chosen = registry.get(target) if target else registry.best_present()
    with opened(db, write=training) as (store, _places):
        if training:
            models = learn.train(store, chosen)
            for one in models:
                store.put_model(one.record)
        else:
            models = learn.recorded(store, chosen)
    if not models:
        why = "no times of it are recorded" if training else "tfsearch db model --train makes them"
        raise NotRecordedError(
            "model.none", f"there is no learned model of target {chosen.name}: {why}"
        )
    output.emit(
        {"target": chosen.name, "models": [one.to_json() for one in models]},
        [line for one in models for line in _model_lines(one)],
    )
    return 0


def _model_lines(one: Model) -> list[str]:
    verdict = one.verdict
    state = "used" if verdict.used else "not used"
    lines = [
        f"{one.fields['recipe']}  {one.fields['protocol'].partition('/')[0]}: {state}",
        f"  {verdict.workloads} workloads, {verdict.trials} trials; {verdict.reason}",
    ]
    if verdict.before is None or verdict.after is None:
        return lines
    rows = [("", "correlation", "within 1.5 x", "recall@4", "best of 4 / best")]
    for name, scores in (("estimate", verdict.before), ("corrected", verdict.after)):
        near = "" if scores.near is None else f"{scores.near:.3f}"
        rows.append(
            (
                name,
                f"{scores.correlation:.3f}",
                near,
                f"{scores.recall:.3f}",
                f"{scores.regret:.4f}",
            )
        )
    return [*lines, *table(rows, indent="  ")]


def _workloads(store: Store, options: dict[str, Any]) -> list[dict[str, Any]]:
    found = store.workloads(op=options["op"], limit=options["limit"], offset=options["offset"])
    return [
        {"key": w.key, "op": w.op, "dims": dict(w.dims), "dtype": w.dtype,
         "accuracy": w.accuracy.value, "alignment": w.alignment}
        for w in found
    ]  # fmt: skip


def _sessions(store: Store, options: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {"id": s.id, "status": s.status.value, "workload": s.fields.workload,
         "target": s.fields.target, "policy": s.fields.policy, "started_at": s.started_at,
         "finished_at": s.finished_at}
        for s in store.sessions(limit=options["limit"], offset=options["offset"])
    ]  # fmt: skip


def _trials(store: Store, options: dict[str, Any]) -> list[dict[str, Any]]:
    from tfsearch.core.records import Status

    status = None
    if options["status"]:
        try:
            status = Status(options["status"])
        except ValueError:
            known = ", ".join(item.value for item in Status)
            raise RequestError(
                "db.status", f"unknown status {options['status']!r}; known: {known}"
            ) from None
    key = None if not options["workload"] else by_key(store, options["workload"]).key
    found = store.trials(
        workload=key, status=status, limit=options["limit"], offset=options["offset"]
    )
    return [
        {"id": s.id, "session": s.trial.session, "index": s.trial.index,
         "workload": s.trial.workload, "recipe": s.trial.schedule.recipe,
         "status": s.trial.status.value, "median_us": _median(s.trial)}
        for s in found
    ]  # fmt: skip


def _median(trial: Trial) -> float | None:
    return None if trial.measurement is None else trial.measurement.median_us


def trial_json(stored: StoredTrial) -> dict[str, Any]:
    """A trial with everything that is known about it."""
    trial = stored.trial
    build, proof, found = trial.build, trial.verification, trial.measurement
    return {
        "id": stored.id,
        **trial.head_json(),
        "key": None if trial.measurement_key is None else trial.measurement_key.key_fields(),
        "artifact": None if build is None else build.artifact,
        "verification": None
        if proof is None
        else {"passed": proof.passed, "max_error": proof.max_error, "passes": dict(proof.passes)},
        "measurement": None
        if found is None
        else {
            "median_us": found.median_us,
            "ci_us": list(found.ci_us),
            "samples_us": list(found.samples_us),
            "censored": found.censored,
            "protocol": found.protocol,
            "conditions": dict(found.conditions),
        },
        "finished_at": trial.finished_at,
    }


def _final_json(stored: Any) -> dict[str, Any]:
    final = stored.final
    return {
        "id": stored.id,
        "session": final.session,
        "winner": final.winner,
        "protocol": final.protocol,
        "finished_at": final.finished_at,
        "entries": [
            {"trial": e.trial, "median_us": e.median_us, "ci_us": list(e.ci_us),
             "ratio": e.ratio, "ratio_ci": list(e.ratio_ci)}
            for e in final.entries
        ],
    }  # fmt: skip


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " ".join(f"{n}={v}" for n, v in value.items())
    if isinstance(value, float):
        return microseconds(value)
    text = "" if value is None else str(value)
    return text[:12] if len(text) == 64 else text
