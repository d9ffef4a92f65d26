import os
import subprocess
import sys

import numpy as np
import pytest
from hir_programs import programs, random_inputs
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.build import canonicalise
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.ops import BinaryAttrs, BinaryFn, InputAttrs, NoAttrs, OpKind
from tfsearch.ir.hir.program import Input, Op, Program
from tfsearch.ir.hir.text import parse_program, print_program
from tfsearch.ir.hir.trace import trace
from tfsearch.ir.hir.types import TensorType

F = TensorType(DType.F32, (4, 8))


def test_canonicalisation_is_idempotent_and_keeps_values():
    @given(programs(dtypes=(DType.F32,)))
    @settings(max_examples=60, deadline=None)
    def check(program):
        assert canonicalise(program) == program

    check()


@given(programs(dtypes=(DType.F32,)), st.randoms(use_true_random=False))
@settings(max_examples=80, deadline=None)
def test_order_of_insertion_and_dead_or_repeated_values_do_not_matter(program, random):
    count = len(program.inputs)
    ops = list(program.ops[:count])
    place = {i: i for i in range(count)}
    pending = list(range(count, len(program.ops))) * 2
    while pending:
        ready = [i for i in pending if all(o in place for o in program.ops[i].operands)]
        index = random.choice(ready)
        pending.remove(index)
        op = program.ops[index]
        operands = tuple(place[o] for o in op.operands)
        place[index] = len(ops)
        ops.append(Op(op.kind, operands, op.attrs, op.type))
    outputs = tuple((n, place[i]) for n, i in program.outputs)
    shuffled = Program(program.name, program.inputs, tuple(ops), outputs)
    assert print_program(shuffled) == print_program(program)
    inputs = random_inputs(program)
    for x, y in zip(evaluate(shuffled, inputs), evaluate(program, inputs), strict=True):
        np.testing.assert_array_equal(x, y)


def test_names_inside_the_function_do_not_matter():
    def one(a, b):
        left = lang.exp(a)
        right = lang.tanh(b)
        return left * right

    def two(a, b):
        q = lang.tanh(b)
        lang.sin(a)
        return lang.exp(a) * q

    assert trace(one, {"a": F, "b": F}, "f") == trace(two, {"a": F, "b": F}, "f")


def test_the_call_signature_is_kept():
    def unused(a, b):
        return b

    program = trace(unused, {"a": F, "b": F})
    assert program.input_names == ("a", "b")
    assert program.outputs == (("out", 1),)
    swapped = trace(unused, {"b": F, "a": F})
    assert print_program(swapped) != print_program(program)


def test_a_transposed_operand_becomes_labels():
    def direct(a, b):
        return lang.matmul(a, b, trans_b=True)

    def turned(a, b):
        return a @ b.T

    inputs = {"a": F, "b": TensorType(DType.F32, (3, 8))}
    assert trace(direct, inputs, "f") == trace(turned, inputs, "f")
    assert [o.kind for o in trace(turned, inputs).ops][2:] == [OpKind.CONTRACT]


def test_keepdims_leaves_no_trace_in_row_wise_programs():
    def kept(x):
        return x / (x.sum(-1, keepdims=True) * 2.0 + 1.0)

    def dropped(x):
        return x / (x.sum(-1) * 2.0 + 1.0).broadcast_in_dim(x.shape, [0])

    assert trace(kept, {"x": F}, "f") == trace(dropped, {"x": F}, "f")


SCRIPT = """
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.text import parse_program
import sys
print(build_workload("gemm", dict(k=32, m=48, dtype="bf16", n=64, epilogue="bias+gelu")).key)
print(build_workload("layer_norm", dict(rows=3, cols=5, dtype="f32")).key)
"""


def test_keys_are_equal_in_every_process():
    texts = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        )
        texts.add(done.stdout)
    assert len(texts) == 1
    assert len(set(texts.pop().split())) == 2


def code_of(make) -> str:
    with pytest.raises(RequestError) as caught:
        make()
    return caught.value.code


def test_a_program_is_checked_when_it_is_made():
    x = Input("x", F)
    first = Op(OpKind.INPUT, (), InputAttrs(0), F)
    add = BinaryAttrs(BinaryFn.ADD)

    def program(*ops, outputs=(("y", 1),), inputs=(x,)):
        return lambda: Program("p", inputs, (first, *ops), outputs)

    assert code_of(program(outputs=())) == "hir.outputs"
    assert code_of(program(outputs=(("y", 5),))) == "hir.outputs"
    assert code_of(program(Op(OpKind.BINARY, (0, 1), add, F))) == "hir.order"
    assert code_of(program(Op(OpKind.BINARY, (0,), add, F))) == "hir.operands"
    assert code_of(program(Op(OpKind.CAST, (0,), add, F))) == "hir.attributes"
    wrong = TensorType(DType.F64, (4, 8))
    assert code_of(program(Op(OpKind.BINARY, (0, 0), add, wrong))) == "hir.result-type"
    assert code_of(program(first)) == "hir.inputs"
    assert code_of(program(outputs=(("x", 0),))) == "hir.name"
    boolean = Op(OpKind.CAST, (0,), NoAttrs(), TensorType(DType.BOOL, (4, 8)))
    assert code_of(program(boolean)) == "hir.dtype"


def test_a_parsed_program_is_canonical():
    text = print_program(trace(lambda a: lang.softmax(a), {"a": F}, "f"))
    assert canonicalise(parse_program(text)) == parse_program(text)
