"""A frozen bundle of x86 kernels serves where there is neither a compiler nor SQLAlchemy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tfsearch.core.settings import Settings
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.runtime import export_bundle
from tfsearch.runtime.serving import Question
from tfsearch.target.x86.device import usable_units

SIZES = {"m": 40, "n": 48, "k": 33, "dtype": "f32"}
SERVE = """
import sys, numpy as np
from tfsearch.runtime import load_bundle
kernel = load_bundle(sys.argv[1]).lookup("gemm", m=40, n=48, k=33, dtype="f32")
rng = np.random.default_rng(0)
a, b = (rng.standard_normal(s).astype("f4") for s in [(40, 33), (33, 48)])
assert np.allclose(kernel(a, b), a @ b, atol=1e-4)
assert "sqlalchemy" not in sys.modules
print(kernel.launch.main.units)
"""


def test_a_bundle_serves_kernels_of_several_units_without_a_compiler(
    tmp_path: Path, home: Settings
) -> None:
    if usable_units() < 2:
        pytest.skip("needs 2 CPUs")
    import tfsearch

    del home
    tfsearch.tune("gemm", **SIZES, target="x86", trials=1, fix={"units": 2}, baseline=False)
    bundle = tmp_path / "kernels.zip"
    export_bundle(bundle, [Question(build_workload("gemm", SIZES), target="x86")])
    environment = {
        **os.environ,
        "PATH": str(tmp_path / "nothing-here"),
        "TFSEARCH_HOME": str(tmp_path / "elsewhere"),
    }
    done = subprocess.run(
        [sys.executable, "-c", SERVE, str(bundle)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "2"
