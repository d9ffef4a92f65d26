"""The one place that opens connections and transactions and maps their errors."""

from __future__ import annotations

import contextlib
import os
import random
import sqlite3
import threading
import time
import urllib.parse
import weakref
from collections.abc import Callable, Generator
from typing import TYPE_CHECKING, Any, TypeVar, cast

from sqlalchemy import Connection, Engine, create_engine, event, exc
from sqlalchemy.engine import URL
from sqlalchemy.pool import QueuePool, StaticPool

from tfsearch.core.errors import TfsearchError
from tfsearch.db import errors

if TYPE_CHECKING:
    from sqlalchemy.engine.interfaces import DBAPIConnection
    from sqlalchemy.pool import ConnectionPoolEntry

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 10.0
_WRITING = "tfsearch_writing"
_SINGLE = "tfsearch_single"
_PAUSE_S, _LONGEST_PAUSE_S = 0.002, 0.01
MOST_CONFLICTS = 5
"""How often a transaction is begun that a server undoes in favour of others."""
# docs/decisions/0003-sqlite-durability.md says why FULL.
_PRAGMAS = ("PRAGMA foreign_keys=ON", "PRAGMA synchronous=FULL", "PRAGMA cache_size=-16384")


class _ForkGate:
    """Lets a process fork only while none of its SQLite connections is open.

    SQLite's POSIX locks are not inherited, but its in-process note of holding them is: a child
    forked beside an open WAL connection would read and write without locks ("How To Corrupt An
    SQLite Database File", section 2.6). So pools are emptied before every fork.
    """

    def __init__(self) -> None:
        self._databases: weakref.WeakSet[Database] = weakref.WeakSet()
        self._reset()

    def _reset(self) -> None:
        self._condition = threading.Condition()
        self._active = 0

    def add(self, database: Database) -> None:
        with self._condition:
            self._databases.add(database)

    @contextlib.contextmanager
    def transaction(self) -> Generator[None, None, None]:
        with self._condition:
            self._active += 1
        try:
            yield
        finally:
            with self._condition:
                self._active -= 1
                self._condition.notify_all()

    def before_fork(self) -> None:
        self._condition.acquire()
        self._condition.wait_for(lambda: self._active == 0, timeout=DEFAULT_TIMEOUT_S)
        for database in list(self._databases):
            database.dispose()

    def after_in_parent(self) -> None:
        self._condition.release()

    def after_in_child(self) -> None:
        self._reset()
        for database in list(self._databases):
            database.after_fork()


_gate = _ForkGate()
os.register_at_fork(
    before=_gate.before_fork,
    after_in_parent=_gate.after_in_parent,
    after_in_child=_gate.after_in_child,
)


