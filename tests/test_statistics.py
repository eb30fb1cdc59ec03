"""Statistics over runs, against worked examples, SciPy and enumeration."""

import itertools
import time

import numpy as np
import pytest
from scipy import stats

from qdac import statistics

MALES, FEMALES = np.array([19.0, 22, 16, 29, 24]), np.array([20.0, 11, 17, 12])
"""Ages at diagnosis, the worked example of the U test in SciPy's documentation: U = 17, p = 1/9."""


def test_iqm_of_a_worked_example():
    values = [5, 8, 4, 38, 8, 6, 9, 7, 7, 3, 1, 6]  # "Interquartile mean" in Wikipedia
    assert statistics.iqm(np.array(values, float)) == 6.5
    assert statistics.iqm(np.array([0.0, 1.0, 5.0])) == 2.0  # a quarter of three runs is no run


def test_iqm_pools_the_runs_of_all_tasks():
    strata = [np.array([0.0, 0.0, 100.0]), np.array([1.0, 2.0, 3.0, 4.0, 5.0])]
    assert statistics.iqm_estimate(strata, resamples=10).value == pytest.approx(np.mean([1, 2, 3, 4]))


def test_interval_of_three_runs_by_enumeration():
    runs = np.array([0.0, 1.0, 4.0])
    means = [np.mean(drawn) for drawn in itertools.product(runs, repeat=3)]
    expected = np.quantile(means, [0.025, 0.975], method="inverted_cdf")
    estimate = statistics.iqm_estimate([runs])
    assert (estimate.low, estimate.high) == pytest.approx(tuple(expected))


def test_interval_agrees_with_scipy():
    runs = np.random.default_rng(1).normal(size=10)
    other = stats.bootstrap(
        (runs,), statistics.iqm, n_resamples=20_000, method="percentile", vectorized=True,
        rng=np.random.default_rng(2),
    ).confidence_interval  # fmt: skip
    estimate = statistics.iqm_estimate([runs])
    assert (estimate.low, estimate.high) == pytest.approx((other.low, other.high), abs=0.03)


def test_resampling_stays_within_a_task():
    constant = statistics.iqm_estimate([np.zeros(4), np.ones(4)], resamples=500)
    assert (constant.value, constant.low, constant.high) == (0.5, 0.5, 0.5)


def test_intervals_are_seeded_and_do_not_grow_with_memory(monkeypatch):
    runs = [np.random.default_rng(1).normal(size=(5, 7))]
    first, again = (statistics.iqm_estimate(runs, resamples=100, seed=3) for _ in range(2))
    np.testing.assert_array_equal(first.low, again.low)
    sizes = []
    monkeypatch.setattr(statistics, "CHUNK_SIZE", 350)
    monkeypatch.setattr(statistics, "iqm", lambda x, axis=0: sizes.append(x.size) or x.mean(axis=axis))
    statistics.iqm_estimate(runs, resamples=95)
    assert max(sizes) == 350 and len(sizes) == 1 + 10


def test_fifty_thousand_resamples_take_seconds():
    start = time.process_time()
    strata = [np.random.default_rng(task).normal(size=10) for task in range(6)]
    statistics.iqm_estimate(strata, resamples=50_000)
    statistics.probability_of_improvement(strata, strata, resamples=50_000)
    assert time.process_time() - start < 5.0


@pytest.mark.parametrize("num_runs", [1, 2])
def test_few_runs_have_no_interval_and_no_test(num_runs):
    few, many = np.arange(num_runs, dtype=float), np.arange(5.0)
    for estimate in (
        statistics.iqm_estimate([many, few]),
        statistics.probability_of_improvement([many], [few]),
    ):
        assert (estimate.low, estimate.high) == (None, None)
        assert np.isfinite(estimate.value)
    assert statistics.mann_whitney(many, few) is None


def test_curves_of_different_lengths_count_where_they_exist():
    values = np.array([[1.0, 1.0, 1.0], [2.0, 2.0, np.nan], [3.0, 3.0, np.nan], [6.0, np.nan, np.nan]])
    estimate = statistics.pointwise_iqm(values, resamples=200)
    np.testing.assert_array_equal(estimate.value, [2.5, 2.0, np.nan])
    np.testing.assert_array_equal(np.isnan(estimate.low), [False, False, True])
    assert (estimate.low[:2] <= estimate.value[:2]).all() and (estimate.value[:2] <= estimate.high[:2]).all()


