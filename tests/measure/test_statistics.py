import math

import numpy as np
import pytest

from tfsearch.measure.statistics import (
    Interval,
    StoppingRule,
    Verdict,
    drift,
    interval_rank,
    is_slow,
    median_interval,
    rank_paired,
    ratio_interval,
    split_modes,
)


def coverage_of(rank, count):
    return 1 - 2 * sum(math.comb(count, i) for i in range(rank)) / 2**count


@pytest.mark.parametrize("count", [6, 7, 10, 15, 20, 50, 100, 333, 999])
def test_rank_is_the_largest_that_covers_95_percent(count):
    rank = interval_rank(count)
    assert coverage_of(rank, count) >= 0.95
    assert coverage_of(rank + 1, count) < 0.95


@pytest.mark.parametrize("count", [1000, 1001, 5000])
def test_rank_of_many_samples_covers_close_to_95_percent(count):
    assert 0.949 <= coverage_of(interval_rank(count), count) <= 0.96


@pytest.mark.parametrize("count", [1, 2, 5])
def test_few_samples_give_their_extremes(count):
    values = np.arange(count) + 1.0
    found = median_interval(values)
    assert (found.low, found.high, found.count) == (1.0, float(count), count)


def test_no_samples_are_refused():
    with pytest.raises(ValueError, match="no samples"):
        median_interval([])


@pytest.mark.parametrize("count", [6, 15, 40, 120])
def test_intervals_cover_the_true_median_of_skewed_times(count):
    generator = np.random.default_rng(count)
    times = 10 * np.exp(0.3 * generator.standard_normal((3000, count)))
    inside = [f.low <= 10 <= f.high for f in map(median_interval, times)]
    # The interval is conservative; 3000 trials of 95 % have a standard error of 0.4 %.
    assert np.mean(inside) >= 0.94


def test_paired_ratios_cover_the_truth_under_drift_that_hides_it_unpaired():
    generator = np.random.default_rng(5)
    inside, apart = 0, 0
    for _ in range(300):
        machine = np.exp(np.cumsum(0.05 * generator.standard_normal(60)))
        a = machine * 1.02 * np.exp(0.01 * generator.standard_normal(60))
        b = machine * np.exp(0.01 * generator.standard_normal(60))
        found = ratio_interval(a, b)
        inside += found.low <= 1.02 <= found.high
        apart += median_interval(a).low > median_interval(b).high
    assert inside >= 0.93 * 300
    assert apart == 0


def test_pairs_where_one_sat_out_are_left_out():
    found = ratio_interval([2.0, np.nan, 4.0], [1.0, 1.0, 2.0])
    assert (found.median, found.count) == (2.0, 2)


def test_unequal_pairs_are_refused():
    with pytest.raises(ValueError, match="equal shapes"):
        ratio_interval([1.0, 2.0], [1.0])


def test_half_width_is_relative_to_the_median():
    assert Interval(10.0, 9.0, 11.0, 9).half_width == pytest.approx(0.1)


def test_stopping_waits_for_the_least_samples_then_for_the_width():
    rule = StoppingRule(share=0.01, least=15, most=100)
    assert rule.judge([]) is Verdict.CONTINUE
    assert rule.judge([10.0] * 14) is Verdict.CONTINUE
    assert rule.judge([10.0] * 15) is Verdict.CONVERGED
    spread = [9.0, 11.0] * 20
    assert rule.judge(spread) is Verdict.CONTINUE
    assert rule.judge(spread * 3) is Verdict.CONVERGED


def test_racing_stops_only_when_the_whole_interval_is_behind_the_margin():
    rule = StoppingRule(incumbent=10.0, lost_ratio=1.3)
    assert rule.judge([14.0] * 5) is Verdict.CONTINUE
    assert rule.judge([14.0] * 6) is Verdict.LOST
    assert rule.judge([12.9] * 6) is Verdict.CONTINUE
    assert rule.judge([12.0, 14, 14, 14, 14, 14]) is Verdict.CONTINUE


def test_slow_mode_is_told_from_drift():
    reference = {"tile": 2300.0, "fma": 160.0}
    assert is_slow({"tile": 600.0, "fma": 160.0}, reference)
    assert not is_slow({"tile": 1650.0, "fma": 115.0}, reference)
    assert not is_slow({"copy": 0.1}, reference)


def test_samples_next_to_a_slow_probe_are_set_aside_and_counted():
    fast, slow = {"tile": 2300.0}, {"tile": 500.0}
    split = split_modes([fast, fast, slow, fast], [fast, slow, fast, fast], {"tile": 2300.0})
    assert split.kept.tolist() == [True, False, False, True]
    assert split.set_aside == 2
    assert not split.slow_only
    assert split_modes([slow], [slow], {"tile": 2300.0}).slow_only
    with pytest.raises(ValueError, match="probes"):
        split_modes([fast], [], {})


def test_drift_compares_the_ends():
    assert drift([1.0] * 3 + [2.0] * 3 + [3.0] * 3) == 3.0
    assert drift([1.0, 5.0]) == 1.0


def test_ranking_names_the_fastest_and_its_lead():
    times = np.array([[2.0, 1.0, 3.0]] * 10) * np.linspace(1, 2, 10)[:, None]
    found = rank_paired(times)
    assert found.winner == 1
    assert [r.median for r in found.ratios] == pytest.approx([2.0, 1.0, 3.0])
    assert found.decided


def test_ranking_is_undecided_between_equals_with_noise_and_decided_within_the_tie():
    generator = np.random.default_rng(1)
    noisy = 1 + 0.03 * generator.standard_normal((20, 2))
    assert not rank_paired(noisy).decided
    close = 1 + 0.001 * generator.standard_normal((40, 2))
    assert rank_paired(close).decided


def test_a_column_that_sat_out_rounds_cannot_win():
    times = np.full((10, 2), 2.0)
    times[:, 1] = 1.0
    times[5:, 1] = np.nan
    assert rank_paired(times).winner == 0


def test_ranking_refuses_what_it_cannot_rank():
    with pytest.raises(ValueError, match="every round"):
        rank_paired(np.full((3, 2), np.nan))
    with pytest.raises(ValueError, match="rounds, columns"):
        rank_paired(np.zeros((0, 2)))
