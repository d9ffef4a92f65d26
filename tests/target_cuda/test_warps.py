"""Contractions by single warps: legal, right in the interpreter, counted, in machine code."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.target_cuda.support import built, compiler_named, disassembled, proved, refusals
from tests.target_cuda.test_problem import on
from tfsearch.ir.hir.named import named_workload
from tfsearch.ir.tir.text import parse_module, print_module
from tfsearch.plugin.target import Device, Problem
from tfsearch.prove.analyze import analyze
from tfsearch.search.scan import points_of
from tfsearch.space import Point, Space
from tfsearch.target.cuda import target
from tfsearch.target.cuda.hardware import ARCHITECTURES
from tfsearch.tune.proof import FULL, prove_reduced

GEMM = {"dtype": "bf16", "out_dtype": "bf16", "trans_b": "true"}
F32 = {"dtype": "f32", "out_dtype": "f32"}
USUAL: dict[str, Any] = {
    "tile_m": 64, "tile_n": 64, "tile_k": 64, "high": 2, "wide": 2, "stages": 3,
    "panel": "swizzled128", "vector": 16, "ahead": 1, "group": 1, "resident": 1,
}  # fmt: skip
POINTS: dict[str, dict[str, Any]] = {
    "usual": {},
    "one warp": {"tile_m": 32, "tile_n": 32, "high": 1, "wide": 1},
    "warps beside": {"tile_m": 16, "tile_n": 128, "high": 1, "wide": 4},
    "warps above": {"tile_m": 128, "tile_n": 16, "high": 4, "wide": 1},
    "sixteen warps": {"tile_m": 128, "tile_n": 128, "high": 4, "wide": 4, "tile_k": 32,
                      "panel": "swizzled64"},
    "short rows": {"tile_k": 32, "panel": "swizzled64", "stages": 5},
    "padded": {"panel": "padded128", "stages": 2},
    "short padded rows": {"tile_k": 32, "panel": "padded64"},
    "two panels": {"tile_k": 128, "stages": 2},
    "not ahead": {"ahead": 0},
    "narrow accesses": {"vector": 8},
    "grouped": {"group": 2},
    "three side by side": {"resident": 3},
}  # fmt: skip


@cache
def gemm(m: int = 512, n: int = 512, k: int = 512, **more: str) -> Problem:
    options = {**GEMM, "m": str(m), "n": str(n), "k": str(k), **more}
    return target.problem(named_workload("gemm", options), target.nominal())


def point(**changes: Any) -> Point:
    return Point("warps", {**USUAL, **changes})


def sampled(problem: Problem, count: int, seed: int) -> list[Point]:
    """Points of the pipeline alone."""
    alone = Space(tuple(r for r in problem.space.recipes if r.name == "warps"))
    return list(alone.sample(count, np.random.default_rng(seed)))


@pytest.mark.parametrize("name", POINTS)
def test_a_point_is_legal_and_its_shape_right(name: str) -> None:
    one = point(**POINTS[name])
    assert gemm().space.check(one) == ()
    assert refusals(gemm().lower(one)) == set()
    assert proved(gemm(), one) == ()


SIZES: dict[str, tuple[tuple[int, int, int], dict[str, str]]] = {
    "tails": ((500, 330, 200), {}),
    "a tail of the sum alone": ((512, 512, 500), {}),
    "odd rows": ((100, 77, 201), {}),
    "rows of four": ((70, 77, 100), {}),
    "rows of eight": ((70, 77, 102), {}),
    "one row": ((1, 300, 128), {}),
    "short sums": ((130, 130, 16), {}),
    "across b": ((200, 136, 200), {"trans_b": "false"}),
    "across b, odd": ((65, 77, 65), {"trans_b": "false"}),
    "across a": ((200, 136, 200), {"trans_a": "true"}),
    "across both": ((128, 128, 128), {"trans_a": "true", "trans_b": "false"}),
    "across both, odd": ((67, 69, 71), {"trans_a": "true", "trans_b": "false"}),
    "batched": ((100, 77, 200), {"batch": "3"}),
    "batched across": ((100, 80, 90), {"batch": "3", "trans_b": "false"}),
    "f16": ((100, 77, 200), {"dtype": "f16", "out_dtype": "f16"}),
    "f32 out": ((100, 77, 200), {"out_dtype": "f32"}),
    "bias and an activation": ((100, 80, 200), {"epilogue": "bias+gelu"}),
    "residual": ((100, 77, 201), {"epilogue": "bias+silu+residual"}),
    "scale": ((100, 77, 201), {"epilogue": "scale+relu", "batch": "2"}),
    "multiply-adds": ((100, 80, 96), F32),
    "multiply-adds, odd": ((67, 77, 101), F32),
    "multiply-adds across b": ((67, 80, 96), {**F32, "trans_b": "false"}),
    "multiply-adds across a": ((68, 80, 96), {**F32, "trans_a": "true", "epilogue": "bias+gelu"}),
}


@pytest.mark.parametrize("name", SIZES)
def test_any_size_major_and_epilogue(name: str) -> None:
    sizes, options = SIZES[name]
    problem = gemm(*sizes, **options)
    (_, vectors) = next(
        (r, p.values) for r in problem.space.recipes if r.name == "warps"
        for p in r.parameters if p.name == "vector"
    )  # fmt: skip
    usual = {"vector": vectors[-1], "tile_m": 32, "tile_k": 32, "panel": "swizzled64", "high": 1}
    if options.get("trans_a") == "true":
        usual["panel"], usual["tile_m"], usual["high"] = "padded128", 64, 2
        usual["tile_k"] = 64
    one = point(**{**usual, **({"stages": 2} if sizes[2] < 100 else {})})
    if name == "one row":
        one = point(**{**one.params, "tile_m": 16, "wide": 2})
    if name == "short sums":
        one = point(**{**one.params, "tile_k": 32})
    assert refusals(problem.lower(one)) == set()
    assert proved(problem, one) == ()


def test_random_workloads_and_points_are_legal_and_right() -> None:
    generator = np.random.default_rng(7)
    for number in range(8):
        m, n, k = (int(v) for v in generator.integers(1, 300, 3))
        options = {
            "trans_a": str(bool(generator.integers(2))).lower(),
            "trans_b": str(bool(generator.integers(2))).lower(),
            "dtype": str(generator.choice(["bf16", "f16", "f32"])),
            "out_dtype": str(generator.choice(["bf16", "f16", "f32"])),
        }
        problem = gemm(m, n, k, **options)
        (one,) = sampled(problem, 1, number)
        assert refusals(problem.lower(one)) == set(), (m, n, k, options, one)
        assert proved(problem, one) == (), (m, n, k, options, one)


FAULTS: dict[str, tuple[str, str]] = {
    "copies are not waited for": (r"cuda\.copy_wait\(1\)\n", ""),
    "one group too few is waited for": (r"cuda\.copy_wait\(1\)", "cuda.copy_wait(2)"),
    "copies are not committed": (r"cuda\.copy_commit\(\)\n", ""),
    "warps do not meet": (r"cuda\.meet\(\)\n", ""),
    "a slot is filled while it is read": (r"let free = following % 3", "let free = kk % 3"),
    "slots are taken out of turn": (r"let slot = kk % 3", "let slot = (kk + 1) % 3"),
    "another swizzle": (r"sw\(3,3,3\)", "sw(2,3,3)"),
    "a warp loads another's rows": (r"wm \* 32 \+ 16", "wm * 32"),
    "sums begin with what is there": (r"cuda\.warp_tile_fill[^\n]*\n", ""),
    "more registers than there are": (r"lanes 32", "lanes 32 registers 24"),
    "a major is mistaken": (r"matrices_b\.", "matrices_b_across."),
}


@pytest.mark.parametrize("name", FAULTS)
def test_planted_faults_are_found(name: str) -> None:
    pattern, change = FAULTS[name]
    device = target.nominal()
    workload, module = gemm().reduced(point())
    text, count = re.subn(pattern, change, print_module(module))
    assert count, print_module(module)
    wrong = parse_module(text)
    assert refusals(wrong) or prove_reduced(
        workload, wrong, target.atoms(device), target.limits(device), FULL
    )


def test_text_of_a_kernel_comes_back() -> None:
    module = gemm().lower(point(resident=3, panel="padded128"))
    assert parse_module(print_module(module)) == module


@pytest.mark.parametrize(
    ("sizes", "options"),
    [
        ((300, 200, 100), {}),
        ((256, 256, 128), {"trans_b": "false"}),
        ((130, 75, 77), {"trans_a": "true", "batch": "2"}),
        ((128, 64, 96), {"dtype": "f16"}),
        ((100, 96, 77), {**F32, "trans_b": "false"}),
    ],
    ids=str,
)
def test_counts_are_those_of_a_walk_over_the_lowered_kernel(
    sizes: tuple[int, int, int], options: dict[str, str]
) -> None:
    problem = gemm(*sizes, **options)
    atoms = target.atoms(target.nominal())
    ((_, batch),) = points_of(problem.space, sampled(problem, 12, 3))
    facts = problem.facts(batch)
    for row in range(len(batch)):
        one = Point(batch.recipe.name, batch.params(row))
        module = problem.lower(one)
        have = {name: int(facts[name][row]) for name in facts if name != "step_cycles"}
        found = analyze(module, atoms).main
        units = have["units"]
        calls = dict.fromkeys(STEMS.values(), 0)
        for work in found.work:
            for stem, fact in STEMS.items():
                calls[fact] += work.total if work.atom.startswith(f"cuda.{stem}") else 0
        assert found.units == units
        assert calls == {fact: units * have[fact] for fact in calls}
        assert sum(found.buffer("a").read) == have["a_bytes"]
        assert sum(found.buffer("b").read) == have["b_bytes"]
        slots = [found.buffer(name) for name in ("sa", "sb")]
        moved = sum(sum(slot.read) + sum(slot.written) for slot in slots)
        assert moved == units * have["shared_bytes_moved"]
        (how,) = problem.emit(module, one).launch.attributes.values()
        assert how["shared"] == have["shared_bytes"]
        assert how["grid"] == [units, 1, 1]


STEMS = {
    "mma": "products", "multiply_add": "products", "matrices": "fragments", "rows": "fragments",
    "columns": "fragments", "piece": "copies",
}  # fmt: skip
"""How the atoms begin that each fact counts."""

CASES: dict[str, tuple[tuple[int, int, int], dict[str, str]]] = {
    "bf16": ((1000, 1000, 1000), {}),
    "f16 across": ((512, 512, 512), {"dtype": "f16", "out_dtype": "f16", "trans_b": "false"}),
    "odd": ((333, 555, 777), {"trans_a": "true"}),
    "batched, fused": ((200, 256, 64), {"batch": "4", "epilogue": "scale+gelu"}),
    "f32": ((300, 301, 302), F32),
}


EXPECTED = {
    "bf16": ("HMMA.16816.F32.BF16 ", "LDSM.16.M"),
    "f16": ("HMMA.16816.F32 ", "LDSM.16.M"),
    "f32": ("FFMA", "LDS.128"),
}


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("name", CASES)
def test_sampled_candidates_compile_for_every_architecture(
    name: str, architecture: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = compiler_named("nvrtc")
    sizes, options = CASES[name]
    device = on(architecture, monkeypatch)
    problem = bound(sizes, options, device)
    for number, one in enumerate(sampled(problem, 3, 5)):
        code = problem.emit(problem.lower(one), one)
        assert code.features == (architecture,)
        done = built(compiler, code, tmp_path / f"{number}")
        params: dict[str, Any] = dict(one.params)
        threads = 32 * params["high"] * params["wide"]
        assert done.resources["registers"] * threads * params["resident"] <= 65536
        # The compiler may hoist an address too many; records mark such candidates.
        assert done.resources["stack_bytes"] <= 32
        ((_, batch),) = points_of(problem.space, [one])
        (how,) = code.launch.attributes.values()
        assert how["shared"] == problem.facts(batch)["shared_bytes"][0]
        machine = disassembled(tmp_path / f"{number}")
        for mark in EXPECTED[options.get("dtype", "bf16")]:
            assert mark in machine
        assert ("LDGSTS" in machine) == (name != "odd")


def bound(sizes: tuple[int, int, int], options: dict[str, str], device: Device) -> Problem:
    m, n, k = map(str, sizes)
    return target.problem(
        named_workload("gemm", {**GEMM, "m": m, "n": n, "k": k, **options}), device
    )


def test_accesses_are_as_wide_as_the_point_says(tmp_path: Path) -> None:
    compiler = compiler_named("nvrtc")
    for vector, wanted in ((16, "LDGSTS.E.BYPASS.128"), (8, "LDGSTS.E.64"), (4, "LDGSTS.E ")):
        one = point(vector=vector, tile_k=32, panel="swizzled64")
        code = gemm().emit(gemm().lower(one), one)
        built(compiler, code, tmp_path / "a")
        machine = disassembled(tmp_path / "a")
        assert wanted in machine
        assert "STG.E.128" in machine
        assert "STG.E.U16" not in machine


def test_factors_across_the_sum_are_turned_on_the_way(tmp_path: Path) -> None:
    for options, turned in (({}, 0), ({"trans_b": "false"}, 1), ({"trans_a": "true"}, 1)):
        problem = gemm(**options)
        code = problem.emit(problem.lower(point()), point())
        built(compiler_named("nvrtc"), code, tmp_path / "a")
        machine = disassembled(tmp_path / "a")
        assert bool(re.search(r"LDSM\.16\.MT88", machine)) == bool(turned)
        assert "LDSM.16.M88.4" in machine


def test_shared_memory_is_brought_to_no_more_than_is_padded_for() -> None:
    for panel, alignment in (("swizzled128", 1024), ("swizzled64", 512), ("padded64", 16)):
        one = point(panel=panel, tile_k=64)
        code = gemm().emit(gemm().lower(one), one)
        (how,) = code.launch.attributes.values()
        params: dict[str, Any] = dict(one.params)
        held = params["stages"] * 128 * 64 * 2
        assert (f"& {alignment - 1};" in code.text) == (alignment > 16)
        if alignment > 16:
            assert how["shared"] == held + alignment - 16


def test_rows_at_odd_places_are_gathered(tmp_path: Path) -> None:
    problem = gemm(333, 555, 777)
    one = point(vector=2)
    assert problem.space.check(one) == ()
    code = problem.emit(problem.lower(one), one)
    built(compiler_named("nvrtc"), code, tmp_path / "a")
    machine = disassembled(tmp_path / "a")
    assert "LDGSTS" not in machine
    assert "LDG.E.U16" in machine
    assert "cuda.copy_wait" not in print_module(problem.lower(one))
