"""Whole databases, or what belongs to a workload or a session, from one place to another."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

from sqlalchemy import Connection

from tfsearch.core.errors import InternalError, RequestError
from tfsearch.db.exchange import adding, file, reading
from tfsearch.db.exchange.items import Counts, Item, Selection
from tfsearch.db.store import Store

EVERYTHING = Selection()


@dataclass(frozen=True)
class Exported:
    """How many records were written; ``left_out`` names those that were altered in the database."""

    records: int
    left_out: tuple[str, ...]


def export_records(
    store: Store, stream: IO[bytes], selection: Selection = EVERYTHING, *, packed: bool = False
) -> Exported:
    """Write the records of one moment to a stream that can be rewound; ``packed``: by gzip.

    ``NotRecordedError`` when the selected workload or session is not there.
    """

    def work(connection: Connection) -> Exported:
        if stream.tell():  # an earlier try; a device has no place to go back to
            stream.seek(0)
            stream.truncate()
        left_out: list[str] = []
        items = reading.records(connection, selection, left_out)
        if not packed:
            count = file.write(stream, items, selection)
        else:
            # No time and no name in it: equal records give equal bytes.
            with gzip.GzipFile(filename="", mode="wb", fileobj=stream, mtime=0) as target:
                count = file.write(cast("IO[bytes]", target), items, selection)
        return Exported(count, tuple(left_out))

    return store.database.read(work)


def check_files(paths: Sequence[Path | str]) -> None:
    """Read files to their ends; ``RequestError`` for the first that is not whole and sound."""
    for path in paths:
        for _ in file.read(path):
            pass


def import_file(store: Store, path: Path | str, *, own: bool = False) -> Counts:
    """Add the records of a file: all of it in one transaction, or nothing.

    ``own``: see :func:`tfsearch.db.exchange.adding.add`. ``RequestError``: ``db.import-*``.
    """
    return _added(store, str(path), lambda: file.read(path), own)


def merge(
    store: Store, source: Store, selection: Selection = EVERYTHING, *, own: bool = False
) -> tuple[Counts, tuple[str, ...]]:
    """Add the records of another database, in one transaction.

    Returns what became of them, and what was altered in the other one and left out.
    """

    def work(connection: Connection) -> tuple[Counts, tuple[str, ...]]:
        left_out: list[str] = []

        def items() -> Iterator[Item]:
            left_out.clear()  # the transaction may run again
            return reading.records(connection, selection, left_out)

        counts = _added(store, source.url, items, own)
        return counts, tuple(left_out)

    return source.database.read(work)


def _added(store: Store, name: str, items: Callable[[], Iterable[Item]], own: bool) -> Counts:
    def work(connection: Connection) -> Counts:
        return adding.add(connection, items(), own=own)

    try:
        return store.database.write(work)
    except InternalError as error:
        # What no driver of this program records came from outside: it is the file that is wrong.
        raise RequestError(
            "db.import-refused", f"{name}: {error.message}; nothing of it was imported"
        ) from error
