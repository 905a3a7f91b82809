"""The life of one host, epoch by epoch: what was decided, and what came of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from esper.arrays import Integers
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.environment.episodes import StepResult
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
    results: EpisodeResults
    """The outcome, of one host."""


def live(envs: GrowthVectorEnv, controller: Controller, seed: int, on_step: OnStep) -> Life:
    """Run the episode of an environment with one host.

    The global random state is left as it is.

    Args:
        envs: An environment of one host, without autoreset.
        controller: Who decides.
        seed: Seeds the host and the controller.
        on_step: Called after every epoch.
    """
    steps: list[TimelineStep] = []

    def note(actions: Integers, result: StepResult) -> None:
        steps.append(_describe(envs, actions, result))
        on_step(steps[-1])

    with torch.random.fork_rng(devices=[]):
        results = run_episodes(envs, controller, seed=seed, on_step=note)
    return Life(timeline=tuple(steps), results=results)


def _describe(envs: GrowthVectorEnv, actions: Integers, result: StepResult) -> TimelineStep:
    """Return what a step did, in words and numbers."""
    config, records = envs.slot_config, envs.growth.records
    action, op = decode_action(actions[0], config), Op(int(result.ops[0]))
    stages = [Stage(stage) for stage in result.slots.stage[0]]
    alphas = result.slots.alpha[0]
    shown = {slot: k for k, slot in enumerate(config.slot_ids) if stages[k] is not Stage.DORMANT}
    acts = op not in (Op.WAIT, Op.FINISH)
    return TimelineStep(
        epoch=int(records.epoch[0]),
        op=op.name.lower(),
        slot=action.slot if acts else "",
        blueprint=action.blueprint if op is Op.GERMINATE else "",
        note=result.refusals.get(0) or result.interventions.get(0, ""),
        score=float(records.score[0]),
        flops=float(records.paid_flops[0]),
        seed_parameters=int(records.seed_parameters[0].sum()),
        stages={slot: stages[k].name.lower() for slot, k in shown.items()},
        alphas={slot: float(alphas[k]) for slot, k in shown.items()},
    )
