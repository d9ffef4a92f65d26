"""Every benchmark program runs at tiny sizes and prints JSON lines: machine first, marks last.

What the figures are is not looked at: tests assert no time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.repository import ROOT
from tfsearch.target.x86.device import processor
from tfsearch.toolchain import discover

FOLDER = ROOT / "benchmarks"


def needs_compiler() -> None:
    if not processor().family:
        pytest.skip("x86-64: no such processor here")
    if not discover():
        pytest.skip("gcc, clang or zig: no C compiler here")


def run(home: Path, program: str, *words: str) -> tuple[int, list[dict[str, Any]]]:
    """Exit code and the lines of a program at tiny sizes."""
    env = {name: value for name, value in os.environ.items() if name != "TFSEARCH_DB"}
    done = subprocess.run(
        [sys.executable, str(FOLDER / program), *words, "--quick"],
        env={**env, "TFSEARCH_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.stdout, done.stderr
    assert "Traceback" not in done.stderr
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()]


def well_formed(name: str, code: int, lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The lines between the first and the last, which are as every program prints them."""
    assert code == 0
    assert lines[0]["benchmark"] == name
    assert lines[0]["machine"]["units"] >= 1
    assert lines[0]["args"]["quick"] is True
    assert lines[-1]["marks"]
    assert lines[-1]["met"] == all(lines[-1]["marks"].values())
    return lines[1:-1]


def test_row_wise_kernels_are_timed_beside_numpy_and_a_copy(tmp_path: Path) -> None:
    needs_compiler()
    rows = well_formed("x86_rowwise", *run(tmp_path, "x86_rowwise.py"))
    small, large = rows
    assert small["trials"]["ok"] == large["trials"]["ok"] == 1
    assert set(large["us"]) == {"ours", "baseline", "in_place", "plain", "stream"}
    assert "share_of_copy" not in small
    assert large["copy"] in ("plain", "stream")
    for row in rows:
        assert row["difference"] < 1e-6
        assert row["ratio_ci"][0] <= row["ratio"] <= row["ratio_ci"][1]
        assert row["bytes"] == 4 * row["rows"] * row["columns"]


def test_tuning_looking_up_and_importing_are_timed(tmp_path: Path) -> None:
    needs_compiler()
    tune, lookup, load = well_formed("tune_times", *run(tmp_path, "tune_times.py"))
    assert tune["trials"]["ok"] == 1
    assert lookup["warm_lookup"]["processes"] == load["import"]["processes"] == 2


def test_a_killed_session_is_checked_and_found_whole(tmp_path: Path) -> None:
    whole, *killed = well_formed("kill_resume", *run(tmp_path, "kill_resume.py"))
    assert whole["problems"] == []
    assert killed[-1]["kills"]
    assert all(one["problems"] == [] and one["trials"] == 4 for one in killed)


def test_lost_changed_and_missing_trials_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import kill_resume

    one = kill_resume.run("null", 3, tmp_path, None)
    session = kill_resume.Session("null", 3, tmp_path)
    assert session.look(one) == 3
    assert session.problems == []
    held = dict(session.held)
    key, trial = next(iter(held.items()))
    for wrong, told, problem in (
        ({99: trial}, set(), "trials [99] were lost or changed"),
        ({key: replace(trial, index=9)}, set(), f"trials [{key}] were lost or changed"),
        ({}, {7}, "trials [7] were told and are not recorded"),
    ):
        after = kill_resume.Session("null", 3, tmp_path, held={**held, **wrong}, told=told)
        after.look(one)
        assert after.problems == [problem]
    other = kill_resume.Session("null", 4, tmp_path)
    other.look(replace(one, answer={"best": -1}))
    assert other.problems == [
        "the trials are [0, 1, 2]",
        "the reported best is not the recorded one",
    ]


def test_ranking_counts_the_points_of_small_and_huge_spaces(tmp_path: Path) -> None:
    if not processor().family:
        pytest.skip("x86-64: no such processor here")
    one, linked, free = well_formed("rank_speed", *run(tmp_path, "rank_speed.py"))
    assert one["points"] > one["legal"] >= one["kept"] > 0
    assert linked["points"] == free["points"] == free["legal"] == free["seen"] == 10**5
    assert linked["seen"] == linked["legal"] < linked["points"]


