"""Homes of their own, and the tools that whole sessions need."""

from __future__ import annotations

import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.planted import PlantedTarget
from tfsearch.core.settings import Settings
from tfsearch.plugin import registry

GEMM = {"m": 9, "n": 40, "k": 17, "dtype": "f32"}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = [name for name in ("gcc",) if shutil.which(name) is None]
    if platform.machine() != "x86_64" or sys.platform != "linux":
        missing.append("x86-64 Linux")
    here = Path(__file__).parent
    for item in items:
        if missing and here in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=f"needs {', '.join(missing)}"))


def at_home(folder: Path, patch: pytest.MonkeyPatch) -> Settings:
    """Settings of a home in ``folder`` that this process now uses."""
    patch.setenv("TFSEARCH_HOME", str(folder))
    patch.delenv("TFSEARCH_DB", raising=False)
    return Settings(folder, f"sqlite:///{folder / 'tfsearch.db'}")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    return at_home(tmp_path / "home", monkeypatch)


@pytest.fixture
def planted() -> Iterator[str]:
    registry.register("planted", PlantedTarget)
    yield "planted"
    registry.unregister("planted")
