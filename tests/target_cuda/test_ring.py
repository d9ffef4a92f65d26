"""Contractions by teams of warps: legal, right in the interpreter, in machine code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.target_cuda.support import built, compiler_named, disassembled, proved, refusals
from tfsearch.ir.hir.named import named_workload
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.plugin.target import Problem
from tfsearch.space import Point
from tfsearch.target.cuda import target
from tfsearch.tune.proof import FULL, prove_reduced

GEMM = {"dtype": "bf16", "out_dtype": "bf16", "trans_b": "true"}
USUAL: dict[str, Any] = {
    "tile_m": 128, "tile_n": 64, "tile_k": 64, "stages": 3, "consumers": 2,
    "scheme": "cooperative", "high": 1, "wide": 1, "group": 4, "units": 132, "epilogue": "direct",
}  # fmt: skip
POINTS: dict[str, dict[str, Any]] = {
    "cooperative": {},
    "one consumer": {"tile_m": 64, "consumers": 1},
    "three consumers": {"tile_m": 192, "consumers": 3, "tile_n": 32},
    "two blocks": {"tile_m": 256, "tile_n": 40},
    "ping-pong": {"tile_m": 64, "scheme": "pingpong"},
    "long steps": {"tile_k": 128, "stages": 2},
    "a cluster above": {"high": 2, "tile_n": 32},
    "a cluster beside": {"wide": 2, "tile_n": 24},
    "ping-pong in clusters": {"high": 2, "tile_m": 64, "tile_n": 32, "scheme": "pingpong"},
    "row by row": {"group": 1},
    "staged": {"epilogue": "staged"},
    "staged, three boxes": {"epilogue": "staged", "tile_n": 192},
    "staged ping-pong": {"epilogue": "staged", "tile_m": 64, "scheme": "pingpong"},
    "staged, two blocks": {"epilogue": "staged", "tile_m": 256, "high": 2},
}


@cache
def gemm(m: int = 4096, n: int = 4096, k: int = 4096, **more: str) -> Problem:
    options = {**GEMM, "m": str(m), "n": str(n), "k": str(k), **more}
    return target.problem(named_workload("gemm", options), target.nominal())


def point(**changes: Any) -> Point:
    return Point("ring", {**USUAL, **changes})


@pytest.mark.parametrize("name", POINTS)
def test_a_point_is_legal_and_its_shape_right(name: str) -> None:
    one = point(**POINTS[name])
    assert gemm().space.check(one) == ()
    assert refusals(gemm().lower(one)) == set()
    assert proved(gemm(), one) == ()


@pytest.mark.parametrize(
    "sizes", [(4096, 4100, 4096), (77, 1000, 72), (4096, 4096, 64)], ids=str
)  # fmt: skip
def test_sizes_that_tiles_do_not_divide(sizes: tuple[int, int, int]) -> None:
    problem = gemm(*sizes)
    one = point(tile_m=64, consumers=1, tile_n=48, group=1)
    assert problem.space.check(one) == ()
    assert refusals(problem.lower(one)) == set()
    assert proved(problem, one) == ()


MAJORS = {"across b": {"trans_b": "false"}, "across a": {"trans_a": "true"}}
MAJORS["across both"] = {"trans_b": "false", "trans_a": "true"}


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("across b", {"tile_n": 128}),
        ("across a", {"tile_n": 40}),
        ("across both", {"tile_n": 128, "tile_m": 256, "high": 2}),
        ("across both", {"tile_n": 64, "wide": 2, "tile_k": 128, "stages": 2}),
    ],
    ids=str,
)
def test_factors_stored_across_the_sum(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    problem = gemm(**MAJORS[name])
    one = point(**changes)
    assert problem.space.check(one) == ()
    assert refusals(problem.lower(one)) == set()
    assert proved(problem, one) == ()
    source = problem.emit(problem.lower(one), one)
    done = built(compiler_named("nvrtc"), source, tmp_path / "a.cubin")
    assert done.resources["spilled"] == 0
    code = disassembled(tmp_path / "a.cubin")
    assert "HGMMA" in code
    assert ("tnspA" in code) == (name != "across b")
    assert ("tnspB" in code) == (name != "across a")


BATCHED: dict[str, tuple[dict[str, str], dict[str, Any]]] = {
    "planes": ({}, {}),
    "planes in clusters": ({"trans_b": "false"}, {"high": 2, "tile_n": 128}),
    "planes, staged": ({"trans_a": "true"}, {"epilogue": "staged", "wide": 2}),
    "planes, fused": ({"epilogue": "bias+residual"}, {"scheme": "pingpong", "tile_m": 64}),
}


@pytest.mark.parametrize("name", BATCHED)
def test_an_outer_axis_is_walked_plane_by_plane(name: str, tmp_path: Path) -> None:
    options, changes = BATCHED[name]
    problem, one = gemm(1000, 512, 256, batch="3", **options), point(**changes)
    assert problem.space.check(one) == ()
    assert refusals(problem.lower(one)) == set()
    assert proved(problem, one) == ()
    source = problem.emit(problem.lower(one), one)
    done = built(compiler_named("nvrtc"), source, tmp_path / "a.cubin")
    assert done.resources["spilled"] == 0
    code = disassembled(tmp_path / "a.cubin")
    assert "UTMALDG.3D" in code
    assert ("UTMASTG.3D" in code) == (changes.get("epilogue") == "staged")
    assert ("MULTICAST" in code) == ("high" in changes or "wide" in changes)


def test_text_of_a_kernel_comes_back() -> None:
    module = gemm().lower(point(high=2))
    assert parse_module(print_module(module)) == module


def test_sampled_points_are_legal_kernels() -> None:
    problem = gemm(1000, 3000, 200)
    assert problem.space.count().legal > 5000
    for one in problem.space.sample(30, np.random.default_rng(5)):
        assert refusals(problem.lower(one)) == set(), one


FAULTS: dict[str, tuple[str, str]] = {
    "the slot is not waited for": (r"cuda\.barrier_wait\(full[^\n]*\n", ""),
    "the slot is filled before it is free": (r"cuda\.barrier_wait_elected\(empty[^\n]*\n", ""),
    "too few bytes are expected": (r"(cuda\.barrier_expect\(.*), \d+\)", r"\1, 1024)"),
    "a slot is never given back": (r"cuda\.barrier_arrive\(empty[^\n]*\n", ""),
    "the last products are not waited for": (r"cuda\.product_wait\(0\)\n", ""),
    "more registers than there are": (r"cuda\.registers_raise\(\d+\)", "cuda.registers_raise(248)"),
    "boxes of another height": (r"box \[128, 64\]", "box [64, 64]"),
    "barriers are not shown to others": (r"cuda\.fence_init\(\)\n", ""),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    pattern, change = FAULTS[name]
    device = target.nominal()
    workload, module = gemm().reduced(point())
    text, count = re.subn(pattern, change, print_module(module))
    assert count, print_module(module)
    wrong = parse_module(text)
    found = refusals(wrong) or prove_reduced(
        workload, wrong, target.atoms(device), target.limits(device), FULL
    )
    assert found


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        ({"trans_b": "false", "n": "500"}, "multiples of 16"),
        ({"k": "100"}, "multiples of 16"),
        ({"dtype": "f32", "out_dtype": "f32"}, "no matrix product"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, str], wanted: str) -> None:
    sizes = {"m": "512", "n": "512", "k": "512"}
    workload = named_workload("gemm", {**GEMM, **sizes, **options})
    problem = target.problem(workload, target.nominal())
    assert "ring" not in {recipe.name for recipe in problem.space.recipes}
    (message,) = (r.message for r in problem.refusals if r.where == "ring")
    assert wanted in message


@pytest.mark.parametrize("name", ["cooperative", "a cluster above", "ping-pong", "staged"])
def test_machine_code(name: str, tmp_path: Path) -> None:
    compiler = compiler_named("nvrtc")
    one = point(**{"tile_n": 128, **POINTS[name]})
    problem = gemm()
    source = problem.emit(problem.lower(one), one)
    (how,) = source.launch.attributes.values()
    params: dict[str, Any] = dict(one.params)
    staged = params["epilogue"] == "staged"
    slots = params["stages"] * ((params["tile_m"] + params["tile_n"]) * 128 + 16)
    slots += staged * params["consumers"] * 16384
    assert slots <= how["shared"] <= slots + 1024 + 16
    assert [box["argument"] for box in how["boxes"]] == ["a", "b", *["c"] * staged]
    done = built(compiler, source, tmp_path / "a.cubin")
    assert done.resources["spilled"] == 0
    assert done.resources["registers"] == 168
    assert "C75" not in done.log
    code = disassembled(tmp_path / "a.cubin")
    columns = params["tile_n"]
    assert f"HGMMA.64x{columns}x16.F32.BF16" in code
    assert "UTMALDG.2D" in code
    assert "SYNCS" in code
    assert "USETMAXREG" in code
    assert ("STG.E.128" in code) != staged
    assert ("UTMASTG.2D" in code) == ("STSM.16" in code) == staged
    assert ("MULTICAST" in code) == (params["high"] > 1)
    assert "STL" not in code


@pytest.mark.parametrize("epilogue", ["bias+relu", "bias+gelu+residual", "scale+silu"])
def test_fused_work_on_fragments(epilogue: str, tmp_path: Path) -> None:
    problem = gemm(1024, 1024, 512, epilogue=epilogue)
    one = point(tile_n=40)
    assert refusals(problem.lower(one)) == set()
    assert proved(problem, one) == ()
    done = built(
        compiler_named("nvrtc"), problem.emit(problem.lower(one), one), tmp_path / "a.cubin"
    )
    assert done.resources["spilled"] == 0
