"""Lessons before the first round: the policy imitates fixed schedules that suit the price.

A policy that starts at random wastes most rounds on finding out what such schedules know.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.simic.agent import Decision, PPOAgent
from esper.simic.policy.distribution import choices_beside
from esper.simic.policy.masks import as_choice_masks
from esper.simic.rollout import VectorCollector
from esper.tamiyo import Controller
from esper.tamiyo.controllers.price_schedule import PriceSchedule
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.training.setup import stream_seed

N_HOSTS, N_STEPS, N_PASSES = 128, 96, 60
ENT_COEF = 0.002
"""Weight of the entropy bonus, which keeps what no lesson shows possible."""


class _TaughtCollector(VectorCollector):
    """Steps environments with the actions of a teacher, as if the agent had chosen them."""

    def __init__(
        self, envs: GrowthVectorEnv, agent: PPOAgent, teacher: Controller, *, seed: int
    ) -> None:
        super().__init__(envs, agent, seed=seed)
        self._teacher = teacher
        self._is_first = np.ones(envs.num_envs, np.bool_)
        teacher.start(envs.num_envs, seed=seed)

    def _decide(self, observations: Any, masks: Any, state: Any, starts: Any) -> Decision:
        decision = super()._decide(observations, masks, state, starts)
        is_start = self._is_first if starts is None else self._is_first | starts.cpu().numpy()
        self._is_first = np.zeros_like(is_start)
        chosen = self._teacher.act(observations.cpu().numpy(), masks, is_start)
        actions = torch.from_numpy(chosen).to(decision.actions)
        spec = self.agent.spec
        choices = as_choice_masks(spec, masks, len(actions), actions.device)
        return replace(decision, actions=actions, legal=choices_beside(spec, actions, choices))


def teach(config: RunConfig, task: Task, agent: PPOAgent) -> float:
    """Let an untrained agent imitate the teacher on hosts of its own.

    Returns:
        The negative log-probability of the teacher's action that is left, per decision.
    """
    # What schedules gain over themselves is about nothing, and measuring it would be dear.
    is_own_rival = config.rewards.reward == "scheduled"
    rewards = replace(config.rewards, reward="dense") if is_own_rival else config.rewards
    envs = GrowthVectorEnv(task, N_HOSTS, reward=rewards, purpose="training")
    seed = stream_seed(config.seed, "lessons")
    collector = _TaughtCollector(envs, agent, PriceSchedule(envs.layout, is_varied=True), seed=seed)
    buffer = agent.make_buffer(N_HOSTS, N_STEPS)
    collector.collect(buffer)
    if is_own_rival:
        buffer.rewards.zero_()
    policy = agent.policy
    assert isinstance(policy, SlotPolicy), "a run trains a policy for growth"
    policy.learn_observations(buffer.flat("observations"))
    agent.set_rates(ent_coef=ENT_COEF)
    left = agent.imitate(buffer, N_PASSES)
    agent.set_rates(ent_coef=config.ppo.ent_coef)
    return left
