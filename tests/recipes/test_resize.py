"""The same program at other sizes: classes of dimensions, layouts, what pins a size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recipes.contractions import F32, contract, gemm, traced, two_outputs, workloads
from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.ops import OpKind
from tfsearch.ir.hir.program import Program
from tfsearch.ir.hir.text import parse_program, print_program
from tfsearch.ir.hir.types import TensorType, column_major
from tfsearch.measure.inputs import Pass, make_inputs
from tfsearch.recipes.resize import DimensionClasses


def input_sizes(program: Program) -> dict[str, tuple[int, ...]]:
    return {item.name: item.type.sizes for item in program.inputs}


def product_of(program: Program) -> int:
    return next(i for i, op in enumerate(program.ops) if op.kind is OpKind.CONTRACT)


def test_the_axes_of_a_product_are_classes_through_its_epilogue() -> None:
    program = two_outputs(4, 5, 6).program
    classes = DimensionClasses(program)
    c = product_of(program)
    a, b = program.ops[c].operands
    small = classes.resized({(a, 0): 2, (a, 1): 3, (b, 1): 7})
    assert input_sizes(small) == {"a": (2, 3), "b": (3, 7), "row": (2,), "column": (7,)}
    assert [t.sizes for t in small.output_types] == [(2, 7), (2, 7)]
    assert classes.of(a, 1) == classes.of(b, 0)
    assert classes.of(a, 0) != classes.of(b, 1)


def test_one_class_has_one_size() -> None:
    program = gemm(m=4, n=5, k=6).program
    classes = DimensionClasses(program)
    with pytest.raises(RequestError, match="two sizes") as caught:
        classes.resized({(0, 1): 3, (1, 0): 2})
    assert caught.value.code == "resize.conflict"
    assert classes.resized({(0, 1): 3, (1, 0): 3}).inputs[1].type.sizes == (3, 5)


def test_a_broadcast_of_extent_one_is_no_class() -> None:
    workload = traced(
        lambda x, one: {"y": x * one},
        {"x": TensorType(F32, (4, 5)), "one": TensorType(F32, (4, 1))},
    )
    small = DimensionClasses(workload.program).resized({(0, 0): 2, (0, 1): 3})
    assert input_sizes(small) == {"x": (2, 3), "one": (2, 1)}


def test_reductions_keep_the_axes_they_do_not_fold() -> None:
    workload = traced(
        lambda x: {"y": lang.softmax(x), "z": x.sum(0)}, {"x": TensorType(F32, (4, 5))}
    )
    small = DimensionClasses(workload.program).resized({(0, 0): 2, (0, 1): 9})
    assert [t.sizes for t in small.output_types] == [(2, 9), (9,)]


def test_transposes_and_reshapes_of_ones_pass_sizes_on() -> None:
    workload = traced(lambda x: {"y": x.T.reshape(5, 1, 4)}, {"x": TensorType(F32, (4, 5))})
    small = DimensionClasses(workload.program).resized({(0, 0): 2, (0, 1): 3})
    assert small.output_types[0].sizes == (3, 1, 2)


def test_a_reshape_that_regroups_pins_its_sizes() -> None:
    workload = traced(lambda x: {"y": x.reshape(2, 10) * 2.0}, {"x": TensorType(F32, (4, 5))})
    with pytest.raises(RequestError, match="splits or joins") as caught:
        DimensionClasses(workload.program)
    assert caught.value.code == "resize.reshape"


LAYOUTS = {
    "dense": None,
    "columns first": column_major((4, 5)),
    "rows with gaps": (9, 1),
    "columns with gaps": (1, 7),
    "no contiguous axis": (10, 2),
    "gaps everywhere": (20, 3),
}


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=25, deadline=None)
@given(rows=st.integers(1, 12), columns=st.integers(1, 12))
def test_layouts_keep_their_order_and_their_gaps(layout: str, rows: int, columns: int) -> None:
    old = TensorType(F32, (4, 5), LAYOUTS[layout])
    workload = traced(lambda x: {"y": x * 2.0}, {"x": old})
    small = DimensionClasses(workload.program).resized({(0, 0): rows, (0, 1): columns})
    new = small.inputs[0].type
    assert new.sizes == (rows, columns)
    if rows == 1 or columns == 1:
        return
    a, b = old.element_strides, new.element_strides
    assert (a[0] > a[1]) == (b[0] > b[1])
    assert [stride == 1 for stride in a] == [stride == 1 for stride in b]
    assert (layout == "dense") == new.is_dense
    inner, outer = (1, 0) if b[0] > b[1] else (0, 1)
    gap = a[outer] != a[inner] * old.sizes[inner]
    assert (b[outer] != b[inner] * new.sizes[inner]) == gap


@pytest.mark.parametrize("name", list(workloads()))
def test_a_resized_program_is_a_program_that_computes_the_same(name: str) -> None:
    program = workloads()[name].program
    classes = DimensionClasses(program)
    c = product_of(program)
    sizes = {classes.of(c, d): 2 + d for d in range(len(program.ops[c].type.sizes))}
    small = classes.resized(sizes)
    assert parse_program(print_program(small)) == small
    assert [op.kind for op in small.ops] == [op.kind for op in program.ops]
    assert small.ops[c].type.sizes == tuple(2 + d for d in range(len(small.ops[c].type.sizes)))
    values = evaluate(small, make_inputs(small, Pass.INTEGERS, 0))
    assert all(np.isfinite(np.asarray(v, dtype=float)).all() for v in values)


def test_nothing_asked_for_changes_nothing() -> None:
    program = gemm(m=4, n=5, k=6, epilogue="bias").program
    assert DimensionClasses(program).resized({}) == program


def test_a_contraction_unifies_batch_axes() -> None:
    kinds = {"a": TensorType(F32, (2, 4, 6)), "b": TensorType(F32, (2, 6, 5))}
    workload = traced(lambda a, b: {"c": contract(a, b, "amk,akn->amn")}, kinds)
    small = DimensionClasses(workload.program).resized({(0, 0): 3})
    assert input_sizes(small) == {"a": (3, 4, 6), "b": (3, 6, 5)}
