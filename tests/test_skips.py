"""Skips for lack of something that could be installed count as failures when asked to."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import missing_tool

SUITE = """
import pytest

def test_tool():
    pytest.skip("needs gcc")

def test_feature():
    pytest.skip("needs CPU features amx_tile")

@pytest.mark.skipif(True, reason="PostgreSQL: no server is named")
def test_server():
    pass

@pytest.mark.xfail(reason="gcc is wrong here")
def test_expected():
    assert False
"""


@pytest.mark.parametrize(
    ("reason", "name"),
    [
        ("needs gcc, clang or the ziglang wheel", "gcc"),
        ("PostgreSQL: no server", "postgresql"),
        ("needs gcc-13", ""),
        ("needs avx512f", ""),
    ],
)
def test_a_reason_names_a_tool_as_a_whole_word(reason: str, name: str):
    assert missing_tool("gcc, postgresql,", reason) == name


def run(folder: Path, *options: str) -> str:
    (folder / "conftest.py").write_text("from tests.conftest import *\n")
    (folder / "test_suite.py").write_text(SUITE)
    root = Path(__file__).resolve().parent.parent
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-c", "/dev/null"]
    done = subprocess.run(
        [*command, f"--rootdir={folder}", *options, str(folder)],
        cwd=root,
        env={name: value for name, value in os.environ.items() if not name.startswith("PYTEST")},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


def test_only_skips_for_the_named_tools_fail(tmp_path: Path):
    text = run(tmp_path, "--fail-on-skip-for=gcc,postgresql")
    assert "1 failed, 1 skipped, 1 xfailed, 1 error" in text
    assert "skips for lack of gcc are failures" in text


def test_skips_stay_skips_unless_asked(tmp_path: Path):
    assert "3 skipped, 1 xfailed" in run(tmp_path)
