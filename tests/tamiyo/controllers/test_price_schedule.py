"""The schedules that suit a price, and what following them does."""

from __future__ import annotations

import numpy as np
import pytest

from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.tamiyo.controllers.price_schedule import (
    SCHEDULES,
    SHARES,
    PriceSchedule,
    choose_schedules,
    choose_stops,
)
from esper.tasks import make_task

NAMES = list(SCHEDULES)


@pytest.mark.parametrize(
    ("price", "limit"), [(0.0, 0.005), (0.005, 0.005), (0.006, 0.015), (0.05, 0.08), (5.0, np.inf)]
)
def test_schedules_are_drawn_as_often_as_is_said(price: float, limit: float) -> None:
    shares = SHARES[limit]
    drawn = choose_schedules(np.full(20_000, price), np.random.default_rng(0))
    found = {name: (drawn == number).mean() for number, name in enumerate(NAMES)}
    assert found == pytest.approx({name: shares.get(name, 0.0) for name in NAMES}, abs=0.015)
    assert sum(shares.values()) == pytest.approx(1.0)
    best = NAMES[choose_schedules(np.array([price]))[0]]
    assert shares[best] == max(shares.values())


def test_the_dearer_the_earlier_training_stops() -> None:
    prices = np.array([0.0, 0.03, 0.1, 0.3, 3.0])
    stops = choose_stops(prices)
    np.testing.assert_allclose(stops, [1.0, 1.0, 0.7, 0.07 / 0.3, 0.07 / 3.0])
    varied = choose_stops(np.full(10_000, 0.3), np.random.default_rng(0))
    assert varied.mean() == pytest.approx(stops[3], rel=0.02)
    assert 0.85 * stops[3] <= varied.min() < varied.max() <= 1.15 * stops[3]


@pytest.mark.parametrize("is_varied", [False, True])
@pytest.mark.parametrize("price", [0.0, 0.3])
def test_it_grows_where_compute_is_free_and_stops_where_it_is_dear(
    price: float, is_varied: bool
) -> None:
    envs = GrowthVectorEnv(make_task("prior", price=price), 5, autoreset=False)
    ops: list[np.ndarray] = []
    done = run_episodes(
        envs,
        PriceSchedule(envs.layout, is_varied=is_varied),
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
