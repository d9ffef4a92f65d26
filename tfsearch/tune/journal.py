"""What could not be recorded yet, in a file of the user's data folder until it is.

One file a session, ``journal/SESSION.jsonl``: a line that names the database, then what is to be
written, one JSON object a line, each on the disk before the session goes on. Whoever tunes next
with the same database writes it there. Writing it twice changes nothing.
"""

from __future__ import annotations

import dataclasses
import enum
import errno
import fcntl
import json
import os
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TextIO, TypeVar, cast

from tfsearch.core.errors import InternalError
from tfsearch.core.records import Final, Trial, WorkloadRecord
from tfsearch.db import Store
from tfsearch.db.records import ProofRecord, SessionRecord, SessionStatus, SourceRecord

T = TypeVar("T")

SCHEMA = 1
FOLDER = "journal"


@dataclass(frozen=True)
class Beginning:
    """A session and its workload; the first entry of a journal."""

    workload: WorkloadRecord
    session: SessionRecord


@dataclass(frozen=True)
class Ending:
    """A session's state at its end."""

    session: str
    status: SessionStatus
    finished_at: str


Entry = Beginning | Trial | Final | SourceRecord | ProofRecord | Ending
_KINDS: Mapping[str, type[Any]] = {
    one.__name__: one for one in (Beginning, Trial, Final, SourceRecord, ProofRecord, Ending)
}


def local_id(index: int) -> int:
    """Stands for the id of a trial that has none yet; negative, one for each index."""
    return -1 - index


def apply(store: Store, entry: Entry, ids: dict[int, int]) -> int:
    """Write an entry; a trial's id, else 0. ``ids`` maps local ids to real ones, and grows."""
    match entry:
        case Beginning():
            store.put_workload(entry.workload)
            store.begin_session(entry.session)
        case Trial():
            found = store.record_trial(entry)
            ids[local_id(entry.index)] = found
            return found
        case Final():
            store.record_final(with_ids(entry, ids))
        case SourceRecord():
            store.record_source(entry)
        case ProofRecord():
            store.record_proof(entry)
        case Ending():
            store.finish_session(entry.session, entry.status, finished_at=entry.finished_at)
    return 0


def with_ids(final: Final, ids: Mapping[int, int]) -> Final:
    """The final with real ids where they are known."""
    entries = tuple(replace(one, trial=ids.get(one.trial, one.trial)) for one in final.entries)
    return replace(final, winner=ids.get(final.winner, final.winner), entries=entries)


class Journal:
    """The journal of a session that runs; other processes leave it alone until it is closed.

    All methods raise ``OSError``. ``entries`` is the number of entries in it.
    """

    def __init__(self, home: Path, database: str, beginning: Beginning) -> None:
        self.path = home / FOLDER / f"{beginning.session.id}.jsonl"
        self.entries = 0
        self._database = database
        self._beginning = beginning
        self._stream: TextIO | None = None

    def append(self, entry: Entry) -> None:
        """Put an entry on the disk; where that fails, the journal stays as it was."""
        stream = self._stream or self._open()
        end = stream.tell()
        try:
            _put(stream, _line(entry))
        except OSError:
            os.ftruncate(stream.fileno(), end)
            stream.seek(end)
            raise
        self.entries += 1

    def read(self) -> list[Entry]:
        """What is in it."""
        return [] if self._stream is None else _read(self.path)[1]

    def remove(self) -> None:
        """Everything in it is in the database."""
        if self._stream is not None:
            self.path.unlink(missing_ok=True)
            self.close()

    def close(self) -> None:
        """Leave it to whoever comes next."""
        if self._stream is not None:
            self._stream.close()
            self._stream = None
        self.entries = 0

    def _open(self) -> TextIO:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        stream = os.fdopen(handle, "r+", encoding="utf-8")
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(handle).st_size:
                raise FileExistsError(errno.EEXIST, "another process left it and it is not empty")
            head = json.dumps({"schema": SCHEMA, "database": self._database})
            _put(stream, f"{head}\n{_line(self._beginning)}")
        except OSError:
            stream.close()
            raise
        self._stream = stream
        return stream


def replay(home: Path, store: Store) -> int:
    """Write to the store what earlier sessions left for it; how many journals there were.

    Raises the store's errors; a journal is removed once all of it is in the database.
    """
    done = 0
    for path in sorted((home / FOLDER).glob("*.jsonl")):
        try:
            handle = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        except OSError:
            continue  # another process was faster
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            head, entries = _read(path)
            if head.get("schema") == SCHEMA and head.get("database") == store.url:
                ids: dict[int, int] = {}
                for entry in entries:
                    _settle(store, entry, ids)
                path.unlink(missing_ok=True)
                done += 1
        except OSError:
            continue  # its session still runs
        finally:
            os.close(handle)
    return done


def _settle(store: Store, entry: Entry, ids: dict[int, int]) -> None:
    """Write an entry; a trial whose place another one has taken meanwhile gets the next one."""
    try:
        apply(store, entry, ids)
    except InternalError as error:
        if error.code != "db.different-trial" or not isinstance(entry, Trial):
            raise
        others = store.trials(session=entry.session)
        same = [one for one in others if replace(entry, index=one.trial.index) == one.trial]
        if same:
            ids[local_id(entry.index)] = same[0].id
            return
        moved = replace(entry, index=max(one.trial.index for one in others) + 1)
        ids[local_id(entry.index)] = store.record_trial(moved)


def _put(stream: TextIO, text: str) -> None:
    stream.write(text + "\n")
    stream.flush()
    os.fsync(stream.fileno())


def _line(entry: Entry) -> str:
    return json.dumps({type(entry).__name__: _plain(entry)}, sort_keys=True)


def _read(path: Path) -> tuple[dict[str, Any], list[Entry]]:
    """Head and entries; a last line that its process did not finish is none."""
    lines = path.read_text(encoding="utf-8").split("\n")[:-1]
    if not lines:
        return {}, []
    entries: list[Entry] = []
    for line in lines[1:]:
        ((name, fields),) = json.loads(line).items()
        entries.append(_rebuilt(_KINDS[name], fields))
    return json.loads(lines[0]), entries


def _plain(value: Any) -> Any:
    """A record as JSON has it."""
    if dataclasses.is_dataclass(value):
        return {one.name: _plain(getattr(value, one.name)) for one in dataclasses.fields(value)}
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, Mapping):
        items = cast("Mapping[str, Any]", value).items()
        return {name: _plain(item) for name, item in items}
    if isinstance(value, (tuple, list)):
        return [_plain(item) for item in cast("list[Any]", value)]
    return value


def _rebuilt(kind: Any, data: Any) -> Any:
    """Inverse of :func:`_plain` for a value of a type."""
    if data is None:
        return None
    if dataclasses.is_dataclass(kind):
        hints = typing.get_type_hints(kind)
        return cast("Any", kind)(**{name: _rebuilt(hints[name], data[name]) for name in data})
    if isinstance(kind, type) and issubclass(kind, enum.Enum):
        return kind(data)
    arguments = typing.get_args(kind)
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        given = [one for one in arguments if one is not type(None)]
        return _rebuilt(given[0], data) if len(given) == 1 else data
    if typing.get_origin(kind) is tuple:
        if arguments[1:] == (Ellipsis,):
            return tuple(_rebuilt(arguments[0], item) for item in data)
        return tuple(_rebuilt(one, item) for one, item in zip(arguments, data, strict=True))
    return data
