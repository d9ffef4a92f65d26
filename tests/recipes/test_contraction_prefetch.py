"""Prefetching an unpacked second factor: where it is a choice, and what it asks for."""

from __future__ import annotations

import numpy as np
import pytest

from tests.recipes.contractions import device, gemm, problem
from tfsearch.atoms.contract import Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Block, Call
from tfsearch.ir.tir.walk import walk
from tfsearch.ir.workload import Workload
from tfsearch.prove.analyze import analyze
from tfsearch.prove.verify import verify
from tfsearch.search.scan import points_of
from tfsearch.space import Point, Space
from tfsearch.target.x86 import target
from tfsearch.tune.proof import prove_reduced

LINE = 64


def _far(dtype: str = "f32") -> Workload:
    """A second factor that no second-level cache holds."""
    return gemm(m=5, n=2003, k=1203, dtype=dtype)


def _prefetching(workload: Workload, level: str = "avx512") -> Space:
    blocked = [
        r
        for r in problem(workload, level).space.recipes
        if r.name.startswith("contraction.blocked.") and 8 in r.by_name["prefetch"].values
    ]
    return Space(tuple(r.fix({"prefetch": 8}) for r in blocked))


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f64", "i8"])
@pytest.mark.parametrize("level", ["avx512", "avx2"])
def test_prefetching_kernels_are_legal_and_right(dtype: str, level: str) -> None:
    workload = _far(dtype)
    bound = problem(workload, level)
    atoms, limits = target.atoms(device(level)), target.limits(device(level))
    for point in _prefetching(workload, level).sample(2, np.random.default_rng(len(dtype))):
        refusals = verify(bound.lower(point), atoms, limits)
        assert not refusals, (point, refusals[0])
        small, module = bound.reduced(point)
        assert _hints(module.main.body, atoms)
        wrong = prove_reduced(small, module, atoms, limits)
        assert not wrong, (point, wrong[0])


def _hints(body: Block, atoms: AtomTable) -> list[Call]:
    calls = [statement for _, statement in walk(body) if isinstance(statement, Call)]
    return [call for call in calls if atoms[call.atom].computes.kind is Kind.HINT]


@pytest.mark.parametrize("dtype", ["f32", "bf16"])
def test_every_line_of_every_step_is_asked_for_once(dtype: str) -> None:
    workload = _far(dtype)
    bound = problem(workload)
    atoms = target.atoms(device("avx512"))
    space = _prefetching(workload).fix({"units": 1})
    for point in space.sample(4, np.random.default_rng(1)):
        module = bound.lower(point)
        lanes = int(point.recipe_name.rpartition("x")[2])
        size = workload.program.inputs[1].type.dtype.bytes
        per_hint = max(lanes, LINE // size)
        tile = int(point.params["columns"]) * lanes
        whole, rest = divmod(2003, tile)
        rows = -(-5 // int(point.params["rows"]))
        lines = whole * -(-tile // per_hint) + -(-(-(-rest // lanes) * lanes) // per_hint)
        counted = analyze(module, atoms).main
        asked = sum(w.total for w in counted.work if atoms[w.atom].computes.kind is Kind.HINT)
        assert asked == lines * 1203 * rows, point


def test_it_changes_nothing_but_the_hints() -> None:
    workload = _far()
    bound = problem(workload)
    atoms = target.atoms(device("avx512"))
    for point in _prefetching(workload).fix({"units": 1}).sample(3, np.random.default_rng(2)):
        plain = Point(point.recipe_name, {**point.params, "prefetch": 0})
        assert not bound.space.check(plain)
        with_hints, without = (
            {w.atom: w.total for w in analyze(bound.lower(p), atoms).main.work}
            for p in (point, plain)
        )
        hint = {name for name in with_hints if name.startswith("x86.prefetch.")}
        assert len(hint) == 1
        assert without == {k: v for k, v in with_hints.items() if k not in hint}
        columns = [
            {k: int(v[0]) for k, v in bound.facts(batch).items()}
            for p in (point, plain)
            for _, batch in points_of(bound.space, [p])
        ]
        assert columns[0] == columns[1]


@pytest.mark.parametrize(
    "workload",
    [
        gemm(m=64, n=64, k=64),
        gemm(m=5, n=2003, k=1203, trans_b="true"),
    ],
)
def test_a_factor_that_is_near_or_has_to_be_packed_leaves_no_choice(workload: Workload) -> None:
    for recipe in problem(workload).space.recipes:
        if recipe.name.startswith("contraction.blocked."):
            assert recipe.by_name["prefetch"].values == (0,)


@pytest.mark.parametrize("change", [{"pack_b": "block"}, {"kc": 32, "m_tiles": 1}])
def test_packed_and_shallow_blocks_are_refused(change: dict[str, int | str]) -> None:
    workload = _far()
    bound = problem(workload)
    (point,) = (
        _prefetching(workload).fix({"units": 1, "rows": 5}).sample(1, np.random.default_rng(3))
    )
    refusals = bound.space.check(Point(point.recipe_name, {**point.params, **change}))
    found = [r for r in refusals if r.code == "contraction.prefetch"]
    assert found
    assert "prefetching 8 steps ahead" in found[0].message
