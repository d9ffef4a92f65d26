import numpy as np
import pytest
from hir_programs import integer_inputs, programs, random_inputs
from hir_simulate import contract_in, simulate
from hypothesis import given, settings
from hypothesis import strategies as st

from tfsearch.core.records import Accuracy
from tfsearch.ir.dtypes import DType
from tfsearch.ir.hir import lang
from tfsearch.ir.hir.bounds import Bounds, evaluate_bounds
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.evaluate import evaluate
from tfsearch.ir.hir.exact import exact_integer_limit, is_exact_on_integers
from tfsearch.ir.hir.ops import ContractAttrs, OpKind
from tfsearch.ir.hir.rounding import round_to
from tfsearch.ir.hir.text import parse_type
from tfsearch.ir.hir.trace import trace


def gemm(**options):
    return build_workload("gemm", {"m": 24, "n": 20, "k": 512, **options}).program


@given(programs(), st.integers(0, 1000), st.booleans())
@settings(max_examples=120, deadline=None)
def test_correct_low_precision_arithmetic_stays_inside(program, seed, keep):
    inputs = random_inputs(program, seed)
    outputs = simulate(program, inputs, keep_f32=keep)
    for actual, bounds in zip(outputs, evaluate_bounds(program, inputs), strict=True):
        assert bounds.contains(actual).all()
        assert (bounds.excess(actual) <= 1.0).all()


@pytest.mark.parametrize("dtype", ["f64", "f32", "f16", "bf16"])
@pytest.mark.parametrize("op", ["softmax", "rms_norm", "layer_norm"])
@pytest.mark.parametrize("scale", [1.0, 30.0])
def test_row_wise_programs_stay_inside(op, dtype, scale):
    program = build_workload(op, {"rows": 6, "cols": 400, "dtype": dtype}).program
    inputs = random_inputs(program, 5, scale)
    inputs["x"] = (inputs["x"] + np.asarray(50).astype(inputs["x"].dtype)).astype(inputs["x"].dtype)
    (bounds,) = evaluate_bounds(program, inputs)
    for keep in (False, True):
        (actual,) = simulate(program, inputs, keep_f32=keep)
        assert bounds.contains(actual).all()


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("epilogue", [None, "bias+gelu", "silu+residual", "bias+tanh+scale"])
def test_gemm_with_epilogue_stays_inside(dtype, epilogue):
    options = {"epilogue": epilogue} if epilogue else {}
    program = gemm(dtype=dtype, **options)
    inputs = random_inputs(program, 2)
    (bounds,) = evaluate_bounds(program, inputs)
    assert bounds.contains(simulate(program, inputs)[0]).all()


