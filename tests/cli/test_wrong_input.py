"""Wrong requests: one clear line, the right exit code, no traceback."""

from __future__ import annotations

import json
import shutil
import sqlite3
import subprocess
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import GEMM, Run
from tfsearch.core.settings import Settings
from tfsearch.db import open_store
from tfsearch.tune import front

LONG_NUMBER = '{"a": ' + "9" * 5000 + "}"
N = ("--target", "null")
DIMS = ("m=4", "n=4", "k=4")

CASES: dict[str, tuple[int, str, tuple[str, ...]]] = {
    "no command": (2, "Missing command", ()),
    "no subcommand": (2, "Missing command", ("db",)),
    "unknown command": (2, "No such command 'tuen'", ("tuen",)),
    "unknown option": (2, "No such option", ("tune", *GEMM, "--trails", "3")),
    "no op": (2, "Missing argument 'OP'", ("tune",)),
    "option without a number": (2, "not a valid integer", ("tune", *GEMM, "--trials", "x")),
    "unknown op": (2, "unknown op 'gem'; known ops: gemm", ("tune", "gem", *DIMS, *N)),
    "dimension missing": (2, "gemm needs k", ("tune", "gemm", "m=4", "n=4", "dtype=f32", *N)),
    "dimension zero": (2, "m=0: a dimension is at least 1",
                       ("tune", "gemm", "m=0", "n=4", "k=4", "dtype=f32", *N)),
    "dimension negative": (2, "m=-4", ("tune", "gemm", "m=-4", "n=4", "k=4", "dtype=f32", *N)),
    "dimension no number": (2, "m=many: need a positive whole number",
                            ("tune", "gemm", "m=many", "n=4", "k=4", "dtype=f32", *N)),
    "dimension beyond memory": (2, "beyond the memory of any machine",
                                ("tune", "gemm", "m=99999999", "n=99999999", "k=4", "dtype=f32",
                                 *N)),
    "dimension beyond the device": (2, "beyond the memory of null",
                                    ("tune", "gemm", "m=700000", "n=700000", "k=4", "dtype=f32",
                                     *N)),
    "dtype unknown": (2, "f33", ("tune", "gemm", *DIMS, "dtype=f33", *N)),
    "dtype missing": (2, "gemm needs dtype", ("tune", "gemm", *DIMS, *N)),
    "option unknown": (2, "no option 'h'", ("tune", "gemm", *DIMS, "h=4", "dtype=f32", *N)),
    "option twice": (2, "m is given twice", ("tune", "gemm", "m=4", *DIMS, "dtype=f32", *N)),
    "no key": (2, "'512' is no option; write KEY=VALUE", ("tune", "gemm", "512", *N)),
    "alignment": (2, "alignment 3 B is not a power of two", ("tune", *GEMM, "alignment=3")),
    "alignment no number": (2, "alignment=x", ("tune", *GEMM, "alignment=x")),
    "accuracy": (2, "unknown accuracy class 'sloppy'", ("tune", *GEMM, "accuracy=sloppy")),
    "reproducible": (2, "need true or false", ("tune", *GEMM, "reproducible=maybe")),
    "constant input": (2, "no input 'z'", ("tune", *GEMM, "constant_inputs=z")),
    "strides of what": (2, "has no such input; it has a, b", ("tune", *GEMM, "strides=z:8x1")),
    "strides unreadable": (2, "such as a:520x1,b:col", ("tune", *GEMM, "strides=a:8;1")),
    "strides that overlap": (2, "make elements overlap", ("tune", *GEMM, "strides=a:1x1")),
    "strides of another rank": (2, "1 strides for 2 dimensions", ("tune", *GEMM, "strides=a:8")),
    "unknown target": (2, "unknown target 'nvl'", ("tune", *GEMM[:-1], "nvl")),
    "absent target": (5, "no such card here; insert one", ("tune", *GEMM[:-1], "absent")),
    "absent target, lookup": (5, "insert one", ("lookup", *GEMM[:-1], "absent")),
    "absent target, measure": (5, "insert one", ("schedule", "measure", *GEMM[:-1], "absent")),
    "unknown device": (2, "no device 'gpu9'", ("tune", *GEMM, "--device", "gpu9")),
    "no compiler": (5, "get one with: apt-get", ("tune", *GEMM[:-1], "bare")),
    "unknown compiler": (5, "not 'tcc'", ("tune", *GEMM, "--toolchain", "tcc")),
    "rejected flag": (2, "rejects flag '--bogus'", ("tune", *GEMM, "--flag=--bogus")),
    "no macro": (2, "macro '1x' is not NAME", ("tune", *GEMM, "--macro", "1x")),
    "no macro, lookup": (2, "macro '1x' is not NAME", ("lookup", *GEMM, "--macro", "1x")),
    "policy": (2, "unknown policy 'guess'", ("tune", *GEMM, "--policy", "guess")),
    "policy option": (2, "no option 'x'", ("tune", *GEMM, "--policy", "ranked:x=1")),
    "protocol": (2, "unknown protocol 'tepid'", ("lookup", *GEMM, "--protocol", "tepid")),
    "fixed parameter": (2, "no recipe has a parameter 'blok'", ("tune", *GEMM, "--fix", "blok=8")),
    "fixed value": (2, "7", ("tune", *GEMM, "--fix", "block=7")),
    "fix without value": (2, "'block' is no parameter", ("tune", *GEMM, "--fix", "block")),
    "trials": (2, "trials is 0", ("tune", *GEMM, "--trials", "0")),
    "seconds": (2, "seconds is -1", ("tune", *GEMM, "--seconds", "-1")),
    "prove": (2, "prove is 'hard'", ("tune", *GEMM, "--prove", "hard")),
    "seed": (2, "seed -1", ("tune", *GEMM, "--seed", "-1")),
    "allow": (2, "bucket and model", ("lookup", *GEMM, "--allow", "luck")),
    "no such file": (2, "no.py is not a file", ("tune", "no.py:f", *N)),
    "database url": (2, "is not a database URL", ("tune", *GEMM, "--db", "nonsense")),
    "database kind": (2, "unknown database kind", ("tune", *GEMM, "--db", "mysql://x/y")),
    "not recorded": (4, "no records yet", ("lookup", *GEMM)),
    "no database": (4, "no records yet", ("db", "stats")),
    "check of nothing": (2, "check needs a schedule", ("schedule", "check")),
    "check of half a workload": (2, "check needs a schedule", ("schedule", "check", "m=4")),
    "no schedule and no workload": (2, "name a workload", ("schedule", "facts")),
    "schedule text": (2, "is not JSON", ("schedule", "check", *GEMM, "{nope")),
    "schedule number": (2, "too many digits", ("schedule", "check", *GEMM, LONG_NUMBER)),
    "schedule nan": (2, "is not JSON", ("schedule", "check", *GEMM, '{"target": NaN}')),
    "schedule file": (2, "No such file", ("schedule", "check", *GEMM, "none.json")),
    "schedule missing": (2, "check needs a schedule", ("schedule", "check", *GEMM)),
    "status": (4, "no records yet", ("db", "list", "--what", "trials", "--status", "odd")),
}  # fmt: skip


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize("case", CASES)
def test_a_wrong_request_gets_one_line(run: Run, case: str) -> None:
    code, text, words = CASES[case]
    answer = run(*words)
    assert answer.code == code
    assert text in answer.error
    assert answer.out == ""


