"""Verification finds what is planted; collection bounds artifacts and spares winners."""

from __future__ import annotations

import os
import sqlite3
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.db import make
from tfsearch.core.errors import NotRecordedError
from tfsearch.core.launch import EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.db import ArtifactStore, Store, open_store

LAUNCH = LaunchSpec(EntrySpec("kernel", (), units=2, workspace_bytes=4096))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """An SQLite store with one failed and two ok trials, and a final that the second wins."""
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    record = make.begun(store)
    one, two = (store.record_trial(make.trial(record, k)) for k in range(2))
    store.record_trial(make.failed(record, 2, Status.WRONG))
    store.record_final(make.final(record, two, one))
    store.record_launch(LAUNCH)
    store.close()
    return tmp_path / "store.db"


def opened(path: Path) -> Store:
    return open_store(f"sqlite:///{path}")


def tamper(path: Path, statement: str) -> None:
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA ignore_check_constraints=ON")
    assert connection.execute(statement).rowcount > 0
    connection.commit()
    connection.close()


PLANTED = {
    "UPDATE trials SET median_us = 0.001 WHERE id = 1": ("verify.wrong-digest", "trial 1, content"),
    "UPDATE trials SET message = 'x' WHERE id = 3": ("verify.wrong-digest", "trial 3, content"),
    "UPDATE trials SET measurement_key = 'x' WHERE id = 1": (
        "verify.wrong-digest",
        "trial 1, measurement",
    ),
    "UPDATE trials SET status = 'ok' WHERE id = 3": ("verify.measurement", "trial 3"),
    "UPDATE trials SET status = 'nonsense' WHERE id = 3": ("verify.damaged-row", "trial 3"),
    "UPDATE trials SET passes = '{' WHERE id = 1": ("verify.damaged-row", "trial 1"),
    "UPDATE trials SET verified = 0 WHERE id = 2": ("verify.unverified-winner", "final 1"),
    "UPDATE measurements SET samples = x'00' WHERE trial_id = 1": ("verify.damaged-row", "trial 1"),
    "DELETE FROM measurements WHERE trial_id = 1": ("verify.measurement", "trial 1"),
    "UPDATE schedules SET params = '{}' WHERE id = 1": ("verify.wrong-digest", "trial 1, schedule"),
    "UPDATE build_keys SET headers = 'x' WHERE id = 1": ("verify.wrong-digest", "trial 1, build"),
    "UPDATE environments SET flags = '[]'": ("verify.wrong-digest", "trial 1, build"),
    "UPDATE devices SET driver = 'x'": ("verify.wrong-digest", "device 1"),
    "UPDATE toolchains SET programs = '{}'": ("verify.wrong-digest", "toolchain 1"),
    "UPDATE workloads SET alignment = 1": ("verify.wrong-digest", "workload 1"),
    "UPDATE trials SET session_id = 77 WHERE id = 1": ("verify.dangling-reference", "trials row 1"),
    "DELETE FROM final_entries WHERE trial_id = 2": ("verify.winner-not-entered", "final 1"),
    "UPDATE finals SET workload_id = 9": ("verify.foreign-winner", "final 1"),
    "UPDATE launches SET spec = replace(spec, '4096', '64')": (
        "verify.wrong-digest",
        f"launch {LAUNCH.digest}",
    ),
    "UPDATE launches SET spec = '{}'": ("verify.damaged-row", f"launch {LAUNCH.digest}"),
}


@pytest.mark.parametrize("statement", PLANTED)
def test_verify_finds_what_was_tampered_with(path: Path, statement: str):
    assert opened(path).verify() == []
    tamper(path, statement)
    problems = opened(path).verify()
    assert PLANTED[statement] in [(one.code, one.where) for one in problems]


@pytest.mark.parametrize(
    "statement",
    [
        f"UPDATE builds SET artifact = '{'d' * 64}'",
        "UPDATE trials SET build_key_id = (SELECT build_key_id FROM trials WHERE id = 1)",
        "UPDATE trials SET schedule_id = (SELECT schedule_id FROM trials WHERE id = 1)",
        "UPDATE trials SET median_us = 0.001",
    ],
)
def test_an_altered_record_is_not_served(path: Path, statement: str):
    query = make.query(make.workload())
    served = opened(path).best(query)
    assert served is not None
    assert served.id == 2
    tamper(path, statement)
    with pytest.raises(NotRecordedError) as caught:
        opened(path).best(query)
    assert caught.value.code == "db.altered-record"


def test_the_winner_of_another_workload_is_not_served(path: Path):
    store = opened(path)
    other = make.workload(64)
    store.put_workload(other)
    tamper(
        path,
        f"UPDATE finals SET workload_id = (SELECT id FROM workloads WHERE key = '{other.key}')",
    )
    with pytest.raises(NotRecordedError) as caught:
        store.best(make.query(other))
    assert caught.value.code == "db.altered-record"


