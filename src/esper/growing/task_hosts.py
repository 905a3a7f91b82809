"""Growing one host of a task, in an environment of its own."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import nn

from esper.arrays import Integers
from esper.config.growth import Budget
from esper.environment import GrowthVectorEnv, run_episodes
from esper.environment.episodes import StepResult
from esper.errors import RunError
from esper.growing.decisions import (
    Decision,
    OnStep,
    Trace,
    decision_of,
    end_note,
    ignore_step,
)
from esper.growing.grown import (
    Grown,
    GrowthSummary,
    SlotGrowth,
    add_baseline,
    germination_epochs,
    wants_baseline,
)
from esper.growing.measuring import measure
from esper.growing.progress import EpochProgress
from esper.growth.export import export
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.modes import suitable_threads
from esper.progress import ShowProgress
from esper.tamiyo import Controller, NoGrowth, Replay
from esper.tasks import Task
from esper.training.lookup import PROGRESSIVE, PROGRESSIVE_GROWTH, AnyController, find_controller
from esper.training.run import Run
from esper.training.setup import make_run_task, trial_rewards
from esper.training.trials import TRIAL_SEED


def grow_task(
    task: Task,
    budget: Budget,
    controller: AnyController,
    *,
    target: Mapping[str, int] | None,
    fractions: Sequence[float] | None,
    seed: int,
    baseline: bool | str,
    on_step: OnStep,
    progress: ShowProgress = False,
) -> Grown:
    """Grow one host of a task; see :func:`esper.grow`."""
    growth = PROGRESSIVE_GROWTH if controller == PROGRESSIVE else task.growth
    task = replace(task, budget=budget, growth=growth)
    envs = GrowthVectorEnv(task, 1, purpose="evaluation", final_split="test", autoreset=False)
    decider = find_controller(controller, envs, target=target, fractions=fractions)
    largest_counts = target is not None
    with EpochProgress(progress, budget.n_epochs, "growing") as bar:
        grown = _grow_host(envs, decider, seed, bar.wrap(on_step), largest_counts=largest_counts)
    if not wants_baseline(baseline, grown):
        return grown
    with EpochProgress(progress, budget.n_epochs, "training with no growth") as bar:
        plain = _grow_host(envs, NoGrowth(), seed, bar.wrap(ignore_step))
    sign = 1.0 if task.metric.best > task.metric.worst else -1.0
    return add_baseline(grown, plain, lambda one, other: sign * one > sign * other)


def grow_best_host(run: Run, *, allow_code: bool = False) -> Grown:
    """Grow the best host of a run's final comparison again, with the same actions.

    Args:
        run: The run.
        allow_code: Whether to run a task that the settings name by ``module:function``.

    Raises:
        RunError: If the run is not done, or records the user's own training.
        TaskError: If the settings name code and that is not allowed.
    """
    run.require_learning()
    summary = run.summary
    if summary is None or summary.best_host is None:
        raise RunError(
            f"run {run.name!r} is not done ({run.state}), so its best host is not known; resume "
            f"it: {run.resume_command}"
        )
    run.require_trusted_task(allow_code=allow_code)
    best = summary.best_host
    task = make_run_task(run.config)
    envs = GrowthVectorEnv(
        task,
        1,
        reward=trial_rewards(run.config.rewards),
        purpose="evaluation",
        final_split="test",
        autoreset=False,
    )
    actions = np.array(best.actions, np.int64).reshape(1, -1, len(HEAD_NAMES))
    return _grow_host(envs, Replay(actions), TRIAL_SEED + best.number, ignore_step)


def _grow_host(
    envs: GrowthVectorEnv,
    controller: Controller,
    seed: int,
    on_step: OnStep,
    *,
    largest_counts: bool = False,
) -> Grown:
    """Grow the host of an environment of one host."""
    start = time.monotonic()
    with torch.random.fork_rng(devices=[]):
        envs.reset(seed=seed)
    given = _export_host(envs)
    hosts, timeline = envs.growth.hosts, Trace()

    def record(actions: Integers, result: StepResult) -> None:
        timeline.append(_describe(envs, controller, actions, result))
        on_step(timeline[-1])

    envs.growth.keep_states(largest_counts=largest_counts)
    flops = hosts.training_flops(0)
    n_samples = hosts.orders[0].batch_size
    with suitable_threads(n_samples * flops), torch.random.fork_rng(devices=[]):
        results = run_episodes(envs, controller, seed=seed, on_step=record)
    grown, draw = _export_host(envs), envs.growth.draws[0]
    before, after = (measure(one, draw.data.test, envs.task.metric) for one in (given, grown))
    budget, records = envs.task.budget, envs.growth.records
    grown_slots = slots(hosts.model(0)).values()
    growth = tuple(SlotGrowth.of(slot) for slot in grown_slots if slot.life.committed)
    seeds = [(each.slot, name) for each in growth for name in each.blueprints]
    best_epoch = int(records.settled_epoch[0])
    summary = GrowthSummary(
        metric=envs.task.metric.name,
        split="test",
        before=before,
        after=after,
        grown=after,
        parameters_before=count_parameters(given),
        parameters_after=count_parameters(grown),
        flops=float(results.flops[0]),
        n_epochs=int(results.n_epochs[0]),
        best_epoch=best_epoch,
        budget_epochs=budget.n_epochs,
        growth=growth,
        germinated_after=germination_epochs(timeline, seeds, best_epoch),
        was_kept=True,
        controller=controller.name,
        has_costs=budget.flop_price > 0.0 or budget.parameter_rent > 0.0,
        seconds=time.monotonic() - start,
        total_flops=float(results.flops[0] * records.reference_flops[0]),
    )
    return Grown(
        model=grown,
        timeline=timeline,
        summary=summary,
        score=float(results.scores[0]),
        episode_return=float(results.returns[0]),
        sample=draw.data.test.inputs[:4].clone(),
    )


def _describe(
    envs: GrowthVectorEnv, controller: Controller, actions: Integers, result: StepResult
) -> Decision:
    """Return what was decided for the only host, with how it did after the epoch."""
    config, records = envs.slot_config, envs.growth.records
    best, n_grown = int(records.settled_epoch[0]), int(result.slots.grown_parameters.sum())
    is_other = bool(result.terminated[0]) and best != records.epoch[0]
    why = result.refusals.get(0) or result.interventions.get(0, "")
    return decision_of(
        controller,
        Op(int(result.op_done[0])),
        actions[0].tolist(),
        result.slots,
        config,
        epoch=int(result.epoch[0]),
        epochs=int(records.n_epochs[0]),
        train_loss=_finite(records.train_losses[0, -1]),
        val_loss=_finite(records.validation_losses[0, -1]),
        score=float(result.score[0]),
        why=why or (end_note(best) if is_other else ""),
        parameters=int(records.n_parameters[0]) + n_grown,
        flops=float(result.flops[0]),
    )


def _finite(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def _export_host(envs: GrowthVectorEnv) -> nn.Module:
    """Return the host as a plain module with its committed seeds and no gradients."""
    model = export(envs.growth.hosts.model(0), committed_only=True)
    for parameter in model.parameters():
        parameter.grad = None
    return model
