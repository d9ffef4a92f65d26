"""From facts to time: the busiest resource of each phase, phases in turn, a sound bound."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.recipes.contractions import gemm, problem
from tfsearch.cost.model import Facts, Machine, Phase, bound, estimate, phase_cycles

MACHINE = Machine(
    clock_ghz=2.0,
    bandwidth={"l2": 32.0, "l3": 8.0, "memory": 4.0},
    shared_bandwidth={"memory": 6.0},
    launch_us=(0.5, 3.0),
    peak_flops={"f32": 1e11},
    peak_bytes=1e10,
    calibrated=False,
    document="x",
)
ONE = np.ones(1)


def facts(*phases: Phase, units: float = 1, flops: float = 1e6, moved: float = 1e6) -> Facts:
    return Facts(phases, ONE * units, {"f32": flops}, moved)


def test_a_phase_takes_as_long_as_its_busiest_resource() -> None:
    phase = Phase("x", {"fma": 100 * ONE, "load": 40 * ONE}, {"l2": 64 * ONE, "l3": 8 * ONE})
    assert phase_cycles(phase, MACHINE, ONE)[0] == 100
    slower = replace(phase, bytes={"l3": 1600 * ONE})
    assert phase_cycles(slower, MACHINE, ONE)[0] == 200
    assert phase_cycles(replace(slower, overhead=7.0), MACHINE, ONE)[0] == 207


def test_units_compete_for_what_they_share() -> None:
    phase = Phase("x", {}, {"memory": 60 * ONE})
    assert phase_cycles(phase, MACHINE, ONE)[0] == 15
    assert phase_cycles(phase, MACHINE, 4 * ONE)[0] == 40


def test_phases_follow_one_another_after_the_launch() -> None:
    a, b = Phase("a", {"fma": 2000 * ONE}), Phase("b", {"fma": 4000 * ONE})
    both = estimate(facts(a, b), MACHINE).estimate_us[0]
    assert both == pytest.approx(6000 / 2e3 + 0.5)
    several = estimate(facts(a, b, units=2), MACHINE).estimate_us[0]
    assert several == pytest.approx(6000 / 2e3 + 3.0)


def test_the_bound_is_arithmetic_when_warm_and_traffic_too_when_cold() -> None:
    found = facts(flops=1e6, moved=1e6)
    assert bound(found, MACHINE, cold=False)[0] == pytest.approx(10.0)
    assert bound(found, MACHINE, cold=True)[0] == pytest.approx(100.0)
    assert bound(replace(found, units=4 * ONE), MACHINE, cold=False)[0] == pytest.approx(2.5)


def test_unknown_peaks_bound_nothing() -> None:
    unknown = replace(MACHINE, peak_flops={}, peak_bytes=None)
    assert bound(facts(), unknown, cold=True)[0] == 0
    other = replace(facts(), flops={"i8": 1e9})
    assert bound(other, MACHINE, cold=False)[0] == 0


AMOUNT = st.floats(0, 1e9)


@settings(max_examples=60, deadline=None)
@given(
    cycles=st.lists(AMOUNT, min_size=1, max_size=4),
    moved=st.fixed_dictionaries(dict.fromkeys(MACHINE.bandwidth, AMOUNT)),
    more=AMOUNT,
    units=st.integers(1, 64),
)
def test_more_work_never_takes_less_time(
    cycles: list[float], moved: dict[str, float], more: float, units: int
) -> None:
    phase = Phase(
        "x",
        {f"pipe{i}": c * ONE for i, c in enumerate(cycles)},
        {level: b * ONE for level, b in moved.items()},
    )
    base = estimate(facts(phase, units=units), MACHINE).estimate_us[0]
    for pipe in phase.cycles:
        grown = replace(phase, cycles={**phase.cycles, pipe: phase.cycles[pipe] + more})
        assert estimate(facts(grown, units=units), MACHINE).estimate_us[0] >= base
    for level in phase.bytes:
        grown = replace(phase, bytes={**phase.bytes, level: phase.bytes[level] + more})
        assert estimate(facts(grown, units=units), MACHINE).estimate_us[0] >= base
    faster = replace(MACHINE, clock_ghz=4.0)
    assert estimate(facts(phase, units=units), faster).estimate_us[0] <= base


@settings(max_examples=40, deadline=None)
@given(flops=st.floats(1, 1e12), units=st.integers(1, 64), moved=st.floats(1, 1e10))
def test_the_bound_shrinks_with_units_and_peaks(flops: float, units: int, moved: float) -> None:
    found = facts(flops=flops, units=units, moved=moved)
    base = bound(found, MACHINE, cold=True)[0]
    assert bound(replace(found, units=found.units + 1), MACHINE, cold=True)[0] <= base
    quicker = replace(MACHINE, peak_flops={"f32": 2e11}, peak_bytes=2e10)
    assert bound(found, quicker, cold=True)[0] <= base
    assert bound(found, MACHINE, cold=False)[0] <= base


@pytest.mark.parametrize(
    "options", [{"m": 64, "n": 64, "k": 64}, {"m": 1, "n": 512, "k": 256}, {"m": 5, "n": 3, "k": 7}]
)
def test_a_bound_is_below_the_estimate_of_every_point(options: dict[str, int]) -> None:
    bound_to = problem(gemm(**options))
    checked = 0
    for points in bound_to.space.chunks(1 << 14):
        predicted = bound_to.predict(points)
        assert np.isfinite(predicted.estimate_us).all()
        assert (predicted.estimate_us > 0).all()
        assert (predicted.bound_us > 0).all()
        assert (predicted.bound_us <= predicted.estimate_us).all()
        checked += len(points)
        if checked > 100_000:
            break
    assert checked > 100


def test_the_bound_is_the_peak_rate_of_the_units_that_run() -> None:
    found = problem(gemm(m=64, n=64, k=64))
    machine = found.machine  # type: ignore[attr-defined]
    for points in found.space.chunks(1 << 12):
        expected = 2 * 64**3 / (machine.peak_flops["f32"] * points.column("units")) * 1e6
        np.testing.assert_allclose(found.predict(points).bound_us, expected)
        break
