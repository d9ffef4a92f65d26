"""A machine that is too busy is said to be, in one line and in the document."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tfsearch.core.records import Measurement, Status
from tfsearch.measure.job import Comparison, MeasureOutcome, Standing
from tfsearch.tune.noise import noise_of

QUIET = Measurement((10.0,) * 20, 10.0, (9.95, 10.05), "warm", conditions={"drift": 1.01})


def final(*ratios: tuple[float, float, float], decided: bool) -> Comparison:
    standings = tuple(
        Standing("x", MeasureOutcome(Status.OK, measurement=QUIET), ratio, (low, high))
        for ratio, low, high in ratios
    )
    return Comparison(standings, 0, decided, "warm")


def test_a_quiet_machine_is_not_spoken_of() -> None:
    found = noise_of(QUIET, final((1, 1, 1), (1.2, 1.18, 1.22), decided=True))
    assert found.reasons == ()
    assert found.message == ""
    assert found.to_json()["noisy"] is False


@pytest.mark.parametrize(
    ("measurement", "text"),
    [
        (replace(QUIET, ci_us=(9.0, 11.0)), "known to ±10 % only"),
        (replace(QUIET, conditions={"drift": 1.25}), "changed by +25 %"),
        (replace(QUIET, conditions={"drift": 0.8}), "changed by -20 %"),
        (replace(QUIET, conditions={"mode": "slow"}), "slow mode"),
        (replace(QUIET, conditions={"disturbed": list(range(8))}), "taken away in 40 %"),
        (
            replace(
                QUIET, conditions={"drift": 1.25, "others": 1.5, "processors": 2, "disturbed": [3]}
            ),
            "other programs kept 75 %",
        ),
    ],
)
def test_each_sign_of_noise_is_named_with_what_to_do(measurement: Measurement, text: str) -> None:
    found = noise_of(measurement, None)
    assert text in found.message
    assert "run the same command again" in found.message
    assert "\n" not in found.message
    assert found.to_json()["noisy"] is True


def test_others_are_no_noise_while_the_times_are_steady() -> None:
    found = noise_of(replace(QUIET, conditions={"others": 2.0, "processors": 2}), None)
    assert found.reasons == ()
    assert found.to_json()["others"] == 1.0


def test_kernels_that_are_equally_fast_are_no_noise() -> None:
    assert not noise_of(QUIET, final((1, 1, 1), (1.001, 0.99, 1.01), decided=False)).reasons
    wide = noise_of(QUIET, final((1, 1, 1), (1.0, 0.9, 1.1), decided=False))
    assert "could not tell" in wide.message
