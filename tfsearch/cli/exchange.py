"""``tfsearch db export``, ``import`` and ``merge``: records between databases and other tools."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Generator, Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, BinaryIO

import click

from tfsearch.cli import options as shared
from tfsearch.cli.output import Output, note
from tfsearch.cli.stored import by_key, opened
from tfsearch.core.errors import NotRecordedError, NotSavedError, RequestError, TfsearchError

if TYPE_CHECKING:
    from tfsearch.db import Counts, Selection, Store

own_option = click.option(
    "--own",
    is_flag=True,
    help="They are from a database of your own: its proofs and emitted sources count too.",
)


@click.command()
@click.argument("workload", required=False)
@click.option("--session", metavar="ID", help="Only trials of this session.")
@click.option(
    "--format",
    "form",
    type=click.Choice(["jsonl", "t4"]),
    help="t4: T4 results of a workload; jsonl: records for tfsearch db import "
    "[default: t4 where a workload is named, else jsonl].",
)
@click.option(
    "--out",
    metavar="FILE",
    help="Write to a file instead of standard output; jsonl is compressed where it ends in .gz.",
)
@shared.db_option
@shared.json_option
@click.pass_obj
def export(
    output: Output, db: str | None, workload: str | None, form: str | None, **options: Any
) -> int:
    """Write out the trials of a workload (a key or its beginning), or all records."""
    if form is None:
        form = "jsonl" if workload is None else "t4"
    if form == "jsonl":
        return _export_records(output, db, workload, options)
    if workload is None:
        raise click.UsageError("--format t4 is of one workload: name its key")
    return _export_t4(output, db, workload, options)


def _export_t4(output: Output, db: str | None, workload: str, options: Mapping[str, Any]) -> int:
    import json
    from pathlib import Path

    from tfsearch.cli.output import plain
    from tfsearch.db.t4 import t4_results

    with opened(db) as (store, _places):
        key = by_key(store, workload).key
        trials = store.trials(workload=key, session=options["session"])
    document = t4_results(trials)
    if not document["results"]:
        raise NotRecordedError("db.no-trial", f"no trial of workload {key[:12]}… is recorded here")
    text = json.dumps(plain(document), allow_nan=False)
    if options["out"] is None:
        output.emit(document, [text])
        return 0
    try:
        Path(options["out"]).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise NotSavedError(
            "db.export", f"cannot write {options['out']}: {error.strerror or error}"
        ) from error
    count = len(document["results"])
    output.emit(
        {"file": options["out"], "results": count}, [f"{count} results in {options['out']}"]
    )
    return 0


def _export_records(
    output: Output, db: str | None, workload: str | None, options: Mapping[str, Any]
) -> int:
    from tfsearch.db import export_records
    from tfsearch.db.exchange.file import write_to

    place = options["out"]
    if place is None and output.as_json:
        raise click.UsageError("--json with --format jsonl needs --out FILE")
    with opened(db) as (store, _places):
        selection = _selection(store, workload, options["session"])
        if place is None:
            with _temporary() as file:
                done = export_records(store, file, selection)
                _told(done.left_out)
                output.copy(file)
            return 0

        def put(file: BinaryIO) -> Any:
            return export_records(store, file, selection, packed=place.endswith(".gz"))

        done = write_to(place, put)
    _told(done.left_out)
    document = {"file": place, "records": done.records, "left_out": list(done.left_out)}
    output.emit(document, [f"{done.records} records in {place}"])
    return 0


@click.command(name="import")
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@own_option
@shared.db_option
@shared.json_option
@click.pass_obj
def import_records(
    output: Output, db: str | None, files: Sequence[str], own: bool, **_: Any
) -> int:
    """Add the records of files that tfsearch db export wrote; again changes nothing.

    Each file counts as a whole or not at all. What is imported is data: kernels are built here
    before anything of them is loaded.
    """
    from tfsearch.db import check_files, import_file

    check_files(files)
    done: list[tuple[str, Counts]] = []
    with opened(db, write=True, create=True) as (store, _places):
        for name in files:
            try:
                done.append((name, import_file(store, name, own=own)))
            except TfsearchError as error:
                output.fail(*_imported(done), error)
    output.emit(*_imported(done))
    return 0


@click.command()
@click.argument("url")
@click.option("--workload", metavar="KEY", help="Only what belongs to a workload (a key's start).")
@own_option
@shared.db_option
@shared.json_option
@click.pass_obj
def merge(
    output: Output, db: str | None, url: str, workload: str | None, own: bool, **_: Any
) -> int:
    """Add the records of the database at URL to this one; again changes nothing."""
    from tfsearch.db import merge as merged

    with opened(url) as (source, _there):
        selection = _selection(source, workload, None)
        with opened(db, write=True, create=True) as (store, _here):
            if store.url == source.url:
                raise RequestError("db.merge-self", f"{store.url} is this database itself")
            counts, left_out = merged(store, source, selection, own=own)
        name = source.url
    _told(left_out)
    document = {"from": name, **counts.to_json(), "left_out": list(left_out)}
    output.emit(document, [f"{name}: {_line(counts)}"])
    return 0


@contextlib.contextmanager
def _temporary() -> Generator[IO[bytes]]:
    """A file for what is printed when it is whole; a full disk under it is told as such."""
    try:
        with tempfile.TemporaryFile() as file:
            yield file
    except (BrokenPipeError, TfsearchError):
        raise
    except OSError as error:
        raise NotSavedError(
            "db.export", f"{tempfile.gettempdir()} takes no file: {error.strerror or error}"
        ) from error


def _selection(store: Store, workload: str | None, session: str | None) -> Selection:
    from tfsearch.db import Selection

    return Selection(None if workload is None else by_key(store, workload).key, session)


def _imported(done: Sequence[tuple[str, Counts]]) -> tuple[dict[str, Any], list[str]]:
    document = {"files": [{"file": name, **counts.to_json()} for name, counts in done]}
    return document, [f"{name}: {_line(counts)}" for name, counts in done]


def _line(counts: Counts) -> str:
    added = ", ".join(f"{number} {name}" for name, number in counts.added.items() if number)
    known = sum(counts.known.values())
    return f"added {added or 'nothing'}" + (
        f"; {known} records were there already" if known else ""
    )


def _told(left_out: Sequence[str]) -> None:
    if left_out:
        more = f" and {len(left_out) - 3} more" if len(left_out) > 3 else ""
        note(
            f"warning[db.left-out]: altered after they were recorded, and left out: "
            f"{', '.join(left_out[:3])}{more}; tfsearch db verify shows why"
        )
