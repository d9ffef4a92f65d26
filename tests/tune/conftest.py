"""A private home, a store in it, and the faulty target."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.tune.faulty import FaultyTarget, TightTarget
from tfsearch.core.settings import Settings
from tfsearch.db import Store, open_store
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.workload import Workload
from tfsearch.plugin import registry


@pytest.fixture
def home(tmp_path: Path) -> Settings:
    return Settings(tmp_path, f"sqlite:///{tmp_path / 'tfsearch.db'}")


@pytest.fixture
def store(home: Settings) -> Iterator[Store]:
    opened = open_store(home.database_url)
    yield opened
    opened.close()


@pytest.fixture
def gemm() -> Workload:
    return build_workload("gemm", {"m": 5, "n": 6, "k": 7, "dtype": "f32"})


@pytest.fixture
def faulty() -> Iterator[str]:
    registry.register("faulty", FaultyTarget)
    yield "faulty"
    registry.unregister("faulty")


@pytest.fixture
def tight() -> Iterator[str]:
    registry.register("tight", TightTarget)
    yield "tight"
    registry.unregister("tight")
