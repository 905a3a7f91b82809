"""Growing one host of a task, in an environment of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from esper.config.growth import Budget
from esper.environment import EpisodeResults, GrowthVectorEnv
from esper.errors import ConfigError, RunError
from esper.growing.grown import (
    Grown,
    GrowthSummary,
    expected_gain,
    expected_score,
    germination_epochs,
)
from esper.growing.measuring import measure
from esper.growing.objectives import scale_of
from esper.growing.progress import shown_progress
from esper.growing.timeline import OnStep, ignore_step, run_episode
from esper.growth.export import export
from esper.growth.modules import count_parameters
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.modes import suitable_threads
from esper.progress import ShowProgress
from esper.tamiyo import Controller, Replay
from esper.tasks import Task, make_task
from esper.training.lookup import (
    PROGRESSIVE,
    PROGRESSIVE_GROWTH,
    AnyController,
    find_controller,
)
from esper.training.run import Run
from esper.training.setup import make_run_task, make_trial_envs
from esper.training.trials import TRIAL_SEED, trial_parts


def find_task(task: Task | str, options: dict[str, Any]) -> Task:
    """Return a task by its name, or as it is given."""
    if isinstance(task, str):
        return make_task(task, **options)
    if options:
        raise ConfigError(
            f"the options {', '.join(options)} are given with a Task; give them with the name of a "
            "task, or change the Task."
        )
    return task


def grow_task(
    task: Task,
    budget: Budget,
    controller: AnyController,
    *,
    target: Mapping[str, int] | None,
    fractions: Sequence[float] | None,
    seed: int,
    on_step: OnStep,
    progress: ShowProgress = False,
) -> Grown:
    """Grow one host of a task; see :func:`esper.grow`."""
    growth = PROGRESSIVE_GROWTH if controller == PROGRESSIVE else task.growth
    task = replace(task, budget=budget, growth=growth)
    envs = GrowthVectorEnv(task, 1, purpose="evaluation", final_split="test", autoreset=False)
    decider = find_controller(controller, envs, target=target, fractions=fractions)
    with shown_progress(progress, budget.n_epochs, "growing") as bar:
        return _grow_host(envs, decider, seed, bar.wrap(on_step), largest_counts=target is not None)


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
    parts = trial_parts(make_run_task(run.config), run.config.evaluation.n_final_episodes)
    task = next(part.task for part in reversed(parts) if part.first <= best.number)
    envs = make_trial_envs(run.config, task, 1, purpose="evaluation", final_split="test")
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
    with torch.random.fork_rng(devices=[]):
        envs.reset(seed=seed)
    given = _export_host(envs)
    population = envs.growth.population
    flops = population.costs_of(0).training_flops(population.lives(0))
    with suitable_threads(population.orders[0].batch_size * flops):
        timeline, results = run_episode(
            envs, controller, seed, on_step, largest_counts=largest_counts
        )
    grown, test = _export_host(envs), envs.growth.draws[0].data.test
    before, after = (measure(one, test, envs.task.metric) for one in (given, grown))
    summary = _summarize(
        envs, results, controller, before=before, after=after, given=given, kept=grown
    )
    return Grown(
        model=grown,
        timeline=timeline,
        summary=replace(
            summary,
            expected_score=expected_score(timeline, results),
            expected_gain=expected_gain(timeline),
            germinated_after=germination_epochs(timeline, summary.seeds, summary.best_epoch),
        ),
        results=results,
        sample=test.inputs[:4].clone(),
    )


def _export_host(envs: GrowthVectorEnv) -> nn.Module:
    """Return the host as a plain module with its committed seeds and no gradients."""
    model = export(envs.growth.population.model(0), committed_only=True)
    for parameter in model.parameters():
        parameter.grad = None
    return model


def _summarize(
    envs: GrowthVectorEnv,
    results: EpisodeResults,
    controller: Controller,
    *,
    before: float,
    after: float,
    given: nn.Module,
    kept: nn.Module,
) -> GrowthSummary:
    was_kept = kept is not given
    lives = envs.growth.population.lives(0)
    committed = tuple(
        (slot, seed.blueprint) for slot, life in lives.items() for seed in life.committed
    )
    return GrowthSummary(
        metric=envs.task.metric.name,
        split="test",
        before=before,
        after=after if was_kept else before,
        grown=after,
        parameters_before=count_parameters(given),
        parameters_after=count_parameters(kept),
        flops=float(results.flops[0]),
        n_epochs=int(results.n_epochs[0]),
        best_epoch=int(envs.growth.records.settled_epoch[0]),
        budget_epochs=envs.task.budget.n_epochs,
        seeds=committed if was_kept else (),
        was_kept=was_kept,
        controller=controller.name,
        score=float(results.scores[0]),
        scale=scale_of(envs.task.metric),
        has_costs=envs.task.budget.flop_price > 0.0 or envs.task.budget.parameter_rent > 0.0,
    )
