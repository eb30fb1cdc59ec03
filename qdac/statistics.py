"""Statistics over runs: IQM, bootstrap intervals, probability of improvement, Mann-Whitney U with Holm's correction.

A run is the unit: a score of a run is one number, however many rollouts are behind it. Scores of several tasks
are strata, one array of runs for each task; a single task is a single stratum. NumPy and SciPy only, seeded.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from scipy import stats

MIN_RUNS = 3
"""With fewer runs an interval or a test means nothing, and none is given."""
RESAMPLES = 50_000
CURVE_RESAMPLES = 2_000
"""Resamples for each point of a curve or a profile, of which there are hundreds."""
CONFIDENCE = 0.95
CHUNK_SIZE = 2_000_000
"""Numbers that a bootstrap holds at once."""
EXACT_RUNS = 20
"""Largest sample without ties whose Mann-Whitney p-value is exact."""
EXACT_SPLITS = 15_000
"""Most ways to split tied scores in two samples that are all tried for an exact p-value."""

Strata = Sequence[np.ndarray]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A statistic over runs and its confidence interval; arrays of them for curves."""

    value: float | np.ndarray
    low: float | np.ndarray | None
    """Lower end of the interval; None, as `high`, where there are fewer than `MIN_RUNS` runs of a task."""
    high: float | np.ndarray | None
    num_runs: int


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Two algorithms on the same tasks, in one score of which more is better."""

    first: str
    second: str
    probability: Estimate
    """That a run of the first scores more than a run of the second; a tie counts half."""
    p_value: float | None
    """Of the two-sided Mann-Whitney U test; None where there are too few runs."""
    adjusted_p_value: float | None = None
    """After Holm's correction, see `adjust`."""


def iqm(values: np.ndarray, axis: int = 0) -> np.ndarray:
    """Returns the interquartile mean: the mean without the lowest and the highest quarter, rounded down."""
    return stats.trim_mean(values, 0.25, axis=axis)


def iqm_estimate(strata: Strata, resamples: int = RESAMPLES, seed: int = 0) -> Estimate:
    """Returns the IQM over all runs of all strata, with a percentile interval of the stratified bootstrap.

    Each stratum is [runs, ...], with the same trailing axes; runs are resampled within their stratum, so every
    resample has the same tasks. The trailing axes of a run stay together.
    """
    strata = _checked(strata)
    runs = np.concatenate(strata)
    value = _plain(iqm(runs))
    if min(map(len, strata)) < MIN_RUNS:
        return Estimate(value, None, None, len(runs))
    generator = np.random.default_rng(seed)
    resampled = np.empty((resamples, *runs.shape[1:]))
    chunk = max(1, CHUNK_SIZE // runs.size)
    for start in range(0, resamples, chunk):
        rows = resampled[start : start + chunk]
        drawn = [stratum[generator.integers(len(stratum), size=(len(rows), len(stratum)))] for stratum in strata]
        rows[:] = iqm(np.concatenate(drawn, axis=1), axis=1)
    return Estimate(value, *_interval(resampled), len(runs))


def pointwise_iqm(values: np.ndarray, resamples: int = CURVE_RESAMPLES, seed: int = 0) -> Estimate:
    """Returns the IQM and interval of each point of curves [runs, points], NaN where fewer than `MIN_RUNS` have one.

    A curve is NaN where its run has no value, as beyond the end of a run that is shorter than others.
    """
    value, low, high = (np.full(values.shape[1], np.nan) for _ in range(3))
    patterns, members = np.unique(np.isfinite(values), axis=1, return_inverse=True)
    for number, has_value in enumerate(patterns.T):
        if has_value.sum() >= MIN_RUNS:
            points = np.flatnonzero(members.ravel() == number)
            estimate = iqm_estimate([values[np.ix_(has_value, points)]], resamples, seed)
            value[points], low[points], high[points] = estimate.value, estimate.low, estimate.high
    return Estimate(value, low, high, len(values))


def probability_of_improvement(
    first: Strata, second: Strata, resamples: int = RESAMPLES, seed: int = 0
) -> Estimate:
    """Returns the mean over tasks of P(X > Y) + P(X = Y) / 2, X and Y being runs of `first` and `second`.

    This is U / (n m) of the Mann-Whitney test on each task. The interval resamples the runs of each task and
    algorithm.
    """
    first, second = _checked(first), _checked(second)
    wins = [(x[:, None] > y) + 0.5 * (x[:, None] == y) for x, y in zip(first, second, strict=True)]
    value = float(np.mean([win.mean() for win in wins]))
    num_runs = sum(map(len, first)) + sum(map(len, second))
    if min(map(len, [*first, *second])) < MIN_RUNS:
        return Estimate(value, None, None, num_runs)
    generator = np.random.default_rng(seed)
    resampled = np.zeros(resamples)
    for win in wins:
        # How often each run is drawn is all that the mean over pairs depends on.
        rows, columns = (generator.multinomial(n, np.full(n, 1 / n), resamples) / n for n in win.shape)
        resampled += ((rows @ win) * columns).sum(axis=1) / len(wins)
    return Estimate(value, *_interval(resampled), num_runs)


def mann_whitney(first: np.ndarray, second: np.ndarray) -> float | None:
    """Returns the two-sided p-value of the Mann-Whitney U test, None with fewer than `MIN_RUNS` runs on a side.

    Exact for small samples, with ties too; otherwise the normal approximation with corrections for ties and
    continuity.
    """
    if min(len(first), len(second)) < MIN_RUNS:
        return None
    pooled = np.concatenate(_checked([first, second]))
    num_distinct = len(np.unique(pooled))
    if num_distinct == 1:
        return 1.0
    method = "asymptotic"
    if num_distinct == len(pooled):
        method = "exact" if max(len(first), len(second)) <= EXACT_RUNS else method
    elif math.comb(len(pooled), len(first)) <= EXACT_SPLITS:
        method = stats.PermutationMethod(n_resamples=EXACT_SPLITS)
    return float(stats.mannwhitneyu(first, second, alternative="two-sided", method=method).pvalue)


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Returns Holm's adjusted p-values of one family of tests; a test that was not made (None) is no part of it."""
    made = sorted((p, i) for i, p in enumerate(p_values) if p is not None)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, i) in enumerate(made):
        largest = max(largest, min(1.0, (len(made) - rank) * p))
        adjusted[i] = largest
    return adjusted


