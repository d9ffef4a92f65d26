"""Where the repository's own files are, and how the README's parts are found."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "tfsearch"
README = ROOT / "README.md"
NOT_CLONED = shutil.ignore_patterns(
    ".git", ".venv", "__pycache__", ".*_cache", "*.egg-info", "build"
)


def blocks(language: str, text: str | None = None) -> list[str]:
    """Fenced blocks of a language in the README, in order."""
    source = README.read_text(encoding="utf-8") if text is None else text
    found = re.findall(rf"^```{language}\n(.*?)^```$", source, re.DOTALL | re.MULTILINE)
    return [block.strip() for block in found]


def with_program(folder: Path) -> dict[str, str]:
    """An environment in which ``tfsearch`` is this copy of it, with a home in ``folder``."""
    (folder / "bin").mkdir()
    program = folder / "bin" / "tfsearch"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m tfsearch "$@"\n')
    program.chmod(0o755)
    kept = {n: v for n, v in os.environ.items() if not n.startswith("TFSEARCH_")}
    return {
        **kept,
        "TFSEARCH_HOME": str(folder / "home"),
        "PATH": f"{program.parent}{os.pathsep}{kept['PATH']}",
        "PYTHONPATH": str(ROOT),
    }


def command(word: str) -> str:
    """The one shell block of the README that has this word."""
    found = [block for block in blocks("sh") if word in block]
    assert len(found) == 1, f"the README has {len(found)} commands with {word!r}"
    return found[0]


def files() -> list[Path]:
    """Files that a clone of the working tree would hold; without git, every file."""
    if (ROOT / ".git").exists() and shutil.which("git"):
        done = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        names = done.stdout.decode().split("\0")
        found = [ROOT / name for name in names if name]
    else:
        found = [
            path for path in ROOT.rglob("*") if not NOT_CLONED("", path.relative_to(ROOT).parts)
        ]
    return sorted(path for path in found if path.is_file())


def clone(place: Path) -> None:
    """What a clone of the working tree would hold, at another place."""
    for path in files():
        target = place / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
