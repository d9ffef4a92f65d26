"""The README's commands and examples, run as written in a fresh copy of the repository.

`apt-get` is the one thing that is not always real: where every package that a command asks for is
installed already, it is replaced by a program that does nothing, so that a user without the right
to install can run the test. The test command is run over one folder of tests, by PYTEST_ADDOPTS.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import repository

pytestmark = pytest.mark.slow
WAIT_S = 1200


def run(command: str, cwd: Path, env: dict[str, str]) -> str:
    """What a command printed; a failure shows it."""
    done = subprocess.run(
        ["bash", "-c", command],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=WAIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{command}\nended with {done.returncode}:\n{done.stdout[-6000:]}"
    return done.stdout


def packages(command: str) -> list[str]:
    """Packages that a command asks apt-get for."""
    found = re.findall(r"apt-get install -y ([^&|;]+)", command)
    return [name for part in found for name in part.split()]


def missing_packages(names: list[str]) -> list[str]:
    """Those that dpkg does not know as installed."""
    form = "${db:Status-Abbrev}\n"
    states = {
        name: subprocess.run(
            ["dpkg-query", "-W", "-f", form, name], capture_output=True, text=True, check=False
        ).stdout
        for name in names
    }
    return [name for name, state in states.items() if not state.startswith("ii")]


def may_install() -> bool:
    """Whether apt-get can be run as root without being asked anything."""
    if os.geteuid() == 0:
        return True
    sudo = shutil.which("sudo")
    return bool(sudo) and not subprocess.run([sudo, "-n", "true"], check=False).returncode


def index_is_reachable(folder: Path) -> bool:
    """Whether pip can get a package that the build needs."""
    command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", str(folder)]
    return not subprocess.run(
        [*command, "setuptools>=77"], capture_output=True, check=False
    ).returncode


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The environment of a newcomer, with apt-get left out where nothing is to be installed."""
    if not shutil.which("dpkg-query"):
        pytest.skip("needs Debian or Ubuntu")
    wanted = packages(repository.command("tfsearch tune")) + packages(repository.command("pytest"))
    assert wanted
    own = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PYTEST", "TFSEARCH", "VIRTUAL_ENV", "COV"))
    }
    own["TFSEARCH_HOME"] = str(tmp_path / "home")
    missing = missing_packages(wanted)
    if not missing:
        folder = tmp_path / "bin"
        folder.mkdir()
        for name in ("apt-get", "sudo"):
            (folder / name).write_text('#!/bin/sh\ncase "$0" in */sudo) exec "$@";; esac\n')
            (folder / name).chmod(0o755)
        own["PATH"] = f"{folder}{os.pathsep}{own['PATH']}"
    elif not may_install():
        pytest.skip(f"needs the right to install {', '.join(missing)}")
    if not index_is_reachable(tmp_path / "wheels"):
        pytest.skip("network: pip reaches no package index")
    return own


def test_the_commands_install_tune_and_test(tmp_path: Path, env: dict[str, str]):
    place = tmp_path / "tfsearch"
    repository.clone(place)
    text = run(repository.command("tfsearch tune"), place, env)
    assert re.search(r"^best +\d", text, re.MULTILINE), text
    assert re.search(r"^trials +8:", text, re.MULTILINE), text
    python_examples(place, env)
    few = {**env, "PYTEST_ADDOPTS": "tests/plugin"}
    text = run(repository.command("pytest"), place, few)
    assert re.search(r"\b\d+ passed", text), text


def python_examples(place: Path, env: dict[str, str]) -> None:
    """The README's Python, with few trials."""
    front, program = repository.blocks("python")
    (place / "front.py").write_text(front.replace("trials=16", "trials=2"))
    (place / "model.py").write_text(program)
    run(".venv/bin/python front.py", place, env)
    told = repository.README.read_text(encoding="utf-8")
    commands = re.findall(r"`(tfsearch tune model\.py:[^`]+)`", told)
    assert len(commands) == 1
    text = run(f".venv/bin/{commands[0]} --trials 2", place, env)
    assert re.search(r"^best +\d", text, re.MULTILINE), text
