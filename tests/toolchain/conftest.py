"""Shared by the toolchain tests: settings in a temporary folder and fake compilers."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tfsearch import toolchain
from tfsearch.core.errors import UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.toolchain import Toolchain


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home", database_url="sqlite://")


@pytest.fixture(scope="session")
def warm_settings(tmp_path_factory: pytest.TempPathFactory) -> Settings:
    """One cache for tests that only need a working compiler."""
    return Settings(home=tmp_path_factory.mktemp("home"), database_url="sqlite://")


def compiler(name: str, settings: Settings) -> Toolchain:
    try:
        return toolchain.find(name, settings=settings)
    except UnavailableError:
        pytest.skip(f"needs {name}")


@pytest.fixture(params=["gcc", "clang", "zig"])
def any_compiler(request: pytest.FixtureRequest, warm_settings: Settings) -> Toolchain:
    return compiler(request.param, warm_settings)


@pytest.fixture
def gcc_path() -> str:
    path = shutil.which("gcc")
    if path is None:
        pytest.skip("needs gcc")
    return path


def script(path: Path, body: str) -> Path:
    """An executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def rewrite_keeping_times(path: Path, data: bytes) -> None:
    """Change a file's content in place, its modification time put back."""
    before = path.stat()
    with path.open("r+b") as stream:
        stream.write(data)
        stream.truncate()
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
