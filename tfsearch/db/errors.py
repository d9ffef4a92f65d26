"""From driver exceptions to the coded error tree, by error codes and not by message text."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

from sqlalchemy import exc
from sqlalchemy.engine import URL

from tfsearch.core.errors import (
    InternalError,
    NotSavedError,
    RequestError,
    TfsearchError,
    UnavailableError,
)

BUSY = ("SQLITE_BUSY", "SQLITE_LOCKED", "SQLITE_PROTOCOL")
_READ_ONLY = ("SQLITE_READONLY", "SQLITE_PERM", "SQLITE_AUTH")
_NOT_SAVED_IO = (
    "SQLITE_IOERR_WRITE",
    "SQLITE_IOERR_FSYNC",
    "SQLITE_IOERR_DIR_FSYNC",
    "SQLITE_IOERR_TRUNCATE",
    "SQLITE_IOERR_SHMSIZE",
    "SQLITE_IOERR_DELETE",
)
# PostgreSQL error classes, appendix A of its manual: "PostgreSQL Error Codes".
_PG_FULL = "53100"
_PG_UNDONE = ("40P01", "40001")
_PG_LOCKED = ("55P03", "57014", *_PG_UNDONE)
_PG_READ_ONLY = ("25006", "42501")


def sqlite_name(error: BaseException) -> str:
    """Symbolic SQLite result code of an exception (``SQLITE_BUSY``, …), or an empty string."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return str(getattr(cause, "sqlite_errorname", "") or "")


def is_busy(error: BaseException) -> bool:
    """Whether waiting and trying again may help."""
    return sqlite_name(error).startswith(BUSY)


def is_undone(error: BaseException) -> bool:
    """Whether a server undid the transaction for another's sake: a deadlock, a conflict."""
    return _sqlstate(error) in _PG_UNDONE


def is_lost(error: BaseException) -> bool:
    """Whether the connection to a server ended, so that a new one may do."""
    return isinstance(error, exc.DBAPIError) and error.connection_invalidated


def translate(error: BaseException, url: URL, *, writing: bool) -> TfsearchError:
    """The coded error for a driver's exception; the password in ``url`` is never part of it."""
    place = describe(url)
    if isinstance(error, (exc.IntegrityError, sqlite3.IntegrityError)):
        return InternalError("db.constraint", f"{place}: a record breaks a rule: {_detail(error)}")
    if url.get_backend_name() == "sqlite":
        return _translate_sqlite(error, url, writing=writing)
    return _translate_server(error, url, place)


def _translate_sqlite(error: BaseException, url: URL, *, writing: bool) -> TfsearchError:
    place, name = describe(url), sqlite_name(error)
    if name == "SQLITE_NOTADB":
        return not_a_database(place)
    if name.startswith(BUSY):
        return locked(place)
    if name == "SQLITE_READONLY_DBMOVED":
        return NotSavedError(
            "db.moved", f"{place} was moved or deleted while it was open; open it again"
        )
    if name.startswith(_READ_ONLY):
        return read_only(place)
    if name.startswith("SQLITE_FULL") or (_is_io(name) and _disk_is_full(url)):
        return NotSavedError(
            "db.disk-full", f"no space left for {place}; free some disk space and try again"
        )
    if name.startswith(_NOT_SAVED_IO) or (_is_io(name) and writing):
        return NotSavedError("db.io-error", f"{place}: the system refused a write ({name})")
    if _is_io(name):
        return UnavailableError("db.io-error", f"{place}: the system refused a read ({name})")
    if name.startswith("SQLITE_CANTOPEN"):
        return _cannot_open(url, writing=writing)
    if name.startswith("SQLITE_CORRUPT"):
        return RequestError(
            "db.corrupt",
            f"{place} is damaged ({name}); restore a copy, or recover it with the sqlite3 "
            "command .recover",
        )
    return InternalError("db.unexpected", f"{place}: {name or type(error).__name__}: {error}")


def _translate_server(error: BaseException, url: URL, place: str) -> TfsearchError:
    if isinstance(error, (exc.NoSuchModuleError, ModuleNotFoundError)):
        return UnavailableError(
            "db.driver-missing",
            f"no driver for {place}; install one (for PostgreSQL: pip install psycopg[binary])",
        )
    state = _sqlstate(error)
    if state == _PG_FULL:
        return NotSavedError("db.disk-full", f"no space left on the server of {place}")
    if state in _PG_LOCKED:
        return locked(place)
    if state in _PG_READ_ONLY:
        return read_only(place)
    lost = state.startswith(("08", "28", "3D", "57P", "53"))
    if lost or (not state and isinstance(error, (exc.OperationalError, exc.InterfaceError))):
        return UnavailableError(
            "db.unreachable",
            f"{place} is unreachable or refuses the login: {_scrubbed(_detail(error), url)}",
        )
    detail = _scrubbed(_detail(error), url)
    return InternalError("db.unexpected", f"{place}: {state or type(error).__name__}: {detail}")


def describe(url: URL) -> str:
    """The database in words for messages, without its password."""
    if url.get_backend_name() == "sqlite":
        return f"database {url.database or 'in memory'}"
    return f"database {url.render_as_string(hide_password=True)}"


def not_a_database(place: str) -> RequestError:
    """The file is something else."""
    return RequestError(
        "db.not-a-database",
        f"{place} is not an SQLite database; name another file, or move this one away",
    )


def locked(place: str) -> NotSavedError:
    """Another process held the lock for longer than the bounded wait."""
    return NotSavedError(
        "db.locked",
        f"{place} stayed locked by another process; end that process, or try again later",
    )


def read_only(place: str) -> NotSavedError:
    """The file, its folder or the login does not permit writing."""
    return NotSavedError(
        "db.read-only", f"{place} is read-only; make it and its folder writable, or use another"
    )


def _cannot_open(url: URL, *, writing: bool) -> TfsearchError:
    place, path = describe(url), Path(url.database or "")
    if path.is_dir():
        return RequestError("db.not-a-database", f"{place} is a folder; name a file in it")
    if path.exists() and not os.access(path, os.R_OK):
        return RequestError("db.no-permission", f"{place} may not be read by this user")
    if writing:
        return read_only(place)
    return UnavailableError("db.io-error", f"{place} cannot be opened")


def _sqlstate(error: BaseException) -> str:
    """The server's code for an exception, or an empty string."""
    cause = error.orig if isinstance(error, exc.DBAPIError) else error
    return str(getattr(cause, "sqlstate", None) or "")


def _is_io(name: str) -> bool:
    return name.startswith("SQLITE_IOERR")


def _disk_is_full(url: URL) -> bool:
    try:
        info = os.statvfs(Path(url.database or ".").parent)
    except OSError:
        return False  # the folder itself is gone: some other I/O error
    return info.f_bavail * info.f_frsize < 65536


def _detail(error: BaseException) -> str:
    cause = error.orig if isinstance(error, exc.DBAPIError) and error.orig else error
    lines = str(cause).strip().splitlines()
    return lines[0] if lines else type(cause).__name__


def _scrubbed(text: str, url: URL) -> str:
    password = str(url.password or "")
    return text.replace(password, "***") if password else text
