"""Random workloads, layouts, types and schedules through the real path: built, run, verified."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pytest
from clib_build import AVX2, AVX512, BASELINE, Isa, require

from tests.recipes import contractions
from tests.recipes.contractions import einsum, gemm, problem
from tfsearch.core.launch import LaunchSpec
from tfsearch.core.records import Accuracy, Status
from tfsearch.ir.tir.nodes import Module
from tfsearch.ir.workload import Workload
from tfsearch.measure.oracle import HirOracle
from tfsearch.measure.verifier import Verifier
from tfsearch.plugin.target import Problem, Source
from tfsearch.space import Point
from tfsearch.target.x86 import target
from tfsearch.target.x86.runner import X86Loaded

SIZES = (1, 2, 3, 5, 8, 17, 33, 64, 127)
EPILOGUES = ("bias", "bias+relu", "gelu", "bias+silu", "tanh", "sigmoid", "residual+scale")
ISAS = {"avx512": AVX512, "avx2": AVX2, "scalar": BASELINE}
PER_BUILD = 8


@dataclass(frozen=True)
class Case:
    workload: Workload
    point: Point
    source: Source


def _gemm(rng: np.random.Generator, m: int, n: int, k: int) -> Workload:
    dtype = str(rng.choice(["f32", "f32", "f64", "f16", "bf16", "i8"]))
    options: dict[str, int | str] = {"m": m, "n": n, "k": k, "dtype": dtype}
    for name in ("trans_a", "trans_b"):
        options[name] = str(rng.choice(["true", "false"]))
    if rng.random() < 0.3:
        options["batch"] = int(rng.integers(1, 4))
    if rng.random() < 0.6:
        options["epilogue"] = str(rng.choice(EPILOGUES))
        if dtype == "i8":
            options["out_dtype"] = "f32"
    return gemm(**options)


def _axes(rng: np.random.Generator, m: int, n: int, k: int) -> Workload:
    dims = str(rng.choice(["amk,bkn->abmn", "mk,k->m", "k,kn->n", "amk,akn->amn", "mk,kn->nm"]))
    return einsum(dims, {"a": 2, "b": 3, "m": m, "n": n, "k": k})


def _special(rng: np.random.Generator, m: int, n: int, k: int) -> Workload:
    kinds: Sequence[Callable[[int, int, int], Workload]] = (
        contractions.strided,
        contractions.apart,
        contractions.two_outputs,
        contractions.transposed_output,
        contractions.computed_factors,
        contractions.quantised,
    )
    return kinds[int(rng.integers(len(kinds)))](m, n, k)


def random_case(rng: np.random.Generator, level: str, name: str) -> Case:
    m, n, k = (int(rng.choice(SIZES)) for _ in range(3))
    kinds = (_gemm, _gemm, _axes, _special)
    workload = kinds[int(rng.integers(len(kinds)))](rng, m, n, k)
    workload = replace(workload, alignment=int(rng.choice([8, 64])))
    if rng.random() < 0.3:
        workload = replace(workload, constant_inputs=("b",))
    if rng.random() < 0.3:
        workload = replace(workload, accuracy=Accuracy.FAST)
    bound = problem(workload, level)
    (point,) = bound.space.sample(1, rng)
    return Case(workload, point, _named(bound, point, name))


def _named(bound: Problem, point: Point, name: str) -> Source:
    """The point's source with symbols of its own, so that several share one library."""
    module = bound.lower(point)
    kernels = tuple(replace(kernel, name=f"{name}_{kernel.name}") for kernel in module.kernels)
    return bound.emit(Module(kernels), point)


def _together(sources: Sequence[Source]) -> Source:
    texts = [sources[0].text, *(s.text.partition("\n")[2] for s in sources[1:])]
    features = tuple(sorted({f for s in sources for f in s.features}))
    flags = tuple(dict.fromkeys(flag for s in sources for flag in s.flags))
    return Source("\n".join(texts), "c", sources[0].launch, features, flags)


def _build(source: Source, compiler: str, flags: tuple[str, ...], out: Path) -> Path:
    found = target.compiler(compiler)
    done = found.compile(source, flags, (), out, timeout_s=120, memory_bytes=4 << 30)
    assert done.status is Status.OK, done.log
    return out


def _check(workload: Workload, library: Path, launch: LaunchSpec, seed: int) -> str:
    """ "" when the kernel is right."""
    verdict = Verifier(HirOracle(workload.record)).verify(X86Loaded(library, launch), seed)
    return verdict.verification.message


@pytest.mark.parametrize(
    ("compiler", "level"),
    [
        ("gcc", "avx512"),
        ("clang", "avx512"),
        ("zig", "avx512"),
        ("gcc", "avx2"),
        ("clang", "avx2"),
        ("zig", "avx2"),
        ("gcc", "scalar"),
        ("clang", "scalar"),
    ],
)
def test_random_kernels_are_right(tmp_path: Path, compiler: str, level: str) -> None:
    isa: Isa = ISAS[level]
    require(compiler, isa)
    rng = np.random.default_rng([len(compiler), len(level), 7])
    cases = [random_case(rng, level, f"case{i}") for i in range(PER_BUILD)]
    library = _build(
        _together([case.source for case in cases]), compiler, ("-O2",), tmp_path / "k.so"
    )
    for seed, case in enumerate(cases):
        wrong = _check(case.workload, library, case.source.launch, seed)
        assert not wrong, (case.workload.record.program, dict(case.point.params), wrong)


@pytest.mark.parametrize("name", ["f32", "bf16", "f64-batch", "f32-ahead", "i8-quantised"])
def test_kernels_are_right_as_they_are_built_for_users(tmp_path: Path, name: str) -> None:
    require("gcc", AVX2)
    workload = contractions.workloads()[name]
    bound = problem(workload, "avx2")
    for index, point in enumerate(bound.space.sample(2, np.random.default_rng(11))):
        source = bound.emit(bound.lower(point), point)
        library = _build(source, "gcc", (), tmp_path / f"{index}.so")
        assert not _check(workload, library, source.launch, index), point


@pytest.mark.parametrize("accuracy", list(Accuracy))
def test_both_accuracy_classes_verify_and_are_other_workloads(
    tmp_path: Path, accuracy: Accuracy
) -> None:
    require("gcc", AVX2)
    workload = replace(gemm(m=33, n=40, k=17, epilogue="bias+tanh"), accuracy=accuracy)
    other = replace(workload, accuracy=next(a for a in Accuracy if a is not accuracy))
    assert workload.key != other.key
    bound = problem(workload, "avx2")
    (point,) = bound.space.sample(1, np.random.default_rng(0))
    source = bound.emit(bound.lower(point), point)
    assert ("tfs_fast_tanh" in source.text) == (accuracy is Accuracy.FAST)
    library = _build(source, "gcc", (), tmp_path / "k.so")
    assert not _check(workload, library, source.launch, 1)
