import math
import struct

import pytest
from hir_programs import programs, types
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.build import Builder
from tfsearch.ir.hir.ops import ConstAttrs, OpKind
from tfsearch.ir.hir.rounding import largest_finite
from tfsearch.ir.hir.text import parse_program, parse_type, print_program, print_type
from tfsearch.ir.hir.types import Range, TensorType

GEMM = """\
program gemm(a: f32[m: 1..64 % 8,512], b: f32[512,256]:col) -> (c: f32[m,256]) {
  %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[m,256]
  return %2
}
"""


def code_of(text: str) -> tuple[str, str]:
    with pytest.raises(RequestError) as caught:
        parse_program(text)
    return caught.value.code, caught.value.message


def test_canonical_text_prints_as_it_was_parsed():
    assert print_program(parse_program(GEMM)) == GEMM


@given(programs())
@settings(max_examples=150, deadline=None)
def test_printed_programs_parse_back_equal_and_print_the_same(program):
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


@given(types())
@settings(max_examples=200, deadline=None)
def test_printed_types_parse_back_equal(type_):
    assert parse_type(print_type(type_)) == type_


@given(st.integers(0, 2**64 - 1), st.sampled_from([d for d in DType if d.is_float]))
@settings(max_examples=300, deadline=None)
def test_float_constants_keep_every_bit(bits, dtype):
    (value,) = struct.unpack("<d", struct.pack("<Q", bits))
    if math.isfinite(value) and abs(value) > largest_finite(dtype):
        with pytest.raises(RequestError, match="overflows"):
            ConstAttrs.of(value * 2.0 if value * 2.0 != math.inf else value, dtype)
        return
    attrs = ConstAttrs.of(value, dtype)
    builder = Builder("p", {})
    index = builder.add(OpKind.CONST, (), attrs, TensorType(dtype))
    program = builder.finish([("y", index)])
    again = parse_program(print_program(program))
    assert again == program
    back = again.ops[0].attrs.value
    expected = attrs.value
    assert struct.pack("<d", back) == struct.pack("<d", expected) or math.isnan(back)


def test_negative_zero_and_zero_are_different_constants():
    assert ConstAttrs.of(-0.0, DType.F32) != ConstAttrs.of(0.0, DType.F32)


def test_a_decimal_constant_means_the_nearest_value_of_its_type():
    text = "program p() -> (y: f32[]) {\n %0 = const {value = 0.1} : f32[]\n return %0\n}"
    assert parse_program(text).ops[0].attrs.value == pytest.approx(0.1, rel=1e-7)
    assert "0.10000000149011612" in print_program(parse_program(text))


def test_value_names_comments_and_spacing_do_not_matter():
    messy = GEMM.replace("%2", "%product").replace("%0", "%a").replace(" % 8", "%8")
    messy = messy.replace("{\n", "{ # the only op\n\n").replace('"mk,kn->mn"', '"xy,yz->xz"')
    assert parse_program(messy) == parse_program(GEMM)


@pytest.mark.parametrize(
    ("old", "new", "code", "part"),
    [
        ("return %2", "return %9", "hir.parse", "line 3, column 10"),
        ("contract(", "contrct(", "hir.parse", "unknown operation 'contrct'"),
        ("f32[512,256]:col", "f31[512,256]", "hir.parse", "line 1, column 43"),
        ("f32[m,256]\n", "f32[q,256]\n", "hir.parse", "dimension 'q' has no size"),
        ("f32[m,256]\n", "f32[m,255]\n", "hir.result-type", "line 2, column 3"),
        ("f32[512,256]:col", "f32[511,256]", "hir.shape", "label k has two sizes"),
        ("acc = f32", "acc = f16", "hir.acc", "cannot accumulate"),
        ('"mk,kn->mn"', '"mk,kn->m"', "hir.contract-dims", "must be in the result"),
        ("1..64 % 8", "9..15 % 8", "hir.dimension", "no multiple of 8"),
        ("return %2\n}", "return %2", "hir.parse", "expected '}'"),
        ("a: f32", "b: f32", "hir.parse", "declared twice"),
        ("%2 = ", "%1 = ", "hir.parse", "defined twice"),
        ("-> (c", "-> (a", "hir.name", "used twice"),
        ("(c: f32", "(c: f64", "hir.parse", "declared with another type"),
        ("gemm", "gemm!", "hir.parse", "unexpected character '!'"),
    ],
)
def test_wrong_text_is_refused_with_its_place(old, new, code, part):
    assert old in GEMM
    found, message = code_of(GEMM.replace(old, new, 1))
    assert found == code
    assert part in message


def test_types_that_say_the_same_are_equal():
    assert TensorType(DType.F32, (4, 8), (8, 1)) == TensorType(DType.F32, (4, 8))
    assert TensorType(DType.F32, (1, 8), (1, 1)) == TensorType(DType.F32, (1, 8))
    assert parse_type("f32[4,8]:col") == parse_type("f32[4,8; strides 1,4]")
    assert parse_type("f32[4,8]:col") != parse_type("f32[4,8]")
    assert print_type(parse_type("bf16[2,4,8; strides 40,10,1]")) == "bf16[2,4,8; strides 40,10,1]"


@pytest.mark.parametrize(
    "text", ["f32[4,8; strides 1,1]", "f32[4,8; strides 0,1]", "f32[4,8; strides 1]", "f32[0]"]
)
def test_impossible_types_are_refused(text):
    with pytest.raises(RequestError):
        parse_type(text)


def test_a_range_binds_only_to_its_sizes():
    program = parse_program(GEMM)
    assert program.bind({"m": 16}).output_types[0].sizes == (16, 256)
    for size in (12, 72):
        with pytest.raises(RequestError, match="outside"):
            program.bind({"m": size})
    assert Range("m", 3, 20, 8).smallest == 8
    assert Range("m", 3, 20, 8).largest == 16