class Database:
    """Connections to one database. ``mode`` is SQLite's: ``rwc``, ``rw``, ``ro``, ``immutable``.

    Thread-safe; usable in a forked child. ``timeout_s`` bounds every wait for a lock.
    """

    def __init__(self, url: URL, *, mode: str = "rw", timeout_s: float = DEFAULT_TIMEOUT_S) -> None:
        self.url = url
        self.mode = mode
        self.timeout_s = timeout_s
        self.is_sqlite = url.get_backend_name() == "sqlite"
        self.in_memory = self.is_sqlite and not url.database
        self.read_only = mode in ("ro", "immutable")
        self._serial = threading.RLock()
        try:
            self._engine = self._make_engine()
        except (exc.SQLAlchemyError, ImportError) as error:
            raise errors.translate(error, url, writing=False) from None
        self._writer = self._engine.execution_options(**{_WRITING: True})
        self._single = self._engine.execution_options(**{_SINGLE: True})
        _gate.add(self)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction that sees one state; it may run more than once."""
        return self._run(self._engine, work, writing=False)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Run ``work`` in one transaction; on SQLite it holds the write lock from its start.

        Committed when this returns, undone when it raises. A server may undo it in favour of
        another transaction: then ``work`` runs again. ``NotSavedError`` when the database is
        read-only, locked for longer than the wait, or on a full disk.
        """
        if self.read_only:
            raise errors.read_only(errors.describe(self.url))
        return self._run(self._writer, work, writing=True)

    def single(self, work: Callable[[Connection], T], *, writing: bool = False) -> T:
        """Run ``work``, whose only statement is a transaction of its own: done when it returns.

        On a server it costs one message and one answer. It runs again when the connection is lost
        meanwhile, even if it was done already, so it has to do the same when it is done twice.
        Errors as for :meth:`read` and :meth:`write`.
        """
        if self.is_sqlite:
            return self.write(work) if writing else self.read(work)
        if writing and self.read_only:
            raise errors.read_only(errors.describe(self.url))
        return self._run(self._single, work, writing=writing)

    def dispose(self) -> None:
        """Close idle connections; later calls open new ones."""
        if not self.in_memory:
            self._engine.dispose()

    def after_fork(self) -> None:
        """In a forked child: forget the parent's locks and connections."""
        self._serial = threading.RLock()
        if not self.in_memory:
            self._engine.dispose(close=False)

    def _run(self, engine: Engine, work: Callable[[Connection], T], *, writing: bool) -> T:
        deadline = time.monotonic() + self.timeout_s
        single = engine is self._single
        with _gate.transaction(), self._serial if self.in_memory else contextlib.nullcontext():
            attempt = 0
            while True:
                attempt += 1
                begun = False
                try:
                    with engine.connect() as connection:  # undoes what is not committed
                        asked = not (self.is_sqlite or single) and attempt < MOST_CONFLICTS
                        if asked and not _answers(connection):
                            connection.invalidate()
                            self._engine.dispose()  # the idle ones are as old
                            continue
                        transaction = connection.begin()
                        begun = True
                        result = work(connection)
                        if writing or single:
                            transaction.commit()
                        return result
                except TfsearchError:
                    raise
                except (exc.SQLAlchemyError, sqlite3.Error) as error:
                    again = errors.is_busy(error) and not (writing and begun)
                    again |= errors.is_undone(error) and attempt < MOST_CONFLICTS
                    again |= errors.is_lost(error) and (single or not begun) and attempt == 1
                    if not again or time.monotonic() >= deadline:
                        # The driver's exception may carry the connection string: cut it off.
                        raise errors.translate(error, self.url, writing=writing) from None
                # SQLite reports some conflicts (WAL recovery, the last close) without waiting.
                time.sleep(random.uniform(0.002, 0.02))

    def _make_engine(self) -> Engine:
        if not self.is_sqlite:
            engine = create_engine(self.url, connect_args={"connect_timeout": int(self.timeout_s)})
            event.listen(engine, "connect", self._settle)
            event.listen(engine, "begin", _begin_server)
            return engine
        engine = create_engine(
            self.url,
            creator=self._connect_sqlite,
            poolclass=StaticPool if self.in_memory else QueuePool,
        )
        event.listen(engine, "begin", self._begin_sqlite)
        return engine

    def _settle(self, connection: DBAPIConnection, _: ConnectionPoolEntry) -> None:
        """A new connection to a server: bounded waits for locks, commits that are durable.

        A server or a login may have ``synchronous_commit = off``, under which a crash of the server
        loses the last commits; any stricter value than ``on`` stays.
        """
        milliseconds = max(int(self.timeout_s * 1000), 1)  # 0 would be no bound
        cursor = connection.cursor()
        cursor.execute(
            f"SET lock_timeout = {milliseconds}; SELECT set_config('synchronous_commit', 'on', "
            "false) WHERE current_setting('synchronous_commit') = 'off'"
        )
        cursor.close()
        connection.commit()

    def _connect_sqlite(self) -> sqlite3.Connection:
        name = ":memory:"
        if not self.in_memory:
            option = "mode=ro&immutable=1" if self.mode == "immutable" else f"mode={self.mode}"
            name = f"file:{urllib.parse.quote(str(self.url.database))}?{option}"
        connection = sqlite3.connect(
            name,
            uri=True,
            timeout=self.timeout_s,
            isolation_level=None,  # BEGIN is issued by _begin_sqlite, never by the driver
            check_same_thread=False,  # the pool hands a connection to one thread at a time
        )
        try:
            for pragma in _PRAGMAS:
                connection.execute(pragma)
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_sqlite(self, connection: Connection) -> None:
        # A transaction that starts as a reader and writes later fails at once when another writer
        # was faster (SQLITE_BUSY_SNAPSHOT), so writers take the lock first.
        if not connection.get_execution_options().get(_WRITING):
            connection.exec_driver_sql("BEGIN")
            return
        raw = cast("sqlite3.Connection", connection.connection.dbapi_connection)
        raw.execute("PRAGMA busy_timeout=0")
        try:
            _take_turn(raw, time.monotonic() + self.timeout_s)
        finally:
            raw.execute(f"PRAGMA busy_timeout={int(1000 * self.timeout_s)}")


def _take_turn(raw: sqlite3.Connection, deadline: float) -> None:
    """Begin to write, waiting for other writers until ``deadline``.

    SQLite's own wait doubles its pauses to a tenth of a second, while a writer holds the lock for
    about a millisecond: the longer one has waited, the more writers come first.
    """
    started = time.monotonic()
    while True:
        try:
            raw.execute("BEGIN IMMEDIATE")
            return
        except sqlite3.Error as error:
            now = time.monotonic()
            if not errors.is_busy(error) or now >= deadline:
                raise
            longest = min(_LONGEST_PAUSE_S, _PAUSE_S + (now - started) / 50)
            time.sleep(random.uniform(0.1 * longest, longest))


def _begin_server(connection: Connection) -> None:
    # A reader sees one snapshot in all its statements. A writer has to see rows that another
    # one committed first (writing.intern), whatever the server's default is.
    options = connection.get_execution_options()
    raw = connection.connection.dbapi_connection
    dialect = cast("Any", connection.dialect)  # SQLAlchemy has no types for these two
    writing, single = bool(options.get(_WRITING)), bool(options.get(_SINGLE))
    level = "READ COMMITTED" if writing else "REPEATABLE READ"
    dialect.set_isolation_level(raw, "AUTOCOMMIT" if single else level)
    # None leaves it to the login's own default, which may forbid writing.
    dialect.set_readonly(raw, None if writing or single else True)


def _answers(connection: Connection) -> bool:
    """Whether the server is there, asked before anything begins that must not be done twice."""
    dialect = cast("Any", connection.dialect)
    try:
        return bool(dialect.do_ping(connection.connection.dbapi_connection))
    except dialect.loaded_dbapi.Error:
        return False
