import gc

import numpy as np
import pytest
from hir_programs import programs
from hypothesis import given, settings

from tfsearch.core.errors import RequestError
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.facts import VisitContext, facts_of
from tfsearch.ir.hir.ops import OpKind
from tfsearch.ir.hir.text import parse_type
from tfsearch.ir.hir.trace import trace


def workload(op, **options):
    return build_workload(op, options).program


def test_facts_are_computed_once_per_program_and_forgotten_with_it():
    from tfsearch.ir.hir import facts

    program = workload("gemm", m=8, n=8, k=8, dtype="f32")
    assert facts_of(program) is facts_of(program)
    assert facts_of(program).users is facts_of(program).users
    gc.collect()  # what other tests left behind goes first
    size = len(facts._CACHE)
    del program
    gc.collect()
    assert len(facts._CACHE) == size - 1


def test_a_visit_context_runs_each_analysis_once():
    calls = []

    def inner(context):
        calls.append("inner")
        return len(context.program.ops)

    def outer(context):
        return context.get(inner) + context.get(inner)

    context = VisitContext(workload("softmax", rows=2, cols=3, dtype="f32"))
    assert context.get(outer) == 2 * len(context.program.ops)
    assert calls == ["inner"]


def test_users_depth_and_order_of_softmax():
    program = workload("softmax", rows=4, cols=9, dtype="f32")
    facts = facts_of(program)
    top, total = facts.reductions
    assert facts.depth[top] == 1
    assert facts.depth[total] == 2
    assert facts.depth[program.outputs[0][1]] == 2
    assert facts.users[0] == (top, facts.users[top][0] + 1)
    assert facts.users[program.outputs[0][1]] == ()
    assert facts.contractions == ()


def test_axes_show_the_iteration_space_of_row_wise_programs():
    program = workload("layer_norm", rows=4, cols=9, dtype="bf16")
    facts = facts_of(program)
    rows, cols = facts.axes[0]
    assert rows != cols
    assert facts.axes[1] == (cols,)
    for value in facts.reductions:
        assert facts.axes[value] == (rows,)
    assert facts.axes[program.outputs[0][1]] == (rows, cols)


def test_axes_and_accesses_of_a_gemm_with_epilogue():
    program = workload("gemm", m=4, n=5, k=6, dtype="bf16", trans_b=True, epilogue="bias+relu")
    facts = facts_of(program)
    out = program.outputs[0][1]
    (product,) = facts.contractions
    m, n = facts.axes[product]
    assert facts.axes[0] == (m, facts.axes[0][1])
    assert facts.axes[1] == (n, facts.axes[0][1])
    assert facts.axes[2] == (n,)
    assert facts.accesses(2, out) == {(1,)}
    assert facts.accesses(product, out) == {(0, 1)}
    assert facts.accesses(0, out) == frozenset()


def test_a_value_read_at_two_places_has_two_projections():
    program = trace(lambda x: x + x.T, {"x": parse_type("f32[4,4]")})
    assert facts_of(program).accesses(0, program.outputs[0][1]) == {(0, 1), (1, 0)}


def test_work_and_compulsory_bytes():
    program = workload("gemm", m=4, n=5, k=6, dtype="bf16", epilogue="bias+gelu")
    facts = facts_of(program)
    assert facts.bytes_read == 2 * (24 + 30 + 5)
    assert facts.bytes_written == 2 * 20
    assert facts.flops > 2 * 4 * 5 * 6
    unused = trace(lambda a, b: b * 2.0, {"a": parse_type("f32[9]"), "b": parse_type("f32[3]")})
    assert facts_of(unused).used_inputs == (1,)
    assert facts_of(unused).bytes_read == 12
    ranged = trace(lambda a: a * 2.0, {"a": parse_type("f32[m: 1..4]")})
    with pytest.raises(RequestError, match="bind"):
        _ = facts_of(ranged).flops


@given(programs())
@settings(max_examples=60, deadline=None)
def test_facts_agree_with_the_definitions(program):
    facts = facts_of(program)
    for index, op in enumerate(program.ops):
        for operand in op.operands:
            assert index in facts.users[operand]
            assert facts.depth[index] >= facts.depth[operand]
        assert len(facts.axes[index]) == op.type.rank
    for root in facts.outputs:
        assert facts.ancestors([root]) >= {root}
        for value in facts.ancestors([root]):
            for projection in facts.accesses(value, root):
                sizes = program.ops[root].type.sizes
                assert program.ops[value].type.sizes == tuple(sizes[d] for d in projection)


def test_accesses_read_what_numpy_broadcasting_reads():
    program = trace(
        lambda x, r: lang.exp(x).T * r, {"x": parse_type("f32[3,4]"), "r": parse_type("f32[3]")}
    )
    facts = facts_of(program)
    out = program.outputs[0][1]
    ((rows, cols),) = facts.accesses(0, out)
    x = np.arange(12).reshape(3, 4)
    index = (2, 1)
    assert x[index[rows], index[cols]] == x.T[index]
    assert facts.accesses(1, out) == {(1,)}
    assert program.ops[out].kind is OpKind.BINARY
