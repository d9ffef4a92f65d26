"""Dot products along k: what takes them, that they are right, counted and told apart."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from tests.recipes.contractions import (
    F32,
    F64,
    I8,
    I32,
    LEVELS,
    contract,
    device,
    einsum,
    gemm,
    problem,
    strided,
    traced,
)
from tfsearch.atoms.contract import Kind
from tfsearch.core.records import Status
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.tir.text import print_module
from tfsearch.ir.workload import Workload
from tfsearch.measure.inputs import Pass
from tfsearch.measure.oracle import HirOracle
from tfsearch.measure.verifier import Verifier
from tfsearch.plugin.target import Problem, Source
from tfsearch.prove.analyze import analyze
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify
from tfsearch.recipes.contraction.match import match
from tfsearch.search.scan import points_of
from tfsearch.space import Point, Space
from tfsearch.target.x86 import target
from tfsearch.target.x86.device import processor
from tfsearch.target.x86.runner import X86Loaded
from tfsearch.tune.proof import QUICK, prove_reduced

ONCE = ("f32", "f32-one", "f32-vecmat", "f32-axes", "f32-strided", "i8")
"""Workloads that are built for one level only, others being like them."""
WIDEST = {"avx512": "16", "avx2": "8", "scalar": "1"}


def _double(m: int, n: int, k: int) -> Workload:
    """Products of f32 factors, exact in f64."""
    return traced(
        lambda a, b: {"c": contract(a.cast(F64), b.T.cast(F64), "mk,kn->mn", F64)},
        {"a": TensorType(F32, (m, k)), "b": TensorType(F32, (n, k))},
    )


def _quantised(m: int, n: int, k: int) -> Workload:
    inputs = {
        "a": TensorType(I8, (m, k)),
        "b": TensorType(I8, (n, k)),
        "scale": TensorType(F32, (n,)),
    }
    return traced(
        lambda a, b, scale: {
            "c": (lang.matmul(a, b.T, acc=I32).cast(F32) * scale).cast(I8),
        },
        inputs,
    )


@cache
def workloads() -> Mapping[str, Workload]:
    """Sizes with tails in every dimension for most tiles."""
    few = {"m": 5, "n": 19, "k": 83, "trans_b": "true"}
    return {
        "f32": gemm(**few),
        "f32-epilogue": gemm(**few, epilogue="bias+gelu+residual+scale"),
        "f32-batch": gemm(**{**few, "n": 11}, batch=3, epilogue="bias"),
        "f32-row": gemm(m=1, n=21, k=70, trans_b="true"),
        "f32-column": gemm(m=21, n=1, k=70, epilogue="relu"),
        "f32-one": gemm(m=1, n=1, k=131),
        "f32-matvec": einsum("mk,k->m", {"m": 23, "k": 65}),
        "f32-vecmat": einsum("k,nk->n", {"n": 23, "k": 65}),
        "f32-axes": einsum("amk,bnk->abmn", {"a": 2, "b": 3, "m": 3, "n": 7, "k": 37}),
        "f32-strided": strided(6, 17, 37),
        "f32-to-f64": _double(3, 13, 45),
        "f64": gemm(m=5, n=11, k=45, dtype="f64", trans_b="true", epilogue="bias+relu"),
        "f16": gemm(**few, dtype="f16", epilogue="bias+relu"),
        "bf16": gemm(**few, dtype="bf16", epilogue="bias"),
        "i8": gemm(**few, dtype="i8"),
        "i8-quantised": _quantised(4, 18, 53),
    }


NAMES = list(workloads())


def dot_space(bound: Problem) -> Space:
    """The part of a problem's space that this pipeline contributes."""
    return Space(tuple(r for r in bound.space.recipes if r.name.startswith("contraction.dot.")))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", list(LEVELS))
def test_sampled_points_are_verified_and_their_reduced_forms_are_right(
    name: str, level: str
) -> None:
    bound = problem(workloads()[name], level)
    atoms, limits = target.atoms(device(level)), target.limits(device(level))
    rng = np.random.default_rng(NAMES.index(name))
    points = dot_space(bound).sample(3 if level == "avx512" else 1, rng)
    assert points
    for index, point in enumerate(points):
        refusals = verify(bound.lower(point), atoms, limits)
        assert not refusals, (point, refusals[0])
        small, module = bound.reduced(point)
        passes = QUICK if index else (Pass.INTEGERS, Pass.RANGE)
        wrong = prove_reduced(small, module, atoms, limits, passes)
        assert not wrong, (point, wrong[0])


@pytest.mark.parametrize("name", ["f32-batch", "f32-column", "f32-to-f64", "i8-quantised"])
def test_kernels_interpreted_at_their_own_sizes_are_right(name: str) -> None:
    workload = workloads()[name]
    bound = problem(workload, "avx2")
    atoms, limits = target.atoms(device("avx2")), target.limits(device("avx2"))
    for point in dot_space(bound).sample(2, np.random.default_rng(5)):
        wrong = prove_reduced(workload, bound.lower(point), atoms, limits)
        assert not wrong, (point, wrong[0])


