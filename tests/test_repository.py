"""Rules that hold for the repository as a whole."""

from __future__ import annotations

import ast
import fnmatch
import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests import repository
from tests.repository import PACKAGE, ROOT
from tools import codes

MOST_LINES = 600
MOST_FUNCTION_LINES = 80
MACHINE_PATH = re.compile(r"(?<![\w.~}>-])/(?:work|root|home|mnt|Users)(?=/|\b)(?!\w)")
TEXT = {".py", ".toml", ".md", ".c", ".h", ".ini", ".mako", ".sql", ".yml", ".sh", ""}


def project() -> dict[str, Any]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def sources() -> list[Path]:
    return [path for path in repository.files() if path.suffix == ".py"]


def in_package() -> list[Path]:
    return [path for path in repository.files() if path.is_relative_to(PACKAGE)]


def texts() -> list[Path]:
    return [path for path in repository.files() if path.suffix in TEXT and path.name != "LICENSE"]


def places(paths: list[Path], pattern: re.Pattern[str]) -> list[str]:
    """``file:line: text`` of every match."""
    return [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in paths
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if pattern.search(line)
    ]


def test_files_stay_short():
    long = {
        str(path.relative_to(ROOT)): count
        for path in in_package()
        if (count := len(path.read_bytes().splitlines())) >= MOST_LINES
    }
    assert not long


def test_functions_stay_short():
    long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in sources()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or node.lineno) - node.lineno + 1 >= MOST_FUNCTION_LINES
    ]
    # A migration is one function of declarations and is never changed once released.
    assert [place for place in long if "/migrations/versions/" not in place] == []


def test_no_file_names_a_place_on_one_machine():
    own = {ROOT / "tests" / "test_repository.py"}
    assert not places([path for path in texts() if path not in own], MACHINE_PATH)


@pytest.mark.parametrize("text", ["see /work/x", '"/home/me"', "in /root", "(/Users/a)"])
def test_a_place_on_one_machine_is_recognised(text: str):
    assert MACHINE_PATH.search(text)


@pytest.mark.parametrize("text", ["self.home / 'x'", "a/root/b", "f'{x}/home'", "/roots", "n/home"])
def test_other_paths_are_not(text: str):
    assert not MACHINE_PATH.search(text)


def test_nothing_is_left_to_do():
    marks = re.compile(r"\b(?:TODO|FIXME|XXX|HACK)\b")
    outside = [path for path in texts() if not path.is_relative_to(ROOT / "tests")]
    assert not places(outside, marks)


def test_the_picture_in_the_readme_is_the_contract_on_layers():
    text = repository.README.read_text(encoding="utf-8")
    block = repository.blocks("text", text.partition("<!-- layers -->")[2])[0]
    pictured = [set(re.split(r" · ", re.split(r" {2,}", line)[0])) for line in block.splitlines()]
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    assert pictured == [
        {name.removeprefix("tfsearch.") for name in layer.split(" | ")} for layer in layers
    ]


def test_every_folder_of_the_package_is_a_layer():
    contracts = project()["tool"]["importlinter"]["contracts"]
    layers = next(contract["layers"] for contract in contracts if contract["type"] == "layers")
    named = {name.removeprefix("tfsearch.") for layer in layers for name in layer.split(" | ")}
    folders = {path.relative_to(PACKAGE).parts[0] for path in in_package() if path.suffix == ".py"}
    assert folders - {"__init__.py", "__main__.py"} == named


def test_every_target_is_held_apart_from_the_others():
    contracts = project()["tool"]["importlinter"]["contracts"]
    apart = next(item["modules"] for item in contracts if item["type"] == "independence")
    entries = project()["project"]["entry-points"]["tfsearch.targets"]
    assert sorted(apart) == sorted(place.partition(":")[0] for place in entries.values())


def test_data_files_are_packaged():
    patterns = project()["tool"]["setuptools"]["package-data"]["tfsearch"]
    names = [str(path.relative_to(PACKAGE)) for path in in_package() if path.suffix != ".py"]
    plain = [pattern.removeprefix("**/") for pattern in patterns]
    assert names
    assert not [
        name for name in names if not any(fnmatch.fnmatch(Path(name).name, p) for p in plain)
    ]


def test_the_task_runner_and_the_readme_run_the_same_tests():
    justfile = (ROOT / "justfile").read_text(encoding="utf-8")
    recipe = re.search(r"^test [^\n]*:\n    (pytest[^\n{]*)", justfile, re.MULTILINE)
    assert recipe
    assert repository.command("pytest").endswith(f".venv/bin/{recipe[1].strip()}")


def test_every_code_in_use_is_listed():
    used, listed = set(codes.collect()), codes.listed()
    assert used - listed == set(), "run just docs"
    assert listed - used == set(), "run just docs, and say in the changelog what became of them"


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{path.relative_to(ROOT)}: {link}"
        for path in repository.files()
        if path.suffix == ".md"
        for link in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", path.read_text(encoding="utf-8"))
        if not (path.parent / link).exists()
    ]
    assert not broken


def test_paths_in_the_documentation_exist():
    pages = [path for path in repository.files() if path.suffix == ".md"]
    named = re.compile(r"`((?:tfsearch|tests|tools|docs|benchmarks)/[\w./*-]+)`")
    missing = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages
        for name in named.findall(page.read_text(encoding="utf-8"))
        if not any(ROOT.glob(name.rstrip("/")))
    ]
    assert not missing


def test_decisions_are_numbered_without_gaps():
    names = sorted(path.name for path in (ROOT / "docs" / "decisions").glob("*.md"))
    assert [name[:4] for name in names] == [f"{i:04}" for i in range(1, len(names) + 1)]