@pytest.mark.usefixtures("targets")
@pytest.mark.parametrize("case", CASES)
def test_with_json_it_is_one_document_too(run: Run, case: str) -> None:
    code, _, words = CASES[case]
    answer = run(*words, "--json")
    assert answer.code == code
    document = answer.json
    assert document["error"]["exit_code"] == code
    assert document["error"]["message"] in answer.error


PROGRAMS = {
    "raises": ("1 / 0\n", "ZeroDivisionError: division by zero (line 1 of"),
    "does not parse": ("def f(:\n", "SyntaxError"),
    "exits": ("import sys; sys.exit(3)\n", "SystemExit"),
    "imports what is missing": ("import no_such_module_at_all\n", "No module named"),
    "has no such function": ("def g(x): return x\n", "no function 'f'; it has g"),
    "has no annotation": ("def f(x): return x\n", "needs an annotation such as"),
    "fails when traced": ('def f(x: "f32[4, 4]"):\n    return x.nothing\n', "line 2 of"),
}


@pytest.mark.parametrize("what", PROGRAMS)
def test_a_program_file_that_fails_says_so_briefly(run: Run, tmp_path: Path, what: str) -> None:
    content, text = PROGRAMS[what]
    path = tmp_path / "model.py"
    path.write_text("print('noise')\n" * (what == "has no such function") + content)
    answer = run("tune", f"{path}:f", *N, "--json")
    assert answer.code == 2
    errors = [line for line in answer.err.splitlines() if line.startswith("error[")]
    assert len(errors) == 1
    assert text in errors[0]
    assert "Traceback" not in answer.err
    assert answer.json["error"]["code"].startswith("program.")


