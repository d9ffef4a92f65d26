"""The command line in this process, in a private home; one workload is tuned once."""

from __future__ import annotations

import json
import platform
import shutil
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tfsearch.cli import main
from tfsearch.core.errors import UnavailableError
from tfsearch.core.settings import Settings
from tfsearch.plugin import registry
from tfsearch.target.null import NullTarget
from tfsearch.toolchain import DoctorRow

GEMM = ("gemm", "m=12", "n=10", "k=8", "dtype=f32", "--target", "null")


@dataclass(frozen=True)
class Answer:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """The one document on standard output."""
        return json.loads(self.out)

    @property
    def error(self) -> str:
        """The one line on standard error."""
        lines = self.err.splitlines()
        assert len(lines) == 1, self.err
        assert lines[0].startswith("error["), self.err
        assert "Traceback" not in self.err
        return lines[0]


Run = Callable[..., Answer]


@pytest.fixture(scope="session")
def tuned_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("cli") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFSEARCH_HOME", str(home))
        patch.delenv("TFSEARCH_DB", raising=False)
        assert main(["tune", *GEMM, "--trials", "3", "--quiet", "--no-baseline"]) == 0
    return home


def _use(home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("TFSEARCH_HOME", str(home))
    monkeypatch.delenv("TFSEARCH_DB", raising=False)
    monkeypatch.delenv("TFSEARCH_DEBUG", raising=False)
    return Settings(home, f"sqlite:///{home / 'tfsearch.db'}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return _use(tmp_path / "home", monkeypatch)


@pytest.fixture
def tuned(tmp_path: Path, tuned_home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    shutil.copytree(tuned_home, tmp_path / "home")
    return _use(tmp_path / "home", monkeypatch)


@pytest.fixture
def run(home: Settings, capfd: pytest.CaptureFixture[str]) -> Run:
    """Run a command; its exit code and everything that it printed."""

    def call(*words: str) -> Answer:
        capfd.readouterr()
        code = main(list(words))
        out, err = capfd.readouterr()
        return Answer(code, out, err)

    return call


class Absent(NullTarget):
    """A target whose hardware is not here."""

    name = "absent"

    def devices(self) -> Any:
        return ()

    def absence(self) -> str:
        return "no such card here; insert one"

    def toolchains(self) -> Any:
        return (DoctorRow("assembler", "", "", "", False, "not found; get it with: the card"),)


class NoCompiler(NullTarget):
    """A target without a compiler."""

    name = "bare"

    def compiler(self, name: str | None) -> Any:
        raise UnavailableError("toolchain.missing", "no compiler here; get one with: apt-get")


@pytest.fixture
def targets() -> Iterator[None]:
    registry.register("absent", Absent)
    registry.register("bare", NoCompiler)
    yield
    registry.unregister("absent")
    registry.unregister("bare")


@pytest.fixture
def small_disk(tmp_path: Path) -> Any:
    place = tmp_path / "disk"
    place.mkdir()
    if shutil.which("mount") is None:
        pytest.skip("mount: a small disk is a tmpfs")
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=512k", "tmpfs", str(place)],
        capture_output=True,
        check=False,
    )
    if made.returncode:
        pytest.skip("root and mount: a small disk is a tmpfs")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.fixture
def gcc_path() -> str:
    found = shutil.which("gcc")
    if found is None or platform.machine() != "x86_64":
        pytest.skip("needs gcc and an x86-64 processor")
    return found
