"""Legal points of many workloads: verified whole, interpreted reduced, counted twice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest

from tests.recipes.contractions import LEVELS, device, gemm, problem, workloads
from tfsearch.atoms.contract import Kind
from tfsearch.atoms.table import AtomTable
from tfsearch.ir.tir.nodes import Alloc, Block, Call, For, If, Kernel, Module, Role, Stmt
from tfsearch.ir.tir.text import print_module
from tfsearch.ir.tir.walk import walk
from tfsearch.measure.inputs import Pass
from tfsearch.plugin.target import Problem
from tfsearch.prove.analyze import analyze
from tfsearch.prove.verify import verify
from tfsearch.search.scan import points_of, predict_points
from tfsearch.space import Point, Space
from tfsearch.target.x86 import target
from tfsearch.tune.proof import QUICK, prove_reduced

NAMES = list(workloads())
PER_WORKLOAD = 4


def atoms_of(level: str) -> AtomTable:
    return target.atoms(device(level))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("level", list(LEVELS))
def test_sampled_points_are_verified_and_their_reduced_forms_are_right(
    name: str, level: str
) -> None:
    workload = workloads()[name]
    bound = problem(workload, level)
    atoms, limits = atoms_of(level), target.limits(device(level))
    rng = np.random.default_rng(NAMES.index(name))
    count = PER_WORKLOAD if level == "avx512" else 2
    for index, point in enumerate(bound.space.sample(count, rng)):
        refusals = verify(bound.lower(point), atoms, limits)
        assert not refusals, (point, refusals[0])
        small, module = bound.reduced(point)
        passes = QUICK if index else (Pass.INTEGERS, Pass.RANGE)
        wrong = prove_reduced(small, module, atoms, limits, passes)
        assert not wrong, (point, wrong[0])


@pytest.mark.parametrize("name", ["f32", "f32-batch", "f64", "i8", "f32-ahead"])
def test_small_workloads_are_right_at_their_own_sizes_too(name: str) -> None:
    workload = workloads()[name]
    bound = problem(workload, "avx2")
    atoms, limits = atoms_of("avx2"), target.limits(device("avx2"))
    for point in bound.space.sample(2, np.random.default_rng(5)):
        wrong = prove_reduced(workload, bound.lower(point), atoms, limits)
        assert not wrong, (point, wrong[0])


@pytest.mark.parametrize(
    ("m", "n", "k"), [(1, 1, 1), (1, 2, 3), (2, 3, 5), (3, 1, 127), (5, 17, 2), (33, 5, 33)]
)
def test_every_odd_size_verifies(m: int, n: int, k: int) -> None:
    bound = problem(gemm(m=m, n=n, k=k, epilogue="bias+relu"))
    atoms, limits = atoms_of("avx512"), target.limits(device("avx512"))
    for point in bound.space.sample(8, np.random.default_rng(m + n + k)):
        refusals = verify(bound.lower(point), atoms, limits)
        assert not refusals, (point, refusals[0])


NARROW, WIDE = "x86.fma.f32x8", "x86.fma.f32x16"


@pytest.mark.parametrize("n", [3, 8, 9, 16, 65, 72, 73, 145])
def test_a_short_last_vector_takes_a_narrower_unit_where_that_is_faster(n: int) -> None:
    atoms, limits = atoms_of("avx512"), target.limits(device("avx512"))
    recipe = f"contraction.blocked.{WIDE}"
    workload = gemm(m=33, n=n, k=129, epilogue="bias")
    bound = problem(workload, halves=True)
    for point in bound.space.only(recipe).sample(5, np.random.default_rng(n)):
        module = bound.lower(point)
        narrow = 0 < n % 16 <= 8 and point.params["grid_k"] == 1
        assert (NARROW in _atoms_used(module)) == narrow, point
        refusals = verify(module, atoms, limits)
        assert not refusals, (point, refusals[0])
        small, reduced = bound.reduced(point)
        assert (NARROW in _atoms_used(reduced)) == narrow, point
        wrong = prove_reduced(small, reduced, atoms, limits, QUICK)
        assert not wrong, (point, wrong[0])
        products = [
            w for w in analyze(module, atoms).main.work if atoms[w.atom].computes.kind is Kind.MMA
        ]
        if point.params["units"] == 1:
            facts = _facts(bound, bound.space, point)
            assert sum(w.total for w in products) == facts["multiply_adds"]
    even = problem(workload)
    for point in even.space.only(recipe).sample(5, np.random.default_rng(n)):
        assert NARROW not in _atoms_used(even.lower(point))


def test_a_narrow_last_vector_is_predicted_faster() -> None:
    point = Point(
        f"contraction.blocked.{WIDE}",
        {
            "rows": 5, "columns": 5, "kc": 129, "m_tiles": 8, "n_tiles": 1, "order": "nkm",
            "inner": "nm", "pack_a": "none", "pack_b": "none", "unroll": 4, "prefetch": 0,
            "stream": False, "finish": "after", "units": 1, "grid_m": 1, "grid_o": 1, "grid_k": 1,
        },
    )  # fmt: skip
    times = {
        n: predict_points(problem(gemm(m=33, n=n, k=129), halves=True), [point])[0][0]
        for n in (65, 73)
    }
    assert times[65] < 0.95 * times[73]


def test_a_reduced_form_keeps_what_makes_a_point_special() -> None:
    bound = problem(gemm(m=300, n=300, k=300))
    for point in bound.space.sample(30, np.random.default_rng(0)):
        whole, (small, module) = bound.lower(point), bound.reduced(point)
        assert module.main.units == whole.main.units
        assert _atoms_used(module) >= _full_tile_atoms(_atoms_used(whole))
        assert small.program.inputs[0].type.count < 300 * 300
        assert len(module.kernels) == len(whole.kernels)


def _atoms_used(module: Module) -> set[str]:
    return {s.atom for k in module.kernels for _, s in walk(k.body) if isinstance(s, Call)}


def _full_tile_atoms(used: set[str]) -> set[str]:
    """Those that do not depend on which tails the sizes happen to have."""
    tails = ("partial", "strided", "x1.", "stream")
    return {name for name in used if not any(t in f"{name}." for t in tails)}


# No duplicates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["f32", "f32-trans", "f64-batch", "f32-matvec", "i8"])
def test_no_two_points_of_a_space_lower_to_the_same_code(name: str) -> None:
    bound = problem(replace(workloads()[name]), "avx512", units=2)
    seen: dict[str, Point] = {}
    points = set(bound.space.sample(150, np.random.default_rng(1)))
    for point in list(points):
        points.update(bound.space.neighbours(point)[:4])
    for point in itertools.islice(points, 400):
        text = print_module(bound.lower(point))
        assert text not in seen, (point, seen[text])
        seen[text] = point
    assert len(seen) > 20


def test_lowering_is_deterministic() -> None:
    bound, again = problem(gemm(m=33, n=65, k=20)), problem(gemm(m=33, n=65, k=20))
    for point in bound.space.sample(10, np.random.default_rng(2)):
        first, second = bound.lower(point), again.lower(point)
        assert print_module(first) == print_module(second)
        assert bound.emit(first, point).digest == again.emit(second, point).digest


# Facts -----------------------------------------------------------------------------------------

COUNTED = ["f32", "f32-row", "f32-deep", "f32-trans", "f32-batch", "f32-strided", "f64", "bf16"]
COUNTED += ["i8", "f32-two-outputs", "f32-axes"]


def _single_unit(bound: Problem) -> Space:
    blocked = tuple(r for r in bound.space.recipes if r.name.startswith("contraction.blocked."))
    return Space(blocked).fix({"units": 1})


def _facts(bound: Problem, space: Space, point: Point) -> dict[str, int]:
    ((_, batch),) = points_of(space, [point])
    return {name: int(column[0]) for name, column in bound.facts(batch).items()}


@pytest.mark.parametrize("name", COUNTED)
def test_integer_facts_equal_those_counted_from_the_lowered_kernel(name: str) -> None:
    bound = problem(workloads()[name])
    atoms, space = atoms_of("avx512"), _single_unit(bound)
    for point in space.sample(12, np.random.default_rng(3)):
        facts, module = _facts(bound, space, point), bound.lower(point)
        counted = analyze(module, atoms).main
        products = [w for w in counted.work if atoms[w.atom].computes.kind is Kind.MMA]
        assert sum(w.total for w in products) == facts["multiply_adds"], point
        assert _register_tiles(module.main, atoms) == facts["register_tiles"], point
        held = {a.buffer: a for a in counted.allocations}
        for side, pack in (("a", "pack_a"), ("b", "pack_b")):
            block = held.get(f"{side}_block")
            assert (block is not None) == (point.params[pack] not in ("none", "ahead")), point
            if block is not None:
                fact = facts[f"{side}_block_bytes"]
                if point.params[pack] == "rows":
                    fact = _with_row_pads(bound, point, fact)
                assert block.bytes == fact, point


def _with_row_pads(bound: Problem, point: Point, fact: int) -> int:
    """Rows of a copied first factor are whole cache lines and one more, off the same sets."""
    ((_, batch),) = points_of(bound.space, [point])
    row = int(batch.column("depth")[0]) * int(batch.column("a_bytes")[0])
    rows, rest = divmod(fact, row)
    assert rest == 0
    return rows * (-(-row // 64) * 64 + 64)


def _register_tiles(kernel: Kernel, atoms: AtomTable) -> int:
    """How often accumulators come to life: once a register tile and block of k."""
    accumulators = {
        statement.operands[0].buffer.name  # type: ignore[union-attr]
        for _, statement in walk(kernel.body)
        if isinstance(statement, Call) and atoms[statement.atom].computes.kind is Kind.MMA
    }
    marked = Module((replace(kernel, body=_marked(kernel.body, accumulators)),))
    facts = analyze(marked, AtomTable([*atoms.values()], atoms.features)).main
    return facts.calls("x86.stream_fence")


def _marked(block: Block, names: set[str]) -> Block:
    """A fence in the place of every allocation of an accumulator, and no other call."""
    return tuple(_marks(block, names))


def _marks(block: Block, names: set[str]) -> Iterator[Stmt]:
    for statement in block:
        match statement:
            case Alloc(buffer) if buffer.name in names:
                yield Call("x86.stream_fence", ())
            case For(body=body) | Role(body=body):
                yield replace(statement, body=_marked(body, names))
            case If(then=then, orelse=orelse):
                yield replace(statement, then=_marked(then, names), orelse=_marked(orelse, names))
            case Call() | Alloc():
                pass
            case _:
                yield statement


def test_a_constant_factor_packed_ahead_is_packed_once_and_outside_of_the_call() -> None:
    bound = problem(workloads()["f32-ahead"])
    space = bound.space.fix({"pack_b": "ahead"})
    for point in space.sample(5, np.random.default_rng(4)):
        module = bound.lower(point)
        (prepare,) = module.prepares
        assert prepare.units == 1
        assert "b_packed" in {p.buffer.name for p in module.main.params}
        used = {
            operand.buffer.name
            for _, s in walk(module.main.body)
            if isinstance(s, Call)
            for operand in s.operands
            if hasattr(operand, "buffer")
        }
        assert "b" not in used
