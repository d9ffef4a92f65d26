"""What counts as a contraction, how its axes are named, and why others are refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.recipes.contractions import (
    AVX512,
    F32,
    F64,
    apart,
    computed_factors,
    contract,
    device,
    einsum,
    gemm,
    problem,
    quantised,
    strided,
    traced,
    transposed_output,
    two_outputs,
)
from tfsearch.atoms.table import AtomTable
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.trace import Tensor
from tfsearch.ir.hir.types import TensorType
from tfsearch.ir.workload import Workload
from tfsearch.recipes.contraction.match import Contraction, match
from tfsearch.recipes.contraction.recipe import ContractionRecipe
from tfsearch.recipes.recipe import Kit
from tfsearch.target.x86 import target


def matched(workload: Workload) -> Contraction:
    return match(workload.program)


def test_a_plain_product_keeps_its_axes() -> None:
    c = matched(gemm(m=3, n=5, k=7))
    assert (c.m, c.n, c.k, c.outer) == (3, 5, 7, ())
    assert (c.a.labels, c.b.labels) == (("m", "k"), ("k", "n"))
    assert [(o.name, o.labels) for o in c.outputs] == [("c", ("m", "n"))]
    assert c.acc is F32


@pytest.mark.parametrize("trans_a", ["true", "false"])
@pytest.mark.parametrize("trans_b", ["true", "false"])
def test_stored_transposes_are_labels_of_the_inputs(trans_a: str, trans_b: str) -> None:
    c = matched(gemm(m=3, n=5, k=7, trans_a=trans_a, trans_b=trans_b))
    assert c.a.source_labels == (("k", "m") if trans_a == "true" else ("m", "k"))
    assert c.b.source_labels == (("n", "k") if trans_b == "true" else ("k", "n"))
    assert (c.m, c.n, c.k) == (3, 5, 7)


def test_batch_and_further_free_axes_are_outer_axes() -> None:
    batched = matched(gemm(m=3, n=5, k=7, batch=2))
    assert [batched.extents[axis] for axis in batched.outer] == [2]
    c = matched(einsum("amk,bkn->abmn", {"a": 2, "b": 4, "m": 3, "n": 5, "k": 7}))
    assert (c.m, c.n, c.k) == (3, 5, 7)
    assert [c.extents[axis] for axis in c.outer] == [2, 4]


@pytest.mark.parametrize(
    ("dims", "m", "n"), [("mk,k->m", 1, 3), ("k,kn->n", 1, 5), ("mk,kn->nm", 5, 3)]
)
def test_the_contiguous_axis_of_the_result_is_n(dims: str, m: int, n: int) -> None:
    c = matched(einsum(dims, {"m": 3, "n": 5, "k": 7}))
    assert (c.m, c.n, c.k) == (m, n, 7)


def test_a_transposed_result_changes_the_places_of_the_factors() -> None:
    workload = transposed_output(3, 5, 7)
    c = matched(workload)
    assert (c.m, c.n) == (5, 3)
    names = workload.program.input_names
    assert c.a.source is not None
    assert names[c.a.source] == "b"
    assert c.outputs[0].labels == ("m", "n")


def test_casts_without_loss_and_transposes_lie_between_an_input_and_its_factor() -> None:
    c = matched(
        traced(
            lambda a, b: {"c": contract(a.cast(F64), b.T.cast(F64), "mk,kn->mn", F64)},
            {"a": TensorType(F32, (3, 7)), "b": TensorType(F32, (5, 7))},
        )
    )
    assert (c.a.source, c.b.source) == (0, 1)
    assert c.b.source_labels == ("n", "k")
    assert c.b.dtype is F32


def test_a_factor_that_loses_bits_or_is_computed_has_no_source() -> None:
    c = matched(computed_factors(3, 5, 7))
    assert (c.a.source, c.b.source) == (None, None)
    narrowed = matched(
        traced(
            lambda a, b: {"c": contract(a.cast(F32), b, "mk,kn->mn")},
            {"a": TensorType(F64, (3, 7)), "b": TensorType(F32, (7, 5))},
        )
    )
    assert narrowed.a.source is None
    assert narrowed.b.source == 1


def test_epilogues_may_broadcast_along_either_axis_and_give_several_outputs() -> None:
    c = matched(two_outputs(3, 5, 7))
    assert [o.name for o in c.outputs] == ["c", "d"]
    assert {o.labels for o in c.outputs} == {("m", "n")}


@pytest.mark.parametrize("workload", [quantised(3, 5, 7), strided(3, 5, 7), apart(3, 5, 7)])
def test_other_layouts_and_types_match(workload: Workload) -> None:
    assert (matched(workload).m, matched(workload).k) == (3, 7)


SQUARE = {name: TensorType(F32, (4, 4)) for name in "ab"}
REFUSED: Mapping[str, tuple[Callable[..., Tensor], str]] = {
    "none": (lambda a, b: a + b, "0 contractions"),
    "two": (lambda a, b: (a @ b) @ b, "2 contractions"),
    "a reduction after it": (lambda a, b: (a @ b).sum(0), "reductions beside"),
    "a softmax after it": (lambda a, b: lang.softmax(a @ b), "reductions beside"),
    "a reduction before it": (lambda a, b: (a - a.max(1, keepdims=True)) @ b, "reductions beside"),
    "two summed axes": (lambda a, b: contract(a, b, "mk,mk->"), "sums over 2 axes"),
    "a regrouping reshape": (lambda a, b: (a @ b).reshape(2, 8), "not elementwise"),
    "a product with its own transpose": (lambda a, b: (a @ b) + (a @ b).T, "not elementwise"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_no_contraction_is_refused_with_the_reason(case: str) -> None:
    body, reason = REFUSED[case]
    workload = traced(lambda a, b: {"c": body(a, b)}, SQUARE)
    with pytest.raises(RequestError, match=reason) as caught:
        matched(workload)
    assert caught.value.code in ("recipe.contraction", "recipe.reshape")


def test_every_unit_that_cannot_carry_a_contraction_says_why() -> None:
    found = {r.where: r.message for r in problem(gemm(m=16, n=16, k=16)).refusals}
    assert "accumulates in f64, wanted f32" in found["x86.fma.f64x8"]
    assert "accumulates in i32" in found["x86.fma.i32x16"]
    assert "needs amx" in found["x86.amx.dpbf16ps"]


def test_types_that_no_unit_multiplies_are_refused_with_the_units_reasons() -> None:
    full = target.atoms(device("avx512"))
    only_f32 = AtomTable([a for a in full.values() if a.computes.dtypes[:1] == (F32,)], AVX512)
    kit = Kit(only_f32, (16, 8), {16: 32, 8: 16}, (1,), (1 << 15, 1 << 20, 1 << 24), lambda _: 1.0)
    assert ContractionRecipe().match(gemm(m=3, n=5, k=7), kit).spaces
    with pytest.raises(RequestError, match="no instruction multiplies f64 by f64 into f64") as e:
        ContractionRecipe().match(gemm(m=3, n=5, k=7, dtype="f64"), kit)
    assert e.value.code == "recipe.contraction"
    assert "accumulates in f32, wanted f64" in e.value.message
