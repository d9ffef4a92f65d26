"""``import tfsearch`` is light, and its names lead where they say."""

from __future__ import annotations

import subprocess
import sys

HEAVY = ("sqlalchemy", "alembic", "numpy", "ml_dtypes", "rich", "click", "pebble", "optuna", "ray",
         "cuda")  # fmt: skip


def modules_after(code: str) -> set[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{code}\nprint(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.split())


def test_the_package_loads_nothing_heavy() -> None:
    loaded = modules_after("import tfsearch")
    assert not loaded & set(HEAVY)
    assert {m for m in loaded if m.startswith("tfsearch")} == {"tfsearch"}


def test_the_run_time_loads_neither_sqlalchemy_nor_the_search() -> None:
    loaded = modules_after(
        "import tfsearch.runtime as r\nr.Kernel, r.load_bundle, r.lookup, r.op, r.export_bundle"
    )
    assert "numpy" in loaded
    assert not loaded & {"sqlalchemy", "alembic", "rich", "click", "pebble"}
    assert not {m for m in loaded if m.startswith("tfsearch.tune")}


def test_the_public_names_are_what_they_say() -> None:
    import tfsearch
    from tfsearch.runtime.operator import op
    from tfsearch.runtime.serve import lookup

    assert tfsearch.lookup is lookup
    assert tfsearch.op is op
    assert callable(tfsearch.tune)
    assert set(tfsearch.__dir__()) >= {"lookup", "op", "tune"}
    assert tfsearch.lookup is lookup
