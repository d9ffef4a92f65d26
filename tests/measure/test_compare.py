import dataclasses

import numpy as np
import pytest

from tests.measure import fake_runner
from tests.measure.helpers import RUNNER, job, launch, workload
from tests.measure.simulated import SimulatedRunner
from tfsearch.core.errors import RequestError
from tfsearch.core.launch import ArgumentSpec, EntrySpec, LaunchSpec
from tfsearch.core.records import Status
from tfsearch.measure.bench import Context
from tfsearch.measure.compare import Baseline, benchmark, final
from tfsearch.measure.host import HostCallable, host_launch, timed_rounds
from tfsearch.measure.run import measure

LIMITS = {"budget_s": 20.0, "most": 300, "share": 0.01}


def jobs_of(folder, *times, **fields):
    made = []
    for number, us in enumerate(times):
        place = folder / str(number)
        place.mkdir(exist_ok=True)
        made.append(job(place, "right", options={"us": us}, limits=LIMITS, **fields))
    return made


def test_a_two_percent_gap_under_three_percent_noise_is_decided_right(tmp_path):
    jobs = jobs_of(tmp_path, 10.2, 10.0)
    context = Context()
    right, rounds = 0, []
    for seed in range(60):
        runner = SimulatedRunner(seed, noise=0.03, walk=0.03)
        found = final(jobs, runner, context)
        right += found.reference == 1
        rounds.append(len(found.standings[0].outcome.measurement.samples_us))
    assert right >= 57
    assert min(rounds) < 100


@pytest.mark.parametrize("flips", [0.0, 0.05])
def test_the_right_one_of_many_close_ones_wins_a_final(tmp_path, flips):
    """The best is 2 % ahead of the next ones; samples have 3 % noise, drift and slow modes."""
    jobs = jobs_of(tmp_path, 10.2, 10.2, 10.0, 10.4, 11.0)
    context = Context()
    found = [
        final(jobs, SimulatedRunner(seed, noise=0.03, walk=0.03, flips=flips), context)
        for seed in range(40)
    ]
    assert sum(one.reference == 2 for one in found) >= 38


def test_the_best_comes_through_measuring_and_the_final(tmp_path):
    """Twelve candidates, measured one by one as in a session; the best four meet in a final."""
    times = (10.0, 10.2, 10.4, 10.6, 10.8, 11.0, 11.5, 12.0, 12.5, 13.0, 14.0, 16.0)
    jobs = jobs_of(tmp_path, *times)
    context = Context()
    right = 0
    for seed in range(20):
        runner = SimulatedRunner(seed, noise=0.03, walk=0.002)
        medians = [measure(one, runner, context).measurement.median_us for one in jobs]
        best = np.argsort(medians)[:4]
        found = final([jobs[k] for k in best], runner, context)
        right += best[found.reference] == 0
    assert right >= 19


def test_ratios_are_relative_to_the_winner_with_intervals(tmp_path):
    found = final(jobs_of(tmp_path, 10.0, 5.0, 6.0), SimulatedRunner(1, noise=0.01, walk=0.05))
    assert found.reference == 1
    assert found.decided
    assert [s.ratio for s in found.standings] == pytest.approx([2.0, 1.0, 1.2], rel=0.02)
    for standing, true in zip(found.standings, (2.0, 1.0, 1.2), strict=True):
        low, high = standing.ratio_ci
        assert low <= true <= high
        assert standing.outcome.status is Status.OK


def test_equals_end_as_a_tie_or_undecided_but_never_by_error(tmp_path):
    found = final(jobs_of(tmp_path, 10.0, 10.0), SimulatedRunner(2, noise=0.0001))
    assert found.decided
    assert [s.ratio for s in found.standings] == pytest.approx([1.0, 1.0], abs=0.002)


def test_the_beaten_sit_out_while_the_close_ones_go_on(tmp_path):
    found = final(jobs_of(tmp_path, 20.0, 10.0, 10.1), SimulatedRunner(3, noise=0.03))
    counts = [len(s.outcome.measurement.samples_us) for s in found.standings]
    assert counts[0] < counts[1]
    assert counts[1] == counts[2]
    assert found.reference in (1, 2)


def test_a_wrong_build_keeps_its_status_and_the_others_are_compared(tmp_path):
    jobs = jobs_of(tmp_path, 10.0, 12.0)
    wrong = job(tmp_path, "zeros", options={"us": 1.0}, limits=LIMITS)
    found = final([wrong, *jobs], SimulatedRunner())
    assert found.standings[0].outcome.status is Status.WRONG
    assert found.standings[0].ratio is None
    assert found.reference == 1


@pytest.mark.parametrize("cheat", ["stops_working", "right_ten_times"])
def test_a_build_that_turns_wrong_while_it_is_timed_never_wins(tmp_path, cheat):
    jobs = jobs_of(tmp_path, 10.0, 10.1)
    cheater = job(tmp_path, cheat, options={"us": 1.0}, limits=LIMITS)
    found = final([*jobs, cheater], SimulatedRunner())
    assert found.standings[2].outcome.status is Status.WRONG
    assert found.standings[2].outcome.where == "check"
    assert found.reference in (0, 1)
    assert found.standings[found.reference].ratio == 1.0


