"""Binding a workload to recipes, for a target that is none of those that exist."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.recipes.contractions import device, gemm
from tfsearch.core.errors import RequestError
from tfsearch.cost.model import Machine
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.recipes.bound import RECIPES, BoundRecipes
from tfsearch.recipes.recipe import Kit
from tfsearch.search.scan import points_of
from tfsearch.target.x86 import target

ATOMS = target.atoms(device("avx2"))
KIT = Kit(
    atoms=ATOMS,
    lanes=(8,),
    registers={8: 16, 4: 16, 1: 16},
    units=(1,),
    caches=(1 << 15, 1 << 20, 1 << 24),
    cycles=lambda name: ATOMS[name].cost.cycles,
)
MACHINE = Machine(
    clock_ghz=2.0,
    bandwidth={"l2": 32.0, "l3": 8.0, "memory": 4.0},
    shared_bandwidth={},
    launch_us=(0.5, 3.0),
    peak_flops={"f32": 1e15},
    peak_bytes=1e10,
    calibrated=False,
    document="toy",
)
GEMM = gemm(m=24, n=40, k=16)


def test_only_the_recipes_that_are_offered_are_matched() -> None:
    chosen = {recipe.name: recipe for recipe in RECIPES}
    bound = BoundRecipes("toy", GEMM, KIT, MACHINE, [chosen["contraction"]])
    assert {r.name.split(".")[0] for r in bound.space.recipes} == {"contraction"}
    assert all(refusal.where != "map" for refusal in bound.refusals)
    with pytest.raises(RequestError, match="no recipe takes the program: map: ") as caught:
        BoundRecipes("toy", GEMM, KIT, MACHINE, [chosen["map"]])
    assert caught.value.code == "toy.no-recipe"


def test_an_open_dimension_is_refused_in_the_targets_name() -> None:
    open_m = build_workload("gemm", {"m": "1..64", "n": 16, "k": 16, "dtype": "f32"})
    with pytest.raises(RequestError, match="the toy target needs every dimension bound") as caught:
        BoundRecipes("toy", open_m, KIT, MACHINE)
    assert caught.value.code == "toy.dynamic"


def test_a_point_of_every_space_is_lowered_and_made_small() -> None:
    bound = BoundRecipes("toy", GEMM, KIT, MACHINE)
    assert bound.space.recipes
    for recipe in bound.space.recipes:
        (point,) = bound.space.only(recipe.name).sample(1, np.random.default_rng(0))
        trace: dict[str, str] = {}
        assert bound.lower(point, trace).main.params
        assert set(trace) == {"program", "tir"}
        workload, module = bound.reduced(point)
        assert workload.program != GEMM.program
        assert module.main.params
        ((_, batch),) = points_of(bound.space, [point])
        assert "launch" in bound.phases(batch)


def test_predictions_rest_on_the_machine_and_say_which() -> None:
    bound = BoundRecipes("toy", GEMM, KIT, MACHINE)
    batch = next(iter(bound.space.chunks(64)))
    found = bound.predict(batch)
    assert (found.calibrated, found.document) == (False, "toy")
    slower = BoundRecipes("toy", GEMM, KIT, replace(MACHINE, clock_ghz=1.0)).predict(batch)
    assert (slower.estimate_us > found.estimate_us).all()


def test_cold_calls_move_every_argument_at_least_once() -> None:
    bound = BoundRecipes("toy", GEMM, KIT, MACHINE)
    batch = next(iter(bound.space.chunks(64)))
    moved = 4 * (24 * 16 + 16 * 40 + 24 * 40)
    cold = bound.predict(batch, cold=True)
    np.testing.assert_allclose(cold.bound_us, moved / 1e10 * 1e6)
    assert (bound.predict(batch).bound_us < cold.bound_us).all()
