"""A session on this machine does not pay for what connects several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROGRAM = """
import json, sys
from tfsearch.cli import main
words = "tune gemm m=5 n=6 k=7 dtype=f32 --target null --trials 3 --quiet --json".split()
code = main(words)
names = sorted({"ray", "tfsearch.measure.cluster", "tfsearch.measure.fleet"} & set(sys.modules))
print(json.dumps([code, names]), file=sys.stderr)
"""
TELL_TALE = """
import os
open(os.environ["TOUCHED"], "a").close()
raise ImportError("Ray is not asked for")
"""


def test_a_whole_local_session_loads_nothing_of_ray(tmp_path: Path) -> None:
    package = tmp_path / "modules" / "ray"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(TELL_TALE)
    touched = tmp_path / "touched"
    environment = {
        **os.environ,
        "PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}",
        "TFSEARCH_HOME": str(tmp_path / "home"),
        "TOUCHED": str(touched),
    }
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout)["trials"]["total"] == 3
    assert json.loads(done.stderr.splitlines()[-1]) == [0, []]
    assert not touched.exists()
    # The tell-tale works: asked for, Ray is looked for.
    asked = [sys.executable, "-m", "tfsearch", "worker", "--head"]
    refused = subprocess.run(
        asked, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert refused.returncode == 5, refused.stderr
    assert touched.exists()
