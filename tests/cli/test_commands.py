"""Every command once: its document, its lines, its exit code."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import GEMM, NoCompiler, Run
from tfsearch.cli import docs, output
from tfsearch.cli.progress import summary
from tfsearch.core.settings import Settings
from tfsearch.target.null import NullTarget
from tfsearch.tune.observer import Progress

PAGE = Path(__file__).parents[2] / "docs" / "commands.md"


def test_the_page_of_commands_is_what_help_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == docs.page(), (
        "the help has changed: python -m tfsearch.cli.docs > docs/commands.md"
    )


def test_help_and_version_of_every_command(run: Run) -> None:
    assert run("--help").code == 0
    assert run("--version").out.startswith("tfsearch ")
    assert run("schedule", "finalize", "--help").code == 0


def test_tune_prints_the_agreed_document(run: Run, home: Settings) -> None:
    answer = run("tune", *GEMM, "--trials", "3", "--json")
    assert answer.code == 0
    found = answer.json
    assert set(found) == {
        "workload", "target", "device", "toolchain", "space", "trials", "best", "baseline",
        "elapsed_s", "interrupted", "noise",
    }  # fmt: skip
    assert found["workload"]["op"] == "gemm"
    assert found["workload"]["dims"] == {"m": 12, "n": 10, "k": 8}
    assert len(found["workload"]["key"]) == 64
    assert found["trials"] == {"total": 3, "ok": 3, "failed": {}}
    space = found["space"]
    assert space["legal"] + sum(space["rejected"].values()) == space["points"]
    best = found["best"]
    assert best["verified"] is True
    assert best["source"] == "measured"
    assert best["ci_us"][0] <= best["median_us"] <= best["ci_us"][1]
    assert best["schedule"]["params"]
    assert found["baseline"]["speedup"] > 0
    first, *told = answer.err.splitlines()  # progress goes to standard error
    assert first.startswith("tuning gemm m=12 n=10 k=8 dtype=f32 on null (")
    assert any(re.match(r"1 trial, |[23] trials, ", line) for line in told)
    again = run("tune", *GEMM, "--trials", "1", "--json", "--quiet")
    assert again.code == 0
    assert again.err == ""


def test_tune_for_people(run: Run) -> None:
    answer = run("tune", *GEMM, "--trials", "2")
    assert answer.code == 0
    assert "best       " in answer.out
    assert "baseline   simulated" in answer.out
    assert "858 legal of 960 schedules" in answer.out


def test_fixed_parameters_hold(run: Run) -> None:
    words = ("--fix", "block=64", "--fix", "order=backward", "--trials", "2", "--no-baseline")
    found = run("tune", *GEMM, *words, "--json").json
    assert found["best"]["schedule"]["params"]["block"] == 64
    assert found["best"]["schedule"]["params"]["order"] == "backward"
    assert found["baseline"] is None


@pytest.mark.usefixtures("tuned")
def test_lookup_prints_what_serves(run: Run) -> None:
    answer = run("lookup", *GEMM, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["served_by"] == "exact"
    assert found["best"]["source"] == "database"
    assert found["best"]["verified"] is True
    assert found["best"]["tflops"] > 0
    assert 0 < found["best"]["roofline_fraction"] < 1
    lines = run("lookup", *GEMM).out
    assert "served by  exact" in lines


@pytest.mark.usefixtures("tuned")
def test_a_miss_prints_the_nearest(run: Run) -> None:
    wanted = ("gemm", "m=13", *GEMM[2:])
    answer = run("lookup", *wanted, "--json")
    assert answer.code == 4
    found = answer.json
    assert found["best"] is None
    assert found["nearest"][0]["differs"] == {"workload.dims.m": [13, 12]}
    assert "workload.dims.m is 12 there, 13 here" in answer.error
    flags = run("lookup", *GEMM, "--flag=-O3", "--json")
    assert flags.code == 4
    assert flags.json["nearest"][0]["differs"] == {"flags": [["-O3"], []]}


@pytest.mark.usefixtures("tuned")
def test_a_miss_can_be_served_by_the_model(run: Run) -> None:
    wanted = ("gemm", "m=13", *GEMM[2:])
    answer = run("lookup", *wanted, "--allow", "model", "--json")
    assert answer.code == 0
    assert answer.json["served_by"] == "model"
    assert answer.json["best"]["source"] == "measured"


def test_without_a_compiler_only_kept_executables_are_served(
    run: Run, tuned: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NullTarget, "compiler", NoCompiler.compiler)
    assert run("lookup", *GEMM).code == 0
    for file in tuned.artifacts.glob("??/*"):
        file.unlink()
    answer = run("lookup", *GEMM)
    assert answer.code == 5
    assert "get one with: apt-get" in answer.error


def test_the_environment_names_the_database(
    run: Run, tuned: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFSEARCH_DB", f"sqlite:///{tmp_path / 'other.db'}")
    assert run("lookup", *GEMM).code == 4
    assert run("lookup", *GEMM, "--db", tuned.database_url).code == 0


def test_space_counts_and_says_why(run: Run) -> None:
    answer = run("space", *GEMM, "--json")
    assert answer.code == 0
    found = answer.json
    assert (found["points"], found["legal"], found["pruned"]) == (960, 858, 0)
    assert found["rejected"] == {"null.lanes": 32, "null.capacity": 70}
    assert "do not fit a block" in found["reasons"]["null.lanes"]
    assert "70  null.capacity" in run("space", *GEMM).out


@pytest.mark.usefixtures("tuned")
def test_space_prunes_against_the_recorded_best(run: Run) -> None:
    found = run("space", *GEMM, "--json").json
    assert found["incumbent_us"] > 0
    assert found["pruned"] == 0  # no bound of the simulated device is above its best


def test_a_space_without_a_legal_schedule(run: Run) -> None:
    words = ("--fix", "block=256", "--fix", "unroll=8", "--fix", "stages=4")
    answer = run("space", *GEMM, *words, "--json")
    assert answer.code == 3
    assert answer.json["legal"] == 0
    assert answer.json["error"]["code"] == "space.no-legal"
    for command in (("tune", *GEMM), ("schedule", "candidates", *GEMM)):
        refused = run(*command, *words)
        assert refused.code == 3
        assert "null.capacity: " in refused.error


@pytest.mark.usefixtures("targets")
def test_space_and_finalize_need_no_device(run: Run) -> None:
    words = (*GEMM[:-1], "absent")
    assert run("space", *words, "--json").json["legal"] == 858
    assert run("schedule", "finalize", *words, "--json").json["source"]
    assert run("schedule", "candidates", *words, "--json").code == 0


def test_candidates_are_ranked(run: Run) -> None:
    found = run("schedule", "candidates", *GEMM, "--top", "7", "--json").json["candidates"]
    assert [one["rank"] for one in found] == list(range(1, 8))
    times = [one["predicted_us"] for one in found]
    assert times == sorted(times)
    assert all(one["bound_us"] <= one["predicted_us"] for one in found)
    lines = run("schedule", "candidates", *GEMM, "--top", "7").out.splitlines()
    assert len(lines) == 8


def test_a_schedule_file_is_enough_after_candidates(run: Run, tmp_path: Path) -> None:
    found = run("schedule", "candidates", *GEMM, "--json").json["candidates"][1]["schedule"]
    path = tmp_path / "s.json"
    path.write_text(json.dumps(found))
    assert run("schedule", "check", str(path)).out == "legal\n"
    assert run("schedule", "check", str(path), "--prove", "--json").json["legal"] is True
    assert run("schedule", "facts", str(path), "--json").json["schedule"] == found
    assert run("schedule", "finalize", str(path), "--json").json["schedule"] == found


def test_facts_are_integers(run: Run) -> None:
    found = run("schedule", "facts", *GEMM, "--json").json["facts"]
    assert found["work"] >= 12 * 10 * 8
    assert isinstance(found["work"], int)
    assert found["bytes"] == 4 * (12 * 8 + 8 * 10 + 12 * 10)


def test_explain_shows_the_program_and_its_time(run: Run) -> None:
    found = run("schedule", "explain", *GEMM, "--json").json
    assert found["tir"].startswith("kernel null_main")
    (kernel,) = found["analysis"]["kernels"]
    assert kernel["atoms"]["null.configure"] == 1
    assert found["predicted"]["total_us"] >= found["predicted"]["bound_us"] > 0
    assert "predicted" in run("schedule", "explain", *GEMM).out


def test_measure_times_one_schedule(run: Run) -> None:
    answer = run("schedule", "measure", *GEMM, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["status"] == "ok"
    assert found["verified"] is True
    assert found["median_us"] > 0


def test_finalize_prints_the_kernel_and_writes_the_trace(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "trace"
    answer = run("schedule", "finalize", *GEMM, "--trace", str(folder), "--json")
    assert answer.code == 0
    found = answer.json
    assert found["language"] == "json"
    assert json.loads(found["source"])["params"] == found["schedule"]["params"]
    assert found["launch"]["main"]["symbol"] == "null_main"
    assert found["resources"]["workspace_bytes"] == 0
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["00-program.txt", "01-tir.txt", "02-source.txt"]
    assert (folder / "01-tir.txt").read_text() == found["tir"]
    (tmp_path / "file").write_text("")
    refused = run("schedule", "finalize", *GEMM, "--trace", str(tmp_path / "file"))
    assert refused.code == 6
    assert "trace" in refused.error


@pytest.mark.usefixtures("tuned")
def test_bench_compares_with_the_baseline(run: Run) -> None:
    answer = run("bench", *GEMM, "--json")
    assert answer.code == 0
    found = answer.json
    assert found["baseline"]["name"] == "simulated"
    low, high = found["baseline"]["speedup_ci"]
    assert 1 < low <= found["baseline"]["speedup"] <= high
    assert "speedup" in run("bench", *GEMM).out


def test_bench_needs_a_record(run: Run) -> None:
    assert run("bench", *GEMM).code == 4


@pytest.mark.usefixtures("tuned")
def test_the_database_commands(run: Run) -> None:
    stats = run("db", "stats", "--json").json
    assert (stats["trials"], stats["workloads"], stats["finals"]) == (3, 1, 1)
    (workload,) = run("db", "list", "--json").json["workloads"]
    trials = run("db", "list", "--what", "trials", "--workload", workload["key"][:6], "--json")
    assert [t["status"] for t in trials.json["trials"]] == ["ok"] * 3
    (session,) = run("db", "list", "--what", "sessions", "--json").json["sessions"]
    assert session["status"] == "finished"
    shown = run("db", "show", "1", "--json").json["trial"]
    assert shown["schedule"]["target"] == "null"
    assert shown["measurement"]["samples_us"]
    final = run("db", "show", workload["key"][:8], "--json").json["final"]
    assert final["winner"] in {e["trial"] for e in final["entries"]}
    assert run("db", "verify", "--json").json == {"ok": True, "problems": []}
    assert run("db", "upgrade", "--json").json["before"] == stats["revision"]
    collected = run("db", "gc", "--max-bytes", "0", "--json").json
    assert collected["kept"] >= 1  # the winner's executable stays
    assert run("lookup", *GEMM).code == 0
    assert run("db", "show", "999").code == 4
    assert run("db", "show", "ffff").code == 4
    assert run("db", "list", "--what", "trials", "--status", "odd").code == 2


def test_a_busy_machine_is_one_line_and_a_fact(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ("tune", *GEMM, "--trials", "2", "--no-baseline", "--quiet")
    monkeypatch.setattr("tfsearch.tune.noise.WIDE", -1.0)
    (line,) = [text for text in run(*words).out.splitlines() if text.startswith("machine")]
    assert "busy: the time is known to ±" in line
    assert "run the same command again" in line
    assert run(*words, "--json").json["noise"]["noisy"] is True
    monkeypatch.setattr("tfsearch.tune.noise.WIDE", 1e9)
    monkeypatch.setattr("tfsearch.tune.noise.DRIFTED", 1e9)
    monkeypatch.setattr("tfsearch.tune.noise.DISTURBED", 1e9)
    assert "machine" not in run(*words).out
    assert run(*words, "--json").json["noise"]["noisy"] is False


@pytest.mark.usefixtures("tuned")
def test_records_are_shown_as_lines(run: Run) -> None:
    trial = run("db", "show", "1")
    assert trial.code == 0
    assert "{" not in trial.out
    assert re.search(r"^  status +ok$", trial.out, re.MULTILINE)
    assert re.search(r"^    median_us +\S+ µs$", trial.out, re.MULTILINE)
    assert re.search(r"^      block +\d+$", trial.out, re.MULTILINE)
    key = run("db", "list", "--json").json["workloads"][0]["key"]
    shown = run("db", "show", key[:12]).out
    assert f"{key[:16]}…" in shown
    assert "    program main(a: f32[12,8]" in shown
    assert re.search(r"^    trial +median_us +ci_us +ratio +ratio_ci$", shown, re.MULTILINE)
    assert run("db", "show", key, "--json").json["workload"]["key"] == key


def test_verify_reports_what_is_wrong(run: Run, tuned: Settings) -> None:
    import sqlite3

    with sqlite3.connect(tuned.home / "tfsearch.db") as connection:
        connection.execute("UPDATE workloads SET program = program || ' '")
    connection.close()
    answer = run("db", "verify", "--json")
    assert answer.code == 2
    assert answer.json["ok"] is False
    assert answer.json["problems"][0]["code"] == "verify.wrong-digest"
    assert answer.json["error"]["code"] == "db.problems"


@pytest.mark.usefixtures("targets")
def test_doctor_says_what_is_there_and_what_is_not(run: Run, home: Settings) -> None:
    found = run("doctor", "--json").json
    by_name = {target["name"]: target for target in found["targets"]}
    assert by_name["null"]["present"] is True
    assert by_name["absent"]["problem"] == "no such card here; insert one"
    assert {row["name"] for row in found["toolchains"]} >= {"gcc", "clang", "zig"}
    assert all(row["usable"] or row["problem"] for row in found["toolchains"])
    users = {row["name"]: set(row["targets"]) for row in found["toolchains"]}
    assert "absent" in users["assembler"]
    assert "null" not in users["assembler"]
    assert users["writer"] >= {"null", "bare"}
    assert found["database"]["state"] == "db.missing"
    assert found["settings"]["home"] == str(home.home)
    assert found["libraries"]["numpy"]


def test_doctor_lives_with_a_database_that_is_none(
    run: Run, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfsearch.cli.doctor._toolchains", lambda: [])
    home.home.mkdir()
    (home.home / "tfsearch.db").write_text("no database " * 100)
    answer = run("doctor", "--json")
    assert answer.code == 0
    assert answer.json["database"]["state"] == "db.not-a-database"


def test_a_traced_program_is_a_workload(run: Run, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "from tfsearch.ir.hir import lang\n"
        "print('loading')\n"
        'def up(x: "dtype[m, 8]", w: "dtype[8, 6]"):\n'
        "    return lang.relu(lang.matmul(x, w))\n"
    )
    words = (f"{path}:up", "m=4", "dtype=f32", "--target", "null")
    answer = run("tune", *words, "--trials", "2", "--no-baseline", "--json")
    assert answer.code == 0
    assert answer.json["workload"]["op"] == "model.py:up"
    assert run("lookup", *words, "--json").json["served_by"] == "exact"


def test_numpy_names_of_types_find_the_same_record(run: Run) -> None:
    words = [word.replace("dtype=f32", "dtype=float32") for word in GEMM]
    assert run("tune", *words, "--trials", "2", "--no-baseline", "--quiet").code == 0
    found = run("lookup", *GEMM, "--json")
    assert found.json["served_by"] == "exact"
    assert found.json["workload"]["dtype"] == "f32"


def test_the_options_of_every_workload_change_the_key(run: Run) -> None:
    words = ("alignment=64", "accuracy=fast", "reproducible=false", "constant_inputs=b",
             "strides=a:12x1", "strides=a:col")  # fmt: skip
    asked = [(), *((word,) for word in words)]
    keys = {run("space", *GEMM, *more, "--json").json["workload"]["key"] for more in asked}
    assert len(keys) == 7
    for command in ("tune", "lookup", "bench", "space"):
        told = run(command, "--help").out
        assert all(word.partition("=")[0] + "=" in told for word in words)


def test_documents_hold_plain_values_only() -> None:
    value: Any = {"a": math.nan, "b": (1, math.inf), "c": {"d": None}}
    assert output.plain(value) == {"a": None, "b": [1, None], "c": {"d": None}}


@pytest.mark.usefixtures("tuned")
def test_trials_are_exported_as_t4_results(run: Run, tmp_path: Path) -> None:
    key = run("db", "list", "--json").json["workloads"][0]["key"]
    found = run("db", "export", key[:12], "--json").json
    assert len(found["results"]) == 3
    assert {row["invalidity"] for row in found["results"]} == {"correct"}
    assert all(row["times"]["runtimes"] for row in found["results"])
    place = tmp_path / "t4.json"
    told = run("db", "export", key, "--out", str(place))
    assert (told.code, told.out) == (0, f"3 results in {place}\n")
    assert json.loads(place.read_text()) == found
    assert run("db", "export", key, "--out", str(tmp_path)).code == 6
    assert run("db", "export", key, "--session", "no").code == 4
    assert run("db", "export", "f" * 64).code == 4


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0 ns"),
        (0.5, "500 ns"),
        (0.99996, "1 µs"),
        (999.96, "1 ms"),
        (999_960.0, "1 s"),
        (1.25e6, "1.25 s"),
    ],
)
def test_a_time_has_a_unit_in_which_it_is_below_a_thousand(value: float | None, text: str) -> None:
    assert output.microseconds(value) == text


def test_one_trial_is_not_trials() -> None:
    for done, text in ((1, "1 trial, no best"), (2, "2 trials, no best")):
        assert summary(Progress(done, 0, 0, None, 1.0, None)) == text


def test_learned_models_are_trained_and_shown(tuned: Settings, run: Run) -> None:
    missing = run("db", "model", "--target", "null")
    assert missing.code == 4
    assert "--train" in missing.error
    trained = run("db", "model", "--target", "null", "--train", "--json")
    assert trained.code == 0, trained.err
    (model,) = trained.json["models"]
    assert model["fields"]["recipe"] == "whole"
    assert model["used"] is False
    assert "needed to judge" in model["reason"]
    assert run("db", "model", "--target", "null", "--json").json == trained.json
    assert "not used" in run("db", "model", "--target", "null").out
    assert run("db", "model", "--target", "none").code == 2
    assert run("db", "verify").code == 0
