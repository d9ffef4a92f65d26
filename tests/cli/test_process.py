"""The real program: signals, pipes, start-up, bugs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import GEMM, Run
from tfsearch.cli import main, root
from tfsearch.core.settings import Settings

PROGRAM = (sys.executable, "-c", "import sys; from tfsearch.cli import main; sys.exit(main())")


def environment(home: Settings) -> dict[str, str]:
    kept = {n: v for n, v in os.environ.items() if not n.startswith("TFSEARCH_")}
    return {**kept, "TFSEARCH_HOME": str(home.home)}


def test_a_process_prints_one_document_and_its_exit_code(home: Settings) -> None:
    done = subprocess.run(
        [*PROGRAM, "tune", *GEMM, "--trials", "2", "--no-baseline", "--json"],
        capture_output=True,
        text=True,
        env=environment(home),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["trials"]["ok"] == 2
    assert json.loads(done.stdout)["interrupted"] is False
    missed = subprocess.run(
        [*PROGRAM, "lookup", "gemm", "m=9", *GEMM[2:], "--json"],
        capture_output=True,
        text=True,
        env=environment(home),
        check=False,
    )
    assert missed.returncode == 4
    assert len(missed.stderr.splitlines()) == 1
    assert json.loads(missed.stdout)["nearest"]


@pytest.mark.parametrize("room", [24, 60, 128])
def test_a_full_temporary_folder_is_one_line(
    home: Settings, small_disk: Path, gcc_path: str, room: int
) -> None:
    (small_disk / "ballast").write_bytes(bytes((512 - room) * 1024))
    words = ("tune", "softmax", "rows=16", "cols=64", "dtype=f32", "--target", "x86")
    done = subprocess.run(
        [*PROGRAM, *words, "--toolchain", gcc_path, "--trials", "2", "--no-baseline", "--quiet"],
        capture_output=True,
        text=True,
        env={**environment(home), "TMPDIR": str(small_disk)},
        check=False,
    )
    assert done.returncode == 5, done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith(f"error[toolchain.no-room]: the temporary folder {small_disk} is full")


def test_the_module_is_the_program(home: Settings) -> None:
    def call(*words: str) -> tuple[int, str, str]:
        done = subprocess.run(
            [sys.executable, "-m", "tfsearch", *words],
            capture_output=True,
            text=True,
            env=environment(home),
            check=False,
        )
        return done.returncode, done.stdout, done.stderr

    code, out, _ = call("tune", *GEMM, "--trials", "2", "--no-baseline", "--json")
    assert code == 0
    assert json.loads(out)["trials"]["ok"] == 2
    code, out, err = call("tune", "gem")
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1
    assert call("--help")[1].startswith("Usage: tfsearch ")


def test_ctrl_c_prints_what_is_known(home: Settings) -> None:
    session = subprocess.Popen(
        [*PROGRAM, "tune", *GEMM, "--policy", "exhaustive", "--trials", "100000", "--json"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    )
    assert session.stderr is not None
    seen = ""
    for line in session.stderr:
        seen += line
        if "best" in line:
            break
    session.send_signal(signal.SIGINT)
    out, err = session.communicate(timeout=60)
    assert session.returncode == 130, seen + err
    document = json.loads(out)
    assert document["best"]["median_us"] > 0
    assert document["interrupted"] is True
    assert document["error"]["code"] == "interrupted"
    assert document["error"]["exit_code"] == 130
    assert "error[interrupted]" in err.splitlines()[-1]
    assert "Traceback" not in seen + err
    shown = subprocess.run(
        [*PROGRAM, "db", "list", "--what", "sessions", "--json"],
        capture_output=True,
        text=True,
        env=environment(home),
        check=True,
    )
    (recorded,) = json.loads(shown.stdout)["sessions"]
    assert recorded["status"] == "interrupted"


def test_a_terminal_gets_a_live_line(home: Settings) -> None:
    pty = pytest.importorskip("pty", reason="pty: a terminal")
    leader, follower = pty.openpty()
    session = subprocess.Popen(
        [*PROGRAM, "tune", *GEMM, "--trials", "3", "--no-baseline", "--json"],
        stdout=subprocess.PIPE,
        stderr=follower,
        env={**environment(home), "TERM": "xterm", "COLUMNS": "120"},
    )
    os.close(follower)
    shown = b""
    while True:
        try:
            part = os.read(leader, 4096)
        except OSError:  # the other end is closed: Linux reports it so
            break
        if not part:
            break
        shown += part
    os.close(leader)
    out, _ = session.communicate(timeout=60)
    assert session.returncode == 0
    assert json.loads(out)["trials"]["ok"] == 3
    text = shown.decode()
    assert "858 legal of 960 schedules" in text
    assert "final: 3 trials" in text
    assert "\x1b[" in text


def test_a_reader_that_goes_away_is_no_error(home: Settings) -> None:
    command = [*PROGRAM, "schedule", "candidates", *GEMM, "--top", "800", "--json"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(home)
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=30) == 0
    assert err == b""


def test_an_output_that_takes_nothing_is_one_line(home: Settings) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("/dev/full: a file that is always full")
    for words in (["--json"], []):
        with full.open("w") as stream:
            done = subprocess.run(
                [*PROGRAM, "space", *GEMM, *words],
                stdout=stream,
                stderr=subprocess.PIPE,
                text=True,
                env=environment(home),
                check=False,
            )
        assert done.returncode == 6
        (line,) = done.stderr.splitlines()
        assert line.startswith("error[output.not-written]")


def test_a_closed_output_is_no_crash(home: Settings) -> None:
    command = " ".join(["exec", '"$@"', ">&-"])
    done = subprocess.run(
        ["sh", "-c", command, "sh", *PROGRAM, "space", *GEMM],
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
        check=False,
    )
    assert done.returncode == 0
    assert done.stderr == ""


def test_a_small_character_set_is_no_crash(home: Settings) -> None:
    done = subprocess.run(
        [*PROGRAM, "schedule", "candidates", *GEMM],
        capture_output=True,
        env={**environment(home), "PYTHONIOENCODING": "koi8-r"},
        check=False,
    )
    assert done.returncode == 0
    assert b"?s" in done.stdout


def test_help_loads_nothing_heavy(home: Settings) -> None:
    code = (
        "import sys\nfrom tfsearch.cli import main\nmain(['--help'])\n"
        "heavy = {'numpy', 'sqlalchemy', 'alembic', 'rich', 'ml_dtypes', 'pebble'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(home),
        check=True,
    )
    assert done.stderr == "[]\n"


def test_a_lookup_loads_no_migrations_and_no_display(tuned: Settings) -> None:
    code = (
        "import sys\nfrom tfsearch.cli import main\n"
        f"assert main({['lookup', *GEMM]!r}) == 0\n"
        "heavy = {'alembic', 'rich', 'mako', 'pebble', 'tfsearch.tune.run'}\n"
        "print(sorted(heavy & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env=environment(tuned),
        check=True,
    )
    assert done.stderr == "[]\n"


def _broken(*_: Any, **__: Any) -> Any:
    raise ValueError("two\nlines")


def test_a_bug_is_one_line_and_a_file(
    run: Run, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tfsearch.cli.options.workload_of", _broken)
    answer = run("tune", *GEMM, "--json")
    assert answer.code == 1
    assert "error[internal]: this is a bug in tfsearch: ValueError: two lines" in answer.error
    assert answer.json["error"]["code"] == "internal"
    (file,) = (home.home / "crashes").iterdir()
    assert str(file) in answer.err
    assert "in _broken" in file.read_text()


def test_tracebacks_are_shown_on_request(
    run: Run, home: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TFSEARCH_DEBUG", "1")
    answer = run("tune", "gem", "--target", "null")
    assert answer.code == 2
    assert "Traceback" in answer.err
    assert answer.err.splitlines()[-1].startswith("error[workload.unknown-op]")


def test_ctrl_c_outside_of_a_session(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: Any, **__: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr("tfsearch.cli.options.workload_of", interrupt)
    answer = run("space", *GEMM, "--json")
    assert answer.code == 130
    assert answer.json["error"]["code"] == "interrupted"
    assert answer.json["interrupted"] is True
    assert "Ctrl-C" in answer.error


def test_every_command_has_a_module_and_help() -> None:
    for name, (module, text) in root.COMMANDS.items():
        assert text.endswith(".")
        assert (Path(root.__file__).parent / f"{module}.py").is_file()
        assert main([name, "--help"]) == 0
