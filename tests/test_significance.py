"""p-values are those of scipy where it has them, and hold their level where it has not."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from esper.errors import ValueRangeError
from esper.statistics import holm, p_value, student_tail


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 5, 11, 63, 512])
def test_students_tail_is_scipys(freedom: int) -> None:
    t = np.linspace(-8.0, 8.0, 41)
    np.testing.assert_allclose(
        student_tail(t, freedom), stats.t.sf(t, freedom), rtol=1e-9, atol=1e-13
    )


@pytest.mark.parametrize("n", [2, 5, 40])
def test_one_run_has_the_paired_t_test(n: int) -> None:
    generator = np.random.default_rng(n)
    own, other = generator.normal(0.3, size=n), generator.normal(size=n)
    assert p_value([own - other]) == pytest.approx(stats.ttest_rel(own, other).pvalue)


def test_one_run_agrees_with_flipping_signs() -> None:
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
def test_several_runs_have_the_tail_of_two_student_variables(shape: tuple[int, int]) -> None:
    generator = np.random.default_rng(1)
    table = 0.2 + 0.5 * generator.normal(size=(shape[0], 1)) + generator.normal(size=shape)
    errors = [table.mean(axis).std(ddof=1) / np.sqrt(shape[1 - axis]) for axis in (1, 0)]
    drawn = sum(
        error * generator.standard_t(n - 1, size=400_000)
        for error, n in zip(errors, shape, strict=True)
    )
    assert p_value(table) == pytest.approx(np.mean(np.abs(drawn) >= abs(table.mean())), abs=0.004)
    assert p_value(-table) == pytest.approx(p_value(table))


@pytest.mark.parametrize("n_runs", [2, 3, 5])
@pytest.mark.parametrize("effects", [(1.0, 1.0, 1.0), (0.0, 1.0, 0.5), (1.0, 0.0, 0.1)])
def test_noise_is_seldom_surprising(n_runs: int, effects: tuple[float, float, float]) -> None:
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


def test_differences_without_spread() -> None:
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
def test_what_is_no_probability_is_refused(wrong: float) -> None:
    with pytest.raises(ValueRangeError, match="from 0 to 1"):
        holm([0.5, wrong])
