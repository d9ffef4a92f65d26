import dataclasses
import math

import numpy as np
import pytest

from tests.measure.helpers import gemm_text, launch, workload
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.ir.dtypes import DType
from tfsearch.measure.buffers import poison
from tfsearch.measure.host import HostCallable
from tfsearch.measure.inputs import Pass
from tfsearch.measure.numerics import Case, Expected, check_outputs
from tfsearch.measure.oracle import HirOracle
from tfsearch.measure.verifier import Verifier


def verify(function, work=None, spec=None, seed=0):
    verifier = Verifier(HirOracle(work or workload()))
    return verifier.verify(HostCallable(function, spec or launch()), seed)


def product(inputs, outputs):
    np.matmul(inputs["a"], inputs["b"], out=outputs["c"])


def case_of(values, slack=0.0, exact=False):
    ref = np.asarray(values, dtype=np.float64)
    return Case({}, {"y": Expected(ref, ref - slack, ref + slack, exact)})


def test_a_right_kernel_passes_all_three():
    verdict = verify(product)
    assert verdict.status is Status.OK
    assert verdict.guarded
    assert set(verdict.verification.passes) == {"integers", "normal", "range"}
    assert verdict.verification.passes["integers"] == 0.0
    assert 0 < verdict.verification.max_error < 1


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16", "i8"])
@pytest.mark.parametrize("seed", [0, 1])
def test_right_kernels_of_every_type_pass(dtype, seed):
    out = "i32" if dtype == "i8" else dtype

    def run(inputs, outputs):
        wide = np.int32 if dtype == "i8" else np.float32
        total = inputs["a"].astype(wide) @ inputs["b"].astype(wide)
        outputs["c"][...] = total.astype(outputs["c"].dtype)

    work = workload(program=gemm_text(33, 17, 65, dtype, out))
    verdict = verify(run, work, launch(33, 17, 65, dtype, out), seed)
    assert verdict.status is Status.OK, verdict.verification.message


def test_split_sums_over_a_long_k_pass():
    def run(inputs, outputs):
        a, b, c = inputs["a"], inputs["b"], outputs["c"]
        c[...] = 0
        for start in range(0, 32768, 1024):
            c += a[:, start : start + 1024] @ b[start : start + 1024]

    work = workload(program=gemm_text(4, 3, 32768))
    assert verify(run, work, launch(4, 3, 32768)).status is Status.OK


@pytest.mark.parametrize("dtype", ["f32", "bf16", "f16"])
@pytest.mark.parametrize("factor", [0.0, 2.0])
def test_one_missing_or_doubled_product_is_found_in_a_long_sum(dtype, factor):
    def run(inputs, outputs):
        a = inputs["a"].astype(np.float32)
        b = inputs["b"].astype(np.float32)
        extra = a[2, 511] * b[511, 1]
        total = a @ b
        total[2, 1] += (factor - 1) * extra
        outputs["c"][...] = total.astype(outputs["c"].dtype)

    work = workload(program=gemm_text(4, 3, 4096, dtype))
    verdict = verify(run, work, launch(4, 3, 4096, dtype))
    assert verdict.status is Status.WRONG
    assert "[2,1]" in verdict.verification.message
    assert verdict.verification.max_error == pytest.approx(1.7976931348623157e308)


def test_the_message_names_place_value_allowance_and_count():
    def run(inputs, outputs):
        product(inputs, outputs)
        outputs["c"][3, 2] += 1000

    verdict = verify(run)
    assert not verdict.verification.passed
    assert verdict.code == "verify.wrong"
    for part in ("pass integers", "output c", "[3,2]", "expected", "exactly", "1 of 35"):
        assert part in verdict.verification.message


