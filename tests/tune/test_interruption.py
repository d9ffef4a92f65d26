"""Killed or interrupted at any point, a session loses nothing and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.tune.driver import PLACES
from tests.tune.faulty import ONE_POINT
from tests.tune.helpers import Watcher, run
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.db import SessionStatus, Store
from tfsearch.ir.workload import Workload
from tfsearch.tune import Stage
from tfsearch.tune.ownership import is_gone, own_name, work_folder

ROOT = Path(__file__).parents[2]


def _start(home: Settings, target: str = "null", **options: Any) -> subprocess.Popen[str]:
    request = options.pop("request", {"trials": 3})
    arguments = {"home": str(home.home), "target": target, "request": request, **options}
    return subprocess.Popen(
        [sys.executable, "-m", "tests.tune.driver", json.dumps(arguments)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
    )


def _lines_until(process: subprocess.Popen[str], text: str) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(text):
            return
    raise AssertionError(f"the process ended without {text!r}")


def _last_line(process: subprocess.Popen[str]) -> dict[str, Any]:
    assert process.stdout is not None
    return json.loads(process.stdout.read().strip().splitlines()[-1])


@pytest.mark.parametrize("place", PLACES)
def test_a_killed_session_is_continued_with_nothing_lost_or_repeated(
    gemm: Workload, store: Store, home: Settings, place: str
) -> None:
    count = 1 if place in ("final", "record_final", "finish") else 2
    process = _start(home, die=[place, count])
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    before = {t.id: t.trial for t in store.trials()}
    (session,) = store.sessions()
    assert session.status is SessionStatus.RUNNING

    watcher = Watcher()
    report = run(gemm, store, home, observer=watcher)
    assert report.session == session.id
    after = {t.id: t.trial for t in store.trials()}
    assert {key: after[key] for key in before} == before
    assert sorted(t.index for t in after.values()) == [0, 1, 2]
    assert len({t.schedule.key for t in after.values()}) == 3
    assert {t.session for t in after.values()} == {session.id}
    (finished,) = store.sessions()
    assert finished.status is SessionStatus.FINISHED
    assert (report.trials.total, report.trials.ok) == (3, 3)
    assert report.best is not None
    final = store.latest_final(gemm.key)
    assert final is not None
    assert final.final.winner == report.best.trial
    assert (Stage.RESUME in watcher.of(Stage)) == bool(before)


def test_ctrl_c_keeps_what_was_measured_and_prints_what_is_known(
    gemm: Workload, store: Store, home: Settings
) -> None:
    process = _start(home, request={"trials": 5000, "policy": "exhaustive"})
    _lines_until(process, "trial 1")
    process.send_signal(signal.SIGINT)
    answer = _last_line(process)
    assert process.wait(timeout=60) == answer["exit"] == 130
    stored = store.trials()
    done = [t.trial for t in stored if t.trial.status is Status.OK]
    assert len(done) >= 2
    assert {t.trial.status for t in stored} == {Status.OK, Status.CANCELLED}
    assert answer["report"]["trials"]["total"] == len(done)
    best = min(t.measurement.median_us for t in done if t.measurement is not None)
    assert answer["report"]["best"]["median_us"] == best
    assert answer["report"]["best"]["verified"] is True
    (session,) = store.sessions()
    assert session.status is SessionStatus.INTERRUPTED

    total = len(done) + 2
    report = run(gemm, store, home, policy="exhaustive", trials=total)
    assert report.session == session.id
    again = [t.trial for t in store.trials() if t.trial.status is Status.OK]
    assert again[: len(done)] == done
    assert len({t.schedule.key for t in again}) == len(again) == total


def test_ctrl_c_does_not_wait_for_a_candidate_that_hangs(store: Store, home: Settings) -> None:
    fix = {**ONE_POINT, "fault": "hang"}
    process = _start(home, "faulty", request={"trials": 5, "fix": fix})
    _lines_until(process, "ready")
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(timeout=2.5)
    process.send_signal(signal.SIGINT)
    assert process.wait(timeout=10) == 130
    answer = _last_line(process)
    assert answer["report"]["best"] is None
    (stored,) = store.trials()
    assert stored.trial.status is Status.CANCELLED


def test_a_session_that_another_process_drives_is_left_alone(
    gemm: Workload, store: Store, home: Settings
) -> None:
    process = _start(home, request={"trials": 5000, "policy": "exhaustive"})
    try:
        _lines_until(process, "trial 0")
        (running,) = store.sessions()
        assert not is_gone(running.owner)
        report = run(gemm, store, home, policy="exhaustive", trials=2)
        assert report.session != running.id
        assert report.trials.total == 2
    finally:
        process.kill()
        process.communicate()
    assert is_gone(running.owner)


def test_folders_of_killed_processes_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import os, tempfile; tempfile.tempdir = os.sys.argv[1]\n"
            "from tfsearch.tune.ownership import work_folder\n"
            "(work_folder() / 'kernel').write_text('x'); os.kill(os.getpid(), 9)",
            str(tmp_path),
        ]
    )
    process.wait(timeout=60)
    (left,) = tmp_path.iterdir()
    own, other = work_folder(), tmp_path / "tfsearch-tune-notes"
    other.mkdir()
    assert not left.exists()
    assert work_folder().exists()
    assert own.exists()
    assert other.exists()


def test_owner_names_tell_a_reused_process_id_from_the_process() -> None:
    own = own_name()
    assert not is_gone(own)
    host, pid, started = own.rsplit(":", 2)
    assert is_gone(f"{host}:{pid}:{started}0")
    assert not is_gone(f"elsewhere:{pid}:{started}0")
    assert not is_gone("")


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_killed_process_that_nobody_waited_for_is_gone() -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", "from tfsearch.tune.ownership import own_name; print(own_name());"
         "input()"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT,
    )  # fmt: skip
    assert child.stdout is not None
    owner = child.stdout.readline().strip()
    assert not is_gone(owner)
    os.kill(child.pid, signal.SIGKILL)
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # it has ended and is still listed
    assert is_gone(owner)
    child.communicate()
