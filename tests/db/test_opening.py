"""What a user may point the store at, and the one line each mistake gets."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.db import child, make
from tfsearch.core.errors import (
    NotRecordedError,
    NotSavedError,
    RequestError,
    TfsearchError,
    UnavailableError,
)
from tfsearch.core.records import WorkloadRecord
from tfsearch.db import Store, engine, open_store, opening, schema, upgrade_store


def refused(kind: type[TfsearchError], code: str, url: str, **options) -> str:
    with pytest.raises(kind) as caught:
        open_store(url, **options)
    assert caught.value.code == code
    assert "\n" not in str(caught.value)
    return str(caught.value)


def fill(store: Store, record: WorkloadRecord) -> int:
    """Record trials until the disk is full; returns how many were recorded."""
    for index in range(5000):
        answer = child.outcome(partial(store.record_trial, make.trial(record, index)))
        if answer != "ok":
            assert answer == "db.disk-full"
            return index
    pytest.fail("the disk never filled up")


@pytest.fixture
def open_folder() -> Iterator[Path]:
    """A folder that every user can reach (pytest's own are private to the one who runs it)."""
    folder = Path(tempfile.mkdtemp(prefix="tfsearch-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


@pytest.mark.parametrize(
    ("url", "hint"),
    [
        ("results.db", "sqlite:///results.db"),
        ("", "sqlite:///"),
        ("mysql://host/x", "sqlite, postgresql"),
        ("sqlite:///x.db?mode=ro", "without options"),
        ("sqlite://host/x.db", "sqlite:////absolute"),
        ("sqlite+aiosqlite:///x.db", "sqlite:///relative"),
    ],
)
def test_a_malformed_or_unknown_url_is_refused(url: str, hint: str):
    assert hint in refused(RequestError, "db.url", url)


@pytest.mark.parametrize("content", [b"x", b"hello\n", b"\0" * 600, b"text " * 2000])
def test_a_file_that_is_not_a_database_is_refused_and_left_alone(tmp_path: Path, content: bytes):
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    for options in ({}, {"create": False}, {"read_only": True}):
        line = refused(RequestError, "db.not-a-database", f"sqlite:///{path}", **options)
        assert str(path) in line
    assert path.read_bytes() == content


def test_a_folder_is_refused(tmp_path: Path):
    refused(RequestError, "db.not-a-database", f"sqlite:///{tmp_path}")


def test_a_path_below_a_file_is_refused(tmp_path: Path):
    (tmp_path / "file").touch()
    refused(RequestError, "db.url", f"sqlite:///{tmp_path}/file/store.db")


@pytest.mark.parametrize("tables", [["users"], ["trials", "alembic_version"], ["meta"]])
def test_a_foreign_database_is_refused_and_left_alone(tmp_path: Path, tables: list[str]):
    path = tmp_path / "app.db"
    connection = sqlite3.connect(path)
    for table in tables:
        connection.execute(f"CREATE TABLE {table} (version_num TEXT)")
    connection.close()
    before = path.read_bytes()
    assert tables[0] in refused(RequestError, "db.foreign", f"sqlite:///{path}")
    assert path.read_bytes() == before


def test_an_empty_database_file_is_taken(tmp_path: Path):
    path = tmp_path / "empty.db"
    path.touch()
    open_store(f"sqlite:///{path}").put_workload(make.workload())
    other = tmp_path / "vacuumed.db"
    connection = sqlite3.connect(other)
    connection.executescript("CREATE TABLE t (x); DROP TABLE t; VACUUM")
    connection.close()
    open_store(f"sqlite:///{other}").put_workload(make.workload())


def test_a_missing_database_is_made_only_when_asked(tmp_path: Path):
    path = tmp_path / "deep" / "er" / "store.db"
    url = f"sqlite:///{path}"
    refused(NotRecordedError, "db.missing", url, create=False)
    refused(NotRecordedError, "db.missing", url, read_only=True)
    assert not path.parent.exists()
    open_store(url)
    assert open_store(url, create=False, read_only=True).workloads() == []


def test_a_database_from_the_future_names_both_revisions(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    connection = sqlite3.connect(tmp_path / "store.db")
    connection.execute("UPDATE alembic_version SET version_num = '0999'")
    connection.commit()
    connection.close()
    line = refused(RequestError, "db.from-the-future", url)
    assert "0999" in line
    assert schema.HEAD in line
    with pytest.raises(RequestError, match="0999"):
        upgrade_store(url)


def test_a_damaged_database_is_refused(tmp_path: Path):
    url, path = f"sqlite:///{tmp_path}/store.db", tmp_path / "store.db"
    store = open_store(url)
    make.begun(store)
    store.close()
    data = bytearray(path.read_bytes())
    data[4096:] = b"\xa5" * (len(data) - 4096)
    path.write_bytes(data)
    refused(RequestError, "db.corrupt", url)


def test_reading_only_reads_and_says_so_on_a_write(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    record = make.begun(open_store(url))
    store = open_store(url, read_only=True)
    assert store.read_only
    assert store.workload(record.key) == record
    with pytest.raises(NotSavedError) as caught:
        store.record_trial(make.trial(record))
    assert caught.value.code == "db.read-only"


@pytest.mark.parametrize("where", ["file", "folder", "both"])
def test_a_read_only_file_is_read_and_not_written(open_folder: Path, where: str):
    path = open_folder / "store.db"
    url = f"sqlite:///{path}"
    store = open_store(url)
    record = make.begun(store)
    store.close()
    path.chmod(0o444 if where in ("file", "both") else 0o666)
    open_folder.chmod(0o777 if where == "file" else 0o555)

    def look() -> None:
        there = open_store(url)
        assert there.workload(record.key) == record
        there.record_trial(make.trial(record))

    assert child.in_child(look, unprivileged=True) == "db.read-only"


def test_a_folder_that_may_not_be_written_gets_no_database(open_folder: Path):
    open_folder.chmod(0o555)
    for name in ("store.db", "deep/store.db"):
        url = f"sqlite:///{open_folder}/{name}"
        assert child.in_child(lambda url=url: open_store(url), unprivileged=True) == "db.read-only"


def test_a_file_that_may_not_be_read_is_named(open_folder: Path):
    url = f"sqlite:///{open_folder}/store.db"
    open_store(url).close()
    (open_folder / "store.db").chmod(0o200)
    answer = child.in_child(lambda: open_store(url), unprivileged=True)
    assert answer == "db.no-permission"


def test_a_lock_of_another_process_is_waited_for_then_reported(tmp_path: Path):
    path = tmp_path / "store.db"
    record = make.begun(open_store(f"sqlite:///{path}"))
    store = open_store(f"sqlite:///{path}", timeout_s=0.3)
    held, release = child.FORK.Event(), child.FORK.Event()
    process = child.FORK.Process(target=child.hold_lock, args=(path, held, release))
    process.start()
    assert held.wait(10)
    started = time.monotonic()
    with pytest.raises(NotSavedError) as caught:
        store.record_trial(make.trial(record))
    assert caught.value.code == "db.locked"
    assert 0.2 < time.monotonic() - started < 5
    assert store.workload(record.key) == record
    patient = open_store(f"sqlite:///{path}", timeout_s=20)
    release.set()
    patient.record_trial(make.trial(record))
    process.join(10)


def test_a_lock_on_a_database_without_wal_blocks_opening(tmp_path: Path):
    path = tmp_path / "store.db"
    open_store(f"sqlite:///{path}").close()
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode=DELETE")
    connection.close()
    held, release = child.FORK.Event(), child.FORK.Event()
    process = child.FORK.Process(target=child.hold_lock, args=(path, held, release))
    process.start()
    assert held.wait(10)
    refused(NotSavedError, "db.locked", f"sqlite:///{path}", timeout_s=0.3)
    release.set()
    process.join(10)


def test_a_setup_lock_that_is_held_is_reported(tmp_path: Path):
    import fcntl

    path = tmp_path / "store.db"
    with (tmp_path / "store.db-lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused(NotSavedError, "db.locked", f"sqlite:///{path}", timeout_s=0.2)
    open_store(f"sqlite:///{path}")


def test_a_full_database_is_reported_and_keeps_what_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    monkeypatch.setattr(engine, "_PRAGMAS", (*engine._PRAGMAS, "PRAGMA max_page_count=70"))
    store = open_store(url)
    record = make.begun(store)
    done = fill(store, record)
    assert [one.trial.index for one in store.trials()] == list(range(done))
    monkeypatch.undo()
    assert open_store(url).verify() == []


def test_a_file_size_limit_is_not_saved(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    record = make.begun(open_store(url))

    def write() -> None:
        store = open_store(url)
        for index in range(1000):
            store.record_trial(make.trial(record, index))

    assert child.in_child(write, file_limit=400_000) in ("db.io-error", "db.disk-full")
    assert open_store(url).verify() == []
    fresh = f"sqlite:///{tmp_path}/fresh.db"
    answer = child.in_child(lambda: open_store(fresh), file_limit=8192)
    assert answer in ("db.io-error", "db.disk-full")
    assert open_store(fresh).workloads() == []


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mount = shutil.which("mount")
    if os.geteuid() != 0 or mount is None:
        pytest.skip("root and mount: a full disk is a small tmpfs")
    done = subprocess.run(
        [mount, "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)], check=False
    )
    if done.returncode:
        pytest.skip("tmpfs: it may not be mounted here")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_not_saved_and_still_read(small_disk: Path):
    url = f"sqlite:///{small_disk}/store.db"
    store = open_store(url)
    record = make.begun(store)
    kept = fill(store, record)
    assert len(store.trials()) == kept > 10
    store.close()
    with pytest.raises(OSError, match="space"), (small_disk / "filler").open("wb") as filler:
        filler.write(b"x" * 2_000_000)
    refused(NotSavedError, "db.disk-full", f"sqlite:///{small_disk}/other.db")
    assert len(open_store(url, read_only=True).trials()) == kept


def test_an_unreachable_server_is_named_without_its_password():
    pytest.importorskip("psycopg", reason="psycopg: the PostgreSQL driver")
    line = refused(
        UnavailableError,
        "db.unreachable",
        "postgresql://me:geheim@127.0.0.1:9/records",
        timeout_s=2,
    )
    assert "geheim" not in line
    assert "me:***@127.0.0.1:9" in line


@pytest.mark.parametrize(
    ("rest", "text"),
    [
        ("postgresql://me:geheim@127.0.0.1:port/db", "is not a database URL"),
        ("postgresql://me:geheim@127.0.0.1:99999/db", "a port is from 1 to 65535, not 99999"),
        ("postgresql://me:geheim@127.0.0.1:9/db?nonsense=1", 'connection option "nonsense"'),
        ("sqlite://me:geheim@host/db", "an SQLite URL is"),
        ("mysql://me:geheim@host/db", "unknown database kind 'mysql'"),
    ],
)
def test_a_malformed_url_is_refused_without_its_password(rest: str, text: str):
    pytest.importorskip("psycopg", reason="psycopg: the PostgreSQL driver")
    line = refused(RequestError, "db.url", rest)
    assert text in line
    assert "geheim" not in line


def test_a_refused_password_is_not_printed():
    server = os.environ.get("TFSEARCH_TEST_POSTGRES")
    if not server:
        pytest.skip("PostgreSQL: TFSEARCH_TEST_POSTGRES names no server")
    from sqlalchemy import make_url

    url = make_url(server).set(password="geheim").render_as_string(hide_password=False)
    assert "geheim" not in refused(UnavailableError, "db.unreachable", url)


def test_a_missing_server_driver_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    refused(UnavailableError, "db.driver-missing", "postgresql+psycopg://me@h/x")


def test_a_deleted_database_is_not_started_again_by_an_open_store(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    store.close()
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    with pytest.raises(TfsearchError):
        store.put_workload(make.workload())
    assert not (tmp_path / "store.db").exists()


def journal(path: Path) -> str:
    return sqlite3.connect(path).execute("PRAGMA journal_mode").fetchone()[0]


def test_a_new_database_has_a_write_ahead_log_and_durable_commits(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    assert journal(tmp_path / "store.db") == "wal"
    read = store._database.read
    assert read(lambda c: c.exec_driver_sql("PRAGMA synchronous").scalar()) == 2
    assert read(lambda c: c.exec_driver_sql("PRAGMA foreign_keys").scalar()) == 1


@pytest.mark.parametrize("kind", ["nfs4", "fuse.sshfs", "9p"])
def test_a_network_file_system_gets_no_write_ahead_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
):
    monkeypatch.setattr(opening, "file_system", lambda path: kind)
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    record = make.begun(store)
    store.record_trial(make.trial(record))
    assert journal(tmp_path / "store.db") == "delete"


def test_the_file_system_of_a_path_is_known():
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("/proc/self/mountinfo is not there")
    assert opening.file_system(Path("/proc/self/status")) == "proc"
    assert opening.file_system(Path("/nowhere/at/all")) == opening.file_system(Path("/"))


def test_a_path_with_odd_characters_works(tmp_path: Path):
    path = tmp_path / "a #1 100% ö.db"
    url = f"sqlite:///{path}"
    record = make.begun(open_store(url))
    assert path.exists()
    assert open_store(url).workload(record.key) == record