def planted(error, a, b):
    """c = a·b in float64 with one planted error; a is [m,k], b is [k,n]."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    c = a @ b
    match error:
        case "dropped product":
            c[3, 5] -= a[3, 7] * b[7, 5]
        case "doubled product":
            c[3, 5] += a[3, 7] * b[7, 5]
        case "doubled element":
            c[3, 5] *= 2
        case "off by one row":
            c[4] = c[5]
        case "one row missing":
            c[-1] = 0
        case "stale tail":
            c[:, -1] = a[:, :-1] @ b[:-1, -1]
    return c


ERRORS = ("dropped product", "doubled product", "doubled element", "off by one row")
ERRORS += ("one row missing", "stale tail")


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("k", [16, 512, 4096])
def test_planted_errors_fall_outside_in_f32(error, k):
    program = gemm(dtype="f32", k=k)
    inputs = random_inputs(program, 11)
    (bounds,) = evaluate_bounds(program, inputs)
    actual = planted(error, inputs["a"], inputs["b"]).astype(np.float32)
    assert not bounds.contains(actual).all()
    assert bounds.excess(actual).max() > 1.0
    assert bounds.contains(inputs["a"] @ inputs["b"]).all()


@pytest.mark.parametrize("error", ERRORS)
@pytest.mark.parametrize("dtype", ["bf16", "f16", "f32"])
@pytest.mark.parametrize("k", [16, 4096, 32768])
def test_planted_errors_fail_the_exact_pass(error, dtype, k):
    program = gemm(dtype=dtype, k=k, m=8, n=8)
    limit = exact_integer_limit(program)
    assert limit >= 1
    inputs = integer_inputs(program, limit, 4)
    inputs["a"][3, 7] = limit
    inputs["b"][7, 5] = limit
    if error == "stale tail":
        inputs["b"][-1, -1] = limit
        inputs["a"][:, -1] = limit
    (reference,) = evaluate(program, inputs, round_casts=True)
    out = program.output_types[0].dtype
    wide = round_to(out, reference)
    good = (inputs["a"].astype(np.float32) @ inputs["b"].astype(np.float32)).astype(np.float64)
    np.testing.assert_array_equal(round_to(out, good), wide)
    bad = round_to(out, planted(error, inputs["a"], inputs["b"]))
    wrong_exact = not np.array_equal(bad, wide)
    f32_program = gemm(dtype=dtype, k=k, m=8, n=8, out_dtype="f32")
    exact = evaluate(f32_program, inputs, round_casts=True)[0]
    wrong_wide = not np.array_equal(planted(error, inputs["a"], inputs["b"]), exact)
    assert wrong_wide
    assert wrong_exact or out is not DType.F32


def test_accumulating_bf16_in_bf16_falls_outside():
    program = gemm(dtype="bf16", out_dtype="f32")
    inputs = random_inputs(program, 9)
    attrs = ContractAttrs("mk,kn->mn", DType.F32)
    (bounds,) = evaluate_bounds(program, inputs)
    for acc, inside in ((np.float32, True), (DType.BF16.numpy, False)):
        actual = contract_in(attrs, inputs["a"], inputs["b"], acc)
        assert bounds.contains(actual).all() == inside


def test_rounding_f32_operands_to_bf16_falls_outside():
    program = gemm(dtype="f32")
    inputs = random_inputs(program, 9)
    low = {n: round_to(DType.BF16, x).astype(np.float64) for n, x in inputs.items()}
    (bounds,) = evaluate_bounds(program, inputs)
    assert not bounds.contains((low["a"] @ low["b"]).astype(np.float32)).all()


@pytest.mark.parametrize(
    ("dims", "a", "b"), [("k,k->", "[40]", "[40]"), ("mk,k->m", "[3,40]", "[40]")]
)
def test_sums_in_another_order_stay_inside_also_of_a_scalar(dims, a, b):
    attrs = ContractAttrs(dims, DType.F32)
    types = {"a": parse_type(f"f32{a}"), "b": parse_type(f"f32{b}")}
    program = trace(lambda a, b: a.add_op(OpKind.CONTRACT, b, attrs=attrs), types)
    inputs = random_inputs(program, 1)
    (bounds,) = evaluate_bounds(program, inputs)
    actual = contract_in(attrs, inputs["a"], inputs["b"], np.float32)
    assert not np.array_equal(actual, bounds.ref)
    assert bounds.contains(actual).all()


@pytest.mark.parametrize("order", [1, -1])
def test_products_in_another_order_may_underflow_or_overflow_on_the_way(order):
    program = trace(lambda x: x.prod(0), {"x": parse_type("f32[40,3]")})
    x = np.ones((40, 3), np.float32)
    x[:20, 0], x[20:, 0] = 1e-3, 1e3  # to 0 or to infinity, by the end it starts from
    x[:10, 1], x[10:20, 1] = 1e-4, 1e4  # near zero, or large
    (bounds,) = evaluate_bounds(program, {"x": x})
    with np.errstate(all="ignore"):
        actual = np.multiply.reduce(x[::order], axis=0)
    assert np.allclose(bounds.ref, 1.0)
    assert not np.isclose(actual[:2], 1.0).all()
    assert bounds.contains(actual).all()
    assert not bounds.contains(np.full(3, 1.001, np.float32))[2]


def test_fast_maths_is_wider_than_precise_and_still_bounded():
    program = trace(lambda x: lang.tanh(x), {"x": parse_type("f32[1000]")})
    inputs = random_inputs(program, 1)
    exact = np.tanh(inputs["x"].astype(np.float64))
    approximate = (exact * (1 + 2.0**-11)).astype(np.float32)
    rough = (exact * (1 + 2.0**-8)).astype(np.float32)
    (precise,) = evaluate_bounds(program, inputs, Accuracy.PRECISE)
    (fast,) = evaluate_bounds(program, inputs, Accuracy.FAST)
    assert precise.contains(exact.astype(np.float32)).all()
    assert not precise.contains(approximate).all()
    assert fast.contains(approximate).all()
    assert not fast.contains(rough).all()


def test_fast_maths_leaves_sums_and_f64_alone():
    program = gemm(dtype="f32")
    inputs = random_inputs(program, 1)
    precise, fast = (evaluate_bounds(program, inputs, a)[0] for a in Accuracy)
    np.testing.assert_array_equal(precise.hi, fast.hi)
    program = trace(lambda x: lang.exp(x), {"x": parse_type("f64[10]")})
    inputs = random_inputs(program, 1)
    precise, fast = (evaluate_bounds(program, inputs, a)[0] for a in Accuracy)
    np.testing.assert_array_equal(precise.hi, fast.hi)


def quantise(x):
    scale = lang.abs(x).max(1, keepdims=True) / 127.0
    return {"q": lang.round(x / scale).cast("i8"), "scale": scale.reshape((x.shape[0],))}


def test_a_quantiser_may_differ_by_one_step_only_at_a_tie():
    program = trace(quantise, {"x": parse_type("f32[8,64]")})
    inputs = random_inputs(program, 6)
    inputs["x"][0, 0] = 127.0
    inputs["x"][0, 1] = 2.5
    inputs["x"][0, 2] = 2.75
    q, _ = evaluate_bounds(program, inputs)
    assert (q.lo[0, 1], q.hi[0, 1]) == (2.0, 3.0)
    assert (q.lo[0, 2], q.hi[0, 2]) == (3.0, 3.0)
    assert (q.hi - q.lo <= 1).all()
    assert np.mean(q.hi == q.lo) > 0.95


def test_f16_overflow_is_expected_exactly_where_the_reference_overflows():
    program = trace(lambda x: (x * x).cast("f16"), {"x": parse_type("f32[4]")})
    x = np.array([200.0, 255.9, 256.1, 300.0], np.float32)
    (bounds,) = evaluate_bounds(program, {"x": x})
    good = np.array([4e4, 65472.0, np.inf, np.inf]).astype(np.float16)
    assert bounds.contains(good).all()
    assert not bounds.contains(np.array([np.inf, 65472, np.inf, np.inf], np.float16))[0]
    assert not bounds.contains(np.array([4e4, 65472, np.inf, 65504], np.float16))[3]


def test_not_a_number_is_accepted_only_where_the_reference_has_it():
    program = trace(lambda x: lang.log(x), {"x": parse_type("f32[3]")})
    (bounds,) = evaluate_bounds(program, {"x": np.array([-1.0, 0.0, 1.0], np.float32)})
    assert bounds.contains(np.array([np.nan, -np.inf, 0.0], np.float32)).all()
    assert bounds.contains(np.array([0.0, np.nan, np.nan], np.float32)).tolist() == [False] * 3
    assert np.isinf(bounds.excess(np.array([0.0, np.nan, np.nan], np.float32))).all()


def test_flushed_subnormals_are_accepted_and_lost_normals_are_not():
    program = trace(lambda x: x * x, {"x": parse_type("f32[2]")})
    x = np.array([1e-20, 1e-15], np.float32)
    (bounds,) = evaluate_bounds(program, {"x": x})
    assert bounds.contains(np.array([0.0, 0.0], np.float32)).tolist() == [True, False]


def test_excess_measures_the_error_in_units_of_the_allowance():
    bounds = Bounds(np.array([1.0, 1.0]), np.array([0.9, 1.0]), np.array([1.2, 1.0]))
    np.testing.assert_allclose(bounds.excess(np.array([1.1, 1.0])), [0.5, 0.0])
    np.testing.assert_allclose(bounds.excess(np.array([0.7, 1.0])), [3.0, 0.0])
    assert np.isinf(bounds.excess(np.array([1.0, 1.0001]))[1])


def test_which_programs_are_exact_on_integers():
    assert is_exact_on_integers(gemm(dtype="bf16", epilogue="bias+relu+residual"))
    assert not is_exact_on_integers(gemm(dtype="bf16", epilogue="gelu"))
    softmax = build_workload("softmax", {"rows": 2, "cols": 3, "dtype": "f32"}).program
    assert not is_exact_on_integers(softmax)
    assert exact_integer_limit(softmax) == 0


def test_the_integer_limit_is_the_largest_that_keeps_sums_exact():
    assert exact_integer_limit(gemm(dtype="bf16", k=32768)) == 22
    assert 22**2 * 32768 <= 2**24 < 23**2 * 32768
    assert exact_integer_limit(gemm(dtype="bf16", k=4)) == 256
    assert exact_integer_limit(gemm(dtype="f32", k=2**24)) == 1
    assert exact_integer_limit(gemm(dtype="f32", k=2**25)) == 0
    assert exact_integer_limit(gemm(dtype="i8", k=512)) == 127
    limited = gemm(dtype="f32", k=4, epilogue="scale")
    limit = exact_integer_limit(limited)
    assert 4 * limit**3 <= 2**24 < 4 * (limit + 1) ** 3
