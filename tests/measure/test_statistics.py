"""Against scipy and numpy, which compute the same in other ways."""

import numpy as np
import pytest
from scipy import stats

from castling.measure.statistics import estimate, rank_correlation, sample_deviation, t_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 9, 10, 29, 120])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.95, 0.99, 0.999])
def test_the_quantile_is_that_of_scipy(confidence, degrees):
    assert t_quantile(confidence, degrees) == pytest.approx(stats.t.ppf((1 + confidence) / 2, degrees), rel=1e-9)


@pytest.mark.parametrize("count", [2, 3, 5, 12])
def test_the_interval_of_paired_differences_is_that_of_scipys_test(count):
    rng = np.random.default_rng(count)
    ours, theirs = rng.normal(80, 1, count), rng.normal(79, 1, count)
    found = estimate((ours - theirs).tolist())
    low, high = stats.ttest_rel(ours, theirs).confidence_interval(0.95)
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    assert found.mean == pytest.approx(np.mean(ours - theirs))
    assert found.excludes_zero == (stats.ttest_rel(ours, theirs).pvalue < 0.05)
    assert sample_deviation(ours.tolist()) == pytest.approx(np.std(ours, ddof=1))


def test_intervals_have_the_true_mean_in_them_as_often_as_they_say():
    rng = np.random.default_rng(0)
    found = [estimate(rng.normal(3, 2, 3).tolist()) for _ in range(2000)]
    assert np.mean([one.low <= 3 <= one.high for one in found]) == pytest.approx(0.95, abs=0.015)


def test_a_single_number_has_no_interval():
    found = estimate([2.5])
    assert (found.mean, found.low, found.high, found.count) == (2.5, None, None, 1)
    assert not found.excludes_zero
    assert sample_deviation([2.5]) is None
    with pytest.raises(ValueError, match="no number"):
        estimate([])


def test_equal_differences_have_an_interval_of_no_width():
    found = estimate([0.5, 0.5, 0.5])
    assert (found.low, found.high, found.excludes_zero) == (0.5, 0.5, True)
    assert not estimate([0.0, 0.0]).excludes_zero


@pytest.mark.parametrize("seed", range(5))
def test_the_rank_correlation_is_that_of_scipy(seed):
    rng = np.random.default_rng(seed)
    first, second = rng.normal(size=9), rng.integers(0, 5, 9).astype(float)  # with ties
    assert rank_correlation(first.tolist(), second.tolist()) == pytest.approx(stats.spearmanr(first, second).statistic)


def test_orders_that_say_nothing_have_no_correlation():
    assert rank_correlation([1, 2], [1, 2]) is None
    assert rank_correlation([1, 2, 3], [5, 5, 5]) is None
    with pytest.raises(ValueError, match="as many numbers"):
        rank_correlation([1, 2, 3], [1, 2])


@pytest.mark.parametrize(("confidence", "degrees"), [(0, 3), (1, 3), (0.95, 0)])
def test_quantiles_of_nothing_are_refused(confidence, degrees):
    with pytest.raises(ValueError, match="confidence must lie within"):
        t_quantile(confidence, degrees)