def test_probability_of_improvement_is_u_over_all_pairs():
    estimate = statistics.probability_of_improvement([MALES], [FEMALES])
    assert estimate.value == 17 / 20
    assert 0.4 < estimate.low < 0.85 < estimate.high <= 1.0
    backwards = statistics.probability_of_improvement([FEMALES], [MALES])
    assert backwards.value == pytest.approx(3 / 20)


def test_probability_counts_ties_half_and_tasks_alike():
    x, y = np.array([1.0, 1.0, 2.0]), np.array([1.0, 1.0, 1.0])
    assert statistics.probability_of_improvement([x], [y]).value == pytest.approx(2 / 3)
    both = statistics.probability_of_improvement([x, np.zeros(9)], [y, np.ones(9)])
    assert both.value == pytest.approx((2 / 3 + 0.0) / 2)


def test_probability_interval_by_enumeration():
    x, y = np.array([0.0, 1.0, 5.0]), np.array([0.5, 2.0, 3.0])
    draws = [np.array(draw) for draw in itertools.product(range(3), repeat=3)]
    chances = [np.mean(x[i][:, None] > y[j]) for i in draws for j in draws]
    estimate = statistics.probability_of_improvement([x], [y])
    expected = np.quantile(chances, [0.025, 0.975], method="inverted_cdf")
    assert (estimate.low, estimate.high) == pytest.approx(tuple(expected))


def test_mann_whitney_of_a_worked_example():
    assert statistics.mann_whitney(MALES, FEMALES) == pytest.approx(1 / 9)


def test_mann_whitney_with_ties_by_enumeration():
    x, y = np.array([1.0, 2.0, 2.0, 5.0]), np.array([2.0, 5.0, 6.0, 6.0])
    pooled = np.concatenate([x, y])

    def rank_sum(chosen):
        return stats.rankdata(pooled)[list(chosen)].sum()

    sums = np.array([rank_sum(chosen) for chosen in itertools.combinations(range(8), 4)])
    observed = rank_sum(range(4))
    expected = min(1.0, 2 * min(np.mean(sums <= observed), np.mean(sums >= observed)))
    assert statistics.mann_whitney(x, y) == pytest.approx(expected)


def test_mann_whitney_of_equal_and_of_large_samples():
    assert statistics.mann_whitney(np.ones(3), np.ones(4)) == 1.0
    x, y = np.arange(30.0), np.arange(30.0) + 10.0
    assert statistics.mann_whitney(x, y) == stats.mannwhitneyu(x, y, method="asymptotic").pvalue


def test_holm_of_a_worked_example():
    adjusted = statistics.holm([0.01, 0.04, None, 0.03, 0.005])  # "Holm-Bonferroni method" in Wikipedia
    assert adjusted == pytest.approx([0.03, 0.06, None, 0.06, 0.02])
    assert statistics.holm([0.9, 0.8]) == [1.0, 1.0]
    assert statistics.holm([]) == []


def test_compare_makes_every_pair_once():
    scores = {"a": [np.arange(5.0)], "b": [np.arange(5.0) + 10], "c": [np.arange(2.0)]}
    comparisons = statistics.adjust(statistics.compare(scores, resamples=50))
    assert [(c.first, c.second) for c in comparisons] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert comparisons[0].probability.value == 0.0
    assert comparisons[0].p_value == comparisons[0].adjusted_p_value == pytest.approx(2 / 252)
    assert comparisons[1].p_value is comparisons[1].adjusted_p_value is None
    thin = {name: [np.arange(2.0), np.arange(2.0)] for name in "ab"}  # four runs each, but two a task
    assert statistics.compare(thin, resamples=50)[0].p_value is None


def test_normalised_scores_run_from_the_worst_to_the_best_run():
    scores = statistics.normalise({"a": np.array([-10.0, 0.0]), "b": np.array([10.0])})
    np.testing.assert_array_equal(scores["a"], [0.0, 0.5])
    np.testing.assert_array_equal(scores["b"], [1.0])
    assert statistics.normalise({"a": np.ones(2), "b": np.ones(1)}) is None


@pytest.mark.parametrize("strata", [[], [np.array([])], [np.array([1.0, np.nan, 2.0])]])
def test_what_is_no_score_is_refused(strata):
    with pytest.raises(ValueError, match="finite scores only"):
        statistics.iqm_estimate(strata)
