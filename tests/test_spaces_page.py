"""docs/spaces.md: its example runs as written, its tables are complete."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import repository
from tfsearch.space.file import toml
from tfsearch.space.grammar import FUNCTIONS

PAGE = repository.ROOT / "docs" / "spaces.md"


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def test_every_key_and_function_is_told() -> None:
    text = page()
    own = text[: text.index("## T1 files")]
    rows = re.findall(r"^\| `\[*(\w+)\]*` \|", own, re.MULTILINE)
    assert sorted(rows) == sorted((*toml.SPACE_KEYS, *toml.KERNEL_KEYS))
    for name in (*toml.ARGUMENT_KEYS, *toml.LAUNCH_KEYS):
        assert f"`{name}`" in text, name
    told = re.search(r"and `(abs [a-z_0-9\s]+)`", text)
    assert told is not None
    assert told[1].split() == sorted(FUNCTIONS)


@pytest.mark.slow
def test_the_example_runs_as_written(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    env = repository.with_program(tmp_path)
    said = ""
    for language, block in re.findall(r"^```(\w+)\n(.*?)^```$", page(), re.M | re.S):
        if language != "sh":
            (tmp_path / block.splitlines()[0].lstrip("/# ")).write_text(block)
            continue
        said += done(["sh", "-e", "-c", block], tmp_path, env)
    said += done([sys.executable, "own.py"], tmp_path, env)
    assert "proof      none" in said
    assert "served by  exact" in said
    document = json.loads(said[said.index("{\n") : said.rindex("\n}\n") + 2])
    assert document["trials"] == {"total": 2, "ok": 2, "failed": {}}


def done(words: list[str], folder: Path, env: dict[str, str]) -> str:
    found = subprocess.run(
        words, cwd=folder, env=env, capture_output=True, text=True, timeout=600, check=False
    )
    assert found.returncode == 0, f"{words}\n{found.stdout}{found.stderr}"
    return found.stdout
