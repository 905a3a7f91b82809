"""Intervals are those of the percentile bootstrap, widened for few values."""

import numpy as np
import pytest
from scipy import stats

from esper import statistics
from esper.errors import ShapeError
from esper.statistics import (
    Interval,
    expansion,
    mean_interval,
    paired_interval,
    resampled_means,
)


@pytest.mark.parametrize("n", [5, 40, 150])
def test_intervals_agree_with_scipy(n: int) -> None:
    values = np.random.default_rng(n).gamma(2.0, size=n)
    found = mean_interval(values)
    other = stats.bootstrap(
        (values,), np.mean, n_resamples=20_000, method="percentile", rng=np.random.default_rng(1)
    ).confidence_interval
    slack = 0.04 * (other.high - other.low)
    mean, wider = values.mean(), expansion(n)
    assert found.mean == pytest.approx(mean)
    assert found.low == pytest.approx(mean + wider * (other.low - mean), abs=slack)
    assert found.high == pytest.approx(mean + wider * (other.high - mean), abs=slack)


@pytest.mark.parametrize("n", [2, 3, 5, 10, 40, 1000])
def test_intervals_are_widened_to_students(n: int) -> None:
    ratio = stats.t.ppf(0.975, n - 1) / stats.norm.ppf(0.975)
    assert expansion(n) == pytest.approx(np.sqrt(n / (n - 1)) * ratio, rel=0.005)


@pytest.mark.parametrize("n", [10, 20])
def test_noise_is_seldom_taken_for_a_difference(n: int) -> None:
    samples = np.random.default_rng(n).normal(size=(400, n))
    claims = np.mean([mean_interval(sample).excludes_zero for sample in samples])
    assert claims < 0.08  # nominally 0.05, give or take 0.011


def test_two_values_worked_by_hand() -> None:
    # A resample of 0 and 4 has the mean 0 or 4 with 1/4 each: the middle 95 % reach both ends.
    found = mean_interval([0.0, 4.0])
    assert (found.mean, found.n) == (2.0, 2)
    assert (found.high - 2.0, 2.0 - found.low) == pytest.approx((2 * expansion(2),) * 2)
    assert mean_interval([3.0]) == Interval(3.0, 3.0, 3.0, 1)


def test_large_samples_are_resampled_in_blocks_and_agree_with_the_normal_law() -> None:
    values = np.random.default_rng(0).normal(1.0, 2.0, size=3000)
    found, half = mean_interval(values), 1.96 * values.std() / np.sqrt(3000)
    assert found.low == pytest.approx(values.mean() - half, abs=0.05 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.05 * half)


def test_pairs_are_resampled_together() -> None:
    rng = np.random.default_rng(0)
    hosts = rng.normal(scale=100.0, size=50)
    better = hosts + rng.normal(1.0, 0.5, size=50)
    found = paired_interval(better, hosts)
    assert found == mean_interval(better - hosts)
    assert found.excludes_zero
    assert found.high - found.low < 0.5
    assert not paired_interval(better, rng.permutation(hosts)).excludes_zero


def test_the_same_values_have_the_same_interval_each_time() -> None:
    values = np.arange(20.0)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values) != mean_interval(values, seed=1)


def test_resamples_that_are_kept_are_those_drawn_one_by_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(size=100)
    kept = resampled_means(values, seed=3)
    monkeypatch.setattr(statistics, "LARGEST_KEPT", 0)
    np.testing.assert_allclose(resampled_means(values, seed=3), kept, rtol=0, atol=1e-14)
    monkeypatch.setattr(statistics, "LARGEST_KEPT", 100)
    monkeypatch.setattr(statistics, "N_RESAMPLES", 50)
    assert resampled_means(values, seed=3).shape == (50,)


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, float("nan")], 3.0])
def test_what_is_no_list_of_numbers_is_refused(values: object) -> None:
    with pytest.raises(ShapeError, match="at least one finite number"):
        mean_interval(values)  # pyright: ignore[reportArgumentType]


def test_pairs_that_do_not_match_are_refused() -> None:
    with pytest.raises(ShapeError, match="the same hosts in the same order"):
        paired_interval([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (0.0, 1.0, False), (1e-9, 1e-9, False)],
)
def test_an_interval_that_touches_zero_does_not_stand_out(
    low: float, high: float, excludes: bool
) -> None:
    assert Interval((low + high) / 2, low, high, 10).excludes_zero is excludes
    assert not Interval((low + high) / 2, low, high, 9).excludes_zero  # too few to tell
