"""Intervals, p-values and corrections agree with scipy and cover what they should."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esper import statistics
from esper.errors import ShapeError, ValueRangeError
from esper.statistics import (
    Interval,
    expansion,
    holm,
    interquartile_interval,
    interquartile_mean,
    mean_interval,
    nested_interval,
    p_value,
    paired_differences,
    paired_interval,
    probability_of_improvement,
    ratio_interval,
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
def test_small_samples_get_students_quantile(n: int) -> None:
    ratio = stats.t.ppf(0.975, n - 1) / stats.norm.ppf(0.975)
    assert expansion(n) == pytest.approx(np.sqrt(n / (n - 1)) * ratio, rel=1e-12)


@pytest.mark.parametrize("n", [10, 20])
def test_noise_is_seldom_significant(n: int) -> None:
    samples = np.random.default_rng(n).normal(size=(400, n))
    claims = np.mean([mean_interval(sample).excludes_zero for sample in samples])
    assert claims < 0.08  # nominally 0.05, give or take 0.011


def test_two_values_worked_by_hand() -> None:
    # A resample of 0 and 4 has the mean 0 or 4 with 1/4 each: the middle 95 % reach both ends.
    found = mean_interval([0.0, 4.0])
    assert (found.mean, found.n) == (2.0, 2)
    assert (found.high - 2.0, 2.0 - found.low) == pytest.approx((2 * expansion(2),) * 2)
    assert mean_interval([3.0]) == Interval(3.0, 3.0, 3.0, 1)


def test_large_samples_agree_with_the_normal_interval() -> None:
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


def test_intervals_are_reproducible() -> None:
    values = np.arange(20.0)
    assert mean_interval(values) == mean_interval(values)
    assert mean_interval(values) != mean_interval(values, seed=1)


def test_cached_resamples_equal_those_drawn_in_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = np.random.default_rng(0).normal(size=100)
    kept = resampled_means(values, seed=3)
    monkeypatch.setattr(statistics, "MAX_CACHED_VALUES", 0)
    np.testing.assert_allclose(resampled_means(values, seed=3), kept, rtol=0, atol=1e-14)
    monkeypatch.setattr(statistics, "MAX_CACHED_VALUES", 100)
    monkeypatch.setattr(statistics, "N_RESAMPLES", 50)
    assert resampled_means(values, seed=3).shape == (50,)


@pytest.mark.parametrize("values", [[], [[1.0]], [1.0, float("nan")], 3.0])
def test_anything_but_a_list_of_numbers_is_rejected(values: object) -> None:
    with pytest.raises(ShapeError, match="finite number"):
        mean_interval(values)  # pyright: ignore[reportArgumentType]


def test_lists_of_different_lengths_are_rejected() -> None:
    with pytest.raises(ShapeError, match="same hosts"):
        paired_interval([1.0, 2.0], [1.0])


@pytest.mark.parametrize(
    ("low", "high", "excludes"),
    [(0.1, 0.2, True), (-0.2, -0.1, True), (0.0, 1.0, False), (1e-9, 1e-9, False)],
)
def test_an_interval_that_touches_zero_does_not_exclude_it(
    low: float, high: float, excludes: bool
) -> None:
    assert Interval((low + high) / 2, low, high, 10).excludes_zero is excludes
    assert not Interval((low + high) / 2, low, high, 9).excludes_zero  # too few to tell


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


def test_resampling_hosts_alone_misses_the_spread_of_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "N_RESAMPLES", 2000)
    generator = np.random.default_rng(0)
    tables = [make_table(generator, 5, 64, (1.0, 1.0, 1.0)) for _ in range(200)]
    found = [mean_interval(table.mean(0)) for table in tables]
    assert np.mean([one.low <= 0.0 <= one.high for one in found]) < 0.6


def test_one_run_gets_the_interval_over_its_hosts() -> None:
    values = np.random.default_rng(0).normal(size=(1, 30))
    assert nested_interval(values) == mean_interval(values[0])
    assert nested_interval(values, seed=2) == mean_interval(values[0], seed=2)


def test_identical_runs_get_the_interval_over_hosts() -> None:
    hosts = np.random.default_rng(0).gamma(2.0, size=50)
    found, other = nested_interval(np.tile(hosts, (7, 1))), mean_interval(hosts)
    assert (found.mean, found.n) == (pytest.approx(other.mean), 50)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.02)


def test_identical_hosts_get_the_interval_over_runs() -> None:
    runs = np.random.default_rng(1).gamma(2.0, size=12)
    found, other = nested_interval(np.tile(runs[:, None], (1, 40))), mean_interval(runs)
    assert (found.low, found.high) == pytest.approx((other.low, other.high), abs=0.03)
    assert found.n == 40


def test_many_runs_and_hosts_agree_with_tables_resampled_one_by_one() -> None:
    table = make_table(np.random.default_rng(3), 40, 60, (1.0, 1.0, 0.2))
    found, low_high = nested_interval(table), np.quantile(pigeonhole(table), [0.025, 0.975])
    width = low_high[1] - low_high[0]
    assert (found.low, found.high) == pytest.approx(tuple(low_high), abs=0.06 * width)


def test_differences_pair_hosts_and_broadcast_a_single_run() -> None:
    own = np.array([[1.0, 2.0], [3.0, 5.0]])
    assert paired_differences(own, [[1.0, 1.0]]).tolist() == [[0.0, 1.0], [2.0, 4.0]]
    assert paired_differences([[1.0, 1.0]], own).tolist() == [[0.0, -1.0], [-2.0, -4.0]]
    assert paired_differences(own, own).tolist() == [[0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("shape", [(2, 3), (1, 1), (3, 2)])
def test_tables_that_cannot_be_paired_are_rejected(shape: tuple[int, int]) -> None:
    with pytest.raises(ShapeError, match="same hosts"):
        paired_differences(np.ones((2, 2)), np.ones(shape))
    with pytest.raises(ShapeError, match="same hosts"):
        ratio_interval(np.ones((2, 2)), np.ones(shape))


@pytest.mark.parametrize("values", [[1.0], [[]], [[1.0, float("inf")]], 1.0])
def test_anything_but_a_table_of_numbers_is_rejected(values: object) -> None:
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


def test_a_ratio_to_zero_is_rejected() -> None:
    with pytest.raises(ShapeError, match="above zero"):
        ratio_interval([[1.0, 1.0]], [[0.0, 0.0]])


def test_the_interquartile_mean_pools_runs_and_hosts() -> None:
    assert interquartile_mean([[0.0, 1.0, 2.0, 100.0], [3.0, 4.0, -50.0, 5.0]]) == 2.5
    assert interquartile_mean([9.0, 1.0, 2.0]) == 4.0  # a quarter of three is none


def test_the_interquartile_interval_agrees_with_scipy() -> None:
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


def test_the_interquartile_interval_is_widened_for_few_runs() -> None:
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


def test_improvement_over_one_run_is_the_mean_mann_whitney_statistic() -> None:
    generator = np.random.default_rng(1)
    own, other = generator.integers(0, 6, (5, 12)), generator.integers(0, 6, (1, 12))
    shares = [
        stats.mannwhitneyu(own[:, host], other[:, host], method="asymptotic").statistic / 5
        for host in range(12)
    ]
    assert probability_of_improvement(own, other).mean == pytest.approx(np.mean(shares))


def test_the_interval_of_a_probability_stays_within_0_and_1() -> None:
    own = np.where(np.arange(12) == 0, -1.0, 1.0)[None]
    found = probability_of_improvement(own, np.zeros((1, 12)))
    assert found.high == 1.0
    with pytest.raises(ShapeError, match="same hosts"):
        probability_of_improvement(own, np.zeros((1, 11)))


@pytest.mark.parametrize("n", [2, 5, 40])
def test_the_p_value_of_one_run_is_the_paired_t_test(n: int) -> None:
    generator = np.random.default_rng(n)
    own, other = generator.normal(0.3, size=n), generator.normal(size=n)
    assert p_value([own - other]) == pytest.approx(stats.ttest_rel(own, other).pvalue)


def test_the_p_value_of_one_run_agrees_with_a_sign_flip_test() -> None:
    differences = np.random.default_rng(3).gamma(2.0, size=60) - 1.6
    flipped = stats.permutation_test(
        (differences,),
        np.mean,
        permutation_type="samples",
        n_resamples=20_000,
        rng=np.random.default_rng(0),
    ).pvalue
    assert p_value([differences]) == pytest.approx(flipped, abs=0.01)
    assert 0.01 < flipped < 0.5


@pytest.mark.parametrize("shape", [(2, 8), (5, 30), (30, 5), (3, 512)])
def test_the_p_value_of_several_runs_is_the_tail_of_two_student_variables(
    shape: tuple[int, int],
) -> None:
    generator = np.random.default_rng(1)
    table = 0.2 + 0.5 * generator.normal(size=(shape[0], 1)) + generator.normal(size=shape)
    errors = [table.mean(axis).std(ddof=1) / np.sqrt(shape[1 - axis]) for axis in (1, 0)]
    drawn = sum(
        error * generator.standard_t(n - 1, size=400_000)
        for error, n in zip(errors, shape, strict=True)
    )
    assert p_value(table) == pytest.approx(np.mean(np.abs(drawn) >= abs(table.mean())), abs=0.004)
    assert p_value(-table) == pytest.approx(p_value(table))


@pytest.mark.parametrize(
    ("n_runs", "effects"),
    [(5, (1.0, 1.0, 1.0)), (3, (0.0, 1.0, 0.5)), (2, (1.0, 0.0, 0.1))],
)
def test_noise_seldom_has_a_small_p_value(n_runs: int, effects: tuple[float, float, float]) -> None:
    generator = np.random.default_rng(0)
    found = [
        p_value(
            effects[0] * generator.normal(size=(n_runs, 1))
            + effects[1] * generator.normal(size=(1, 64))
            + effects[2] * generator.normal(size=(n_runs, 64))
        )
        for _ in range(1000)
    ]
    assert np.mean(np.asarray(found) < 0.05) < 0.07  # at most 0.05, give or take 0.007
    assert np.mean(np.asarray(found) < 0.005) < 0.012


def test_p_values_of_differences_without_spread() -> None:
    assert p_value(np.zeros((2, 12))) == 1.0
    assert p_value(np.full((2, 12), 0.25)) == 0.0
    assert p_value([[3.0]]) == 1.0  # one host shows nothing
    runs, hosts = np.array([[1.0], [2.0], [4.0]]), np.array([[1.0, 2.0, 4.0]])
    expected = stats.ttest_1samp([1.0, 2.0, 4.0], 0.0).pvalue
    assert p_value(np.tile(runs, (1, 9))) == pytest.approx(expected)
    assert p_value(np.tile(hosts, (9, 1))) == pytest.approx(expected)


def test_holms_correction_worked_by_hand() -> None:
    # Ordered 0.005, 0.01, 0.03, 0.04: times 4, 3, 2, 1 gives 0.02, 0.03, 0.06 and 0.04, raised.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([]) == []
    assert holm([0.2]) == [0.2]
    assert holm([0.6, 0.7]) == [1.0, 1.0]


@given(st.lists(st.sampled_from([0.0, 0.004, 0.01, 0.012, 0.02, 0.049, 0.3, 1.0]), max_size=7))
def test_holms_claims_are_those_of_its_steps(p_values: list[float]) -> None:
    corrected = holm(p_values)
    for level in (0.01, 0.05, 0.2):
        claimed: set[int] = set()
        for rank, index in enumerate(np.argsort(p_values, kind="stable")):
            if p_values[index] * (len(p_values) - rank) > level:
                break
            claimed.add(int(index))
        assert {i for i, p in enumerate(corrected) if p <= level} == claimed


@pytest.mark.parametrize("wrong", [-0.1, 1.1, float("nan")])
def test_anything_but_a_probability_is_rejected(wrong: float) -> None:
    with pytest.raises(ValueRangeError, match=f"is {wrong}"):
        holm([0.5, wrong])