def test_an_altered_launch_is_not_there(path: Path):
    assert opened(path).launch(LAUNCH.digest) == LAUNCH
    tamper(path, "UPDATE launches SET spec = replace(spec, '4096', '64')")
    assert opened(path).launch(LAUNCH.digest) is None


def test_verify_of_a_damaged_file_says_so(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    record = make.begun(store)
    for index in range(200):
        store.record_trial(make.trial(record, index))
    store.close()
    file = tmp_path / "store.db"
    data = bytearray(file.read_bytes())
    page = 4096 * (len(data) // 4096 - 3)
    data[page : page + 4096] = b"\xa5" * 4096
    file.write_bytes(data)
    problems = open_store(f"sqlite:///{file}").verify()
    assert {one.code for one in problems} >= {"verify.damaged-file"}


def test_a_winner_that_lost_its_verification_is_not_served(path: Path):
    query = make.query(make.workload())
    store = opened(path)
    assert store.best(query) is not None
    tamper(path, "UPDATE trials SET verified = 0 WHERE id = 2")
    assert store.best(query) is None
    assert store.nearest(replace(query, protocol="warm/1"))[0].trial == 1


def test_the_schema_itself_keeps_a_latency_exactly_when_ok(path: Path):
    connection = sqlite3.connect(path)
    for statement in (
        "UPDATE trials SET median_us = NULL WHERE id = 1",
        "UPDATE trials SET status = 'wrong' WHERE id = 1",
        "UPDATE trials SET median_us = 1.0 WHERE id = 3",
        "UPDATE trials SET median_us = 0.0 WHERE id = 1",
    ):
        with pytest.raises(sqlite3.IntegrityError, match="CHECK"):
            connection.execute(statement)
    connection.close()


def with_artifacts(tmp_path: Path) -> tuple[Store, ArtifactStore, list[str]]:
    """Four artifacts of 100 bytes, oldest first; the oldest is the latest winner's."""
    store = open_store(f"sqlite:///{tmp_path}/gc.db")
    artifacts = ArtifactStore(tmp_path / "artifacts")
    digests = [artifacts.put(bytes([k]) * 100) for k in range(4)]
    for age, digest in zip((40, 30, 20, 10), digests, strict=True):
        used = time.time() - age * 86400
        os.utime(artifacts.folder / digest[:2] / digest[2:], (used, used))
    record = make.begun(store)
    ids = [store.record_trial(make.trial(record, k, artifact=d)) for k, d in enumerate(digests)]
    store.record_final(make.final(record, ids[1], ids[0]))
    store.record_final(make.final(record, ids[0], ids[1]))
    return store, artifacts, digests


def test_collection_by_size_removes_the_least_recently_used_but_no_winner(tmp_path: Path):
    store, artifacts, digests = with_artifacts(tmp_path)
    report = store.gc(artifacts, max_bytes=250)
    assert report.removed == (digests[1], digests[2])
    assert (report.removed_bytes, report.kept, report.kept_bytes) == (200, 2, 200)
    assert {entry.digest for entry in artifacts.entries()} == {digests[0], digests[3]}
    assert len(store.trials()) == 4
    report = store.gc(artifacts, max_bytes=0)
    assert report.over_limit_bytes == 100
    assert [entry.digest for entry in artifacts.entries()] == [digests[0]]


def test_collection_by_age_and_by_number(tmp_path: Path):
    store, artifacts, digests = with_artifacts(tmp_path)
    assert store.gc(artifacts, max_age_days=25).removed == (digests[1],)
    assert store.gc(artifacts, max_files=2).removed == (digests[2],)
    assert store.gc(artifacts).removed == ()


def test_a_dry_run_removes_nothing(tmp_path: Path):
    store, artifacts, digests = with_artifacts(tmp_path)
    report = store.gc(tmp_path / "artifacts", max_bytes=0, dry_run=True)
    assert set(report.removed) == set(digests[1:])
    assert report.dry_run
    assert len(list(artifacts.entries())) == 4


def test_verify_checks_the_artifacts(tmp_path: Path):
    store, artifacts, digests = with_artifacts(tmp_path)
    assert store.verify(artifacts) == []
    artifacts.path(digests[2]).write_bytes(b"other")
    artifacts.remove(digests[0])
    codes = {(one.code, one.where) for one in store.verify(artifacts.folder)}
    assert codes == {
        ("verify.artifact-missing", f"artifact {digests[0]}"),
        ("verify.artifact-wrong", f"artifact {digests[2]}"),
    }