def test_a_file_that_is_no_database(run: Run, home: Settings) -> None:
    home.home.mkdir()
    other = home.home / "notes.txt"
    other.write_text("not a database, only notes " * 100)
    for words in (("tune", *GEMM), ("lookup", *GEMM), ("db", "stats"), ("db", "verify")):
        answer = run(*words, "--db", f"sqlite:///{other}")
        assert answer.code == 2
        assert "error[db.not-a-database]" in answer.error
    assert other.read_text().startswith("not a database")


def test_a_database_of_another_program(run: Run, home: Settings) -> None:
    home.home.mkdir()
    other = home.home / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE songs (title TEXT)")
    connection.close()
    answer = run("tune", *GEMM, "--db", f"sqlite:///{other}")
    assert answer.code == 2
    assert "error[db.foreign]" in answer.error


def test_a_database_from_the_future(run: Run, tuned: Settings) -> None:
    with sqlite3.connect(tuned.home / "tfsearch.db") as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    for words in (("tune", *GEMM), ("lookup", *GEMM), ("db", "upgrade")):
        answer = run(*words)
        assert answer.code == 2
        assert "error[db.from-the-future]" in answer.error
        assert "9999" in answer.error


def test_a_locked_database_costs_the_record_and_not_the_result(
    run: Run, tuned: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(front, "open_store", partial(open_store, timeout_s=0.2))
    release = threading.Event()
    ready = threading.Event()

    def hold() -> None:
        connection = sqlite3.connect(tuned.home / "tfsearch.db", isolation_level=None)
        connection.execute("BEGIN IMMEDIATE")
        ready.set()
        release.wait(60)
        connection.rollback()
        connection.close()

    holder = threading.Thread(target=hold)
    holder.start()
    try:
        assert ready.wait(10)
        words = ("tune", *GEMM, "--trials", "2", "--seed", "5", "--no-baseline", "--json")
        answer = run(*words, "--quiet")
    finally:
        release.set()
        holder.join()
    _measured_but_not_saved(answer, "db.locked")


def _measured_but_not_saved(answer: Any, code: str) -> None:
    assert answer.code == 6
    assert answer.json["best"]["median_us"] > 0
    assert answer.json["error"]["code"] == code
    assert answer.json["error"]["exit_code"] == 6
    lines = answer.err.splitlines()
    assert lines[-1].startswith(f"error[{code}]: measured but not saved: ")
    assert "Traceback" not in answer.err


def test_a_read_only_database_costs_the_record_and_not_the_result(
    run: Run, tuned: Settings, small_disk: Path
) -> None:
    shutil.copy(tuned.home / "tfsearch.db", small_disk / "x.db")
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    words = ("tune", *GEMM, "--trials", "2", "--seed", "5", "--no-baseline", "--json", "--quiet")
    answer = run(*words, "--db", f"sqlite:///{small_disk}/x.db")
    _measured_but_not_saved(answer, "db.read-only")
    looked = run("lookup", *GEMM, "--db", f"sqlite:///{small_disk}/x.db", "--json")
    assert looked.code == 0


def test_a_full_disk_costs_the_record_and_not_the_result(run: Run, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(b"x" * 500_000)
    words = ("tune", *GEMM, "--trials", "2", "--no-baseline", "--json", "--quiet")
    answer = run(*words, "--db", f"sqlite:///{small_disk}/x.db")
    _measured_but_not_saved(answer, "db.disk-full")


def _schedule(run: Run) -> dict[str, Any]:
    answer = run("schedule", "candidates", *GEMM, "--top", "1", "--json")
    found: dict[str, Any] = answer.json["candidates"][0]["schedule"]
    return found


def test_schedules_with_something_unknown_are_refused(run: Run) -> None:
    good = _schedule(run)
    assert run("schedule", "check", json.dumps(good)).out == "legal\n"
    wrong: list[tuple[int, str, dict[str, Any]]] = [
        (2, "schedule.unknown-key", {**good, "colour": "red"}),
        (2, "schedule.missing-key", {k: v for k, v in good.items() if k != "recipe"}),
        (2, "schedule.wrong-type", {**good, "params": []}),
        (2, "schedule.schema", {**good, "schema": 99}),
        (2, "target.unknown", {**good, "target": "tpu"}),
        (4, "schedule.unknown-workload", {**good, "workload": "0" * 64}),
        (3, "space.unknown-recipe", {**good, "recipe": "magic"}),
        (3, "schedule.recipe-version", {**good, "recipe_version": 9}),
        (3, "space.unknown-parameter", {**good, "params": {**good["params"], "warp": 1}}),
        (3, "space.value-outside-domain", {**good, "params": {**good["params"], "block": 7}}),
        (3, "null.lanes", {**good, "params": {**good["params"], "block": 8, "lanes": 16}}),
    ]
    for code, name, schedule in wrong:
        for command in ("check", "finalize", "facts", "explain", "measure"):
            answer = run("schedule", command, json.dumps(schedule))
            assert answer.code == code, (name, command, answer.err)
            assert f"error[{name}]" in answer.error
    other = ("gemm", "m=3", *GEMM[2:])
    answer = run("schedule", "check", *other, json.dumps(good))
    assert answer.code == 2
    assert "error[schedule.workload]" in answer.error


def test_every_refusal_has_a_code_a_place_and_a_message(run: Run) -> None:
    good = _schedule(run)
    params = {**good["params"], "block": 256, "unroll": 8, "stages": 4}
    answer = run("schedule", "check", json.dumps({**good, "params": params}), "--json")
    assert answer.code == 3
    document = answer.json
    assert document["legal"] is False
    (refusal,) = document["refusals"]
    assert refusal["code"] == "null.capacity"
    assert refusal["where"]
    assert "exceeds 2048 elements" in refusal["message"]
    assert document["error"]["code"] == "null.capacity"
    assert document["error"]["exit_code"] == 3
    assert refusal["message"] in document["error"]["message"]


def test_parameters_that_a_schedule_leaves_out_are_searched(run: Run) -> None:
    good = _schedule(run)
    part = {**good, "params": {"block": 8}}
    answer = run("schedule", "check", json.dumps(part), "--json")
    assert answer.code == 0
    assert set(answer.json["open"]) == {"lanes", "unroll", "stages", "order"}
    finished = run("schedule", "finalize", json.dumps(part), "--json").json["schedule"]
    assert finished["params"]["block"] == 8
    assert len(finished["params"]) == 5
    impossible = {**good, "params": {"block": 256, "unroll": 8, "stages": 4}}
    answer = run("schedule", "check", json.dumps(impossible), "--json")
    assert answer.code == 3
    assert answer.json["refusals"][0]["code"] == "null.capacity"
