import dataclasses
import errno

import numpy as np
import pytest

from tests.measure import fake_runner
from tests.measure.helpers import job, workload
from tests.measure.simulated import SimulatedRunner
from tfsearch.core.errors import RequestError
from tfsearch.core.records import Status
from tfsearch.measure.bench import Context
from tfsearch.measure.run import measure

STEADY = {"share": 0.02, "most": 300, "budget_s": 5.0}


def run(folder, kernel, runner=None, context=None, **fields):
    return measure(job(folder, kernel, **fields), runner or fake_runner.Runner(), context)


def test_a_right_kernel_gets_samples_and_an_interval(tmp_path):
    phases = []
    outcome = measure(job(tmp_path, "right"), fake_runner.Runner(), report=phases.append)
    assert outcome.status is Status.OK, outcome.message
    found = outcome.measurement
    assert found.ci_us[0] <= found.median_us <= found.ci_us[1]
    assert len(found.samples_us) >= 15
    assert not found.censored
    assert outcome.verification.passed
    assert phases.count("reference") == phases.count("") > 0
    own = [phase for phase in phases if phase not in ("reference", "")]
    assert own[:2] == ["load", "verify"]
    assert "read-only" in own
    assert own[own.index("bind") :][:3] == ["bind", "time", "check"]
    conditions = found.conditions
    assert conditions["guards"]
    assert conditions["stopped"] == "converged"
    assert {"load", "frequency_mhz", "drift", "set_aside", "probes", "batch"} <= set(conditions)


@pytest.mark.parametrize(
    ("kernel", "status", "code", "where"),
    [
        ("off_by_one_element", Status.WRONG, "verify.wrong", "verify"),
        ("zeros", Status.WRONG, "verify.wrong", "verify"),
        ("partial_writer", Status.WRONG, "verify.unwritten", "verify"),
        ("writes_nothing", Status.WRONG, "verify.unwritten", "verify"),
        ("corrupts_input", Status.WRONG, "verify.input-changed", "verify"),
        ("returns_previous", Status.WRONG, "verify.kept", "verify"),
        ("right_ten_times", Status.WRONG, "verify.later-calls", "check"),
        ("kept_by_pointer", Status.WRONG, "verify.kept", "verify"),
        ("kept_by_pointer_after_verification", Status.WRONG, "verify.kept", "check"),
        ("stops_working", Status.WRONG, "verify.later-calls", "check"),
        ("lower_precision", Status.WRONG, "verify.wrong", "verify"),
        ("nondeterministic", Status.NONDETERMINISTIC, "verify.nondeterministic", "verify"),
        ("out_of_bounds", Status.WRONG, "verify.out-of-bounds", "verify"),
        ("load_error", Status.LOAD_ERROR, "measure.load", "load"),
        ("bind_error", Status.DEVICE_ERROR, "measure.device", "verify"),
        ("device_error", Status.DEVICE_ERROR, "measure.device", "verify"),
    ],
)
def test_each_fault_gets_its_status(tmp_path, kernel, status, code, where):
    outcome = run(tmp_path, kernel)
    assert (outcome.status, outcome.code, outcome.where) == (status, code, where)
    assert outcome.message
    assert outcome.measurement is None
    if status is Status.WRONG:
        assert not outcome.verification.passed


def test_an_allocation_failure_of_the_device_is_out_of_memory(tmp_path):
    class Full(fake_runner.Runner):
        def load(self, artifact, launch):
            kernel = super().load(artifact, launch)

            def bind(inputs):
                raise OSError(errno.ENOMEM, "out of device memory")

            kernel.bind = bind
            return kernel

    outcome = run(tmp_path, "right", Full())
    assert (outcome.status, outcome.code) == (Status.OUT_OF_MEMORY, "measure.memory")


def test_an_artifact_that_was_exchanged_is_not_loaded(tmp_path):
    made = job(tmp_path, "right")
    (tmp_path / "right.json").write_text('{"kernel": "crash"}')
    outcome = measure(made, fake_runner.Runner())
    assert outcome.status is Status.LOAD_ERROR
    assert "SHA-256" in outcome.message


