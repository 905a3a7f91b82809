"""Interquartile means and probabilities of improvement agree with scipy and with counting."""

import numpy as np
import pytest
from scipy import stats

from esper.errors import ShapeError
from esper.statistics import (
    expansion,
    interquartile_interval,
    interquartile_mean,
    probability_of_improvement,
)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 7, 8, 41])
def test_the_interquartile_mean_is_scipys_trimmed_one(n: int) -> None:
    values = np.random.default_rng(n).standard_t(2, size=n)
    assert interquartile_mean(values) == pytest.approx(stats.trim_mean(values, 0.25))


def test_runs_and_hosts_are_ordered_together() -> None:
    assert interquartile_mean([[0.0, 1.0, 2.0, 100.0], [3.0, 4.0, -50.0, 5.0]]) == 2.5


def test_its_interval_over_hosts_agrees_with_scipy() -> None:
    values = np.random.default_rng(1).standard_t(3, size=60)
    found = interquartile_interval([values])
    plain = stats.bootstrap(
        (values,),
        lambda rows, axis: stats.trim_mean(rows, 0.25, axis=axis),
        method="percentile",
        rng=np.random.default_rng(2),
    ).confidence_interval
    wider, width = expansion(60), plain.high - plain.low
    assert found.mean == interquartile_mean(values)
    assert found.n == 60
    low, high = (found.mean + wider * (end - found.mean) for end in (plain.low, plain.high))
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.08 * width)


def test_its_interval_over_few_runs_is_as_wide_as_they_need() -> None:
    runs = np.random.default_rng(6).normal(size=5)
    found = interquartile_interval(np.tile(runs[:, None], (1, 20)))
    tables = np.repeat(np.random.default_rng(0).choice(runs, (20_000, 5)), 20, axis=1)
    ends = np.quantile(stats.trim_mean(tables, 0.25, axis=1), [0.025, 0.975])
    low, high = found.mean + expansion(5) * (ends - found.mean)
    assert (found.low, found.high) == pytest.approx((low, high), abs=0.1 * (high - low))


def test_improvement_is_counted_pair_by_pair_with_ties_as_halves() -> None:
    generator = np.random.default_rng(0)
    own, other = generator.integers(0, 4, (3, 20)), generator.integers(0, 4, (1, 20))
    count = 0.0
    for run in range(3):
        for host in range(20):
            if own[run, host] > other[0, host]:
                count += 1.0
            elif own[run, host] == other[0, host]:
                count += 0.5
    found = probability_of_improvement(own, other)
    assert found.mean == pytest.approx(count / 60)
    assert found.low < found.mean < found.high
    assert probability_of_improvement(other, own).mean == pytest.approx(1 - count / 60)


def test_against_one_run_it_is_the_mean_over_hosts_of_mann_whitneys_statistic() -> None:
    generator = np.random.default_rng(1)
    own, other = generator.integers(0, 6, (5, 12)), generator.integers(0, 6, (1, 12))
    shares = [
        stats.mannwhitneyu(own[:, host], other[:, host], method="asymptotic").statistic / 5
        for host in range(12)
    ]
    assert probability_of_improvement(own, other).mean == pytest.approx(np.mean(shares))


def test_a_probability_stays_one() -> None:
    own = np.where(np.arange(12) == 0, -1.0, 1.0)[None]
    found = probability_of_improvement(own, np.zeros((1, 12)))
    assert found.high == 1.0
    with pytest.raises(ShapeError, match="the same hosts"):
        probability_of_improvement(own, np.zeros((1, 11)))
