"""A private home with one workload tuned on the null target, made once."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import tfsearch
from tfsearch.core.settings import Settings

GEMM = {"m": 12, "n": 10, "k": 8, "dtype": "f32", "alignment": 16}


@pytest.fixture(scope="session")
def tuned_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("tuned") / "home"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TFSEARCH_HOME", str(home))
        patch.delenv("TFSEARCH_DB", raising=False)
        report = tfsearch.tune("gemm", **GEMM, target="null", trials=3, baseline=False)
    assert report.exit_code == 0
    return home


@pytest.fixture
def home(tmp_path: Path, tuned_home: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    own = tmp_path / "home"
    shutil.copytree(tuned_home, own)
    monkeypatch.setenv("TFSEARCH_HOME", str(own))
    monkeypatch.delenv("TFSEARCH_DB", raising=False)
    return Settings(own, f"sqlite:///{own / 'tfsearch.db'}")
