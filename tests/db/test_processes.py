"""Several processes on one SQLite file: first opens, writers, kills, forks, pickles."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tests.db import child, make
from tfsearch.core.errors import NotRecordedError
from tfsearch.db import open_store


def test_sixteen_processes_open_one_fresh_database_at_once(tmp_path: Path):
    for turn in range(4):
        url = f"sqlite:///{tmp_path}/{turn}.db"
        start = child.FORK.Event()
        pipes = [child.FORK.Pipe() for _ in range(16)]
        processes = [
            child.FORK.Process(target=child.open_at_once, args=(url, start, there))
            for _, there in pipes
        ]
        for process in processes:
            process.start()
        start.set()
        answers = [here.recv() if here.poll(30) else "silent" for here, _ in pipes]
        for process in processes:
            process.join(10)
        assert answers == ["ok"] * 16
        store = open_store(url)
        assert len(store.workloads()) == 16
        assert store.verify() == []


def test_a_killed_writer_loses_no_recorded_trial(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    chance = random.Random(5)
    reported: set[int] = set()
    for _ in range(6):
        here, there = child.FORK.Pipe(duplex=False)
        process = child.FORK.Process(target=child.write_forever, args=(url, "s1", there))
        process.start()
        there.close()
        first: set[int] = set()
        while not first:
            first |= set(child.drain(here, 0.05))
        reported |= first | set(child.drain(here, 0.1 + chance.random() * 0.3))
        os.kill(process.pid, signal.SIGKILL)
        process.join(10)
        reported |= set(child.drain(here, 0.2))
        store = open_store(url)
        found = [one.trial.index for one in store.trials(session="s1")]
        assert reported <= set(found)
        assert found == list(range(len(found)))
        assert store.verify() == []
        store.close()
    assert len(reported) > 10


def test_two_writing_processes_lose_nothing(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    processes = [
        child.FORK.Process(target=child.write_some, args=(url, f"s{k}", 40)) for k in range(2)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    store = open_store(url)
    for k in range(2):
        assert [t.trial.index for t in store.trials(session=f"s{k}")] == list(range(40))
    assert store.verify() == []


def test_a_store_works_on_both_sides_of_a_fork(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    record = make.begun(store)
    store.record_trial(make.trial(record, 0))
    assert child.in_child(lambda: store.record_trial(make.trial(record, 1))) == "ok"
    store.record_trial(make.trial(record, 2))
    assert [one.trial.index for one in store.trials()] == [0, 1, 2]


def test_forking_beside_a_writing_thread_is_safe(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    record = make.begun(store)
    thread = threading.Thread(
        target=lambda: [store.record_trial(make.trial(record, k)) for k in range(0, 60, 2)]
    )
    thread.start()
    for index in range(1, 12, 2):
        trial = make.trial(record, index)
        assert child.in_child(lambda trial=trial: store.record_trial(trial)) == "ok"
    thread.join()
    found = sorted(one.trial.index for one in store.trials())
    assert found == sorted([*range(0, 60, 2), *range(1, 12, 2)])
    assert store.verify() == []


def test_a_forked_child_holds_no_connection_of_its_parent(tmp_path: Path):
    path = tmp_path / "store.db"
    store = open_store(f"sqlite:///{path}")
    make.begun(store)

    def look() -> None:
        maps = Path("/proc/self/maps").read_text()
        files = [os.path.realpath(fd) for fd in Path("/proc/self/fd").iterdir()]
        assert str(path) not in maps
        assert not [file for file in files if file.startswith(str(path))]

    if not Path("/proc/self/fd").exists():
        pytest.skip("/proc is not there")
    assert child.in_child(look) == "ok"


def test_a_pickled_store_reopens_by_url(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    store = open_store("sqlite:///store.db")
    record = make.begun(store)
    data = pickle.dumps(store)
    monkeypatch.chdir("/")
    code = (
        "import pickle, sys; s = pickle.load(sys.stdin.buffer);"
        "print(len(s.workloads()), s.read_only)"
    )
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True)
    assert done.stdout.split() == [b"1", b"False"]
    copy = pickle.loads(data)
    copy.record_trial(make.trial(record))
    assert len(store.trials()) == 1


def test_a_store_in_memory_does_not_pickle():
    with pytest.raises(TypeError, match="memory"):
        pickle.dumps(open_store("sqlite://"))


def test_a_database_deleted_behind_a_pickle_is_missing(tmp_path: Path):
    store = open_store(f"sqlite:///{tmp_path}/store.db")
    data = pickle.dumps(store)
    store.close()
    for file in tmp_path.glob("store.db*"):
        file.unlink()
    with pytest.raises(NotRecordedError):
        pickle.loads(data)
    assert not (tmp_path / "store.db").exists()


def test_importing_the_package_loads_no_sqlalchemy_and_opening_no_alembic(tmp_path: Path):
    url = f"sqlite:///{tmp_path}/store.db"
    open_store(url).close()
    code = (
        "import sys, tfsearch.db as d; assert 'sqlalchemy' not in sys.modules;"
        "s = d.open_store(sys.argv[1]); s.workload('x');"
        "assert 'alembic' not in sys.modules and 'mako' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, url], check=True)