def test_a_reduced_form_has_every_part_of_the_loop_over_k() -> None:
    bound = problem(gemm(m=64, n=64, k=512, trans_b="true"))
    for point in dot_space(bound).sample(8, np.random.default_rng(0)):
        whole, (small, module) = bound.lower(point), bound.reduced(point)
        assert module.main.units == whole.main.units
        names = [a.atom for a in analyze(module, target.atoms(device("avx512"))).main.work]
        lanes = point.recipe_name.rpartition("x")[2]
        assert f"x86.load_partial.f32x{lanes}.f32" in names
        assert f"x86.load.f32x{lanes}.f32" in names
        assert small.program.inputs[0].type.count < 64 * 512


# Built -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", list(LEVELS))
def test_built_kernels_are_right(tmp_path: Path, level: str) -> None:
    _require_gcc_and(level)
    rng = np.random.default_rng(len(level))
    cases: list[tuple[Workload, Point, Source]] = []
    for name, workload in workloads().items():
        if level != "avx512" and name in ONCE:
            continue
        bound = problem(workload, level)
        (point,) = dot_space(bound).sample(1, rng)
        cases.append((workload, point, _named(bound, point, name.replace("-", "_"))))
    text = "\n".join([cases[0][2].text, *(s.text.partition("\n")[2] for _, _, s in cases[1:])])
    features = tuple(sorted({f for _, _, s in cases for f in s.features}))
    flags = tuple(dict.fromkeys(flag for _, _, s in cases for flag in s.flags))
    source = Source(text, "c", cases[0][2].launch, features, flags)
    library = tmp_path / "kernels.so"
    done = target.compiler("gcc").compile(
        source, ("-O1",), (), library, timeout_s=120, memory_bytes=4 << 30
    )
    assert done.status is Status.OK, done.log
    for seed, (workload, point, own) in enumerate(cases):
        loaded = X86Loaded(library, own.launch)
        verdict = Verifier(HirOracle(workload.record)).verify(loaded, seed)
        assert not verdict.verification.message, (point, verdict.verification.message)


def _require_gcc_and(level: str) -> None:
    missing = set(LEVELS[level]) - set(processor().features)
    if missing:
        pytest.skip(f"needs CPU features {', '.join(sorted(missing))}")
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc")


def _named(bound: Problem, point: Point, name: str) -> Source:
    """The point's source with symbols of its own, so that several share one library."""
    module = bound.lower(point)
    kernels = tuple(replace(kernel, name=f"{name}_{kernel.name}") for kernel in module.kernels)
    return bound.emit(Module(kernels), point)


# Order of additions ----------------------------------------------------------------------------


def test_the_order_of_additions_depends_on_nothing_but_the_steps_along_k() -> None:
    """Tiles, loops and units change no bit of a result."""
    bound = problem(workloads()["f32"])
    atoms = target.atoms(device("avx512"))
    rng = np.random.default_rng(0)
    arrays = {
        i.name: rng.standard_normal(i.type.sizes).astype(np.float32)
        for i in bound.workload.program.inputs
    }
    results: dict[tuple[object, ...], bytes] = {}
    space = dot_space(bound)
    compared = 0
    for point in space.sample(24, rng):
        key = (point.recipe_name, point.params["unroll"], point.params["sums"])
        if point.params["sums"] == 1:
            key = (point.recipe_name,)
        outputs = interpret(bound.lower(point), atoms, arrays).outputs
        bits = outputs["c"].tobytes()
        compared += key in results
        assert results.setdefault(key, bits) == bits, point
    assert compared > 8
    assert len(set(results.values())) > 1


# The space -------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "f32-batch", "f32-one", "f32-matvec"])
def test_no_two_points_of_a_space_lower_to_the_same_code(name: str) -> None:
    bound = problem(workloads()[name])
    seen: dict[str, Point] = {}
    for point in dot_space(bound).sample(100, np.random.default_rng(1)):
        text = print_module(bound.lower(point))
        assert text not in seen, (point, seen[text])
        seen[text] = point
    assert len(seen) > 5


