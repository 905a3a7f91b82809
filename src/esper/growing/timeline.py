"""The life of one host, epoch by epoch: what was decided, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from esper.environment import GrowthVectorEnv
from esper.lifecycle.factored_actions import Op, decode_action
from esper.lifecycle.stages import Stage
from esper.tamiyo import Controller


@dataclass(frozen=True, kw_only=True)
class TimelineStep:
    """One epoch of a host's life: what was decided, and what came of it."""

    epoch: int
    op: str
    slot: str
    """The slot that was acted on; empty if none was."""
    blueprint: str
    """What was germinated; empty if nothing was."""
    note: str
    """Why a gate refused or the governor stepped in; empty if neither did."""
    score: float
    """On validation, after the epoch."""
    flops: float
    """Computing spent so far, as a share of a reference run's."""
    seed_parameters: int
    """Parameters that seeds add."""
    stages: dict[str, str]
    """The stage of each slot that has a seed, or had one, after the epoch."""
    alphas: dict[str, float]
    """How strongly each of these is blended in."""


OnStep = Callable[[TimelineStep], None]


@dataclass(frozen=True, kw_only=True, eq=False)
class Life:
    """One host's episode from its start to its end."""

    timeline: tuple[TimelineStep, ...]
    ep_rew: float
    """The sum of its rewards."""
    final: dict[str, Any]
    """What the environment tells of the end, by name."""


def live(envs: GrowthVectorEnv, controller: Controller, seed: int, on_step: OnStep) -> Life:
    """Steer the one host of an environment through its episode.

    A caller's random numbers stay as they are.

    Args:
        envs: An environment of one host, without autoreset.
        controller: Who decides.
        seed: Decides the host, and what the controller draws.
        on_step: Told of every epoch as it happens.
    """
    with torch.random.fork_rng(devices=[]):
        observations, _ = envs.reset(seed=seed)
        controller.start(1, seed=seed)
        starts, steps, total = np.ones(1, np.bool_), list[TimelineStep](), 0.0
        records, info = envs.growth.records, dict[str, Any]()
        while not records.is_over[0]:
            actions = controller.act(observations, envs.masks, starts)
            observations, rewards, _, _, info = envs.step(actions)
            starts, total = np.zeros(1, np.bool_), total + float(rewards[0])
            steps.append(_describe(envs, actions, info))
            on_step(steps[-1])
    return Life(timeline=tuple(steps), ep_rew=total, final=info["final_info"])


def _describe(envs: GrowthVectorEnv, actions: Any, info: dict[str, Any]) -> TimelineStep:
    """Return what a step did, in words and numbers."""
    config, records = envs.slot_config, envs.growth.records
    action, op = decode_action(actions[0], config), Op(int(info["op"][0]))
    result = envs.last_step
    assert result is not None, "a step was taken"
    stages = [Stage(stage) for stage in result.slots.stage[0]]
    alphas = result.slots.alpha[0]
    shown = {slot: k for k, slot in enumerate(config.slot_ids) if stages[k] is not Stage.DORMANT}
    acts = op not in (Op.WAIT, Op.FINISH)
    return TimelineStep(
        epoch=int(records.epoch[0]),
        op=op.name.lower(),
        slot=action.slot if acts else "",
        blueprint=action.blueprint if op is Op.GERMINATE else "",
        note=str(info["refusal"][0] or info["intervention"][0]),
        score=float(info["score"][0]),
        flops=float(info["flops"][0]),
        seed_parameters=int(records.seed_parameters[0].sum()),
        stages={slot: stages[k].name.lower() for slot, k in shown.items()},
        alphas={slot: float(alphas[k]) for slot, k in shown.items()},
    )
