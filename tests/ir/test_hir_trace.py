import numpy as np
import pytest

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.ops import CompareFn, OpKind
from tfsearch.ir.hir.text import parse_type, print_program
from tfsearch.ir.hir.trace import trace


def traced(fn, **types):
    return trace(fn, {n: parse_type(t) for n, t in types.items()})


def code_of(fn, **types) -> tuple[str, str]:
    with pytest.raises(RequestError) as caught:
        traced(fn, **types)
    return caught.value.code, caught.value.message


def test_outputs_are_named_by_how_they_are_returned():
    one = traced(lambda x: x + 1, x="f32[4]")
    assert [n for n, _ in one.outputs] == ["out"]
    two = traced(lambda x: (x, x + 1), x="f32[4]")
    assert [n for n, _ in two.outputs] == ["out0", "out1"]
    named = traced(lambda x: {"y": x, "z": -x}, x="f32[4]")
    assert [n for n, _ in named.outputs] == ["y", "z"]


def test_shapes_broadcast_as_in_numpy():
    program = traced(lambda a, b: a * b, a="f32[4,1,3]", b="f32[5,1]")
    assert program.output_types[0].sizes == (4, 5, 3)
    code, message = code_of(lambda a, b: a * b, a="f32[4]", b="f32[3]")
    assert code == "hir.broadcast"
    assert "[4] and [3]" in message
    assert code_of(lambda a: a.broadcast_to((3,)), a="f32[4]")[0] == "hir.broadcast"
    assert code_of(lambda a: a.broadcast_to(()), a="f32[4]")[0] == "hir.broadcast"


def test_mixed_dtypes_are_refused_with_the_cast_that_helps():
    code, message = code_of(lambda a, b: a + b, a="f32[4]", b="bf16[4]")
    assert code == "hir.mixed-dtypes"
    assert ".cast('f32')" in message
    assert code_of(lambda a, b: a @ b, a="f32[4,4]", b="bf16[4,4]")[0] == "hir.mixed-dtypes"


def test_python_numbers_take_the_dtype_of_the_tensor():
    program = traced(lambda a: 2 - a * 0.5, a="bf16[4]")
    assert {op.type.dtype for op in program.ops} == {DType.BF16}
    assert code_of(lambda a: a + 0.5, a="i32[4]")[0] == "hir.constant"
    assert code_of(lambda a: a + 200, a="i8[4]")[0] == "hir.constant"
    assert code_of(lambda a: a * 1e300, a="f32[4]")[0] == "hir.constant"
    assert code_of(lambda a: a + True, a="f32[4]")[0] == "hir.operand"
    assert code_of(lambda a: a + np.ones(4), a="f32[4]")[0] == "hir.operand"


@pytest.mark.parametrize(
    "fn",
    [
        lambda x: x if x.sum() > 0 else -x,
        lambda x: next(iter(x)),
        lambda x: x * float(x.sum()),
        lambda x: x and x,
    ],
)
def test_control_flow_on_data_is_refused(fn):
    code, message = code_of(fn, x="f32[4]")
    assert code == "hir.control-flow"
    assert "tracing" in message


def test_comparisons_select_numbers():
    for compare, fn in (
        (lambda a, b: a < b, CompareFn.LT),
        (lambda a, b: a <= b, CompareFn.LE),
        (lambda a, b: a > b, CompareFn.GT),
        (lambda a, b: a >= b, CompareFn.GE),
        (lambda a, b: a == b, CompareFn.EQ),
        (lambda a, b: a != b, CompareFn.NE),
    ):
        program = traced(lambda a, b, c=compare: lang.where(c(a, b), a, 0), a="f32[4]", b="f32[4]")
        assert any(getattr(op.attrs, "fn", None) is fn for op in program.ops)
    assert code_of(lambda a: a > 0, a="f32[4]")[0] == "hir.dtype"
    assert code_of(lambda a: (a > 0) + (a > 1), a="f32[4]")[0] == "hir.dtype"
    assert code_of(lambda a: lang.where(a, a, a), a="f32[4]")[0] == "hir.dtype"


def test_sums_of_narrow_types_show_their_wide_accumulator():
    for narrow in ("bf16", "f16"):
        program = traced(lambda a: a.sum(0), a=f"{narrow}[4]")
        kinds = [(op.kind, op.type.dtype.value) for op in program.ops]
        assert kinds == [
            (OpKind.INPUT, narrow),
            (OpKind.CAST, "f32"),
            (OpKind.REDUCE, "f32"),
            (OpKind.CAST, narrow),
        ]
    program = traced(lambda a: a.sum(0), a="i8[4]")
    assert program.output_types[0].dtype is DType.I32
    program = traced(lambda a, b: a @ b, a="bf16[4,4]", b="bf16[4,4]")
    assert "acc = f32" in print_program(program)
    assert program.output_types[0].dtype is DType.BF16


def test_accumulators_can_be_chosen_and_are_checked():
    def wide(a, b):
        return lang.matmul(a, b, acc="f64", out_dtype="f32")

    program = traced(wide, a="f32[2,3]", b="f32[3,4]")
    assert "acc = f64" in print_program(program)

    def narrow(a, b):
        return lang.matmul(a, b, acc="bf16")

    assert code_of(narrow, a="f32[2,3]", b="f32[3,4]")[0] == "hir.acc"
    assert code_of(lambda a, b: a @ b, a="i32[2,3]", b="i32[3,4]")[0] == "hir.dtype"


@pytest.mark.parametrize(
    ("fn", "code"),
    [
        (lambda a: a.sum(2), "hir.reduce-axes"),
        (lambda a: a.reshape(5, 2), "hir.reshape"),
        (lambda a: a.transpose([0, 0]), "hir.transpose"),
        (lambda a: a.sum(1).T, "hir.transpose"),
        (lambda a: a @ a, "hir.shape"),
        (lambda a: a.cast("f8"), "hir.dtype"),
        (lambda a: a.cast("bool"), "hir.dtype"),
        (lambda a: a**0.5, "hir.power"),
        (lambda a: lang.exp(a.cast("i32")), "hir.dtype"),
        (lambda a: a.cast("i32") / 2, "hir.dtype"),
        (lambda a: lang.gelu(a, approximate="fast"), "hir.option"),
        (lambda a: 3, "hir.trace"),
        (lambda a: lang.maximum(1, 2), "hir.operand"),
    ],
)
def test_wrong_use_is_refused_with_a_code(fn, code):
    assert code_of(fn, a="f32[4,3]")[0] == code


def test_tensors_of_two_traces_do_not_mix():
    kept = []
    traced(lambda a: kept.append(a) or a, a="f32[4]")
    assert code_of(lambda a: a + kept[0], a="f32[4]")[0] == "hir.trace"


def test_ranged_dimensions_are_traced_by_name():
    program = traced(lambda x, w: lang.relu(x @ w), x="f32[m: 1..64, 8]", w="f32[8,4]")
    assert list(program.ranges) == ["m"]
    assert program.bind({"m": 3}).output_types[0].sizes == (3, 4)
    code, message = code_of(lambda x: x.mean(0), x="f32[m: 1..64]")
    assert code == "hir.mean"
    assert "m" in message
    text = "f32[m: 1..64, 8]"
    with pytest.raises(RequestError, match="two different ranges"):
        traced(lambda a, b: (a, b), a=text, b="f32[m: 1..32]")
