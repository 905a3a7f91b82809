"""What the teacher does at each price, and that a run begins with it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.tasks import make_task
from esper.training import lessons
from esper.training.lessons import LESSONS, SHARES, Teacher, draw_lessons, draw_stops, teach
from esper.training.setup import make_agent, make_run_task
from tests.training.stopped_run import make_trainer
from tests.training.tiny import liveliness, tiny_config


def test_lessons_are_drawn_as_often_as_is_said() -> None:
    names, rng = list(LESSONS), np.random.default_rng(0)
    for price, limit in ((0.0, 0.005), (0.005, 0.005), (0.006, 0.015), (0.05, 0.08), (5.0, np.inf)):
        drawn = draw_lessons(np.full(20_000, price), rng)
        found = {name: (drawn == number).mean() for number, name in enumerate(names)}
        assert found == pytest.approx(
            {name: SHARES[limit].get(name, 0.0) for name in names}, abs=0.015
        )
    assert all(sum(shares.values()) == pytest.approx(1.0) for shares in SHARES.values())


def test_the_dearer_the_earlier_training_stops() -> None:
    rng = np.random.default_rng(0)
    stops = [draw_stops(np.full(10_000, price), rng).mean() for price in (0.0, 0.03, 0.1, 0.3, 3.0)]
    assert stops[0] == stops[1] == 1.0
    assert stops[2] == pytest.approx(0.68, abs=0.02)
    assert stops[3] == pytest.approx(0.07 / 0.3, rel=0.02)
    assert stops[4] == pytest.approx(0.07 / 3.0, rel=0.02)


@pytest.mark.parametrize(("price", "grows", "stops"), [(0.0, True, False), (0.3, None, True)])
def test_the_teacher_grows_what_is_free_and_stops_what_is_dear(
    price: float, grows: bool | None, stops: bool
) -> None:
    envs = GrowthVectorEnv(make_task("prior", price=price), 6, autoreset=False)
    seen: list[np.ndarray] = []
    done = run_episodes(
        envs, Teacher(envs.layout), seed=2, on_step=lambda actions, _: seen.append(actions[:, -1])
    )
    ops = np.stack(seen)
    budgets = np.array([draw.n_epochs for draw in envs.growth.draws])
    assert (done.n_epochs < 0.5 * budgets).all() == stops
    assert (done.n_epochs == budgets).all() == (not stops)
    if grows:
        assert (ops == Op.GERMINATE).any(0).all()
        assert (done.seed_parameters > 0).any()


@pytest.fixture
def short_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "N_HOSTS", 8)
    monkeypatch.setattr(lessons, "N_STEPS", 20)


@pytest.mark.usefixtures("short_lessons")
def test_lessons_teach_and_are_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(budget__flop_price=0.3)
    task = make_run_task(config)
    slot_config = GrowthVectorEnv(task, 1).slot_config

    def learn(n_passes: int) -> tuple[float, dict[str, Tensor]]:
        monkeypatch.setattr(lessons, "N_PASSES", n_passes)
        agent = make_agent(config, slot_config)
        left = teach(config, task, agent)
        assert agent.config.ent_coef == config.ppo.ent_coef
        return left, agent.weights()["policy"]

    left, weights = learn(60)
    again, others = learn(60)
    assert left == again < 0.5 * learn(1)[0]
    assert all(torch.equal(weights[name], others[name]) for name in weights)


@pytest.mark.usefixtures("short_lessons")
def test_a_taught_run_begins_with_what_was_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(first_policy="taught", rounds=1)
    trainer, _, _ = make_trainer(config)
    with liveliness():
        agent = make_agent(config, trainer.parts.slot_config)
    teach(config, trainer.task, agent)
    begun: list[dict[str, Tensor]] = []

    def stop_here() -> None:
        begun.append(trainer.parts.agent.weights()["policy"])
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_run_round", stop_here)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    expected = agent.policy.state_dict()
    assert all(torch.equal(begun[0][name], expected[name]) for name in expected)
