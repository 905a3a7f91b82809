"""Growing one host with a controller, and getting it back as a plain module."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from esper.checkpoints import CheckpointFolder, split
from esper.errors import RunError
from esper.growth.export import export
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.growth_action import decode_action
from esper.lifecycle.stages import Stage
from esper.runs.folder import RunFolder, shell_word
from esper.runs.invocation import program
from esper.runs.run import Run
from esper.simic.environment import GrowthVectorEnv
from esper.simic.training.setup import make_policy, make_run_task, make_trial_envs
from esper.simic.training.trials import TRIAL_SEED
from esper.tamiyo import Controller, LearnedController, controller_names, make_controller
from esper.tasks import Task, make_task


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


@dataclass(frozen=True, kw_only=True, eq=False)
class GrownHost:
    """A host at the end of its life as one, and how it got there."""

    model: nn.Module
    """A plain module: nothing of Esper is in it."""
    timeline: tuple[TimelineStep, ...]
    score: float
    """On the test split, which nobody had seen."""
    ep_rew: float
    """The score minus what it cost."""
    flops: float
    host_parameters: int
    seed_parameters: int
    """Parameters of the seeds that were committed."""
    sample: Any
    """A few inputs, as the model takes them."""


def grow_host(
    task: str | Task,
    controller: str | os.PathLike[str] | Run | Controller = "heuristic",
    *,
    seed: int = 0,
    on_step: Callable[[TimelineStep], None] = lambda _: None,
    **task_options: Any,
) -> GrownHost:
    """Grow one host of a task and return it as a plain module.

    Args:
        task: A task, or the name of one.
        controller: The name of a controller, a run or its folder, or a controller.
        seed: Decides the host: its data where the task draws them, and its weights.
        on_step: Told of every epoch as it happens.
        task_options: Options of the task, if it is named.
    """
    made = make_task(task, **task_options) if isinstance(task, str) else task
    envs = GrowthVectorEnv(made, 1, purpose="evaluation", final_split="test", autoreset=False)
    return _grow(envs, find_controller(controller, envs), seed, on_step)


def grow_best_host(run: Run) -> GrownHost:
    """Grow the best host of a run's comparison again, by the same actions."""
    summary = run.summary
    if summary is None or summary.best_host is None:
        raise RunError(
            f"run {run.name!r} is not done ({run.state}); its best host is known at its end. "
            f"Go on with it: {program()} resume {shell_word(run.path)}"
        )
    best = summary.best_host
    envs = make_trial_envs(
        run.config, make_run_task(run.config), 1, purpose="evaluation", final_split="test"
    )
    return _grow(envs, _Replay(best.actions), TRIAL_SEED + best.number, lambda _: None)


def find_controller(
    controller: str | os.PathLike[str] | Run | Controller, envs: GrowthVectorEnv
) -> Controller:
    """Return a controller by its name, of a run, or as it is.

    Raises:
        RunError: If there is neither a controller nor a run of this name.
    """
    if isinstance(controller, Run):
        return load_controller(controller)
    if not isinstance(controller, (str, os.PathLike)):
        return controller
    if controller in controller_names():
        return make_controller(str(controller), envs.layout)
    try:
        run = Run(RunFolder.find(controller))
    except RunError as error:
        names = ", ".join(controller_names())
        raise RunError(
            f"{error} A controller is the folder of a run, or one of {names}."
        ) from error
    return load_controller(run)


def load_controller(run: Run, *, deterministic: bool | None = None) -> LearnedController:
    """Return the best controller of a run so far.

    Raises:
        RunError: If it has not been evaluated yet.
        CheckpointError: If none of its checkpoints is whole.
    """
    loaded = CheckpointFolder(run.folder.checkpoints).latest()
    weights = split(loaded.state)["best_policy"].tensors
    if not weights:
        raise RunError(
            f"run {run.name!r} has no controller yet: its first evaluation is after round "
            f"{run.config.evaluation.eval_freq}."
        )
    task = make_run_task(run.config)
    envs = GrowthVectorEnv(task, 1, purpose="evaluation", autoreset=False)
    policy = make_policy(run.config, envs.slot_config)
    policy.load_state_dict(weights)
    is_greedy = run.config.evaluation.deterministic if deterministic is None else deterministic
    return LearnedController(policy, deterministic=is_greedy, name=run.name)


class _Replay:
    """Does what was done before, step by step, and then waits."""

    name = "replay"

    def __init__(self, actions: Sequence[Sequence[int]]) -> None:
        self._actions, self._step = [list(action) for action in actions], 0

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        self._step = 0

    def act(self, observations: Any, masks: Any, starts: Any) -> Any:
        self._step += 1
        if self._step > len(self._actions):
            return np.zeros((1, len(HEAD_NAMES)), np.int64)
        return np.array([self._actions[self._step - 1]], np.int64)


def _grow(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: Callable[[TimelineStep], None],
) -> GrownHost:
    """Steer one host through its episode; a caller's random numbers stay as they are."""
    with torch.random.fork_rng(devices=[]):
        return _steer(envs, controller, seed, on_step)


def _steer(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: Callable[[TimelineStep], None],
) -> GrownHost:
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
    final: dict[str, Any] = info["final_info"]
    return GrownHost(
        model=export(envs.growth.population.model(0), committed_only=True),
        timeline=tuple(steps),
        score=float(final["final_score"][0]),
        ep_rew=total,
        flops=float(final["flops"][0]),
        host_parameters=int(final["host_parameters"][0]),
        seed_parameters=int(final["seed_parameters"][0]),
        sample=envs.growth.draws[0].data.test.inputs[:4].clone(),
    )


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
