"""What a transaction sees, and what becomes of one that meets others."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from sqlalchemy import Connection, create_engine, make_url, text

from tests.db import make
from tfsearch.core.errors import NotSavedError
from tfsearch.db import open_store, schema
from tfsearch.db.engine import MOST_CONFLICTS, Database


def names(connection: Connection) -> list[str]:
    return list(connection.execute(text("SELECT name FROM meta ORDER BY name")).scalars())


def put(connection: Connection, name: str) -> None:
    connection.execute(schema.meta.insert(), {"name": name, "value": ""})


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_a_read_sees_one_state_in_all_its_statements(url: str):
    open_store(url).close()
    reader, writer = Database(make_url(url)), Database(make_url(url))

    def look(connection: Connection) -> tuple[list[str], list[str]]:
        before = names(connection)
        writer.write(lambda other: put(other, "later"))
        return before, names(connection)

    before, after = reader.read(look)
    assert "later" not in before
    assert after == before
    assert "later" in reader.read(names)
    reader.dispose()
    writer.dispose()


@pytest.fixture
def database(server_url: str) -> Iterator[Database]:
    open_store(server_url).close()
    opened = Database(make_url(server_url), timeout_s=5.0)
    yield opened
    opened.dispose()


def test_a_read_writes_nothing_and_leaves_its_connection_fit_to_write(database: Database):
    with pytest.raises(NotSavedError) as caught:
        database.read(lambda connection: put(connection, "by a reader"))
    assert caught.value.code == "db.read-only"
    database.write(lambda connection: put(connection, "by a writer"))
    assert "by a writer" in database.read(names)


def test_a_login_that_only_reads_by_default_writes_nothing(database: Database):
    name = database.url.database
    database.write(
        lambda connection: connection.execute(
            text(f"ALTER DATABASE {name} SET default_transaction_read_only = on")
        )
    )
    database.dispose()
    database.read(names)
    with pytest.raises(NotSavedError) as caught:
        database.write(lambda connection: put(connection, "x"))
    assert caught.value.code == "db.read-only"


def undone(connection: Connection, state: str) -> None:
    """Have the server end the transaction with an error of its own."""
    connection.exec_driver_sql(
        f"DO $$ BEGIN RAISE EXCEPTION 'undone' USING ERRCODE = '{state}'; END $$"
    )


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_write_that_the_server_undoes_is_done_again(database: Database, state: str):
    attempts = 0

    def work(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        put(connection, f"attempt {attempts}")
        if attempts < MOST_CONFLICTS:
            undone(connection, state)

    database.write(work)
    assert [n for n in database.read(names) if n.startswith("attempt")] == [f"attempt {attempts}"]


@pytest.mark.parametrize("state", ["40001", "40P01"])
def test_a_write_that_is_always_undone_ends_as_locked(database: Database, state: str):
    attempts = 0

    def work(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        undone(connection, state)

    with pytest.raises(NotSavedError) as caught:
        database.write(work)
    assert caught.value.code == "db.locked"
    assert attempts == MOST_CONFLICTS


def test_other_errors_are_not_tried_again(database: Database):
    attempts = 0

    def work(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        undone(connection, "55P03")

    with pytest.raises(NotSavedError):
        database.write(work)
    assert attempts == 1


def test_writers_that_wait_for_one_another_both_finish(database: Database):
    met = threading.Barrier(2, timeout=10)
    attempts: list[str] = []
    failed: list[BaseException] = []

    def write(name: str, first: int, second: int) -> None:
        def work(connection: Connection) -> None:
            attempts.append(name)
            connection.execute(text(f"SELECT pg_advisory_xact_lock({first})"))
            if attempts.count(name) == 1:
                met.wait()
            connection.execute(text(f"SELECT pg_advisory_xact_lock({second})"))
            put(connection, name)

        try:
            database.write(work)
        except BaseException as error:  # noqa: BLE001 - the assertion shows it
            failed.append(error)

    threads = [threading.Thread(target=write, args=one) for one in (("a", 1, 2), ("b", 2, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failed == []
    assert {"a", "b"} <= set(database.read(names))
    assert len(attempts) > 2


def test_a_lock_that_is_not_let_go_ends_the_wait(server_url: str):
    open_store(server_url).close()
    store = open_store(server_url, timeout_s=0.3)
    holder = create_engine(make_url(server_url).set(drivername="postgresql+psycopg"))
    with holder.connect() as connection:
        connection.execute(text("LOCK TABLE workloads IN ACCESS EXCLUSIVE MODE"))
        began = time.monotonic()
        with pytest.raises(NotSavedError) as caught:
            store.put_workload(make.workload())
        assert caught.value.code == "db.locked"
        with pytest.raises(NotSavedError) as caught:
            store.workloads()
        assert caught.value.code == "db.locked"
        assert time.monotonic() - began < 10
    store.put_workload(make.workload())
    holder.dispose()
    store.close()
