"""What is learned of measured times, and when it is used."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tfsearch.cost import learned
from tfsearch.cost.learned import Correction, Examples, Scores, Verdict, fit, judge
from tfsearch.cost.ranks import recall, spearman

NAMES = ("log a", "log b", "c=x", "d=1")
WEIGHTS = np.array([0.3, -0.2, 0.15, 0.0])


def examples(
    truth: str = "shared", workloads: int = 8, rows: int = 12, noise: float = 0.02, seed: int = 1
) -> Examples:
    """Planted times: estimate and a part of the features that workloads share, or do not.

    ``shared``: one rule for all; ``opposite``: every other workload has the opposite rule;
    ``none``: the estimate is right but for noise.
    """
    rng = np.random.default_rng(seed)
    features = rng.normal(size=(workloads * rows, len(NAMES)))
    workload = np.repeat(np.arange(workloads), rows)
    estimate = 3.0 + rng.normal(size=len(features)) * 0.15
    sign = {"shared": 1.0, "none": 0.0, "opposite": 1.0 - 2.0 * (workload % 2)}[truth]
    rule = (features @ WEIGHTS) * sign
    level = rng.normal(size=workloads)[workload]
    measured = estimate + rule + level + noise * rng.normal(size=len(features))
    return Examples(NAMES, features, estimate, measured, workload, workload)


def test_what_workloads_share_is_learned_and_used() -> None:
    verdict = judge(examples("shared"))
    assert verdict.used, verdict.reason
    assert verdict.before is not None
    assert verdict.after is not None
    assert verdict.after.correlation > 0.9 > verdict.before.correlation
    assert verdict.after.recall > verdict.before.recall
    assert verdict.after.regret < verdict.before.regret
    assert (verdict.workloads, verdict.trials) == (8, 96)
    found = fit(examples("shared"))
    assert np.allclose(found.weights / found.scale, WEIGHTS, atol=0.03)


@pytest.mark.parametrize("seed", range(5))
def test_what_workloads_do_not_share_is_not_used(seed: int) -> None:
    """What was seen looks better for it; only workloads that were left out show the harm."""
    planted = examples("opposite", seed=seed)
    mean, _ = fit(planted).apply(planted.features)
    inside = [
        spearman((planted.estimate + mean)[own], planted.measured[own])
        - spearman(planted.estimate[own], planted.measured[own])
        for own in (planted.workload == w for w in range(8))
    ]
    verdict = judge(planted)
    assert not verdict.used, verdict.reason
    assert verdict.gain < min(0.0, float(np.mean(inside)))


@pytest.mark.parametrize("seed", range(5))
def test_an_estimate_that_is_right_is_left_alone(seed: int) -> None:
    assert not judge(examples("none", noise=0.1, seed=seed)).used


def test_few_workloads_or_few_trials_prove_nothing() -> None:
    for few in (examples(workloads=4), examples(rows=7)):
        verdict = judge(few)
        assert not verdict.used
        assert "needed to judge" in verdict.reason
        assert verdict.after is None
        json.dumps(verdict.to_json(), allow_nan=False)


def test_a_gain_that_loses_the_fastest_is_no_gain() -> None:
    before = Scores(0.2, None, 0.5, 1.01)
    assert learned._decide(0.3, 0.1, before, replace(before, correlation=0.5))[0]
    assert not learned._decide(0.3, 0.1, before, replace(before, recall=0.4))[0]
    assert not learned._decide(0.3, 0.1, before, replace(before, regret=1.02))[0]
    assert not learned._decide(0.1, 0.1, before, replace(before, correlation=0.3))[0]


def test_a_factor_that_all_candidates_of_a_workload_share_is_not_learned() -> None:
    planted = examples()
    moved = replace(planted, measured=planted.measured + 5.0 * planted.workload)
    assert np.allclose(fit(planted).weights, fit(moved).weights)


def test_equal_examples_give_equal_bits() -> None:
    one, other = fit(examples()), fit(examples())
    assert one.to_json() == other.to_json()
    assert judge(examples()).to_json() == judge(examples()).to_json()


def test_a_correction_stays_within_what_was_seen() -> None:
    found = fit(examples())
    far = np.full((1, 4), 1e9) * np.sign(found.weights)
    mean, deviation = found.apply(far)
    assert np.isfinite(mean).all()
    assert abs(float(mean[0])) <= learned.MOST
    assert np.isfinite(deviation).all()
    unknown, _ = found.apply(np.full((1, 4), np.nan))
    assert unknown[0] == 0.0


def test_what_was_not_seen_is_less_certain() -> None:
    planted = examples()
    planted.features[:, 3] = 0.0
    planted.features[0, 3] = 1.0
    found = fit(planted)
    _, at_centre = found.apply(found.centre[None])
    odd = found.centre.copy()
    odd[3] = 1.0
    assert found.apply(odd[None])[1][0] > 3 * at_centre[0]


def test_the_expected_scatter_covers_what_was_held_out() -> None:
    """Rows that count little are counted too, hence less than the 95 %."""
    assert 0.8 < judge(examples(workloads=20)).covered <= 1.0


def test_nothing_learned_changes_nothing() -> None:
    none = examples().rows(np.zeros(96, np.bool_))
    mean, _ = fit(none).apply(np.ones((2, 4)))
    assert not mean.any()


def test_a_correction_is_kept_as_plain_data() -> None:
    found = fit(examples())
    text = json.dumps(found.to_json(), allow_nan=False)
    again = Correction.from_json(json.loads(text))
    features = examples(seed=2).features
    assert np.array_equal(found.apply(features)[0], again.apply(features)[0])
    assert np.allclose(found.apply(features)[1], again.apply(features)[1], rtol=1e-3)
    mean, deviation = found.apply(features)
    assert np.array_equal(found.ranked(features), mean + learned.CAUTION * deviation)
    verdict = judge(examples())
    assert Verdict.from_json(json.loads(json.dumps(verdict.to_json()))) == verdict


@pytest.mark.parametrize(
    "change",
    [
        {"weights": [1.0]},
        {"weights": [float("nan")] * 4},
        {"weights": "1234"},
        {"scale": [0.0] * 4},
        {"covariance": []},
        {"noise": None},
        {"names": 3},
    ],
    ids=str,
)
def test_anything_else_is_no_correction(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="not a correction"):
        Correction.from_json({**fit(examples()).to_json(), **change})


def test_ranks() -> None:
    up = np.arange(5.0)
    assert spearman(up, up**3) == pytest.approx(1.0)
    assert spearman(up, -up) == pytest.approx(-1.0)
    assert spearman(up, np.ones(5)) == 0.0
    # By hand: ranks 1.5 1.5 3 against 1 2 3 give covariance 1.5 over sqrt(1.5 * 2).
    assert spearman(np.array([1.0, 1.0, 2.0]), np.array([1.0, 2.0, 3.0])) == pytest.approx(
        1.5 / np.sqrt(3.0)
    )
    assert recall(np.array([1.0, 2.0, 3.0, 4.0]), np.array([4.0, 1.0, 2.0, 3.0]), 2) == 0.5
