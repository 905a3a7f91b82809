"""Intervals over runs and hosts cover what they should, and reduce to simpler ones."""

import numpy as np
import pytest
from scipy import stats

from esper import statistics
from esper.errors import ShapeError
from esper.statistics import (
    expansion,
    mean_interval,
    nested_interval,
    paired_differences,
    ratio_interval,
)


def make_table(
    generator: np.random.Generator, n_runs: int, n_hosts: int, effects: tuple[float, float, float]
) -> np.ndarray:
    """Return values with the mean 0 and effects of runs, of hosts and of both together."""
    of_runs, of_hosts, of_both = effects
    return (
        of_runs * generator.normal(size=(n_runs, 1))
        + of_hosts * generator.normal(size=(1, n_hosts))
        + of_both * generator.normal(size=(n_runs, n_hosts))
    )


def pigeonhole(values: np.ndarray, n: int = 4000) -> np.ndarray:
    """Return means of resampled tables, drawn one by one."""
    generator = np.random.default_rng(5)
    found: list[float] = []
    for _ in range(n):
        runs = generator.integers(0, values.shape[0], values.shape[0])
        hosts = generator.integers(0, values.shape[1], values.shape[1])
        found.append(float(values[np.ix_(runs, hosts)].mean()))
    return np.asarray(found)


@pytest.mark.parametrize("effects", [(1.0, 1.0, 1.0), (0.0, 1.0, 0.5), (1.0, 0.0, 0.1)])
def test_five_runs_on_64_hosts_are_covered(
    effects: tuple[float, float, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statistics, "N_RESAMPLES", 2000)
    generator = np.random.default_rng(0)
    found = [nested_interval(make_table(generator, 5, 64, effects)) for _ in range(1000)]
    covered = np.mean([one.low <= 0.0 <= one.high for one in found])
    assert 0.925 <= covered <= 0.99  # nominally 0.95, give or take 0.007


def test_hosts_alone_would_not_cover_runs_that_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "N_RESAMPLES", 2000)
    generator = np.random.default_rng(0)
    tables = [make_table(generator, 5, 64, (1.0, 1.0, 1.0)) for _ in range(200)]
    found = [mean_interval(table.mean(0)) for table in tables]
    assert np.mean([one.low <= 0.0 <= one.high for one in found]) < 0.6


def test_one_run_has_the_interval_over_its_hosts() -> None:
    values = np.random.default_rng(0).normal(size=(1, 30))
    assert nested_interval(values) == mean_interval(values[0])
    assert nested_interval(values, seed=2) == mean_interval(values[0], seed=2)


def test_runs_that_agree_have_the_interval_over_hosts() -> None:
    hosts = np.random.default_rng(0).gamma(2.0, size=50)
    found, other = nested_interval(np.tile(hosts, (7, 1))), mean_interval(hosts)
    assert (found.mean, found.n) == (pytest.approx(other.mean), 50)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.02)


def test_hosts_that_agree_have_the_interval_over_runs() -> None:
    runs = np.random.default_rng(1).gamma(2.0, size=12)
    found, other = nested_interval(np.tile(runs[:, None], (1, 40))), mean_interval(runs)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.03)
    assert found.n == 40


def test_many_runs_and_hosts_agree_with_tables_resampled_one_by_one() -> None:
    table = make_table(np.random.default_rng(3), 40, 60, (1.0, 1.0, 0.2))
    found, low_high = nested_interval(table), np.quantile(pigeonhole(table), [0.025, 0.975])
    width = low_high[1] - low_high[0]
    assert (found.low, found.high) == pytest.approx(tuple(low_high), abs=0.06 * width)


def test_differences_pair_hosts_and_let_one_run_stand_for_all() -> None:
    own = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert paired_differences(own, [[1.0, 1.0]]).tolist() == [[0.0, 1.0], [2.0, 4.0]]
    assert paired_differences([[1.0, 1.0]], own).tolist() == [[0.0, -1.0], [-2.0, -4.0]]
    assert paired_differences(own, own).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (3, 2)])
def test_what_does_not_pair_is_refused(shape: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match="the same hosts in the same order"):
        paired_differences(np.ones((2, 2)), np.ones(shape))
    with pytest.raises(ShapeError, match="the same hosts in the same order"):
        ratio_interval(np.ones((2, 2)), np.ones(shape))


@pytest.mark.parametrize("values", [[1.0], [[]], [[1.0, float("inf")]], 1.0])
def test_what_is_no_table_of_numbers_is_refused(values: object) -> None:
    with pytest.raises(ShapeError, match="runs by hosts"):
        nested_interval(values)  # pyright: ignore[reportArgumentType]


def test_a_ratio_of_means_agrees_with_pairs_resampled_by_scipy() -> None:
    generator = np.random.default_rng(4)
    others = generator.gamma(4.0, size=80)
    values = 0.8 * others + generator.normal(scale=0.3, size=80)
    found = ratio_interval([values], [others])
    assert found.mean == pytest.approx(values.mean() / others.mean())
    plain = stats.bootstrap(
        (values, others),
        lambda first, second, axis: first.mean(axis) / second.mean(axis),
        paired=True,
        method="percentile",
        rng=np.random.default_rng(1),
    ).confidence_interval
    wider, width = expansion(80), plain.high - plain.low
    assert found.low == pytest.approx(
        found.mean + wider * (plain.low - found.mean), abs=0.05 * width
    )
    assert found.high == pytest.approx(
        found.mean + wider * (plain.high - found.mean), abs=0.05 * width
    )


def test_a_ratio_to_nothing_is_refused() -> None:
    with pytest.raises(ShapeError, match="above zero"):
        ratio_interval([[1.0, 1.0]], [[0.0, 0.0]])
