"""A run can begin with lessons, in which the policy learns from hosts grown by every schedule."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from esper.config.growth import RewardConfig
from esper.environment import GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import Op
from esper.tamiyo.controllers.price_schedule import SCHEDULES, follow
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task, make_task
from esper.training import lessons
from esper.training.lessons import (
    OP,
    HostLesson,
    expected_returns,
    grow_hosts,
    log_probs_of_paths,
    make_batch,
    teach,
)
from esper.training.setup import make_agent, make_policy, make_run_task, stream_seed
from tests.training.stopped_run import make_trainer
from tests.training.tiny import liveliness, tiny_config


@pytest.fixture
def short_lessons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "N_PASSES", 30)


@pytest.fixture(scope="module")
def prior() -> tuple[Task, SlotPolicy, list[HostLesson]]:
    """Return four hosts of the prior, grown by every schedule, and a policy for them."""
    task = make_task("prior")
    task = replace(task, budget=replace(task.budget, n_epochs=9))
    config = tiny_config(seed=3, lesson_hosts=4)
    slot_config = GrowthVectorEnv(task, 1, autoreset=False).slot_config
    policy = make_policy(config, slot_config)
    return task, policy, grow_hosts(config, task, policy.spec)


def test_a_path_is_worth_what_taking_it_returns(
    prior: tuple[Task, SlotPolicy, list[HostLesson]],
) -> None:
    task, _, found = prior
    rewards = RewardConfig(shaping=0.0)
    seed = int(np.random.SeedSequence(stream_seed(3, "lessons")).generate_state(1)[0])
    price, epoch = 0.2, 5
    paid = make_task("prior", price=price)
    paid = replace(paid, budget=replace(paid.budget, n_epochs=task.budget.n_epochs))
    for number, name in enumerate(SCHEDULES):
        envs = GrowthVectorEnv(paid, 4, reward=rewards, purpose="training", autoreset=False)
        schedule = follow(envs.layout, SCHEDULES[name])
        schedule.finish_after = epoch
        taken = run_episodes(envs, schedule, seed=seed)
        worth = np.array([float(one.worth[min(epoch, one.n_epochs), number]) for one in found])
        flops = np.array([float(one.flops[min(epoch, one.n_epochs), number]) for one in found])
        np.testing.assert_allclose(taken.returns, worth - price * flops, atol=1e-5)
        np.testing.assert_array_equal(taken.n_epochs, [min(epoch, o.n_epochs) for o in found])


def test_schedules_differ_and_a_host_s_own_price_does_not_matter(
    prior: tuple[Task, SlotPolicy, list[HostLesson]],
) -> None:
    _, _, found = prior
    assert {one.price > 0.0 for one in found} == {True, False}
    for one in found:
        assert one.n_epochs <= 9
        assert one.is_path[:, 0].all()
        assert one.is_path[-1].sum() > 3
        assert (one.flops.diff(dim=0) > 0.0).all()


@pytest.mark.parametrize("price", [0.0, 0.1])
def test_paths_are_as_likely_as_the_policy_draws_them(
    price: float, prior: tuple[Task, SlotPolicy, list[HostLesson]]
) -> None:
    _, policy, found = prior
    batch = make_batch(found, torch.full((4,), price))
    log_probs = log_probs_of_paths(policy, batch).detach()
    assert batch.is_path[:-1].any() == (price > 0.0)
    for host, one in enumerate(found):
        for schedule in (0, 4):
            n = one.n_epochs
            observations = batch.observations[:n, schedule, host].unsqueeze(1)
            legal = one.legal[:, schedule].clone()
            legal[:, OP, Op.FINISH] = price > 0.0
            actions = one.actions[:, schedule].clone()
            end = n
            if price > 0.0:
                end = n // 2
                actions[end, OP] = Op.FINISH
                legal[end] = one.legal[end, schedule]
                legal[end, OP, Op.FINISH] = True
            start = torch.zeros(1, policy.state_size)
            outputs = policy.evaluate(observations, None, start, None).outputs
            by_head = policy.heads.distribution(outputs, legal).log_probs(actions, None)
            relevant = policy.spec.relevant_heads(actions[:, OP])
            steps = (by_head * relevant).sum(1).detach()[: end + 1]
            found_log_prob = log_probs[end, schedule, host]
            torch.testing.assert_close(found_log_prob, steps.sum(), atol=1e-4, rtol=1e-4)
    zeros, ones = torch.zeros(4), torch.ones_like(batch.returns)
    probability = expected_returns(log_probs, ones, batch.is_path, zeros)
    assert ((probability > 0.0) & (probability < 1.0)).all()


@pytest.mark.usefixtures("short_lessons")
def test_lessons_teach_and_are_the_same_again(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(budget__flop_price=0.3, lesson_hosts=6)
    task = make_run_task(config)
    slot_config = GrowthVectorEnv(task, 1).slot_config

    def learn(n_passes: int) -> tuple[float, dict[str, Tensor]]:
        monkeypatch.setattr(lessons, "N_PASSES", n_passes)
        policy = make_policy(config, slot_config)
        return teach(config, task, policy), policy.state_dict()

    expected, weights = learn(40)
    again, others = learn(40)
    assert expected == again > learn(1)[0] + 0.01
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_as_many_hosts_teach_as_the_settings_say(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lessons, "BLOCK", 2)
    config = tiny_config(lesson_hosts=3)
    task = make_run_task(config)
    policy = make_policy(config, GrowthVectorEnv(task, 1).slot_config)
    assert len(grow_hosts(config, task, policy.spec)) == 3


@pytest.mark.usefixtures("short_lessons")
def test_a_taught_run_begins_with_what_was_taught(monkeypatch: pytest.MonkeyPatch) -> None:
    config = tiny_config(first_policy="taught", lesson_hosts=6, rounds=1)
    trainer, _, _ = make_trainer(config)
    with liveliness():
        policy = make_agent(config, trainer.parts.slot_config).policy
    assert isinstance(policy, SlotPolicy)
    teach(config, trainer.task, policy)
    begun: list[dict[str, Tensor]] = []

    def stop_here() -> None:
        begun.append(trainer.parts.agent.weights()["policy"])
        raise KeyboardInterrupt

    monkeypatch.setattr(trainer, "_run_round", stop_here)
    with pytest.raises(KeyboardInterrupt):
        trainer.run()
    expected = policy.state_dict()
    assert all(torch.equal(begun[0][name], expected[name]) for name in expected)
    assert trainer.parts.progress.best_round == 0