def test_a_skipped_element_is_called_unwritten():
    def run(inputs, outputs):
        product(inputs, outputs)
        outputs["c"][...] = np.where(np.arange(35).reshape(7, 5) == 34, np.nan, outputs["c"])

    def skip(inputs, outputs):
        outputs["c"][:6] = inputs["a"][:6] @ inputs["b"]

    assert verify(skip).code == "verify.unwritten"
    assert verify(run).code == "verify.wrong"


def test_bits_that_differ_between_runs_are_exempt_only_when_the_workload_says_so():
    calls = []

    def run(inputs, outputs):
        product(inputs, outputs)
        calls.append(1)
        c = outputs["c"]
        if len(calls) % 2 and not np.array_equal(c, np.rint(c)):
            c[0, 0] = np.nextafter(c[0, 0], np.float32(np.inf))

    verdict = verify(run)
    assert verdict.status is Status.NONDETERMINISTIC
    assert "output c at [0,0]" in verdict.verification.message
    assert verify(run, workload(reproducible=False)).status is Status.OK


def test_strided_inputs_are_verified_in_their_layout():
    text = """program main(a: f32[4,3]:col, b: f32[3,5; strides 8,1]) -> (c: f32[4,5]) {
  %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[4,5]
  return %2
}
"""
    spec = LaunchSpec(
        EntrySpec(
            "f",
            (
                ArgumentSpec("a", "f32", (4, 3), (1, 4), "in", 64),
                ArgumentSpec("b", "f32", (3, 5), (8, 1), "in", 64),
                ArgumentSpec("c", "f32", (4, 5), (5, 1), "out", 64),
            ),
            1,
            0,
        )
    )
    strides = []

    def run(inputs, outputs):
        strides.append(inputs["a"].strides)
        outputs["c"][...] = inputs["a"] @ inputs["b"]

    assert verify(run, workload(program=text), spec).status is Status.OK
    assert set(strides) == {(4, 16)}


def test_infinities_and_nans_are_right_only_where_expected():
    expected = case_of([math.inf, -math.inf, math.nan, 1.0], slack=0.5)
    good = np.array([np.inf, -np.inf, np.nan, 1.25], np.float32)
    assert not check_outputs({"y": good}, expected).message
    for place, value in enumerate([1.0, np.inf, 0.0, np.nan]):
        bad = good.copy()
        bad[place] = value
        finding = check_outputs({"y": bad}, expected)
        assert f"[{place}]" in finding.message
        assert "1 of 4" in finding.message


def test_a_nan_is_right_where_nothing_is_known_unless_it_is_the_poison():
    ref = np.array([1.0, np.nan])
    case = Case(
        {}, {"y": Expected(ref, np.array([-np.inf, np.nan]), np.array([np.inf, np.nan]), False)}
    )
    assert not check_outputs({"y": np.full(2, np.nan, np.float32)}, case).message
    for place in (0, 1):
        got = np.full(2, np.nan, np.float32)
        got[place : place + 1] = poison((1,), got.dtype, 1)
        finding = check_outputs({"y": got}, case, 1)
        assert finding.code == "verify.unwritten"
        assert f"[{place}]" in finding.message


def test_overflow_is_right_where_the_bound_rounds_to_infinity():
    ref = np.array([65510.0])
    expected = Case({}, {"y": Expected(ref, ref - 100, ref + 100, False)})
    for value, right in [(65504, True), (np.inf, True), (-np.inf, False)]:
        finding = check_outputs({"y": np.array([value], np.float16)}, expected)
        assert (finding.message == "") is right


def test_bounds_are_closed_and_the_error_is_relative_to_them():
    expected = case_of([4.0, 8.0], slack=2.0)
    finding = check_outputs({"y": np.array([6.0, 7.0], np.float32)}, expected)
    assert (finding.max_error, finding.message) == (1.0, "")
    beyond = np.array([6.0, np.nextafter(np.float32(10), np.float32(11))], np.float32)
    assert "[1]" in check_outputs({"y": beyond}, expected).message


