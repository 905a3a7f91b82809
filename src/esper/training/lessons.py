"""Lessons before the first round: the policy imitates schedules that suit the price.

A policy that starts at random wastes most rounds on finding out that growth pays where compute is
free, that little of it pays where compute is dear, and that training should then stop early. All
of this is known from fixed schedules that were tuned on the prior's tasks; what they cannot know
is what the host at hand needs, which is left to learn.

Shapes: N = hosts, P = lessons.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch

from esper.arrays import Features, Flags, Floats, Integers
from esper.config.run import RunConfig
from esper.environment import GrowthVectorEnv
from esper.lifecycle.factored_actions import Op
from esper.simic.agent import Decision, PPOAgent
from esper.simic.policy.distribution import choices_beside
from esper.simic.policy.masks import as_choice_masks
from esper.simic.rollout import VectorCollector
from esper.tamiyo import Controller, FixedSchedule, Planting
from esper.tamiyo.controllers.controller import COLUMNS, NamedController
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout
from esper.tamiyo.policy.slot_network import SlotPolicy
from esper.tasks import Task
from esper.training.setup import stream_seed

N_HOSTS, N_STEPS, N_PASSES = 128, 128, 30
ENT_COEF = 0.01
"""Weight of the entropy bonus, which keeps what no lesson shows possible."""

Seeds = tuple[tuple[str, ...], ...]
"""The seeds of every slot, one after another; of each, the first that fits."""

LESSONS: dict[str, Seeds] = {
    "nothing": (),
    "wider once": (("widen_large",),),
    "wider twice": (("widen_large",), ("widen_large",)),
    "much wider once": (("widen_huge", "widen_large"),),
    "much wider twice": (("widen_huge", "widen_large"), ("widen_huge", "widen_large")),
    "of everything": (
        ("widen_large",),
        ("deepen", "widen_large"),
        ("mlp_large", "conv_heavy", "lora_large"),
    ),
}

SHARES: dict[float, dict[str, float]] = {
    0.005: {"much wider twice": 0.55, "much wider once": 0.2, "of everything": 0.25},
    0.015: {"wider twice": 0.35, "much wider once": 0.35, "wider once": 0.3},
    0.08: {"wider once": 0.7, "wider twice": 0.1, "nothing": 0.2},
    np.inf: {"nothing": 0.6, "wider once": 0.4},
}
"""How often each lesson is given, by the highest price at which it is."""

STOP_PRICE = 0.07
"""Training stops at this divided by the price, as a share of the budget, give or take half."""


class Teacher(NamedController):
    """Follows one of several fixed schedules on each host, drawn in view of the host's price."""

    name = "teacher"

    def __init__(self, layout: ObservationLayout) -> None:
        self.layout = layout
        self._schedules: list[Controller] = [
            FixedSchedule(layout, _plan(layout, seeds)) for seeds in LESSONS.values()
        ]
        self._lesson: Integers = np.zeros(0, np.int64)
        self._stop: Floats = np.zeros(0)
        self._rng = np.random.default_rng(0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller for hosts that all start an episode."""
        for schedule in self._schedules:
            schedule.start(n_hosts, seed=seed)
        self._lesson = np.zeros(n_hosts, np.int64)
        self._stop = np.ones(n_hosts)
        self._rng = np.random.default_rng(seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose a legal action for each host."""
        starts = np.asarray(starts, np.bool_)
        if starts.any():
            prices = self.layout.prices(observations)[starts]
            self._lesson[starts] = draw_lessons(prices, self._rng)
            self._stop[starts] = draw_stops(prices, self._rng)
        every = np.stack([one.act(observations, masks, starts) for one in self._schedules])
        actions = every[self._lesson, np.arange(len(starts))]
        may_finish: Flags = masks.choices[:, COLUMNS["op"], Op.FINISH].cpu().numpy()
        is_over = self.layout.host(observations, "progress") >= self._stop - 1e-6
        actions[is_over & may_finish, COLUMNS["op"]] = Op.FINISH
        return actions


def draw_lessons(prices: Floats, rng: np.random.Generator) -> Integers:
    """Return the number of a lesson for each price, ``[N]``."""
    limits, names = np.array(list(SHARES)), list(LESSONS)
    weights = np.array([[some.get(name, 0.0) for name in names] for some in SHARES.values()])
    ends = weights.cumsum(1)[np.searchsorted(limits, prices)]
    return (rng.random(len(prices))[:, None] > ends).sum(1)


def draw_stops(prices: Floats, rng: np.random.Generator) -> Floats:
    """Return the share of the budget after which training stops, ``[N]``."""
    shares = STOP_PRICE / np.maximum(prices, 1e-9)
    return np.minimum(1.0, shares * rng.uniform(0.5, 1.5, len(prices)))


def _plan(layout: ObservationLayout, seeds: Seeds) -> list[Planting]:
    """Return a lesson's seeds for every slot that some of them fit."""
    config, plantings = layout.slot_config, list[Planting]()
    for names in seeds:
        for slot in filter(config.is_enabled, config.slot_ids):
            known = [name for name in names if name in config.blueprints]
            fitting = [name for name in known if config.does_fit(name, slot)]
            if fitting:
                others = tuple(fitting[1:])
                plantings.append(Planting(slot=slot, blueprint=fitting[0], otherwise=others))
    return plantings


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
    envs = GrowthVectorEnv(task, N_HOSTS, reward=config.rewards, purpose="training")
    seed = stream_seed(config.seed, "lessons")
    collector = _TaughtCollector(envs, agent, Teacher(envs.layout), seed=seed)
    buffer = agent.make_buffer(N_HOSTS, N_STEPS)
    collector.collect(buffer)
    policy = agent.policy
    assert isinstance(policy, SlotPolicy), "a run trains a policy for growth"
    policy.learn_observations(buffer.flat("observations"))
    agent.set_rates(ent_coef=ENT_COEF)
    left = agent.imitate(buffer, N_PASSES)
    agent.set_rates(ent_coef=config.ppo.ent_coef)
    return left
