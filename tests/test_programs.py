"""docs/programs.md: its commands and examples run as written, its tables are complete."""

from __future__ import annotations

import inspect
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests import repository
from tfsearch.ir.dtypes import DTYPE_NAMES
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.builtins import EPILOGUES
from tfsearch.ir.hir.named import CLASSES
from tfsearch.ir.hir.trace import Tensor

PAGE = repository.ROOT / "docs" / "programs.md"
TOLD_IN_TEXT = {"shape", "dtype", "rank"}
FOR_LANG = {"type", "add_op", "unary", "binary", "compare", "reduce", "axes"}


def page() -> str:
    return PAGE.read_text(encoding="utf-8")


def _call(name: str) -> str:
    words: list[str] = []
    for parameter in inspect.signature(getattr(lang, name)).parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in words:
            words.append("*")
        default = parameter.default
        words.append(
            parameter.name if default is parameter.empty else f"{parameter.name}={default!r}"
        )
    return f"{name}({', '.join(words)})"


def test_every_function_has_its_line() -> None:
    rows = dict(re.findall(r"^\| `(\w+\(.*?\))` \| (.+) \|$", page(), re.MULTILINE))
    for name in lang.__all__:
        first = (inspect.getdoc(getattr(lang, name)) or "").split("\n\n")[0]
        assert rows.get(_call(name)) == " ".join(first.split()).replace("``", "`"), name


def test_every_method_step_type_and_option_is_told() -> None:
    text = page()
    own = {name for name in vars(Tensor) if not name.startswith("_")}
    for name in own - FOR_LANG - {"builder", "index"}:
        assert f"`x.{name}" in text, name
    for word in (*EPILOGUES, *DTYPE_NAMES):
        assert f"`{word}`" in text or f'"{word}"' in text, word
    for name in CLASSES:
        assert re.search(rf"^\| `{name}=\S+` \| `{name}=", text, re.MULTILINE), name


@pytest.mark.slow
def test_the_examples_run_as_written(tmp_path: Path) -> None:
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")
    env = repository.with_program(tmp_path)
    ran = 0
    for language, block in re.findall(r"^```(sh|python)\n(.*?)^```$", page(), re.M | re.S):
        name = tmp_path / "commands.sh"
        if language == "python":
            name = tmp_path / block.splitlines()[0].removeprefix("# ")
        name.write_text(block)
        words = [sys.executable, str(name)] if language == "python" else ["sh", "-e", str(name)]
        done = subprocess.run(
            words, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=600, check=False
        )
        assert done.returncode == 0, f"{block}\n{done.stdout}{done.stderr}"
        ran += 1
    assert ran >= 7