def test_an_implausibly_fast_build_never_wins(tmp_path):
    jobs = jobs_of(tmp_path, 10.0, 1.0, lower_bound_us=5.0)
    found = final(jobs, SimulatedRunner())
    assert found.reference == 0
    assert found.standings[1].outcome.status is Status.IMPLAUSIBLE


def test_a_final_of_failures_has_no_winner(tmp_path):
    found = final([job(tmp_path, "zeros"), job(tmp_path, "load_error")], SimulatedRunner())
    assert found.reference is None
    assert not found.decided
    statuses = [s.outcome.status for s in found.standings]
    assert statuses == [Status.WRONG, Status.LOAD_ERROR]


def test_a_single_build_wins_its_final(tmp_path):
    found = final(jobs_of(tmp_path, 10.0), SimulatedRunner())
    assert (found.reference, found.decided) == (0, True)


def test_slow_mode_rounds_do_not_decide_a_final(tmp_path):
    for seed in range(4):
        found = final(
            jobs_of(tmp_path, 10.5, 10.0, probes=("tile",), probe_reference={"tile": 2300.0}),
            SimulatedRunner(seed, noise=0.01, flips=0.2),
        )
        assert found.reference == 1
        assert found.standings[1].outcome.measurement.median_us == pytest.approx(10.0, rel=0.03)
    assert "tile" in found.conditions["probes"]


def test_mixed_finals_are_refused(tmp_path):
    first, second = jobs_of(tmp_path, 10.0, 11.0)
    with pytest.raises(RequestError, match="at least one"):
        final([], SimulatedRunner())
    other = dataclasses.replace(second, workload=workload(reproducible=False))
    with pytest.raises(RequestError, match="same workload"):
        final([first, other], SimulatedRunner())
    cold = dataclasses.replace(second, protocol="cold")
    with pytest.raises(RequestError, match="share a protocol"):
        final([first, cold], SimulatedRunner())


def test_a_build_is_compared_with_host_baselines_in_the_same_rounds(tmp_path):
    made = job(tmp_path, "right", options={"sleep_s": 0.002}, limits={"most": 20})
    baselines = [
        ("numpy", Baseline("numpy", "tests.measure.fake_runner:numpy_baseline").make(made)),
        ("wrong", Baseline("wrong", "tests.measure.fake_runner:wrong_baseline").make(made)),
    ]
    found = benchmark(made, baselines, fake_runner.Runner())
    assert [s.name for s in found.standings] == ["build", "numpy", "wrong"]
    assert found.reference == 0
    assert found.standings[1].ratio < 1
    assert found.standings[2].outcome.status is Status.WRONG
    assert found.standings[2].ratio is None


def test_a_wrong_build_has_nothing_to_be_compared_with(tmp_path):
    made = job(tmp_path, "zeros")
    baseline = Baseline("numpy", "tests.measure.fake_runner:numpy_baseline").make(made)
    found = benchmark(made, [("numpy", baseline)], fake_runner.Runner())
    assert found.standings[0].outcome.status is Status.WRONG
    assert found.standings[1].outcome.status is Status.CANCELLED
    assert found.reference is None


def test_cold_rounds_of_a_host_function_need_a_runner_that_flushes():
    flushed = []

    class Flushing(fake_runner.Runner):
        def flush(self):
            flushed.append(1)

    kernel = HostCallable(lambda inputs, outputs: None, LaunchSpec(EntrySpec("f", (), 1, 0)))
    sets = [kernel.bind({})]
    with pytest.raises(RequestError, match="warm protocol"):
        timed_rounds(fake_runner.Runner(), [kernel], [sets], [4], 2, cold=True, seed=0)
    times = timed_rounds(Flushing(), [kernel], [sets], [4], 2, cold=True, seed=0)
    assert times.shape == (2, 1)
    assert len(flushed) == 8


@pytest.mark.parametrize("units", [1, 4])
def test_a_kernel_of_several_units_waits_for_a_host_functions_threads(monkeypatch, units: int):
    rests: list[float] = []
    monkeypatch.setattr("tfsearch.measure.host.time.sleep", rests.append)
    order: list[str] = []

    class Native:
        launch = LaunchSpec(EntrySpec("f", (), units, 0))

    class Runner(fake_runner.Runner):
        def time(self, kernels, arguments, batches, rounds, *, cold, seed):
            order.append(f"native {batches[0]}")
            return np.ones((1, 1), dtype=np.int64)

    host = HostCallable(lambda inputs, outputs: order.append("host"), Native.launch)
    timed_rounds(
        Runner(), [host, Native()], [[host.bind({})], [None]], [1, 7], 4, cold=False, seed=0
    )
    if units == 1:
        assert rests == []
        assert "native 1" not in order
        return
    waits = [now for before, now in zip(["host", *order], order, strict=False) if before == "host"]
    assert "native 7" not in waits, "the first call after a host function is not timed"
    assert len(rests) == order.count("native 1") >= 1


def test_host_functions_see_the_inputs_of_prepare_entries_and_no_prepared_ones():
    main = launch().main
    a, b, c = main.arguments
    packed = ArgumentSpec("packed", "f32", (64,), (1,), "prepared", 64)
    filled = dataclasses.replace(packed, io="out")
    spec = LaunchSpec(
        dataclasses.replace(main, arguments=(a, packed, c)),
        (EntrySpec("pack", (b, filled), 1, 0),),
    )
    assert {x.name for x in host_launch(spec).main.arguments} == {"a", "b", "c"}
    assert RUNNER
