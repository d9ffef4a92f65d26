"""Launch specifications, features and entries of emitted kernels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.recipes.contractions import AVX512, constant_b, device, gemm, problem, strided
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Call, Module
from tfsearch.ir.workload import Workload
from tfsearch.plugin.target import Source
from tfsearch.target.x86 import target
from tfsearch.target.x86.emit import BARRIER_BYTES, features_of, source_of
from tfsearch.target.x86.problem import X86Problem


def emitted(workload: Workload, level: str = "avx512", **fix: object) -> tuple[Module, Source]:
    bound = problem(workload, level)
    (point,) = bound.space.fix(fix).sample(1, np.random.default_rng(0))  # type: ignore[arg-type]
    module = bound.lower(point)
    return module, bound.emit(module, point)


def test_arguments_are_the_programs_in_order_with_its_layouts() -> None:
    workload = replace(strided(9, 33, 17), alignment=16)
    _, source = emitted(workload, units=1)
    arguments = source.launch.main.arguments
    assert [a.name for a in arguments] == ["a", "b", "c"]
    assert [a.io for a in arguments] == ["in", "in", "out"]
    assert [a.strides for a in arguments] == [(22, 1), (1, 20), (33, 1)]
    assert {a.alignment for a in arguments} == {16}
    assert {a.dtype for a in arguments} == {"f32"}


def test_a_factor_packed_ahead_is_filled_by_an_entry_of_its_own() -> None:
    _, source = emitted(constant_b(gemm(m=9, n=33, k=17)), pack_b="ahead", units=1)
    (prepare,) = source.launch.prepares
    assert [(a.name, a.io) for a in prepare.arguments] == [("b", "in"), ("b_packed", "out")]
    main = {a.name: a for a in source.launch.main.arguments}
    assert main["b_packed"].io == "prepared"
    assert main["b_packed"].shape == prepare.arguments[1].shape
    assert f"int {prepare.symbol}(void **args)" in source.text


@pytest.mark.parametrize(
    ("level", "flags"),
    [("scalar", ()), ("avx2", ("-mavx2", "-mf16c", "-mfma"))],
)
def test_a_source_asks_for_the_features_that_its_atoms_need(
    level: str, flags: tuple[str, ...]
) -> None:
    module, source = emitted(gemm(m=9, n=33, k=17), level)
    assert source.flags == flags
    assert source.features == features_of(module, target.atoms(device(level)))


def test_units_are_threads_of_the_pool() -> None:
    _, one = emitted(gemm(m=64, n=64, k=17), units=1)
    _, two = emitted(gemm(m=64, n=64, k=17), units=2, grid_k=1)
    assert (one.launch.main.units, two.launch.main.units) == (1, 2)
    assert "tfsearch_main_thread" in two.text
    assert "tfsearch_main_thread" not in one.text


def test_units_that_wait_have_a_barrier_in_their_workspace() -> None:
    _, split = emitted(gemm(m=4, n=64, k=256), units=2, grid_k=2)
    _, apart = emitted(gemm(m=4, n=64, k=256), units=2, grid_k=1)
    assert "tfs_wait(tfs_barrier_state, tfs_units);" in split.text
    assert split.launch.main.workspace_bytes > BARRIER_BYTES
    assert "tfs_wait" not in apart.text
    assert "refused = 11" in split.text


def test_a_fence_alone_needs_no_thread_per_unit() -> None:
    module, _ = emitted(gemm(m=64, n=64, k=17), units=2, grid_k=1)
    fenced = replace(module.main, body=(*module.main.body, Call("x86.stream_fence", ())))
    text, launch = source_of(Module((fenced,)), target.atoms(device("avx512")))
    assert "tfs_stream_fence();" in text
    assert "tfs_wait" not in text
    assert "refused = " not in text.replace("refused = 0", "")
    assert launch.main.units == 2


def test_a_point_of_every_space_is_emitted_for_the_nominal_processor() -> None:
    bound = target.problem(gemm(m=64, n=64, k=64, dtype="bf16"), target.nominal())
    assert isinstance(bound, X86Problem)
    kinds = set()
    for recipe in bound.space.recipes:
        (point,) = bound.space.only(recipe.name).sample(1, np.random.default_rng(0))
        source = bound.emit(bound.lower(point), point)
        assert source.launch.attributes == ({"amx": True} if ".amx." in recipe.name else {})
        assert ('#include "tiles.h"' in source.text) == (".amx." in recipe.name)
        assert ("tile" in bound.probes(point)) == (".amx." in recipe.name)
        kinds.add(".amx." in recipe.name)
    assert kinds == {True, False}


def test_the_trace_has_the_program_and_the_tir() -> None:
    bound = problem(gemm(m=9, n=33, k=17))
    (point,) = bound.space.sample(1, np.random.default_rng(0))
    trace: dict[str, str] = {}
    bound.lower(point, trace)
    assert trace["program"].startswith("program gemm(")
    assert trace["tir"].startswith("kernel ")


def test_what_only_one_atom_table_knows_is_not_emitted_by_another() -> None:
    module, _ = emitted(gemm(m=9, n=33, k=17))
    with pytest.raises(KeyError):
        source_of(module, AtomTable((), AVX512))
