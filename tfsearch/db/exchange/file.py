"""The file: JSON lines between a header and an end that says how many there were, and their hash.

So a file that is cut off, joined or edited is told from a whole one before anything of it counts.
It does not say who wrote it.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Generator, Iterable, Iterator
from importlib import metadata
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar, cast

from tfsearch.core import strict
from tfsearch.core.errors import NotSavedError, RequestError
from tfsearch.db import schema
from tfsearch.db.exchange.fields import Malformed
from tfsearch.db.exchange.form import KIND, Reader, Writer
from tfsearch.db.exchange.items import Item, Selection

T = TypeVar("T")
FORMAT = "tfsearch-records"
VERSION = 1
LONGEST = 64 << 20
"""Bytes of the longest line that is read: no trial comes near it."""
_GZIP = b"\x1f\x8b"


def write(stream: IO[bytes], items: Iterable[Item], selection: Selection) -> int:
    """Write a whole file; returns how many records it has."""
    header = {
        KIND: "header",
        "format": FORMAT,
        "version": VERSION,
        "schema": schema.HEAD,
        "tfsearch": metadata.version("tfsearch"),
        "workload": selection.workload,
        "session": selection.session,
    }
    hashed, count, writer = hashlib.sha256(), 0, Writer()

    def put(fields: dict[str, Any]) -> None:
        line = json.dumps(fields, separators=(",", ":"), allow_nan=False).encode() + b"\n"
        hashed.update(line)
        stream.write(line)

    put(header)
    for item in items:
        for fields in writer.lines(item):
            put(fields)
        count += 1
    put({KIND: "end", "records": count, "sha256": hashed.hexdigest()})
    return count


def read(path: Path | str) -> Iterator[Item]:
    """The records of a file, compressed by gzip or not; a generator.

    ``RequestError`` (``db.import-*``) for whatever is not a whole file of a version that this
    program reads, at its end at the latest: until then nothing is certain.
    """
    with _opened(path) as stream:
        yield from _read(stream, str(path))


def _read(stream: IO[bytes], name: str) -> Iterator[Item]:
    reader, count, number = Reader(), 0, 1
    line = stream.readline(LONGEST)
    _check_header(_header(line), name)
    hashed = hashlib.sha256(line)
    while True:
        number += 1
        line = stream.readline(LONGEST)
        fields = _object(line, name, number)
        if fields.get(KIND) == "end":
            break
        hashed.update(line)
        try:
            item = reader.item(fields)
        except Malformed as error:
            raise _malformed(name, number, str(error)) from error
        if item is not None:
            count += 1
            yield item
    if fields != {KIND: "end", "records": count, "sha256": hashed.hexdigest()}:
        raise _malformed(name, number, "lines were added, removed or changed: the hash differs")
    if stream.read(1):
        raise _malformed(name, number + 1, "there is more after the end")


def _object(line: bytes, name: str, number: int) -> dict[str, Any]:
    if len(line) >= LONGEST:
        raise _malformed(name, number, f"it is longer than {LONGEST} bytes")
    if not line.endswith(b"\n"):
        raise _malformed(name, number, "the file was cut off here")
    try:
        found = strict.loads(line)
    except ValueError as error:
        raise _malformed(name, number, f"it is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise _malformed(name, number, "it is no JSON object")
    return cast("dict[str, Any]", found)


def _header(line: bytes) -> dict[str, Any]:
    try:
        found = strict.loads(line)
    except ValueError:
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _malformed(name: str, number: int, text: str) -> RequestError:
    return RequestError(
        "db.import-malformed", f"{name}, line {number}: {text}; nothing of the file was imported"
    )


def _check_header(fields: dict[str, Any], name: str) -> None:
    if fields.get(KIND) != "header" or fields.get("format") != FORMAT:
        raise RequestError(
            "db.import-format",
            f"{name} is no file of records: tfsearch db export --format jsonl writes them",
        )
    version = fields.get("version")
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise _malformed(name, 1, "the header has no version")
    if version > VERSION:
        raise RequestError(
            "db.import-version",
            f"{name} is of version {version} of the format, this program reads up to {VERSION}; "
            "upgrade tfsearch",
        )


@contextlib.contextmanager
def _opened(path: Path | str) -> Generator[IO[bytes]]:
    try:
        with open(_regular(path), "rb") as file:
            packed = file.read(2) == _GZIP
            file.seek(0)
            stream = cast("IO[bytes]", gzip.GzipFile(fileobj=file) if packed else file)
            with contextlib.closing(stream):
                yield stream
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise RequestError(
            "db.import-malformed", f"{path}: its compression is damaged or cut off: {error}"
        ) from error
    except OSError as error:
        raise RequestError(
            "db.import-file", f"{path} cannot be read: {error.strerror or error}"
        ) from error


def _regular(path: Path | str) -> Path:
    found = Path(path)
    if not stat.S_ISREG(found.stat().st_mode):
        raise RequestError("db.import-file", f"{path} is no file")
    return found


def write_to(path: Path | str, put: Callable[[BinaryIO], T]) -> T:
    """Let ``put`` write a file that appears when it is whole, instead of an earlier one.

    ``NotSavedError`` (``db.export``) when it cannot be written.
    """
    target = Path(path)
    part = target.with_name(f".{target.name[:100]}.{os.getpid()}.part")
    try:
        if target.exists() and not target.is_file():
            # A device cannot be rewound; of a folder this is an error.
            with open(target, "wb") as device, tempfile.TemporaryFile() as spool:
                result = put(spool)
                spool.seek(0)
                shutil.copyfileobj(spool, device)
                return result
        try:
            with open(part, "x+b") as file:
                result = put(file)
                file.flush()
                os.fsync(file.fileno())
            os.replace(part, target)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise NotSavedError(
            "db.export", f"cannot write {path}: {error.strerror or error}"
        ) from error
    return result