def test_a_missing_artifact_is_a_load_error(tmp_path):
    made = dataclasses.replace(job(tmp_path, "right"), artifact=str(tmp_path / "gone"))
    assert measure(made, fake_runner.Runner()).status is Status.LOAD_ERROR


def test_a_time_below_the_sound_bound_is_implausible(tmp_path):
    runner = SimulatedRunner(noise=0.001)
    outcome = run(tmp_path, "right", runner, options={"us": 4.0}, lower_bound_us=5.0)
    assert (outcome.status, outcome.code) == (Status.IMPLAUSIBLE, "measure.implausible")
    assert "5" in outcome.message
    assert outcome.verification.passed
    assert run(tmp_path, "right", runner, options={"us": 6.0}, lower_bound_us=5.0).status is (
        Status.OK
    )


def test_batches_reach_the_sample_duration_and_cover_every_set(tmp_path):
    runner = SimulatedRunner(noise=0.001)
    outcome = run(tmp_path, "right", runner, options={"us": 0.7})
    conditions = outcome.measurement.conditions
    assert conditions["batch"] * 0.7 >= 190
    assert conditions["batch"] % conditions["sets"] == 0
    assert outcome.measurement.median_us == pytest.approx(0.7, rel=0.01)


def test_argument_sets_stay_within_their_memory(tmp_path):
    limits = {"argument_bytes": 700}
    outcome = run(tmp_path, "right", SimulatedRunner(), limits=limits)
    assert outcome.measurement.conditions["sets"] == 1
    assert run(tmp_path, "kept_by_pointer_after_verification", limits=limits).where == "check"


def test_cold_and_warm_are_told_to_the_runner(tmp_path):
    runner = SimulatedRunner(noise=0.001)
    warm = run(tmp_path, "right", runner).measurement
    cold = run(tmp_path, "right", runner, protocol="cold").measurement
    assert cold.median_us == pytest.approx(1.5 * warm.median_us, rel=0.01)
    assert warm.protocol != cold.protocol


def test_a_candidate_far_behind_the_incumbent_is_censored_early(tmp_path):
    runner = SimulatedRunner(noise=0.2)
    alone = run(tmp_path, "right", runner, options={"us": 20.0}, limits=STEADY).measurement
    raced = run(
        tmp_path, "right", runner, options={"us": 20.0}, limits=STEADY, incumbent_us=5.0
    ).measurement
    assert raced.censored
    assert raced.conditions["stopped"] == "lost"
    assert len(raced.samples_us) < len(alone.samples_us)
    assert not alone.censored


def test_the_budget_ends_a_noisy_measurement(tmp_path):
    limits = {"budget_s": 0.05, "share": 1e-9, "most": 10**9}
    outcome = run(tmp_path, "right", SimulatedRunner(), limits=limits)
    assert outcome.measurement.conditions["stopped"] == "budget"
    assert outcome.seconds < 5


def test_a_budget_too_small_for_an_interval_censors(tmp_path):
    limits = {"budget_s": 0.0, "share": 1e-9}
    outcome = run(tmp_path, "right", SimulatedRunner(), limits=limits, options={"us": 9000.0})
    assert len(outcome.measurement.samples_us) < 6
    assert outcome.measurement.censored


def test_slow_mode_samples_are_set_aside_counted_and_kept_on_record(tmp_path):
    aside = 0
    for seed in range(8):
        runner = SimulatedRunner(seed, noise=0.01, flips=0.15)
        outcome = run(
            tmp_path,
            "right",
            runner,
            limits=STEADY,
            probes=("tile",),
            probe_reference={"tile": 2300.0},
        )
        found = outcome.measurement
        assert found.median_us == pytest.approx(10.0, rel=0.03)
        conditions = found.conditions
        assert conditions["mode"] == "fast"
        assert conditions["set_aside"] == len(conditions["set_aside_us"])
        assert conditions["probes"]["tile"]["reference"] >= 2300.0
        assert max(found.samples_us) < 15.0
        aside += conditions["set_aside"]
    assert aside > 0


