"""Trying controllers on hosts that nobody learns from, always the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import fields
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from esper.config.run import RunConfig
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.simic.environment import GrowthVectorEnv
from esper.simic.evaluation import EpisodeResults, run_episodes
from esper.simic.training.setup import make_trial_envs
from esper.simic.training.stopping import StoppableController, StopRequest
from esper.tamiyo import Controller
from esper.tasks import Task

TRIAL_SEED = 0
"""Decides the hosts of evaluations: the same for all runs, so that runs can be compared."""


class Trials:
    """Evaluations while a run goes on, on draws for tuning."""

    def __init__(self, config: RunConfig, task: Task, stop: StopRequest) -> None:
        n_hosts = config.evaluation.n_eval_episodes
        self._stop, self._n_steps = stop, config.budget.n_epochs
        self.envs: GrowthVectorEnv = make_trial_envs(
            config, task, n_hosts, purpose="tuning", final_split="validation"
        )

    def run(
        self, controller: Controller, on_share: Callable[[float], None] = lambda _: None
    ) -> EpisodeResults:
        """Return how a controller does.

        Args:
            controller: The controller.
            on_share: Told before each step which share of the trial is done.
        """
        n_steps = self._n_steps
        stoppable = StoppableController(controller, self._stop, lambda n: on_share(n / n_steps))
        return run_episodes(self.envs, stoppable, seed=TRIAL_SEED)


def run_final_trials(
    config: RunConfig,
    task: Task,
    make: Callable[[GrowthVectorEnv], Controller],
    stop: StopRequest,
    *,
    on_share: Callable[[float], None] = lambda _: None,
) -> tuple[EpisodeResults, NDArray[np.int64]]:
    """Return how a controller does on the draws for evaluation, scored on the test split.

    Beside the results are its actions, ``[N, T, 8]``, -1 after an episode's end.

    The hosts are grown in equal parts, as many at a time as the run trains.

    Args:
        config: Of the run.
        task: Of the run.
        make: Makes the controller for environments.
        stop: Checked at every step.
        on_share: Told before each step which share of the trial is done.
    """
    n_hosts = config.evaluation.n_final_episodes
    n_parts = math.ceil(n_hosts / max(config.envs, 1))
    ends = [round(n_hosts * part / n_parts) for part in range(n_parts + 1)]
    actions = np.full((n_hosts, config.budget.n_epochs + 1, len(HEAD_NAMES)), -1, np.int64)
    made: dict[int, GrowthVectorEnv] = {}
    results: list[EpisodeResults] = []
    for first, end in pairwise(ends):
        size = end - first
        if size not in made:
            made[size] = make_trial_envs(
                config, task, size, purpose="evaluation", final_split="test"
            )

        def tell(step: int, first: int = first, size: int = size) -> None:
            on_share((first + size * step / config.budget.n_epochs) / n_hosts)

        controller = StoppableController(make(made[size]), stop, tell)
        results.append(run_episodes(made[size], controller, seed=TRIAL_SEED + first))
        taken = np.stack(controller.actions, axis=1)
        taken[np.arange(taken.shape[1])[None] >= controller_steps(results[-1])[:, None]] = -1
        actions[first:end, : taken.shape[1]] = taken
    return join_results(results), actions


def join_results(parts: list[EpisodeResults]) -> EpisodeResults:
    """Return the results of several groups of hosts as one."""
    names = [field.name for field in fields(EpisodeResults)]
    return EpisodeResults(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


def controller_steps(results: EpisodeResults) -> NDArray[np.int64]:
    """Return the decisions that each host's episode had, ``[N]``."""
    return results.op_counts.sum(1)
