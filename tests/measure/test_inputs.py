import numpy as np
import pytest

from tests.measure.helpers import gemm_text, workload
from tfsearch.core.errors import RequestError
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir.text import parse_program
from tfsearch.measure.inputs import Pass, make_inputs, pass_a_limit
from tfsearch.measure.oracle import HirOracle

STRIDED = """program main(a: f32[4,3]:col, b: f32[3,5; strides 8,1]) -> (c: f32[4,5]) {
  %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[4,5]
  return %2
}
"""
SOFTMAX_LIKE = """program main(x: f16[6,40]) -> (y: f16[6,40]) {
  %1 = mul(%0, %0) : f16[6,40]
  return %1
}
"""


def test_equal_seeds_give_equal_inputs_and_other_seeds_others():
    program = parse_program(gemm_text())
    for which in Pass:
        first = make_inputs(program, which, 3)
        again = make_inputs(program, which, 3)
        other = make_inputs(program, which, 4)
        assert all(np.array_equal(first[n], again[n]) for n in first)
        assert any(not np.array_equal(first[n], other[n]) for n in first)
        assert not np.array_equal(first["a"].ravel()[:5], first["b"].ravel()[:5])


@pytest.mark.parametrize("which", list(Pass))
def test_inputs_have_the_strides_of_the_signature(which):
    program = parse_program(STRIDED)
    inputs = make_inputs(program, which, 0)
    assert inputs["a"].shape == (4, 3)
    assert inputs["a"].strides == (4, 16)
    assert inputs["b"].strides == (32, 4)
    assert inputs["a"].dtype == np.float32


@pytest.mark.parametrize("which", list(Pass))
def test_scalar_inputs_have_no_dimension(which):
    text = """program main(x: f32[4], s: f32[]) -> (y: f32[4]) {
  %2 = broadcast(%1) {dims = []} : f32[4]
  %3 = mul(%0, %2) : f32[4]
  return %3
}
"""
    assert make_inputs(parse_program(text), which, 0)["s"].shape == ()
    case = HirOracle(workload(program=text)).case(which, 0)
    assert case.expected["y"].ref.shape == (4,)


def test_pass_a_holds_nonzero_integers_within_the_limit():
    program = parse_program(gemm_text(64, 64, 64))
    values = make_inputs(program, Pass.INTEGERS, 1, limit=3)["a"]
    assert set(np.unique(values)) == {-3, -2, -1, 1, 2, 3}


@pytest.mark.parametrize(("out", "limit"), [("f32", 8), ("f16", 2), ("bf16", 1)])
def test_narrow_outputs_get_smaller_integers(out, limit):
    assert pass_a_limit(parse_program(gemm_text(dtype="f16", out=out)), 100) == limit
    assert pass_a_limit(parse_program(gemm_text(dtype="f16", out=out)), 1) == 1


def test_integer_inputs_cover_their_whole_range():
    program = parse_program(gemm_text(64, 64, 64, "i8", "i32"))
    values = make_inputs(program, Pass.NORMAL, 0)["a"]
    assert (values.min(), values.max()) == (-128, 127)


def test_pass_c_has_large_offsets_and_a_wide_range():
    program = parse_program(gemm_text(64, 64, 64))
    values = np.abs(make_inputs(program, Pass.RANGE, 0)["a"])
    assert values.max() > 200
    assert values[values > 0].min() < 1e-3


def test_pass_c_is_scaled_until_no_output_overflows():
    oracle = HirOracle(workload(program=SOFTMAX_LIKE))
    case = oracle.case(Pass.RANGE, 0)
    assert np.isfinite(case.expected["y"].ref).all()
    assert np.abs(case.expected["y"].ref).max() <= 65504 / 4


def test_integer_sums_that_would_overflow_are_scaled_down():
    text = """program main(x: i32[8,64]) -> (y: i32[8]) {
  %1 = reduce(%0) {fn = sum, axes = [1], acc = i32} : i32[8]
  return %1
}
"""
    case = HirOracle(workload(program=text)).case(Pass.NORMAL, 0)
    assert np.abs(case.expected["y"].ref).max() < 2**31
    assert np.abs(case.inputs["x"]).max() > 2**20


def test_constant_inputs_keep_their_contents_when_the_others_change():
    oracle = HirOracle(workload(constant_inputs=("b",)))
    first, other = oracle.case(Pass.NORMAL, 1), oracle.case(Pass.NORMAL, 2, 1)
    assert np.array_equal(first.inputs["b"], other.inputs["b"])
    assert not np.array_equal(first.inputs["a"], other.inputs["a"])
    ref = other.inputs["a"].astype(float) @ other.inputs["b"].astype(float)
    assert np.allclose(other.expected["c"].ref, ref)


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
def test_long_sums_are_exact_in_pass_a_for_every_type(dtype):
    oracle = HirOracle(workload(program=gemm_text(3, 3, 32768, dtype)))
    case = oracle.case(Pass.INTEGERS, 0)
    assert case.expected["c"].exact
    narrow = DType(dtype).numpy
    assert np.array_equal(case.expected["c"].ref, case.expected["c"].ref.astype(narrow))


@pytest.mark.parametrize("literal", ["inf", "-inf", "nan"])
def test_outputs_that_constants_make_infinite_need_no_smaller_inputs(literal):
    text = f"""program main(x: f32[64]) -> (y: f32[64], z: f32[64]) {{
  %1 = const {{value = {literal}}} : f32[]
  %2 = broadcast(%1) {{dims = []}} : f32[64]
  %3 = gt(%0, %2) : bool[64]
  %4 = const {{value = 0.0}} : f32[]
  %5 = broadcast(%4) {{dims = []}} : f32[64]
  %6 = gt(%0, %5) : bool[64]
  %7 = select(%6, %0, %2) : f32[64]
  %8 = exp(%0) : f32[64]
  return %7, %8
}}
"""
    case = HirOracle(workload(program=text)).case(Pass.RANGE, 0)
    y, z = (case.expected[name].ref for name in "yz")
    wanted = case.inputs["x"] <= 0
    assert wanted.any()
    assert np.array_equal(~np.isfinite(y), wanted)
    assert np.isfinite(z).all()
    assert np.abs(case.inputs["x"]).max() > 1


def test_a_program_that_overflows_on_every_input_is_the_callers_to_change():
    text = """program main(x: i8[8]) -> (y: i8[8]) {
  %1 = const {value = 127} : i8[]
  %2 = broadcast(%1) {dims = []} : i8[8]
  %3 = add(%2, %2) : i8[8]
  %4 = add(%0, %3) : i8[8]
  return %4
}
"""
    with pytest.raises(RequestError) as caught:
        HirOracle(workload(program=text)).case(Pass.NORMAL, 0)
    assert caught.value.code == "measure.inputs"
