"""Records between databases from the command line: one document or one line, the right code."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import tfsearch
from tests.cli.conftest import GEMM, Run
from tfsearch.core.records import Status
from tfsearch.core.settings import Settings
from tfsearch.target.null.compiler import NullCompiler

WORKLOAD = {"m": 12, "n": 10, "k": 8, "dtype": "f32", "target": "null"}


@pytest.fixture
def exported(tuned: Settings, run: Run, tmp_path: Path) -> Path:
    """The records of a tuned home in a file."""
    path = tmp_path / "records.jsonl"
    told = run("db", "export", "--out", str(path))
    assert told.code == 0
    assert told.out.endswith(f"records in {path}\n")
    return path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Settings]:
    """From now on the commands run in another, empty home."""

    def go() -> Settings:
        home = tmp_path / "elsewhere"
        monkeypatch.setenv("TFSEARCH_HOME", str(home))
        return Settings(home, f"sqlite:///{home / 'tfsearch.db'}")

    return go


def test_exported_lines_on_standard_output_are_the_file(run: Run, exported: Path) -> None:
    told = run("db", "export")
    assert (told.code, told.err) == (0, "")
    assert told.out == exported.read_text()
    assert all(json.loads(line)["record"] for line in told.out.splitlines())
    packed = exported.with_suffix(".jsonl.gz")
    found = run("db", "export", "--out", str(packed), "--json").json
    assert found["file"] == str(packed)
    assert found["left_out"] == []
    assert gzip.decompress(packed.read_bytes()) == exported.read_bytes()
    key = run("db", "list", "--json").json["workloads"][0]["key"]
    part = run("db", "export", key[:12], "--format", "jsonl").out.splitlines()
    assert len([line for line in part if json.loads(line)["record"] == "trial"]) == 3
    assert "--out FILE" in run("db", "export", "--json").err
    assert run("db", "export", "--json").code == 2
    assert run("db", "export", "--format", "t4").code == 2
    assert run("db", "export", "--format", "jsonl", "--session", "no").code == 4


def test_a_whole_file_replaces_an_earlier_one_and_nothing_is_left_beside_it(
    run: Run, exported: Path
) -> None:
    assert run("db", "export", "--out", str(exported)).code == 0
    assert run("db", "export", "--out", str(exported.parent)).code == 6
    assert run("db", "export", "--out", str(exported.parent / "no" / "file")).code == 6
    assert run("db", "export", "--out", "/dev/null").code == 0
    assert Path("/dev/null").is_char_device()
    assert sorted(p.name for p in exported.parent.iterdir()) == ["home", "records.jsonl"]


@pytest.mark.usefixtures("tuned")
def test_a_closed_pipe_ends_an_export_quietly() -> None:
    command = f"{sys.executable} -m tfsearch db export | head -c 1"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("{", "")


def test_an_import_adds_once_and_says_so(
    run: Run, exported: Path, elsewhere: Callable[[], Settings]
) -> None:
    elsewhere()
    found = run("db", "import", str(exported), "--json").json["files"][0]
    assert found["file"] == str(exported)
    assert found["added"]["trials"] == 3
    assert (found["added"]["proofs"], found["added"]["sources"]) == (0, 0)
    again = run("db", "import", str(exported), str(exported))
    assert again.code == 0
    assert [line.split(": ")[1].split(";")[0] for line in again.out.splitlines()] == [
        "added nothing"
    ] * 2
    own = run("db", "import", str(exported), "--own", "--json").json["files"][0]
    assert own["added"]["proofs"] > 0
    assert run("db", "verify", "--json").json["problems"][0]["code"] == "verify.artifact-missing"


def test_what_is_imported_is_built_here_before_it_is_loaded(
    tuned: Settings,
    run: Run,
    exported: Path,
    elsewhere: Callable[[], Settings],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    home = elsewhere()
    assert run("db", "import", str(exported)).code == 0
    # The very files that the records name lie here, as somebody else might have put them.
    for path in tuned.artifacts.glob("[0-9a-f][0-9a-f]/*"):
        place = home.artifacts / path.parent.name / path.name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    home.artifacts.chmod(0o700)
    built: list[Status] = []
    compile_here = NullCompiler.compile

    def counted(self, *arguments, **options):
        outcome = compile_here(self, *arguments, **options)
        built.append(outcome.status)
        return outcome

    monkeypatch.setattr(NullCompiler, "compile", counted)
    kernel = tfsearch.lookup("gemm", **WORKLOAD)
    assert kernel.served_by.value == "exact"
    assert built == [Status.OK]
    tfsearch.lookup("gemm", **WORKLOAD)
    assert built == [Status.OK]  # its own build is there now


def test_a_merge_reads_another_database(
    tuned: Settings, run: Run, elsewhere: Callable[[], Settings]
) -> None:
    home = elsewhere()
    key = run("db", "list", "--db", tuned.database_url, "--json").json["workloads"][0]["key"]
    found = run("db", "merge", tuned.database_url, "--workload", key[:9], "--json").json
    assert found["added"]["trials"] == 3
    assert run("lookup", *GEMM, "--json").json["best"]
    told = run("db", "merge", tuned.database_url)
    assert told.out == f"{tuned.database_url}: added nothing; {told.out.split('; ')[1]}"
    assert "is this database itself" in run("db", "merge", home.database_url).error
    assert run("db", "merge", "sqlite:////no/such.db").code == 4
    assert run("db", "merge", "nonsense").code == 2


def test_wrong_files_are_one_line_and_change_nothing(
    run: Run, exported: Path, elsewhere: Callable[[], Settings], tmp_path: Path
) -> None:
    home = elsewhere()
    lines = exported.read_text().splitlines(keepends=True)
    header = json.loads(lines[0])
    cases = {
        "cut": ("".join(lines[:-1]), "cut off"),
        "half": (exported.read_text()[:2000], "cut off"),
        "edited": (exported.read_text().replace('"ok"', '"no"', 1), "is not a valid Status"),
        "future": (json.dumps({**header, "version": 2}) + "\n", "upgrade tfsearch"),
        "text": ("hello\n", "is no file of records"),
        "empty": ("", "is no file of records"),
    }
    for name, (text, said) in cases.items():
        path = tmp_path / name
        path.write_text(text)
        told = run("db", "import", str(exported), str(path))
        assert told.code == 2
        assert said in told.error
        assert str(path) in told.error
        assert told.out == ""
    assert not home.home.exists()
    told = run("db", "import", str(tmp_path / "none"), "--json")
    assert (told.code, told.json["error"]["code"]) == (2, "db.import-file")
    assert run("db", "import").code == 2