def test_a_unit_that_stays_slow_is_said_so(tmp_path):
    runner = SimulatedRunner(noise=0.01)
    runner.is_slow = True
    outcome = run(
        tmp_path,
        "right",
        runner,
        limits={"budget_s": 0.1},
        probes=("tile",),
        probe_reference={"tile": 2300.0},
    )
    assert outcome.measurement.conditions["mode"] == "slow"
    assert outcome.measurement.median_us == pytest.approx(40.0, rel=0.05)
    assert outcome.measurement.conditions["waits"] > 0


def test_the_fastest_probe_of_earlier_jobs_is_the_reference_of_later_ones(tmp_path):
    context = Context()
    runner = SimulatedRunner(noise=0.01)
    run(tmp_path, "right", runner, context, probes=("tile",))
    runner.is_slow = True
    later = run(tmp_path, "right", runner, context, probes=("tile",), limits={"budget_s": 0.05})
    assert later.measurement.conditions["mode"] == "slow"


def test_references_are_computed_once_for_all_candidates_of_a_workload(tmp_path):
    context = Context()
    first = context.verifier(job(tmp_path, "right"))
    assert context.verifier(job(tmp_path, "zeros")) is first
    other = workload(reproducible=False)
    assert context.verifier(job(tmp_path, "right", work=other)) is not first


def test_contents_change_from_group_to_group_and_differ_between_sets(tmp_path):
    seen = []

    class Watching(SimulatedRunner):
        def time(self, kernels, arguments, batches, rounds, *, cold, seed):
            seen.append([one.read("a").tobytes() for one in arguments[0]])
            return super().time(kernels, arguments, batches, rounds, cold=cold, seed=seed)

    run(tmp_path, "right", Watching(noise=0.1), limits=STEADY)
    assert all(len(set(sets)) == 2 for sets in seen)
    assert len({sets[0] for sets in seen}) == 3


def test_constant_inputs_keep_their_contents_while_the_others_change(tmp_path):
    seen = []

    class Watching(SimulatedRunner):
        def time(self, kernels, arguments, batches, rounds, *, cold, seed):
            seen.extend((one.read("a").tobytes(), one.read("b").tobytes()) for one in arguments[0])
            return super().time(kernels, arguments, batches, rounds, cold=cold, seed=seed)

    outcome = run(tmp_path, "right", Watching(), work=workload(constant_inputs=("b",)))
    assert outcome.status is Status.OK
    assert len({a for a, _ in seen}) == 3
    assert len({b for _, b in seen}) == 1


def test_an_oracle_can_be_named_by_import_path(tmp_path):
    made = job(tmp_path, "right", oracle="tests.measure.test_run:doubled_oracle")
    assert measure(made, fake_runner.Runner()).status is Status.WRONG
    unknown = dataclasses.replace(made, oracle="tests.measure.test_run:gone")
    with pytest.raises(RequestError, match="gone"):
        measure(unknown, fake_runner.Runner())


def doubled_oracle(record, sizes):
    from tfsearch.measure.numerics import Case, Expected
    from tfsearch.measure.oracle import HirOracle

    class Doubled(HirOracle):
        def case(self, which, seed, constant_seed=None, *, exchanged=False):
            case = super().case(which, seed, constant_seed)
            ref = 2 * case.expected["c"].ref
            return Case(case.inputs, {"c": Expected(ref, ref, ref, True)})

    return Doubled(record, sizes)


def test_ranges_of_a_program_are_bound_by_the_job(tmp_path):
    text = """program main(a: f32[m: 1..64,9], b: f32[9,5]) -> (c: f32[m,5]) {
  %2 = contract(%0, %1) {dims = "mk,kn->mn", acc = f32} : f32[m,5]
  return %2
}
"""
    work = workload(program=text)
    assert run(tmp_path, "right", work=work, sizes={"m": 7}).status is Status.OK
    with pytest.raises(RequestError, match="m has no size"):
        run(tmp_path, "right", work=work)


def test_samples_are_per_call_microseconds(tmp_path):
    outcome = run(tmp_path, "right", SimulatedRunner(noise=0.0), options={"us": 12.5})
    assert np.allclose(outcome.measurement.samples_us, 12.5, rtol=1e-4)
