"""How a trial gets into the database: what is sent, what is remembered, what is done again."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection, Table, create_engine, event, make_url, text

from tests.db import make
from tfsearch.core.errors import InternalError, NotSavedError, UnavailableError
from tfsearch.core.records import Status, Trial
from tfsearch.db import Store, codec, open_store, recording, schema, writing
from tfsearch.db.engine import Database


@contextmanager
def sent(store: Store) -> Iterator[list[str]]:
    """The statements that go to the database meanwhile."""
    seen: list[str] = []

    def note(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        seen.append(statement)

    engine = store._database._engine
    event.listen(engine, "before_cursor_execute", note)
    try:
        yield seen
    finally:
        event.remove(engine, "before_cursor_execute", note)


def kinds(record) -> list[Trial]:
    """One trial of each combination of parts."""
    ok = make.trial(record, 1)
    refused = make.failed(record, 2, Status.REFUSED)
    keyed = replace(
        make.failed(record, 3, Status.COMPILE_ERROR), measurement_key=ok.measurement_key
    )
    wrong = replace(make.failed(record, 4, Status.WRONG), measurement_key=ok.measurement_key,
                    build=ok.build)  # fmt: skip
    return [ok, refused, keyed, wrong, make.trial(record, 5, censored=True)]


def test_a_known_session_records_by_one_statement(server_url: str):
    store = open_store(server_url)
    record = make.begun(store)
    store.record_trial(make.trial(record, 0))
    for trial in kinds(record):
        with sent(store) as statements:
            number = store.record_trial(trial)
        assert len(statements) == 1, statements
        found = store.trial(number)
        assert found is not None
        assert replace(found.trial, verification=None) == replace(trial, verification=None)
    assert store.verify() == []
    store.close()


def test_one_statement_writes_what_the_general_way_writes(server_url: str):
    store = open_store(server_url)
    one, other = make.begun(store, 64, "s1"), make.begun(store, 64, "s2")
    store.record_trial(make.trial(one, 0))
    for trial in kinds(one):
        with sent(store) as statements:
            store.record_trial(trial)
        assert len(statements) == 1
    for trial in [make.trial(one, 0), *kinds(other)]:
        again = replace(trial, session="s2")
        store._database.write(lambda c, again=again: recording.insert_trial(c, again))
    with store._database._engine.connect() as connection:
        rows = connection.execute(
            text(
                "SELECT session_id, position, workload_id, schedule_id, context_id, build_key_id, "
                "build_id, status, code, place, message, predicted_us, generator, measurement_key, "
                "verified, max_error, passes, verification_message, median_us, ci_low_us, "
                "ci_high_us, sample_count, censored, finished_at, m.protocol, m.samples, "
                "m.conditions FROM trials LEFT JOIN measurements m ON m.trial_id = trials.id"
            )
        ).all()
    of = {session: sorted((tuple(r)[1:] for r in rows if r[0] == session), key=lambda r: r[0])
          for session in {r[0] for r in rows}}  # fmt: skip
    first, second = of.values()
    assert len(first) == 6
    assert first == second
    assert store.stats().builds == 3
    store.close()


def test_a_second_delivery_is_told_the_same_id_by_the_general_way(server_url: str):
    store = open_store(server_url)
    record = make.begun(store)
    store.record_trial(make.trial(record, 0))
    trial = make.trial(record, 1)
    number = store.record_trial(trial)
    with sent(store) as statements:
        assert store.record_trial(trial) == number
    assert len(statements) > 1
    with pytest.raises(InternalError) as caught:
        store.record_trial(make.trial(record, 1, median=11.0, artifact="d" * 64))
    assert caught.value.code == "db.different-trial"
    assert (len(store.trials()), store.stats().builds) == (2, 2)
    store.close()


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_sessions_that_record_the_same_things_lose_nothing(url: str):
    store = open_store(url)
    record = make.workload()
    store.put_workload(record)
    names = [f"s{k}" for k in range(4)]
    for name in names:
        store.begin_session(make.session(record, name))
    told: dict[tuple[str, int], int] = {}
    failed: list[BaseException] = []
    met = threading.Barrier(len(names))

    def work(name: str) -> None:
        own = open_store(url)
        try:
            for index in range(12):
                met.wait(30)  # all want the same new schedule, key and build at once
                told[name, index] = own.record_trial(make.trial(record, index, name=name))
        except BaseException as error:  # noqa: BLE001 - the assertion shows it
            failed.append(error)
            met.abort()
        own.close()

    threads = [threading.Thread(target=work, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert failed == []
    for name in names:
        found = store.trials(session=name)
        assert [one.id for one in found] == [told[name, k] for k in range(12)]
        assert [one.trial for one in found] == [make.trial(record, k, name=name) for k in range(12)]
    assert store.verify() == []
    store.close()


@pytest.mark.parametrize("url", ["sqlite", "postgres"], indirect=True)
def test_an_id_of_an_undone_transaction_is_not_remembered(
    url: str, monkeypatch: pytest.MonkeyPatch
):
    store = open_store(url)
    record = make.begun(store)
    trial = make.trial(record, 0)
    insert_new = writing.insert_new

    def fail(connection: Connection, table: Table, values: Mapping[str, Any]) -> int | None:
        if table is schema.trials:  # everything that it refers to is inserted
            raise InternalError("test.undone", "undone")
        return insert_new(connection, table, values)

    monkeypatch.setattr(writing, "insert_new", fail)
    with pytest.raises(InternalError, match="undone"):
        store.record_trial(trial)
    monkeypatch.undo()
    # Another device takes the id that was given back.
    other = replace(make.DEVICE, name="other")
    values = codec.device_values(other)
    store._database.write(lambda connection: connection.execute(schema.devices.insert(), values))
    store.record_trial(trial)
    store.record_trial(make.trial(record, 1))
    assert [one.trial.measurement_key.device for one in store.trials()] == [make.DEVICE] * 2
    assert store.verify() == []
    store.close()


def end_connections(url: str) -> None:
    """What a restart of the server does to a client."""
    name = make_url(url).database
    other = create_engine(make_url(url).set(database="postgres"), isolation_level="AUTOCOMMIT")
    with other.connect() as connection:
        connection.execute(
            text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = :name"),
            {"name": name},
        )
    other.dispose()


def test_recording_and_reading_survive_a_lost_connection(server_url: str):
    store = open_store(server_url)
    record = make.begun(store)
    first = store.record_trial(make.trial(record, 0))
    end_connections(server_url)
    second = store.record_trial(make.trial(record, 1))
    end_connections(server_url)
    assert [one.id for one in store.trials()] == [first, second]
    end_connections(server_url)
    store.put_workload(make.workload(99))
    assert len(store.workloads()) == 2
    store.close()


def test_a_trial_whose_answer_was_lost_is_recorded_once(server_url: str):
    store = open_store(server_url)
    record = make.begun(store)
    store.record_trial(make.trial(record, 0))
    ended: list[str] = []

    def lose(_c: Any, _cursor: Any, statement: str, *_rest: Any) -> None:
        if not ended:  # the statement is done, its answer does not arrive
            ended.append(statement)
            end_connections(server_url)
            raise store._database._engine.dialect.loaded_dbapi.OperationalError("lost")

    number = None
    engine = store._database._engine
    event.listen(engine, "after_cursor_execute", lose)
    try:
        number = store.record_trial(make.trial(record, 1))
    except UnavailableError:
        number = store.record_trial(make.trial(record, 1))
    finally:
        event.remove(engine, "after_cursor_execute", lose)
    assert ended
    found = store.trials()
    assert [one.trial.index for one in found] == [0, 1]
    assert found[1].id == number
    store.close()


def test_a_write_that_must_not_be_done_twice_is_not_when_the_connection_ends(server_url: str):
    open_store(server_url).close()
    database = Database(make_url(server_url))
    attempts = 0

    def work(connection: Connection) -> None:
        nonlocal attempts
        attempts += 1
        connection.execute(text("SELECT 1"))
        end_connections(server_url)
        connection.execute(text("SELECT 1"))

    with pytest.raises(UnavailableError) as caught:
        database.write(work)
    assert caught.value.code == "db.unreachable"
    assert attempts == 1
    database.dispose()


def test_commits_are_durable_whatever_the_server_does_by_default(server_url: str):
    store = open_store(server_url)
    name = make_url(server_url).database

    def setting(database: Database) -> str:
        query = text("SELECT current_setting('synchronous_commit')")
        return str(database.read(lambda c: c.execute(query).scalar()))

    for value, expected in (("off", "on"), ("remote_apply", "remote_apply")):
        store._database.write(
            lambda c, value=value: c.execute(
                text(f"ALTER DATABASE {name} SET synchronous_commit = {value}")
            )
        )
        store.close()
        assert setting(store._database) == expected
    store.close()


def test_a_writer_waits_for_another_and_no_longer_than_it_may(tmp_path):
    url = f"sqlite:///{tmp_path}/store.db"
    store = open_store(url, timeout_s=0.5)
    record = make.begun(store)
    inside, leave = threading.Event(), threading.Event()

    def hold(connection: Connection) -> None:
        inside.set()
        leave.wait(30)

    thread = threading.Thread(target=lambda: open_store(url)._database.write(hold))
    thread.start()
    assert inside.wait(30)
    with pytest.raises(NotSavedError) as caught:
        store.record_trial(make.trial(record, 0))
    assert caught.value.code == "db.locked"
    assert [t.trial.index for t in store.trials()] == []
    threading.Timer(0.1, leave.set).start()
    store.record_trial(make.trial(record, 0))
    thread.join()
    assert len(store.trials()) == 1
    store.close()
