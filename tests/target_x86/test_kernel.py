"""A user's C kernel as source for this target; no compiler is needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tfsearch.core.errors import RequestError
from tfsearch.plugin.kernel import bound_problem
from tfsearch.plugin.target import Source
from tfsearch.space import Point
from tfsearch.space.file import kernel_workload
from tfsearch.target.x86 import target

SPACE = """
entry = "scale"
reference = "ref.py:f"
constants = { n = 8, WIDTH = 16 }
parameters = { UNROLL = [1, 2], KIND = ["int"] }
args = [
  { name = "a", dtype = "f64", init = 2 },
  { name = "x", dtype = "f32", shape = ["n"], io = "inout" },
  { name = "n", dtype = "i32", init = "n" },
]
"""


def source(folder: Path, space: str = SPACE, name: str = "k.c") -> Source:
    (folder / "k.toml").write_text(space)
    (folder / name).write_text("void scale(double a, float *x, int n) { x[0] = a; }")
    (folder / "ref.py").write_text("def f(a, x, n):\n    return x\n")
    workload = kernel_workload(folder / name, folder / "k.toml")
    problem = bound_problem(target, workload, target.nominal())
    point = Point("kernel", {"KIND": "int", "UNROLL": 2})
    return problem.source(point)  # type: ignore[attr-defined]


def test_the_text_is_the_users_with_an_entry_that_unpacks_pointers(tmp_path: Path) -> None:
    made = source(tmp_path)
    assert made.text.startswith("void scale(double a, float *x, int n) { x[0] = a; }\n#line 1")
    call = "scale(*(const double *)arguments[0], arguments[1], *(const int *)arguments[2]);"
    assert call in made.text
    assert made.flags[1:] == ("-DWIDTH=16", "-DUNROLL=2", "-DKIND=int")
    assert made.folder == str(tmp_path.resolve())
    assert (made.language, made.features) == ("c", ())
    main = made.launch.main
    assert main.symbol in made.text
    assert [(a.name, a.shape, a.io) for a in main.arguments] == [
        ("a", (), "in"),
        ("x", (8,), "inout"),
        ("n", (), "in"),
    ]
    assert made.launch.attributes == {}


@pytest.mark.parametrize(
    ("space", "name", "code"),
    [
        (SPACE, "k.cpp", "x86.language"),
        (SPACE + "launch = { block = 4 }\n", "k.c", "x86.launch"),
        (SPACE.replace("f64", "bf16"), "k.c", "x86.scalar"),
    ],
)
def test_what_c_cannot_take_is_refused(tmp_path: Path, space: str, name: str, code: str) -> None:
    with pytest.raises(RequestError) as caught:
        source(tmp_path, space, name)
    assert caught.value.code == code