def test_negative_zero_equals_zero_in_the_exact_pass():
    assert not check_outputs(
        {"y": np.array([-0.0], np.float32)}, case_of([0.0], exact=True)
    ).message


def test_every_element_of_a_large_output_is_compared():
    ref = np.zeros(3_000_001)
    got = np.zeros(3_000_001, np.float32)
    got[-1] = 1
    message = check_outputs({"y": got}, case_of(ref, slack=0.5)).message
    assert "[3000000]" in message
    assert "1 of 3000001" in message


def test_references_are_kept_between_candidates_within_the_memory_bound():
    class Counting:
        reproducible = True
        constant_inputs = ()

        def __init__(self):
            self.asked = []

        def case(self, which, seed, constant_seed=None, *, exchanged=False):
            self.asked.append((which, seed))
            return case_of(np.zeros(1000), slack=1.0)

    oracle = Counting()
    verifier = Verifier(oracle, memory_bytes=60_000)
    for _ in range(2):
        verifier.case(Pass.NORMAL, 1)
        verifier.case(Pass.RANGE, 1)
    assert len(oracle.asked) == 2
    verifier.case(Pass.NORMAL, 2)
    assert verifier.kept_bytes <= 60_000
    verifier.case(Pass.NORMAL, 1)
    assert len(oracle.asked) == 4
    small = Verifier(oracle, memory_bytes=1)
    assert small.case(Pass.NORMAL, 1) is small.case(Pass.NORMAL, 1)


def test_arguments_read_and_written_are_restored_before_every_call():
    class Update:
        reproducible = True
        constant_inputs = ()

        def case(self, which, seed, constant_seed=None, *, exchanged=False):
            x = np.random.default_rng(seed).standard_normal(8).astype(np.float32)
            ref = x.astype(np.float64) * 2
            return Case({"x": x}, {"x": Expected(ref, ref, ref, True)})

    spec = LaunchSpec(EntrySpec("f", (ArgumentSpec("x", "f32", (8,), (1,), "inout", 64),), 1, 0))

    def double(inputs, outputs):
        outputs["x"][...] = 2 * inputs["x"]

    verdict = Verifier(Update()).verify(HostCallable(double, spec), 0)
    assert verdict.status is Status.OK, verdict.verification.message


def test_constant_inputs_are_bound_anew_for_each_pass():
    bound = []

    class Counted(HostCallable):
        def bind(self, inputs):
            bound.append(inputs["b"])
            return super().bind(inputs)

    work = workload(constant_inputs=("b",))
    verdict = Verifier(HirOracle(work)).verify(Counted(product, launch()), 0)
    assert verdict.status is Status.OK
    assert len(bound) == 4  # and once at other addresses


def test_fast_maths_is_held_to_its_own_bound():
    text = """program main(x: f32[64]) -> (y: f32[64]) {
  %1 = exp(%0) : f32[64]
  return %1
}
"""
    spec = LaunchSpec(
        EntrySpec(
            "f",
            (
                ArgumentSpec("x", "f32", (64,), (1,), "in", 64),
                ArgumentSpec("y", "f32", (64,), (1,), "out", 64),
            ),
            1,
            0,
        )
    )

    def coarse(inputs, outputs):
        outputs["y"][...] = (np.exp(inputs["x"].astype(np.float64)) * (1 + 2e-6)).astype(np.float32)

    from tfsearch.core.records import Accuracy

    precise = workload(program=text)
    assert verify(coarse, precise, spec).status is Status.WRONG
    fast = dataclasses.replace(precise, accuracy=Accuracy.FAST)
    assert verify(coarse, fast, spec).status is Status.OK


def test_half_precision_inside_an_f32_kernel_is_wrong():
    def run(inputs, outputs):
        narrow = DType.BF16.numpy
        a, b = (inputs[n].astype(narrow).astype(np.float32) for n in "ab")
        outputs["c"][...] = a @ b

    assert verify(run).status is Status.WRONG
