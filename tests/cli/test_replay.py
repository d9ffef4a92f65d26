"""``tfsearch replay``: own exhaustive runs, exported, searched again in simulated time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import GEMM, Run

FIXED = ("--fix", "order=forward", "--fix", "stages=2")


@pytest.fixture
def exported(run: Run, tmp_path: Path) -> Path:
    """Every schedule of a small space, measured and exported."""
    words = ("tune", *GEMM, "--policy", "exhaustive", "--trials", "500", *FIXED)
    assert run(*words, "--no-baseline", "--quiet").code == 0
    key = run("db", "list", "--json").json["workloads"][0]["key"]
    place = tmp_path / "gemm_T4.json"
    assert run("db", "export", key, "--out", str(place)).code == 0
    return place


def test_an_exhaustive_run_is_exported_and_replayed(run: Run, exported: Path) -> None:
    legal = run("space", *GEMM, *FIXED, "--json").json["legal"]
    rows = json.loads(exported.read_text())["results"]
    assert len(rows) == legal > 10
    words = ("replay", str(exported), "--policy", "surrogate", "--seeds", "8", "--json")
    found = run(*words).json
    best = min(row["measurements"][0]["value"] for row in rows)
    assert found["space"]["recorded"] == legal
    assert found["space"]["failed"] == 0
    assert found["space"]["optimum_us"] == pytest.approx(1e3 * best)
    ours, control = found["policies"]
    assert (ours["policy"], ours["control"], ours["seeds"]) == ("surrogate", False, 8)
    assert (control["policy"], control["control"], control["seeds"]) == ("random", True, 8)
    assert ours["score"][0] <= 1.0
    assert 1.0 <= ours["best_over_optimum_after"]["200"] < 1.02
    assert found == run(*words).json


def test_people_get_a_table(run: Run, exported: Path) -> None:
    answer = run("replay", str(exported), "--policy", "local", "--seeds", "3")
    assert answer.code == 0
    lines = answer.out.splitlines()
    assert len(lines) == 4
    assert "recorded, 0 failed, optimum" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["policy", "local", "random"]


def test_exported_results_are_a_space_file(run: Run, exported: Path) -> None:
    found = run("space", "--space", str(exported), "--list", "1000", "--json").json
    rows = json.loads(exported.read_text())["results"]
    assert found["legal"] == len(found["configurations"]) == len(rows)
    assert set(found["rejected"]) <= {"space.absent"}
    block = rows[0]["configuration"]["block"]
    part = run("space", "--space", str(exported), "--fix", f"block={block}", "--json").json
    assert 0 < part["legal"] < len(rows)
    assert run("space", "n=4", "--space", str(exported)).code == 2


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("{}", "has no results"),
        ("[", "not JSON"),
        (
            json.dumps(
                {
                    "results": [
                        {
                            "configuration": {"x": 1},
                            "times": {"compilation": 1},
                            "invalidity": "correct",
                            "measurements": [{"name": "time", "value": 1.0}],
                        }
                    ]
                }
            ),
            "at least three",
        ),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    run: Run, tmp_path: Path, text: str, word: str
) -> None:
    (tmp_path / "x_T4.json").write_text(text)
    answer = run("replay", str(tmp_path / "x_T4.json"))
    assert answer.code == 2
    assert word in answer.error


def test_a_wrong_policy_is_refused(run: Run, exported: Path) -> None:
    answer = run("replay", str(exported), "--policy", "nonsense")
    assert (answer.code, "unknown policy" in answer.error) == (2, True)
