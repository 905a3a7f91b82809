"""A run can begin with lessons, in which the policy imitates schedules."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from esper.environment import GrowthVectorEnv
from esper.training import lessons
from esper.training.lessons import teach
from esper.training.setup import make_agent, make_run_task
from tests.training.stopped_run import make_trainer
from tests.training.tiny import liveliness, tiny_config


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
    assert left == again < 0.6 * learn(1)[0]
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
