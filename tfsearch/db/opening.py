"""Opening a store: recognise what is there, create or upgrade it under a lock."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import sqlite3
import stat
import time
from collections.abc import Callable, Generator
from pathlib import Path

from sqlalchemy import Connection, exc, inspect, select, text
from sqlalchemy.engine import URL, make_url

from tfsearch.core.errors import NotRecordedError, NotSavedError, RequestError, TfsearchError
from tfsearch.db import errors, schema
from tfsearch.db.engine import DEFAULT_TIMEOUT_S, Database
from tfsearch.db.store import Store

APPLICATION_ID = 0x74667372
"""``tfsr``, SQLite's application id (bytes 68-71 of the file), for file(1) and for people."""

_BACKENDS = ("sqlite", "postgresql")
_PG_SETUP_LOCK = 0x7466_7365_6172_6368
# File systems on which WAL's shared memory is not shared by all users of the file, or may not be.
_NETWORK = ("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "virtiofs", "afs", "ceph", "lustre")
_NETWORK_PREFIXES = ("fuse", "gpfs", "beegfs", "glusterfs", "ocfs2", "gfs2")


def open_store(
    url: str,
    *,
    create: bool = True,
    read_only: bool = False,
    timeout_s: float = DEFAULT_TIMEOUT_S,
) -> Store:
    """Open the store at a SQLAlchemy URL; ``sqlite:///path`` or ``postgresql+psycopg://…``.

    With ``create`` a missing database is made and an older schema upgraded, both under a lock;
    without it they are errors (``NotRecordedError("db.missing")``,
    ``RequestError("db.outdated")``). A database that cannot be written is opened for reading;
    its write methods then raise ``NotSavedError("db.read-only")``. ``timeout_s`` bounds every
    wait for another process's lock.

    Raises ``RequestError``: ``db.url``, ``db.not-a-database``, ``db.foreign``,
    ``db.from-the-future``, ``db.corrupt``, ``db.no-permission``; ``NotSavedError``:
    ``db.locked``, ``db.read-only`` (cannot be created), ``db.disk-full``;
    ``UnavailableError``: ``db.unreachable``, ``db.driver-missing``, ``db.io-error``.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() != "sqlite":
        database = Database(parsed, mode="ro" if read_only else "rw", timeout_s=timeout_s)
    elif not parsed.database:
        database = Database(parsed, mode="rwc", timeout_s=timeout_s)
    else:
        database = _sqlite_file(parsed, create=create, read_only=read_only, timeout_s=timeout_s)
    try:
        _bring_to_head(database, create=create and not database.read_only)
    except BaseException:
        database.dispose()
        raise
    if database.mode == "rwc" and not database.in_memory:
        # From here on a deleted file is an error, not a reason to start an empty one.
        database.dispose()
        database = Database(parsed, mode="rw", timeout_s=timeout_s)
    return Store(database)


def upgrade_store(url: str, *, timeout_s: float = DEFAULT_TIMEOUT_S) -> tuple[str, str]:
    """Upgrade the schema of an existing database; returns the revisions (before, after).

    Errors as in :func:`open_store`; ``NotSavedError("db.read-only")`` when it cannot be written.
    """
    parsed = parse_url(url)
    if parsed.get_backend_name() == "sqlite" and parsed.database:
        database = _sqlite_file(parsed, create=False, read_only=False, timeout_s=timeout_s)
    else:
        database = Database(parsed, timeout_s=timeout_s)
    try:
        before = database.read(lambda connection: revision_of(connection, parsed))
        if before is None:
            raise _missing(parsed)
        if before != schema.HEAD:
            _bring_to_head(database, create=True)
        return before, schema.HEAD
    finally:
        database.dispose()


def parse_url(url: str) -> URL:
    """Check a URL and make an SQLite path absolute; ``RequestError("db.url")``."""
    url = str(url)  # from Python it may be a path or anything else
    try:
        parsed = make_url(url)
    except (exc.ArgumentError, ValueError):
        hint = "" if "://" in url else f", for example sqlite:///{url}"
        shown = repr(url) if "@" not in url else "the given text"
        raise RequestError(
            "db.url", f"{shown} is not a database URL; write sqlite:///path/to/file.db{hint}"
        ) from None
    backend = parsed.get_backend_name()
    if backend not in _BACKENDS:
        raise RequestError(
            "db.url", f"unknown database kind {backend!r} in the URL; known: {', '.join(_BACKENDS)}"
        )
    if backend != "sqlite":
        driver = "postgresql+psycopg" if parsed.drivername == "postgresql" else parsed.drivername
        _check_server(parsed)
        return parsed.set(drivername=driver)
    if parsed.drivername not in ("sqlite", "sqlite+pysqlite") or parsed.query or parsed.host:
        raise RequestError(
            "db.url",
            f"{parsed.render_as_string()!r}: an SQLite URL is sqlite:///relative/path or "
            "sqlite:////absolute/path, without options",
        )
    if parsed.database in (None, "", ":memory:"):
        return parsed.set(database=None)
    return parsed.set(database=str(Path(str(parsed.database)).absolute()))


def _check_server(url: URL) -> None:
    """``RequestError("db.url")`` for a port or an option that no server can have."""
    if url.port is not None and not 0 < url.port < 65536:
        raise RequestError(
            "db.url", f"{errors.describe(url)}: a port is from 1 to 65535, not {url.port}"
        )
    if not url.query:
        return
    try:
        from psycopg import ProgrammingError
        from psycopg.conninfo import make_conninfo
    except ImportError:
        return  # without the driver nothing is connected to, and that is told then
    try:
        make_conninfo(**{name: str(value) for name, value in url.query.items()})
    except ProgrammingError as error:
        text = str(error).strip().splitlines()[0]
        raise RequestError("db.url", f"{errors.describe(url)}: {text}") from None


def _sqlite_file(url: URL, *, create: bool, read_only: bool, timeout_s: float) -> Database:
    path = Path(str(url.database))
    place = errors.describe(url)
    size: int | None = None
    try:
        info = path.stat()  # one look: another process may be creating the file right now
        if not stat.S_ISREG(info.st_mode):
            raise RequestError("db.not-a-database", f"{place} is not a file; name a file")
        size = info.st_size
    except FileNotFoundError:
        pass  # then it is to be created, or missing
    except OSError as error:
        code = "db.no-permission" if isinstance(error, PermissionError) else "db.url"
        raise RequestError(code, f"{place} cannot be reached: {error.strerror}") from error
    if size is None or size == 0:
        if not create or read_only:
            raise _missing(url)
        if size is None:
            _make_parent(path, place)
        if not _may_write(path):
            raise errors.read_only(place)
        return Database(url, mode="rwc", timeout_s=timeout_s)
    if size < 512:  # the smallest SQLite page; SQLite itself takes a one-byte file as empty
        raise errors.not_a_database(place)
    if not read_only and _may_write(path):
        return Database(url, mode="rw", timeout_s=timeout_s)
    return _readable(url, timeout_s)


def _readable(url: URL, timeout_s: float) -> Database:
    """Read-only access, also where WAL's shared memory cannot be made.

    That is a folder without write access, or a full disk. SQLite reads such a file as immutable:
    what another process writes to it later is not seen until it is opened again.
    """
    database = Database(url, mode="ro", timeout_s=timeout_s)
    try:
        database.read(lambda connection: connection.exec_driver_sql("PRAGMA schema_version"))
    except TfsearchError as error:
        wal = Path(f"{url.database}-wal")
        hindered = error.code == "db.disk-full" or not os.access(wal.parent, os.W_OK)
        if not hindered or (wal.exists() and wal.stat().st_size):
            raise
        # Nobody has the file open for writing (there would be a log): it is at rest.
        database.dispose()
        return Database(url, mode="immutable", timeout_s=timeout_s)
    return database


def _may_write(path: Path) -> bool:
    effective = os.access in os.supports_effective_ids
    folder = os.access(path.parent, os.W_OK | os.X_OK, effective_ids=effective)
    return folder and (not path.exists() or os.access(path, os.W_OK, effective_ids=effective))


def _make_parent(path: Path, place: str) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise NotSavedError("db.disk-full", f"no space left to create {place}") from error
        if error.errno in (errno.EROFS, errno.EACCES, errno.EPERM):
            raise errors.read_only(place) from error
        raise RequestError(
            "db.url", f"the folder of {place} cannot be created: {error.strerror}"
        ) from error


def _missing(url: URL) -> NotRecordedError:
    return NotRecordedError(
        "db.missing", f"{errors.describe(url)} holds no records yet; tfsearch tune creates it"
    )


def revision_of(connection: Connection, url: URL) -> str | None:
    """Stored schema revision; ``None`` for an empty database.

    Raises ``RequestError``: ``db.foreign`` (another application's tables),
    ``db.from-the-future`` (a revision this program does not know).
    """
    place = errors.describe(url)
    names = set(inspect(connection).get_table_names())
    if not names:
        return None
    application = None
    if schema.meta.name in names and "alembic_version" in names:
        columns = {column["name"] for column in inspect(connection).get_columns("meta")}
        if {"name", "value"} <= columns:
            application = connection.execute(
                select(schema.meta.c.value).where(schema.meta.c.name == "application")
            ).scalar()
    if application != schema.APPLICATION:
        shown = ", ".join(sorted(names)[:3])
        raise RequestError(
            "db.foreign",
            f"{place} belongs to another application (tables: {shown}); name another file",
        )
    stored = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if stored not in schema.REVISIONS:
        raise RequestError(
            "db.from-the-future",
            f"{place} has schema revision {stored}, this program knows up to {schema.HEAD}; "
            "upgrade tfsearch, or name another database",
        )
    return str(stored)


def _bring_to_head(database: Database, *, create: bool) -> None:
    url = database.url
    found = database.read(lambda connection: revision_of(connection, url))
    if found == schema.HEAD:
        return
    if not create:
        if found is None:
            raise _missing(url)
        raise RequestError(
            "db.outdated",
            f"{errors.describe(url)} has schema revision {found}, this program needs "
            f"{schema.HEAD}; run tfsearch db upgrade",
        )
    with _setup_lock(database):
        if found is None and database.is_sqlite and not database.in_memory:
            _choose_journal(database)
        database.write(_create_or_upgrade(url))


def _create_or_upgrade(url: URL) -> Callable[[Connection], None]:
    def work(connection: Connection) -> None:
        if connection.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _PG_SETUP_LOCK})
        found = revision_of(connection, url)  # another process may have been faster
        if found is None:
            _create(connection)
        elif found != schema.HEAD:
            from tfsearch.db.migrate import upgrade

            upgrade(connection)

    return work


def _create(connection: Connection) -> None:
    schema.prepare_for(connection.dialect.name)
    schema.metadata.create_all(connection, checkfirst=False)  # it is empty: no need to look
    connection.execute(
        text(
            "CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL, "
            "CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
        )
    )
    connection.execute(text("INSERT INTO alembic_version VALUES (:head)"), {"head": schema.HEAD})
    connection.execute(schema.meta.insert(), [{"name": "application", "value": schema.APPLICATION}])
    if connection.dialect.name == "sqlite":
        connection.exec_driver_sql(f"PRAGMA application_id={APPLICATION_ID}")


def _choose_journal(database: Database) -> None:
    """Switch a new file to WAL, once; on a network file system stay with the rollback journal."""
    path = Path(str(database.url.database))
    if file_system(path) in _NETWORK or file_system(path).startswith(_NETWORK_PREFIXES):
        return
    deadline = time.monotonic() + database.timeout_s
    while True:
        connection = None
        try:
            connection = sqlite3.connect(path, timeout=database.timeout_s, isolation_level=None)
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.Error as error:
            # The switch does not use the busy handler, hence this loop.
            if not errors.is_busy(error) or time.monotonic() > deadline:
                raise errors.translate(error, database.url, writing=True) from None
            time.sleep(0.01)
        finally:
            if connection is not None:
                connection.close()


def file_system(path: Path) -> str:
    """Type of the file system that holds a path (Linux), or an empty string."""
    table = Path("/proc/self/mountinfo")
    if not table.exists():
        return ""
    real, best = str(path.resolve()), ("", "")
    for line in table.read_text().splitlines():
        left, _, right = line.partition(" - ")
        # The kernel writes blanks and backslashes in octal (proc(5), /proc/pid/mountinfo).
        mount = re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), left.split()[4])
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best[0]):
            best = (mount, right.split()[0])
    return best[1]


@contextlib.contextmanager
def _setup_lock(database: Database) -> Generator[None, None, None]:
    """One process at a time creates or upgrades: an OS lock on a file beside the database.

    The file stays, since deleting a lock file races with its next user. Where it cannot be made
    or the file system has no locks, SQLite's own write lock still keeps the work apart.
    """
    if not database.is_sqlite or database.in_memory:
        yield
        return
    import fcntl

    try:
        handle = os.open(f"{database.url.database}-lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            place = errors.describe(database.url)
            raise NotSavedError("db.disk-full", f"no space left to create {place}") from error
        handle = -1
    if handle < 0:
        yield
        return
    try:
        deadline = time.monotonic() + database.timeout_s
        while not _try_lock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB):
            if time.monotonic() > deadline:
                raise errors.locked(errors.describe(database.url))
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _try_lock(handle: int, operation: int) -> bool:
    import fcntl

    try:
        fcntl.flock(handle, operation)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            return False
        if error.errno in (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS):
            return True  # no locks here: SQLite's own have to do
        raise
    return True