GOOD = {
    "rows": 2, "columns": 4, "unroll": 2, "sums": 2, "order": "rows", "units": 2,
    "grid_rows": 1, "grid_outer": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("change", "code", "reason"),
    [
        ({"rows": 8, "columns": 4, "unroll": 1, "sums": 1}, "dot.registers", "8 x 4 x 1"),
        ({"rows": 4, "columns": 6, "unroll": 4, "sums": 1}, "dot.code-size", "exceed 80"),
        ({"unroll": 4, "sums": 1}, "dot.unroll", "a sum has 3"),
        ({"unroll": 1}, "dot.sums", "2 accumulators for each of 2 x 4"),
        ({"rows": 3, "columns": 3}, "dot.sums", "the 16 that can be in flight"),
        ({"units": 1, "grid_rows": 2}, "dot.grid", "1 units"),
        ({"rows": 8, "columns": 1, "grid_rows": 2}, "dot.idle-units", "1 x 2 x 1 parts"),
        ({"columns": 8, "sums": 1}, "dot.order", "makes no difference"),
    ],
)
def test_points_that_make_no_sense_are_refused_with_the_numbers(
    change: dict[str, int | str], code: str, reason: str
) -> None:
    bound = problem(gemm(m=8, n=16, k=50, trans_b="true"))
    name = "contraction.dot.x86.lane_fma.f32x16"
    assert not bound.space.check(Point(name, dict(GOOD)))
    refusals = bound.space.check(Point(name, {**GOOD, **change}))
    found = [r for r in refusals if r.code == code]
    assert found, refusals
    assert reason in found[0].message


@pytest.mark.parametrize(
    ("workload", "reason"),
    [
        (gemm(m=4, n=8, k=64), "both factors from inputs in which the summed axis is contiguous"),
        (gemm(m=4, n=8, k=64, trans_a="true", trans_b="true"), "axis is contiguous"),
        (
            traced(
                lambda a, b: {"c": (a * a) @ b.T},
                {"a": TensorType(F32, (4, 64)), "b": TensorType(F32, (8, 64))},
            ),
            "both factors from inputs",
        ),
        (gemm(m=4, n=8, k=7, trans_b="true"), "sums of 7 products fill no vector of 16"),
    ],
)
def test_other_contractions_have_no_such_space_and_say_why(workload: Workload, reason: str) -> None:
    bound = problem(workload)
    assert not any("contraction.dot." in recipe.name for recipe in bound.space.recipes)
    refusals = {r.where: r.message for r in bound.refusals}
    assert reason in refusals["x86.lane_fma.f32x16"]
    assert "accumulates in f64, wanted f32" in refusals["x86.lane_fma.f64x8"]


def test_every_width_worth_trying_has_a_space() -> None:
    for level, lanes in WIDEST.items():
        names = [r.name for r in dot_space(problem(workloads()["bf16"], level)).recipes]
        assert f"contraction.dot.x86.lane_fma.f32x{lanes}" in names


# Facts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [n for n in NAMES if "epilogue" not in n])
def test_integer_facts_equal_those_counted_from_the_lowered_kernel(name: str) -> None:
    workload = workloads()[name]
    bound = problem(workload)
    atoms, space = target.atoms(device("avx512")), dot_space(bound)
    for point in space.sample(6, np.random.default_rng(3)):
        ((_, batch),) = points_of(space, [point])
        facts = {key: int(column[0]) for key, column in bound.facts(batch).items()}
        counted = analyze(bound.lower(point), atoms).main
        assert (
            counted.calls(point.recipe_name.removeprefix("contraction.dot."))
            == (facts["multiply_adds"])
        )
        reductions = [w for w in counted.work if atoms[w.atom].computes.kind is Kind.REDUCE]
        assert sum(w.total for w in reductions) == facts["reductions"], point
        read = {t.buffer: sum(t.read) for t in counted.traffic}
        first, second = _factors(workload)
        assert read[first] == facts["a_read_bytes"], point
        assert read[second] == facts["b_read_bytes"], point


def _factors(workload: Workload) -> tuple[str, str]:
    """Inputs behind the first and the second factor as the recipe names them."""
    found = match(workload.program)
    names = workload.program.input_names
    assert found.a.source is not None
    assert found.b.source is not None
    return names[found.a.source], names[found.b.source]


def test_a_block_of_rows_reads_the_second_factor_once() -> None:
    bound = problem(gemm(m=4, n=512, k=512, trans_b="true"))
    atoms = target.atoms(device("avx512"))
    for point in dot_space(bound).fix({"rows": 4}).sample(10, np.random.default_rng(7)):
        assert sum(analyze(bound.lower(point), atoms).main.buffer("b").read) == 512 * 512 * 4


def test_predictions_prefer_tiles_that_read_the_larger_factor_once() -> None:
    bound = problem(gemm(m=4, n=4096, k=4096, trans_b="true"), units=1)
    recipe = bound.space.recipe("contraction.dot.x86.lane_fma.f32x16")
    space = Space((recipe,))
    points = [
        Point(recipe.name, {**GOOD, "units": 1, "sums": 1, "order": "rows", **tile})
        for tile in ({"rows": 4, "columns": 6}, {"rows": 1, "columns": 6})
    ]
    times = [
        float(bound.predict(batch).estimate_us[0])
        for point in points
        for _, batch in points_of(space, [point])
    ]
    assert times[0] < times[1]
