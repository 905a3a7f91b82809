"""Learning rate and entropy coefficient follow their schedules."""

import numpy as np
import pytest

from esper.config.run import RunConfig, ScheduleConfig
from esper.simic.schedules import interpolate
from esper.training.trainer import rates_of


def test_schedules_worked_by_hand() -> None:
    assert [interpolate("linear", 4.0, 2.0, p) for p in (0.0, 0.25, 1.0)] == [4.0, 3.5, 2.0]
    assert [interpolate("constant", 4.0, 2.0, p) for p in (0.0, 0.25, 1.0)] == [4.0, 4.0, 4.0]
    found = [interpolate("cosine", 4.0, 0.0, p) for p in (0.0, 1 / 3, 0.5, 1.0)]
    np.testing.assert_allclose(found, [4.0, 3.0, 2.0, 0.0], atol=1e-12)


def test_linear_to_zero_equals_the_linear_schedule_of_stable_baselines() -> None:
    # There, a schedule is a function of the remaining progress, from 1 to 0.
    for progress in np.linspace(0.0, 1.0, 11):
        remaining = 1.0 - progress
        assert interpolate("linear", 3e-4, 0.0, progress) == pytest.approx(remaining * 3e-4)


def test_the_first_and_last_rounds_have_the_first_and_last_rates() -> None:
    schedule = ScheduleConfig(
        learning_rate="cosine", learning_rate_end=0.25, ent_coef="linear", ent_coef_end=0.0
    )
    config = RunConfig(rounds=5, schedule=schedule)
    rates = [rates_of(config, number) for number in range(1, 6)]
    first, last = config.ppo.learning_rate, 0.25 * config.ppo.learning_rate
    assert rates[0] == {"learning_rate": first, "ent_coef": config.ppo.ent_coef}
    assert rates[-1]["learning_rate"] == pytest.approx(last)
    assert rates[-1]["ent_coef"] == pytest.approx(0.0, abs=1e-15)
    assert rates[2]["learning_rate"] == pytest.approx((first + last) / 2)
    assert rates[1]["ent_coef"] == pytest.approx(0.75 * config.ppo.ent_coef)


def test_a_run_of_one_round_has_the_first_rates() -> None:
    assert rates_of(RunConfig(rounds=1), 1)["learning_rate"] == RunConfig().ppo.learning_rate