def test_calls_are_taken_apart(tmp_path: Path) -> None:
    needs_compiler()
    (costs,) = well_formed("call_overhead", *run(tmp_path, "call_overhead.py"))
    assert costs["ns_per_call"]["prebound call, out"] > 0


def test_mutants_are_judged_and_candidates_verified(tmp_path: Path) -> None:
    lines = well_formed("mutants", *run(tmp_path, "mutants.py"))
    subjects = [line for line in lines if "subject" in line]
    assert len(subjects) >= 4
    assert sum(sum(line["judged"].values()) for line in subjects) >= 20
    assert any(line.get("candidates", 0) >= 20 for line in lines)


def test_lookups_in_a_filled_database_are_timed(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "db_million.py", str(tmp_path / "m.db"))
    (found,) = well_formed("db_million", code, lines)
    assert found["trials"] >= 256
    assert found["lookup_ms"]["calls"] == found["miss_ms"]["calls"] == 20


def test_processes_open_one_database_at_once(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "db_first_open.py", str(tmp_path))
    (found,) = well_formed("db_first_open", code, lines)
    assert found["errors"] == found["databases_lacking_a_row"] == []
    assert not list(tmp_path.glob("*.db"))


def test_a_missed_mark_is_the_exit_code_only_when_asked_for(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(FOLDER))
    import _program

    plain = _program.parser("text").parse_args([])
    asserted = _program.parser("text").parse_args(["--assert"])
    missed = {"one": True, "two": False}
    assert [_program.end(args, missed) for args in (plain, asserted)] == [0, 1]
    assert _program.end(asserted, {"one": True, "two": None}) == 0
    assert _program.end(asserted, {"one": None}) == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["met"] for line in lines] == [False, False, True, False]


def test_valid_sets_of_definitions_are_made_and_timed(tmp_path: Path) -> None:
    values = {"a": "[1, 2, 3]", "b": "[True, False]"}
    items = [{"Name": name, "Type": "int", "Values": text} for name, text in values.items()]
    space = {"TuningParameters": items, "Conditions": [{"Expression": "a > b + 1"}]}
    (tmp_path / "small.json").write_text(json.dumps({"ConfigurationSpace": space}))
    code, lines = run(tmp_path, "space_construction.py", str(tmp_path))
    assert code == 0
    first, peer, row, last = lines
    assert first["benchmark"] == "space_construction"
    assert (row["space"], row["points"], row["legal"]) == ("small", 6, 3)
    if peer["peer"] is None:
        assert last["marks"]["equal_sets"] is None
    else:
        assert row["equal"]
        assert row["peer_legal"] == 3


def test_a_large_fleet_is_simulated(tmp_path: Path) -> None:
    rows = well_formed("fleet_events", *run(tmp_path, "fleet_events.py"))
    assert [row["workers"] for row in rows] == [1, 16, 100, 1000]
    assert all(row["lost"] == row["doubled"] == 0 for row in rows)
    assert all(row["bottleneck"] in row["busy"] for row in rows)


def test_recording_of_several_sessions_is_timed(tmp_path: Path) -> None:
    code, lines = run(tmp_path, "fleet_recording.py", f"sqlite:///{tmp_path}/store.db")
    assert code == 0
    assert lines[0]["benchmark"] == "fleet_recording"
    assert lines[-1]["marks"]["nothing_lost"] is True
    loads = [(line["load"], line["trials"]) for line in lines[1:3]]
    assert loads == [("spaced", 10), ("closed", 10)]
    assert lines[3]["recorded"] == lines[3]["in_database"] == 2 * 2 * (8 + 5)


def test_the_drivers_time_for_a_trial_is_counted(tmp_path: Path) -> None:
    code, (first, found, last) = run(tmp_path, "driver_cpu.py", str(tmp_path))
    assert (code, first["benchmark"]) == (0, "driver_cpu")
    assert last["marks"] == {"every_trial": True, "cpu": None}
    assert (found["trials"], found["recorded"]) == (4, 6)
    assert 0 < found["main_thread_ms"] <= found["wall_ms"]
