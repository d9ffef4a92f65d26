"""The standard score of recorded spaces."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tfsearch.search.score import Recorded, falling, monotone_cubic

SPAN = (2, 92)
GRID = [3.0823157256633946, 141.78652338051614]
BASELINE = [2.2374090954902153, 1.2774201173879673, 1.1831290151395968]
RANDOM, GREEDY = -0.178, 0.485


def _recorded() -> Recorded:
    """400 points with a long tail, a tenth of which fail after a longer time."""
    rng = np.random.default_rng(5)
    times = 1.0 + rng.gamma(2.0, 1.0, 400)
    seconds = 1.0 + rng.random(400)
    failed = rng.random(400) < 0.1
    failed[0] = False
    times[failed], seconds[failed] = np.nan, 4.0
    return Recorded(times, seconds)


def _random(seed: int, size: int = 400) -> list[int]:
    return np.random.default_rng([seed, 1]).permutation(size).tolist()


def _greedy(recorded: Recorded, seed: int) -> list[int]:
    """The better of every two random points."""
    order = _random(seed)
    pairs = zip(order[::2], order[1::2], strict=True)
    key = np.nan_to_num(recorded.times, nan=np.inf)
    return [a if key[a] < key[b] else b for a, b in pairs]


def test_random_search_scores_about_nothing_and_the_optimum_at_once_scores_one() -> None:
    recorded = _recorded()
    runs = [_random(seed) for seed in range(30)]
    assert abs(recorded.score(runs).score) < 0.25
    best = int(np.nanargmin(recorded.times))
    first = [[best, *(row for row in run if row != best)] for run in runs]
    assert recorded.score(first).score == pytest.approx(1.0, abs=0.02)
    assert recorded.single(first[0]) == pytest.approx(1.0, abs=0.02)


def test_scores_agree_with_the_package_of_the_methodology() -> None:
    """Golden values: autotuning-methodology 1.1.0 on the same runs, its mean of ten fits."""
    recorded = _recorded()
    random = [_random(seed) for seed in range(50)]
    greedy = [_greedy(recorded, seed) for seed in range(50)]
    assert recorded.span == SPAN
    np.testing.assert_allclose(recorded.grid[[0, -1]], GRID, rtol=1e-9)
    np.testing.assert_allclose(recorded.baseline[[0, 500, -1]], BASELINE, rtol=1e-9)
    assert recorded.score(random).score == pytest.approx(RANDOM, abs=0.02)
    assert recorded.score(greedy).score == pytest.approx(GREEDY, abs=0.02)


def test_the_interval_of_a_difference_says_whether_there_is_one() -> None:
    recorded = _recorded()
    random = [_random(seed) for seed in range(30)]
    greedy = [_greedy(recorded, seed) for seed in range(30)]
    apart = recorded.difference(greedy, random)
    same = recorded.difference(random[:15], random[15:])
    assert 0 < apart.low <= apart.score <= apart.high
    assert same.low < 0 < same.high


def test_runs_that_end_early_keep_what_they_found() -> None:
    recorded = _recorded()
    whole = [_greedy(recorded, seed) for seed in range(30)]
    short = [run[: 3 + 2 * (len(run) // 50)] for run in whole]
    assert recorded.score(short).score < recorded.score(whole).score
    assert np.isfinite(recorded.score(short).score)


def test_a_run_that_only_fails_has_no_time() -> None:
    recorded = _recorded()
    failing = np.flatnonzero(np.isnan(recorded.times)).tolist()
    times, places = recorded.trace(failing)
    assert len(times) == len(places) == 0
    assert recorded.single(failing) < 0


@pytest.mark.parametrize("times", [[1.0, 1.0, 1.0], [1.0, np.nan, 2.0], []])
def test_a_space_that_cannot_be_scored_is_refused(times: list[float]) -> None:
    with pytest.raises(ValueError, match="at least three"):
        Recorded(np.array(times), np.ones(len(times)))


def test_pooling_gives_the_nearest_falling_sequence() -> None:
    values, weights = np.array([5.0, 6.0, 1.0, 3.0, 0.0]), np.array([1.0, 3.0, 1.0, 1.0, 2.0])
    np.testing.assert_allclose(falling(values, weights), [5.75, 5.75, 2.0, 2.0, 0.0])


def test_the_cubic_goes_through_its_points_and_is_monotone_between_them() -> None:
    x: Any = np.array([0.0, 1.0, 2.0, 4.0, 7.0])
    y: Any = np.array([9.0, 5.0, 5.0, 1.0, 0.0])
    np.testing.assert_allclose(monotone_cubic(x, y, x), y, atol=1e-12)
    between = monotone_cubic(x, y, np.linspace(0, 7, 400))
    assert np.all(np.diff(between) <= 1e-12)
    line: Any = np.array([1.0, 3.0])
    np.testing.assert_allclose(monotone_cubic(line, line, np.array([2.0])), [2.0])
