"""The simulated target: any program, legal TIR, right results, an honest clock."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from tfsearch.core import keys
from tfsearch.core.errors import RequestError, UnavailableError
from tfsearch.core.records import Status
from tfsearch.ir.hir.builtins import build_workload
from tfsearch.ir.hir.text import parse_program
from tfsearch.ir.workload import Workload
from tfsearch.measure.job import Limits, MeasureJob
from tfsearch.measure.run import measure
from tfsearch.prove.interpret import interpret
from tfsearch.prove.verify import verify
from tfsearch.search import Result, make_policy
from tfsearch.space import Point
from tfsearch.target.null import NullTarget, model, target
from tfsearch.target.null.atoms import NullAtoms, op_atom
from tfsearch.target.null.problem import NullProblem, reduce_program
from tfsearch.target.null.runner import make
from tfsearch.tune.proof import FULL, prove_reduced

TEXTS = {
    "select": """program f(x: f32[4,6], y: f32[4,6]) -> (z: f32[4,6]) {
      %2 = lt(%0, %1) : bool[4,6]
      %3 = select(%2, %0, %1) : f32[4,6]
      return %3
    }""",
    "scalar": """program f(x: f32[4,6]) -> (total: f64[], same: f32[4,6]) {
      %1 = cast(%0) : f64[4,6]
      %2 = reduce(%1) {fn = sum, axes = [0,1], acc = f64} : f64[]
      return %2, %0
    }""",
    "quantise": """program f(x: f32[5,9]) -> (q: i8[5,9], s: f32[5]) {
      %1 = abs(%0) : f32[5,9]
      %2 = reduce(%1) {fn = max, axes = [1], acc = f32} : f32[5]
      %3 = const {value = 127.0} : f32[]
      %4 = broadcast(%3) {dims = []} : f32[5]
      %5 = div(%2, %4) : f32[5]
      %6 = broadcast(%5) {dims = [0]} : f32[5,9]
      %7 = div(%0, %6) : f32[5,9]
      %8 = cast(%7) : i8[5,9]
      return %8, %5
    }""",
    "reshape": """program f(x: f32[4,6]) -> (y: f32[24]) {
      %1 = reshape(%0) : f32[24]
      %2 = exp(%1) : f32[24]
      return %2
    }""",
    "layouts": """program f(a: f32[4,6; strides 8,1], b: f32[6,5]:col) -> (c: f32[4,5]) {
      %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[4,5]
      return %2
    }""",
}
BUILTINS = (
    ("gemm", {"m": 5, "n": 7, "k": 9, "dtype": "bf16", "trans_b": "true"}),
    ("gemm", {"m": 3, "n": 4, "k": 8, "dtype": "i8"}),
    ("softmax", {"rows": 6, "cols": 11, "dtype": "f32"}),
    ("rms_norm", {"rows": 6, "cols": 11, "dtype": "f16"}),
    ("layer_norm", {"rows": 6, "cols": 11, "dtype": "f32"}),
)
WORKLOADS = [Workload(parse_program(text), name) for name, text in TEXTS.items()] + [
    build_workload(op, options) for op, options in BUILTINS
]
IDS = [f"{w.op}-{w.dtype.value}" for w in WORKLOADS]
ORDERS = [
    Point("whole", {"block": 64, "lanes": 16, "unroll": 2, "stages": 2, "order": order})
    for order in model.ORDERS
]


def _problem(workload: Workload) -> NullProblem:
    return NullProblem(workload, target.nominal())


@pytest.mark.parametrize("point", ORDERS, ids=model.ORDERS)
@pytest.mark.parametrize("workload", WORKLOADS, ids=IDS)
def test_any_program_lowers_to_legal_and_right_tir(workload: Workload, point: Point) -> None:
    problem = _problem(workload)
    atoms, limits = target.atoms(problem.device), target.limits(problem.device)
    assert verify(problem.lower(point), atoms, limits) == ()
    assert prove_reduced(*problem.reduced(point), atoms, limits, FULL) == ()


@pytest.mark.parametrize("workload", WORKLOADS, ids=IDS)
def test_any_program_is_built_verified_and_timed(workload: Workload, tmp_path: Path) -> None:
    problem = _problem(workload)
    compiler = target.compiler(None)
    source = problem.emit(problem.lower(ORDERS[0]), ORDERS[0])
    out = tmp_path / "artifact"
    outcome = compiler.compile(source, (), (), out, timeout_s=1.0, memory_bytes=1 << 30)
    assert outcome.status is Status.OK
    job = MeasureJob(
        workload=workload.record,
        artifact=str(out),
        sha256=keys.digest_bytes(out.read_bytes()),
        launch=source.launch,
        lower_bound_us=model.bound_us(
            {"work": model.work(workload.program), "bytes": model.traffic(workload.program)}
        ),
        limits=Limits(budget_s=0.1),
    )
    found = measure(job, make("null"))
    assert found.status is Status.OK, found.message
    assert found.measurement is not None
    facts = {"work": model.work(workload.program), "bytes": model.traffic(workload.program)}
    told = model.time_us(facts, ORDERS[0].params)
    assert told <= found.measurement.median_us <= told * 1.03


def test_the_bound_is_below_every_time_and_the_model_is_imperfect_on_purpose() -> None:
    problem = _problem(build_workload("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "f32"}))
    facts = {"work": 64**3, "bytes": 3 * 64 * 64 * 4}
    (points,) = problem.space.legal_set()
    predicted = problem.predict(points)
    times = np.array([model.time_us(facts, points.params(row)) for row in range(len(points))])
    assert (predicted.bound_us <= times).all()
    assert (predicted.estimate_us <= times * (1 + 1e-12)).all()
    assert (predicted.estimate_us < times * 0.6).any()
    assert np.median(times) > 1.5 * times.min()


def test_the_ranked_policy_learns_what_the_model_leaves_out() -> None:
    problem = _problem(build_workload("gemm", {"m": 64, "n": 64, "k": 64, "dtype": "f32"}))
    facts = {"work": 64**3, "bytes": 3 * 64 * 64 * 4}
    (points,) = problem.space.legal_set()
    least = min(model.time_us(facts, points.params(row)) for row in range(len(points)))
    policy = make_policy("ranked", problem)
    times: list[float] = []
    for _ in range(16):
        (point,) = policy.ask(1)
        times.append(model.time_us(facts, point.params))
        policy.tell([Result(point, Status.OK, times[-1])])
    assert times[0] > 1.5 * least
    assert min(times) <= 1.05 * least


def test_the_clock_is_named_as_simulated() -> None:
    (device,) = target.devices()
    assert "simulated" in device.record.name
    assert device.record.kind == "simulated"
    assert "simulated" in device.facts["clock"]
    assert target.preference == 0


def test_atoms_are_made_from_their_id_alone() -> None:
    program = WORKLOADS[0].program
    atom = op_atom(program, 2)
    made = NullAtoms()[atom]
    out = np.zeros((4, 6), np.bool_)
    made.semantics([out, np.zeros((4, 6), np.float32), np.ones((4, 6), np.float32)])
    assert out.all()
    for unknown in ("x86.fma", "null.", "null.unary.exp", "null.unary.exq.f32x3", "null.const.f32"):
        assert unknown not in NullAtoms()


def test_reduced_programs_are_small_and_keep_equal_sizes_equal() -> None:
    big = build_workload("gemm", {"m": 512, "n": 512, "k": 64, "dtype": "f32"}).program
    small = reduce_program(big)
    assert [item.type.sizes for item in small.inputs] == [(5, 3), (3, 5)]
    split = parse_program(TEXTS["reshape"])
    assert reduce_program(split) == split


def test_the_interpreter_runs_the_whole_program() -> None:
    workload = build_workload("softmax", {"rows": 3, "cols": 5, "dtype": "f32"})
    problem = _problem(workload)
    x = np.arange(15, dtype=np.float32).reshape(3, 5)
    outcome = interpret(problem.lower(ORDERS[0]), target.atoms(problem.device), {"x": x})
    assert outcome.refusals == ()
    (y,) = outcome.outputs.values()
    np.testing.assert_allclose(y.sum(axis=1), 1.0, rtol=1e-6)


def test_open_dimensions_and_wrong_names_are_refused() -> None:
    ranged = build_workload("gemm", {"m": "1..8", "n": 4, "k": 4, "dtype": "f32"})
    with pytest.raises(RequestError, match="open: m"):
        _problem(ranged)
    with pytest.raises(UnavailableError, match="writer"):
        NullTarget().compiler("gcc")
    with pytest.raises(RequestError, match="-march"):
        NullTarget().compiler(None).check_flags(["-O2", "-march=native"])
    with pytest.raises(OSError, match="other"):
        make("other")


def test_flags_and_parameters_are_in_the_artifact(tmp_path: Path) -> None:
    problem = _problem(WORKLOADS[0])
    source = problem.emit(problem.lower(ORDERS[0]), ORDERS[0])
    compiler = target.compiler(None)
    out = tmp_path / "a"
    compiler.compile(source, ("-O2",), ("A=1",), out, timeout_s=1.0, memory_bytes=1 << 30)
    content = json.loads(out.read_text())
    assert content["flags"] == ["-O2"]
    assert content["macros"] == ["A=1"]
    assert content["document"]["params"] == dict(ORDERS[0].params)
    (tmp_path / "b").write_text("{}")
    with pytest.raises(OSError, match="not an artifact"):
        make("null").load(tmp_path / "b", source.launch)