def compare(scores: Mapping[str, Strata], resamples: int = RESAMPLES, seed: int = 0) -> list[Comparison]:
    """Returns each pair of algorithms, compared on strata that stand for the same tasks.

    The test is on the runs of all strata together, so scores of several tasks have to be normalised. As an
    interval, it needs `MIN_RUNS` runs of each task.
    """
    compared = []
    for first, second in itertools.combinations(scores, 2):
        probability = probability_of_improvement(scores[first], scores[second], resamples, seed)
        pooled = np.concatenate(scores[first]), np.concatenate(scores[second])
        p_value = None if probability.low is None else mann_whitney(*pooled)
        compared.append(Comparison(first, second, probability, p_value))
    return compared


def adjust(comparisons: Sequence[Comparison]) -> list[Comparison]:
    """Returns the comparisons with Holm's correction, all of them as one family."""
    adjusted = holm([comparison.p_value for comparison in comparisons])
    pairs = zip(comparisons, adjusted, strict=True)
    return [dataclasses.replace(comparison, adjusted_p_value=p) for comparison, p in pairs]


def normalise(scores: Mapping[str, np.ndarray]) -> dict[str, np.ndarray] | None:
    """Returns the scores of one task by algorithm, 0 for the worst run of all and 1 for the best.

    None where all runs score the same: there is no scale then.
    """
    pooled = np.concatenate(list(scores.values()))
    low, high = pooled.min(), pooled.max()
    if low == high:
        return None
    return {name: (runs - low) / (high - low) for name, runs in scores.items()}


def _checked(strata: Strata) -> list[np.ndarray]:
    arrays = [np.asarray(stratum, np.float64) for stratum in strata]
    if not arrays or any(len(array) == 0 or not np.isfinite(array).all() for array in arrays):
        raise ValueError("expected at least one run in every stratum and finite scores only")
    return arrays


def _interval(resampled: np.ndarray) -> tuple[float | np.ndarray, float | np.ndarray]:
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile(resampled, [tail, 1 - tail], axis=0)
    return _plain(low), _plain(high)


def _plain(value: np.ndarray) -> float | np.ndarray:
    return float(value) if np.ndim(value) == 0 else value
