"""Users' kernels on any target: macros, launch geometry, what takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tfsearch.core.errors import RequestError
from tfsearch.core.launch import LaunchSpec
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.plugin.kernel import KernelProblem, bound_problem, flags_of, source_of
from tfsearch.plugin.target import Source
from tfsearch.space import Point
from tfsearch.space.file import KernelWorkload, kernel_workload
from tfsearch.target.null import target as null

SPACE = """
entry = "scale"
reference = "ref.py:f"
flags = ["-Iinclude", "-O2"]
definitions = { bytes = "TILE * 4 * (2 if WIDE else 1)" }
[constants]
n = 1000
KIND = "fast"
DEEP = true
[parameters]
TILE = [32, 64]
WIDE = [false, true]
SHARE = [0.5, 1.0]
[[args]]
name = "x"
dtype = "f32"
shape = ["n", 2]
io = "inout"
[[args]]
name = "n"
dtype = "i32"
init = "n"
[launch]
grid = ["ceil_div(n, TILE)", "2"]
block = ["TILE * SHARE", 4]
cluster = 1
smem = "bytes"
"""


class Own(KernelProblem):
    """A kernel of a target that takes its source as it is."""

    def source(self, point: Point) -> Source:
        macros = tuple(f"{name}={value}" for name, value in self.macros(point).items())
        launch = LaunchSpec(self.entry("scale"), (), self.geometry(point))
        return Source(self.kernel.text, "cuda", launch, (), macros, "/somewhere")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "k.toml").write_text(SPACE)
    (tmp_path / "k.cu").write_text("__global__ void scale(float *x, int n) {}\n")
    (tmp_path / "ref.py").write_text("def f(x, n):\n    return x\n")
    return tmp_path


@pytest.fixture
def workload(folder: Path) -> KernelWorkload:
    return kernel_workload(folder / "k.cu", folder / "k.toml")


def test_constants_and_parameters_are_macros_in_the_order_of_the_file(
    workload: KernelWorkload,
) -> None:
    shuffled = Point("kernel", {"SHARE": "1.0", "WIDE": True, "TILE": 64})
    macros = Own(workload).macros(shuffled)
    # n is an argument: its macro would replace the function's own name for it.
    assert list(macros.items()) == [
        ("KIND", "fast"), ("DEEP", "1"), ("TILE", "64"), ("WIDE", "1"), ("SHARE", "1.0"),
    ]  # fmt: skip


def test_geometry_is_computed_at_the_point(workload: KernelWorkload) -> None:
    problem = Own(workload)
    point = Point("kernel", {"TILE": 64, "WIDE": True, "SHARE": "0.5"})
    assert problem.geometry(point) == {
        "grid": [16, 2], "block": [32, 4], "cluster": [1], "smem": 512,
    }  # fmt: skip
    source = source_of(problem, point)
    assert source.launch.attributes["smem"] == 512
    (x, n) = source.launch.main.arguments
    assert (x.shape, x.strides, x.io) == ((1000, 2), (2, 1), "inout")
    assert (n.shape, n.strides, n.io) == ((), (), "in")


def test_a_geometry_that_is_no_size_is_refused(folder: Path) -> None:
    for wrong in ('"TILE * 0.51"', '"TILE - 64"'):
        text = SPACE.replace('"TILE * SHARE"', wrong)
        (folder / "k.toml").write_text(text)
        problem = Own(kernel_workload(folder / "k.cu", folder / "k.toml"))
        with pytest.raises(RequestError) as caught:
            problem.geometry(Point("kernel", {"TILE": 64, "WIDE": False, "SHARE": "0.5"}))
        assert caught.value.code == "kernel.launch"
        assert "block" in caught.value.message


def test_nothing_is_predicted_and_there_is_no_tir(workload: KernelWorkload) -> None:
    problem = Own(workload)
    (points,) = problem.space.legal_set()
    predicted = problem.predict(points)
    assert np.isnan(predicted.estimate_us).all()
    assert not predicted.bound_us.any()
    assert not predicted.calibrated
    assert problem.facts(points) == {}
    calls: list[Any] = [problem.lower, problem.reduced, lambda p: problem.emit(None, p)]  # type: ignore[arg-type]
    for call in calls:
        with pytest.raises(RequestError) as caught:
            call(points.point(0))
        assert caught.value.code == "kernel.no-tir"


def test_a_target_that_takes_programs_only_says_so(workload: KernelWorkload) -> None:
    with pytest.raises(RequestError) as caught:
        bound_problem(null, workload, null.nominal())
    assert caught.value.code == "target.no-kernels"
    gemm = build_workload("gemm", {"m": 4, "n": 4, "k": 4, "dtype": "f32"})
    assert bound_problem(null, gemm, null.nominal()).workload is gemm


def test_relative_paths_of_flags_are_relative_to_the_space_file(workload: KernelWorkload) -> None:
    flags = flags_of(workload)
    assert flags[1] == "-O2"
    assert flags[0] == f"-I{workload.file.path.parent.resolve()}/include"


def test_a_source_with_a_folder_of_its_own_is_not_made_from_what_was_kept(
    workload: KernelWorkload,
) -> None:
    source = Own(workload).source(Point("kernel", {"TILE": 32, "WIDE": False, "SHARE": "0.5"}))
    with pytest.raises(ValueError, match="not a source"):
        Source.from_bytes(source.to_bytes(), source.launch, ())
    moved = Source(source.text, "cuda", source.launch, (), source.flags, "/elsewhere")
    assert moved.digest == source.digest


def test_the_workload_is_what_is_computed_not_how(folder: Path, workload: KernelWorkload) -> None:
    def key(**files: str) -> str:
        for name, text in files.items():
            (folder / name.replace("_", ".")).write_text(text)
        try:
            return kernel_workload(folder / "k.cu", folder / "k.toml").key
        finally:
            (folder / "k.toml").write_text(SPACE)

    assert key() == workload.key
    same = [
        SPACE.replace("[32, 64]", "[16]"),
        SPACE.replace("-O2", "-O1"),
        SPACE.replace("grid = [", "grid = [3, "),
        "# a remark\n" + SPACE,
        "flops = 7\n" + SPACE,
    ]
    for text in same:
        assert key(k_toml=text) == workload.key
    others = [
        SPACE.replace("n = 1000", "n = 1001"),
        SPACE.replace('"fast"', '"slow"'),
        SPACE.replace('"scale"', '"other"'),
        SPACE.replace('"f32"', '"f64"'),
        SPACE.replace('"inout"', '"out"'),
        "terms = 3\n" + SPACE,
        "exact = true\n" + SPACE,
        "alignment = 64\n" + SPACE,
        "reproducible = false\n" + SPACE,
    ]
    assert len({workload.key, *(key(k_toml=text) for text in others)}) == len(others) + 1
    assert key(ref_py="def f(x, n):\n    return x + 0\n") != workload.key


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda folder: (folder / "k.cu").unlink(), "kernel.source"),
        (lambda folder: (folder / "k.cu").write_bytes(b"\xff"), "kernel.source"),
        (lambda folder: (folder / "ref.py").unlink(), "kernel.reference"),
    ],
)
def test_missing_and_unreadable_files_are_named(folder: Path, change: Any, code: str) -> None:
    change(folder)
    with pytest.raises(RequestError) as caught:
        kernel_workload(folder / "k.cu", folder / "k.toml")
    assert caught.value.code == code


def test_the_source_may_stand_in_the_space_file(folder: Path) -> None:
    with pytest.raises(RequestError) as caught:
        kernel_workload(None, folder / "k.toml")
    assert caught.value.code == "kernel.source"
    (folder / "k.toml").write_text('kernel = "k.cu"\n' + SPACE)
    assert kernel_workload(None, folder / "k.toml").language == "cuda"
    (folder / "k.xyz").write_text("")
    with pytest.raises(RequestError) as caught:
        kernel_workload(folder / "k.xyz", folder / "k.toml")
    assert caught.value.code == "kernel.language"


def test_arguments_beyond_the_memory_are_refused(workload: KernelWorkload) -> None:
    workload.check_memory(1 << 20, "a card")
    with pytest.raises(RequestError, match="beyond the memory of a card"):
        workload.check_memory(1000, "a card")
