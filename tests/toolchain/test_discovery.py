from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.toolchain.conftest import script
from tfsearch import toolchain
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.settings import Settings


@pytest.fixture
def empty_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A PATH with nothing on it, and no zig wheel."""
    folder = tmp_path / "path"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setattr("tfsearch.toolchain.discovery._zig_of_wheel", lambda: None)
    return folder


def test_without_a_compiler_says_how_to_get_one(empty_path: Path, settings: Settings) -> None:
    assert toolchain.discover(settings=settings) == []
    for name in (None, "gcc", "clang", "zig", "gcc-13"):
        with pytest.raises(UnavailableError, match=r"apt-get install|pip install") as caught:
            toolchain.find(name, settings=settings)
        assert caught.value.code == "toolchain.missing"
        assert caught.value.exit_code == 5
    rows = toolchain.doctor(settings=settings)
    assert [(row.name, row.usable) for row in rows] == [
        ("gcc", False),
        ("clang", False),
        ("zig", False),
    ]
    assert "tfsearch[zig]" in rows[2].problem


def test_an_unknown_name_lists_the_known_ones(settings: Settings) -> None:
    for call in (
        lambda: toolchain.find("nvcc", settings=settings),
        lambda: toolchain.discover(["nvcc"], settings=settings),
    ):
        with pytest.raises(RequestError, match="gcc, clang, zig") as caught:
            call()
        assert caught.value.code == "toolchain.unknown"


def test_preference_is_gcc_clang_zig_then_versions(empty_path: Path, settings: Settings) -> None:
    for name, said in (
        ("clang", "clang version 99.0.0"),
        ("clang-9", "clang version 9.0.0"),
        ("gcc", "gcc 99 Free Software Foundation"),
        ("gcc-13", "gcc 13 Free Software Foundation"),
        ("gcc-9", "gcc 9 Free Software Foundation"),
        ("gcc-ar-13", "not a compiler"),
    ):
        script(empty_path / name, f"echo '{said}'")
    found = toolchain.discover(settings=settings)
    assert [tool.name for tool in found] == ["gcc", "clang", "gcc-13", "gcc-9", "clang-9"]
    assert [tool.family for tool in found] == ["gcc", "clang", "gcc", "gcc", "clang"]
    named = toolchain.discover(["clang-9", "zig", "gcc"], settings=settings)
    assert [tool.name for tool in named] == ["clang-9", "gcc"]


def test_links_to_one_compiler_are_found_once(empty_path: Path, settings: Settings) -> None:
    script(empty_path / "gcc-12", "echo 'Free Software Foundation'")
    (empty_path / "gcc").symlink_to("gcc-12")
    assert [tool.name for tool in toolchain.discover(settings=settings)] == ["gcc"]
    assert toolchain.find("gcc-12", settings=settings).name == "gcc-12"


def test_a_program_is_what_it_says_and_not_what_it_is_called(
    empty_path: Path, settings: Settings
) -> None:
    fake = script(empty_path / "gcc", "echo 'Apple clang version 15.0.0'")
    assert toolchain.find("gcc", settings=settings).family == "clang"
    assert toolchain.find(str(fake), settings=settings).family == "clang"


def test_a_version_on_path_has_the_identity_of_what_it_is(
    settings: Settings, gcc_path: str
) -> None:
    real = os.path.basename(os.path.realpath(gcc_path))
    named = toolchain.discover([real], settings=settings) if real != "gcc" else []
    if not named:
        pytest.skip("needs gcc-N beside gcc")
    assert named[0].record.digest == toolchain.find("gcc", settings=settings).record.digest
    by_path = toolchain.find(gcc_path, settings=settings)
    assert by_path.record.digest == named[0].record.digest


def test_paths_that_are_no_compiler_are_refused(settings: Settings, tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("")
    silent = script(tmp_path / "silent", "exit 0")
    for path, code in (
        (tmp_path / "absent", "toolchain.missing"),
        (plain, "toolchain.unusable"),
        (silent, "toolchain.unusable"),
    ):
        with pytest.raises(UnavailableError) as caught:
            toolchain.find(str(path), settings=settings)
        assert caught.value.code == code


def test_the_first_that_works_is_chosen(
    settings: Settings, tmp_path: Path, gcc_path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "path"
    script(folder / "gcc", "echo 'Free Software Foundation'; exit 1")
    script(folder / "clang", f'exec {gcc_path} "$@"')
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    assert toolchain.find(settings=settings).path == str(folder / "clang")


def test_doctor_rows_are_really_tried(warm_settings: Settings, tmp_path: Path) -> None:
    rows = {row.name: row for row in toolchain.doctor(settings=warm_settings)}
    assert {"gcc", "clang", "zig"} <= set(rows)
    for tool in toolchain.discover(settings=warm_settings):
        row = rows[tool.name]
        assert row.usable, row.problem
        assert (row.path, row.version) == (tool.path, tool.record.version)
        assert tool.record.digest.startswith(row.identity)


def test_doctor_says_why_a_compiler_is_not_usable(empty_path: Path, settings: Settings) -> None:
    script(empty_path / "gcc", "echo 'Free Software Foundation'; echo 'error: broken' >&2; exit 1")
    row = toolchain.doctor(settings=settings)[0]
    assert (row.name, row.usable) == ("gcc", False)
    assert "error: broken" in row.problem
