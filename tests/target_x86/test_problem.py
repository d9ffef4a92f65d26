"""Binding workloads to the x86 target: recipes, refusals, predictions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.recipes.contractions import F32, einsum, gemm, problem, traced
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.workload import Workload
from tfsearch.prove.verify import verify
from tfsearch.space import Point
from tfsearch.target.x86 import target
from tfsearch.target.x86.device import NOMINAL
from tfsearch.target.x86.problem import X86Problem


def recipes(workload: Workload) -> set[str]:
    return {recipe.name.split(".")[0] for recipe in problem(workload).space.recipes}


def test_programs_find_the_recipes_of_their_structure() -> None:
    assert recipes(gemm(m=16, n=16, k=16)) == {"contraction"}
    assert recipes(build_workload("softmax", {"rows": 8, "cols": 64, "dtype": "f32"})) == {
        "rowwise"
    }
    doubled = traced(lambda x: {"y": x * 2.0}, {"x": TensorType(F32, (8, 9))})
    assert "map" in recipes(doubled)


def test_recipes_that_do_not_apply_say_why() -> None:
    found = {r.where: r.message for r in problem(gemm(m=16, n=16, k=16)).refusals}
    assert {"rowwise", "map"} <= set(found)
    assert all(found.values())


def test_a_program_that_no_recipe_takes_is_refused_with_every_reason() -> None:
    square = {name: TensorType(F32, (8, 8)) for name in "ab"}
    workload = traced(lambda a, b: {"c": (a @ b) @ b}, square)
    with pytest.raises(RequestError, match="2 contractions") as caught:
        problem(workload)
    assert caught.value.code == "x86.no-recipe"


def test_a_program_with_an_open_dimension_is_refused_by_its_name() -> None:
    workload = build_workload("gemm", {"m": "1..64", "n": 16, "k": 16, "dtype": "f32"})
    with pytest.raises(RequestError, match="open: m") as caught:
        target.problem(workload, target.nominal())
    assert caught.value.code == "x86.dynamic"


def test_predictions_and_facts_have_one_value_a_point() -> None:
    bound = problem(einsum("mk,k->m", {"m": 33, "k": 65}))
    for points in bound.space.chunks(1 << 12):
        predicted, facts = bound.predict(points), bound.facts(points)
        assert predicted.estimate_us.shape == (len(points),)
        assert predicted.document
        assert {column.shape for column in map(np.asarray, facts.values())} == {(len(points),)}
        break


def test_narrower_registers_and_fewer_features_give_other_spaces() -> None:
    found = {level: set(_names(level)) for level in ("avx512", "avx2", "scalar")}
    assert any(name.endswith("f32x16") for name in found["avx512"])
    assert not any(name.endswith("f32x16") for name in found["avx2"])
    assert all(name.endswith("f32x1") for name in found["scalar"])


def _names(level: str) -> list[str]:
    return [recipe.name for recipe in problem(gemm(m=64, n=64, k=64), level).space.recipes]


SHARES = {
    "unroll": 1, "prefetch": 0, "stream": False, "finish": "after", "units": 8, "grid_o": 1,
}  # fmt: skip


@pytest.mark.parametrize(
    ("sizes", "constant", "recipe", "params"),
    [
        (
            (1224, 3107, 284),
            (),
            "contraction.blocked.x86.fma.f32x8",
            {"rows": 4, "columns": 2, "kc": 256, "m_tiles": 16, "n_tiles": 64, "order": "mkn",
             "inner": "mn", "pack_a": "panel", "pack_b": "none", "grid_m": 2, "grid_k": 1},
        ),
        (
            (3031, 2217, 913),
            ("b",),
            "contraction.blocked.x86.fma.f32x16",
            {"rows": 2, "columns": 1, "kc": 64, "m_tiles": 512, "n_tiles": 8, "order": "mkn",
             "inner": "mn", "pack_a": "none", "pack_b": "block", "grid_m": 2, "grid_k": 1},
        ),
        (
            (3801, 55, 1993),
            ("b",),
            "contraction.blocked.x86.amx.dpbf16ps",
            {"rows": 2, "columns": 1, "kc": 32, "m_tiles": 64, "n_tiles": 1, "order": "mkn",
             "inner": "nm", "pack_a": "rows", "pack_b": "block", "grid_m": 2, "grid_k": 4},
        ),
    ],
)  # fmt: skip
def test_legal_points_of_odd_sizes_on_many_units_are_proved(
    sizes: tuple[int, int, int], constant: tuple[str, ...], recipe: str, params: dict[str, Any]
) -> None:
    options = dict(zip("mnk", sizes, strict=True))
    workload = build_workload("gemm", {**options, "dtype": "bf16"}, constant_inputs=constant)
    atoms = target.atoms(target.nominal())
    problem = X86Problem(workload, replace(NOMINAL, units=8), atoms)
    point = Point(recipe, {**SHARES, **params})
    assert problem.space.check(point) == ()
    assert verify(problem.lower(point), atoms, target.limits(target.nominal())) == ()
