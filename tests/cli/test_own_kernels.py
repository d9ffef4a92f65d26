"""``tune`` and ``lookup`` of a user's own kernel from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run

SPACE = """
entry = "twice"
[constants]
n = 512
[parameters]
UNROLL = [1, 2]
[[args]]
name = "x"
dtype = "f32"
shape = ["n"]
[[args]]
name = "y"
dtype = "f32"
shape = ["n"]
io = "out"
"""
SOURCE = "void twice(const float *x, float *y) { for (int i = 0; i < n; i++) y[i] = 2 * x[i]; }\n"


@pytest.fixture
def files(tmp_path: Path, gcc_path: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "k.toml").write_text(SPACE)
    (tmp_path / "k.c").write_text(SOURCE)
    (tmp_path / "ref.py").write_text("def f(x):\n    return 2 * x\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_tune_and_lookup_print_the_agreed_documents(run: Run, files: Path) -> None:
    kernel = ("k.c", "--space", "k.toml", "--reference", "ref.py:f")
    missed = run("lookup", *kernel, "--json")
    assert missed.code == 4
    assert missed.json["workload"]["op"] == "k.c:twice"
    tuned = run("tune", *kernel, "n=256", "--trials", "2", "--json", "--quiet")
    assert tuned.code == 0, tuned.err
    found = tuned.json
    assert found["workload"]["dims"] == {"n": 256}
    assert found["trials"]["ok"] == 2
    assert "no TIR" in found["proof"]
    assert found["best"]["schedule"]["recipe"] == "kernel"
    answer = run("lookup", *kernel, "n=256", "--json")
    assert answer.code == 0
    assert answer.json["served_by"] == "exact"
    assert answer.json["best"]["schedule"]["params"] == found["best"]["schedule"]["params"]
    nearest = run("lookup", *kernel, "--json").json["nearest"]
    assert nearest[0]["differs"] == {"workload.dims.n": [512, 256]}
    shown = run("db", "list", "--json")
    assert shown.code == 0
    assert "k.c:twice" in shown.out
    people = run("tune", *kernel, "n=256", "--trials", "1", "--quiet")
    assert "proof      none: a user's own kernel has no TIR" in people.out


def test_commands_on_schedules_say_that_a_kernel_has_none(run: Run, files: Path) -> None:
    kernel = ("k.c", "--space", "k.toml", "--reference", "ref.py:f")
    schedule = run("tune", *kernel, "--trials", "1", "--json", "--quiet").json["best"]["schedule"]
    for command in ("check", "explain", "finalize"):
        answer = run("schedule", command, json.dumps(schedule))
        assert answer.code == 2
        assert answer.error.startswith("error[kernel.record]")


def test_a_t1_definition_tunes_with_a_reference_beside_it(run: Run, files: Path) -> None:
    argument = {"Type": "float", "MemoryType": "Vector", "Size": 512, "FillType": "Random"}
    space = {"TuningParameters": [{"Name": "n", "Type": "int", "Values": "[512, 256]"}]}
    document = {
        "ConfigurationSpace": space,
        "KernelSpecification": {
            "Language": "C",
            "KernelName": "twice",
            "KernelFile": "k.c",
            "LocalSize": {"X": "1"},
            "GlobalSize": {"X": "1"},
            "Arguments": [
                {"Name": "x", "AccessType": "ReadOnly", **argument},
                {"Name": "y", "AccessType": "WriteOnly", **argument},
            ],
        },
    }
    (files / "k.json").write_text(json.dumps(document))
    words = ("--space", "k.json", "--reference", "ref.py:f", "--json", "--quiet")
    found = run("tune", *words).json
    # The smaller n leaves half of the output unwritten.
    assert found["trials"] == {"total": 2, "ok": 1, "failed": {"wrong": 1}}
    assert found["best"]["schedule"]["params"] == {"n": 512}


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (("k.c", "--space", "k.toml"), "kernel.reference"),
        (("--space", "k.toml", "--reference", "ref.py:f"), "kernel.source"),
        (("k.c", "--space", "k.toml", "--reference", "ref.py"), "kernel.reference"),
        (("k.c", "--space", "k.toml", "--reference", "ref.py:f", "m=1"), "kernel.constant"),
        (("k.c", "--space", "k.toml", "--reference", "ref.py:f", "--target", "null"),
         "target.no-kernels"),
        (("gemm", "m=4", "n=4", "k=4", "dtype=f32", "--reference", "ref.py:f"), "usage"),
        ((), "usage"),
    ],
)  # fmt: skip
def test_wrong_requests_are_one_line_and_exit_code_2(
    run: Run, files: Path, words: tuple[str, ...], code: str
) -> None:
    for command in ("tune", "lookup"):
        if command == "lookup" and code == "target.no-kernels":
            continue  # it only asks the database
        answer = run(command, *words)
        assert answer.code == 2, answer.err
        assert answer.error.startswith(f"error[{code}]")


def test_a_lookup_of_an_own_kernel_is_exact(run: Run, files: Path) -> None:
    words = ("k.c", "--space", "k.toml", "--reference", "ref.py:f", "--allow", "model")
    answer = run("lookup", *words)
    assert answer.code == 2
    assert "lookup.allow" in answer.error


def test_a_kernel_that_is_wrong_everywhere_is_exit_code_3(run: Run, files: Path) -> None:
    (files / "k.c").write_text(SOURCE.replace("2 * x", "3 * x"))
    words = ("k.c", "--space", "k.toml", "--reference", "ref.py:f", "--json", "--quiet")
    answer = run("tune", *words)
    assert answer.code == 3
    assert answer.json["error"]["failed"][0]["status"] == "wrong"
