"""The schedules that suit a price, and what following them does."""

from __future__ import annotations

import numpy as np
import pytest

from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.tamiyo.controllers.price_schedule import (
    BEST,
    SCHEDULES,
    PriceSchedule,
    stopping_shares,
)
from esper.tasks import make_task


def test_the_best_schedules_are_known_and_suit_every_price() -> None:
    assert set(BEST.values()) <= set(SCHEDULES)
    assert list(BEST) == sorted(BEST)
    assert max(BEST) == np.inf


def test_the_dearer_the_earlier_training_stops() -> None:
    stops = stopping_shares(np.array([0.0, 0.03, 0.1, 0.3, 3.0]))
    np.testing.assert_allclose(stops, [1.0, 1.0, 0.7, 0.07 / 0.3, 0.07 / 3.0])


@pytest.mark.parametrize("price", [0.0, 0.3])
def test_it_grows_where_compute_is_free_and_stops_where_it_is_dear(price: float) -> None:
    envs = GrowthVectorEnv(make_task("prior", price=price), 5, autoreset=False)
    ops: list[np.ndarray] = []
    done = run_episodes(
        envs,
        PriceSchedule(envs.layout),
        seed=2,
        on_step=lambda actions, _: ops.append(actions[:, -1]),
    )
    budgets = np.array([draw.n_epochs for draw in envs.growth.draws])
    assert done.n_illegal.sum() == 0
    if price:
        assert (done.n_epochs < 0.5 * budgets).all()
    else:
        assert (done.n_epochs == budgets).all()
        assert (np.stack(ops) == Op.GERMINATE).any(0).all()
        assert (done.seed_parameters > 0).any()
