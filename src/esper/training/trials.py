"""Trying controllers on hosts that nobody learns from, always the same ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from esper.config.run import RunConfig
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.tamiyo import Controller
from esper.tasks import Task
from esper.training.fixed_schedule import find_stop, make_fixed
from esper.training.setup import make_trial_envs
from esper.training.stopping import StoppableController, StopRequest

TRIAL_SEED = 0
"""Decides the hosts of evaluations: the same for all runs, so that runs can be compared."""


OnShare = Callable[[float], None]
"""Told before each step which share of a trial is done."""

LEAST_HOSTS = 2
"""Hosts that each of several tasks has in a trial, however small its share is."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialPart:
    """The hosts of one task in a trial; controllers steer the hosts of each task by themselves."""

    task: Task
    first: int
    """The number of its first host; those of the run's own task are first."""
    n_hosts: int


def trial_parts(task: Task, n_hosts: int) -> list[TrialPart]:
    """Return the hosts of a trial by design: the task's own, then those of each variant."""
    parts, first = list[TrialPart](), 0
    for own, count in zip(task.designs, task.share_out(n_hosts, least=LEAST_HOSTS), strict=True):
        parts.append(TrialPart(task=own, first=first, n_hosts=count))
        first += count
    return parts


def count_hosts(parts: list[TrialPart]) -> int:
    """Return the hosts of a whole trial."""
    return sum(part.n_hosts for part in parts)


class Trials:
    """Evaluations while a run goes on, on draws for tuning."""

    def __init__(self, config: RunConfig, task: Task, stop: StopRequest) -> None:
        self._stop, self._n_steps = stop, config.budget.n_epochs
        self._parts = trial_parts(task, config.evaluation.n_eval_episodes)
        self.envs: list[GrowthVectorEnv] = [
            make_trial_envs(
                config, part.task, part.n_hosts, purpose="tuning", final_split="validation"
            )
            for part in self._parts
        ]

    def run(self, controller: Controller, on_share: OnShare = lambda _: None) -> EpisodeResults:
        """Return how a controller does.

        Args:
            controller: The controller; it reads no layout, so that it can steer any task's hosts.
            on_share: Told before each step which share of the trial is done.
        """
        return self._run_each([controller] * len(self._parts), on_share)

    def find_stops(self, on_share: OnShare = lambda _: None) -> list[int]:
        """Return the epochs after which the fixed schedule stops the hosts of each task."""
        return [
            find_stop(
                envs, seed=TRIAL_SEED + part.first, wrap=partial(self._stoppable, part, on_share)
            )
            for part, envs in zip(self._parts, self.envs, strict=True)
        ]

    def run_fixed(self, stops: Sequence[int], on_share: OnShare = lambda _: None) -> EpisodeResults:
        """Return how the fixed schedule does that stops the hosts of each task so early."""
        made = [make_fixed(envs, stop) for envs, stop in zip(self.envs, stops, strict=True)]
        return self._run_each(made, on_share)

    def _run_each(self, controllers: Sequence[Controller], on_share: OnShare) -> EpisodeResults:
        """Return how controllers do, each on the hosts of one task."""
        results: list[EpisodeResults] = []
        for part, envs, controller in zip(self._parts, self.envs, controllers, strict=True):
            stoppable = self._stoppable(part, on_share, controller)
            results.append(run_episodes(envs, stoppable, seed=TRIAL_SEED + part.first))
        return join_results(results)

    def _stoppable(
        self, part: TrialPart, on_share: OnShare, controller: Controller
    ) -> StoppableController:
        """Return a controller of some hosts that can be stopped, and tells how far the trial is."""
        n_hosts = count_hosts(self._parts)

        def tell(step: int) -> None:
            on_share((part.first + part.n_hosts * step / self._n_steps) / n_hosts)

        return StoppableController(controller, self._stop, tell)


def run_final_trials(
    config: RunConfig,
    task: Task,
    make: Callable[[GrowthVectorEnv], Controller],
    stop: StopRequest,
    *,
    on_share: OnShare = lambda _: None,
) -> tuple[EpisodeResults, NDArray[np.int64]]:
    """Return how a controller does on the draws for evaluation, scored on the test split.

    Beside the results are its actions, ``[N, T, 8]``, -1 after an episode's end.

    The hosts of each task are grown in equal parts, as many at a time as the run trains.

    Args:
        config: Of the run.
        task: Of the run.
        make: Makes the controller for environments.
        stop: Checked at every step.
        on_share: Told before each step which share of the trial is done.
    """
    by_task = trial_parts(task, config.evaluation.n_final_episodes)
    n_hosts = count_hosts(by_task)
    actions = np.full((n_hosts, config.budget.n_epochs + 1, len(HEAD_NAMES)), -1, np.int64)
    made: dict[tuple[int, int], GrowthVectorEnv] = {}
    results: list[EpisodeResults] = []
    for part in (group for one in by_task for group in in_groups(one, config.envs)):
        first, size = part.first, part.n_hosts
        key = id(part.task), size
        if key not in made:
            made[key] = make_trial_envs(
                config, part.task, size, purpose="evaluation", final_split="test"
            )

        def tell(step: int, first: int = first, size: int = size) -> None:
            on_share((first + size * step / config.budget.n_epochs) / n_hosts)

        controller = StoppableController(make(made[key]), stop, tell)
        results.append(run_episodes(made[key], controller, seed=TRIAL_SEED + first))
        taken = np.stack(controller.actions, axis=1)
        taken[np.arange(taken.shape[1])[None] >= controller_steps(results[-1])[:, None]] = -1
        actions[first : first + size, : taken.shape[1]] = taken
    return join_results(results), actions


def in_groups(part: TrialPart, most: int) -> list[TrialPart]:
    """Return a part as groups of about the same size, none of more hosts than ``most``."""
    n_groups = math.ceil(part.n_hosts / most)
    ends = [part.first + round(part.n_hosts * group / n_groups) for group in range(n_groups + 1)]
    return [
        TrialPart(task=part.task, first=first, n_hosts=end - first) for first, end in pairwise(ends)
    ]


def join_results(parts: list[EpisodeResults]) -> EpisodeResults:
    """Return the results of several groups of hosts as one."""
    names = [field.name for field in fields(EpisodeResults)]
    return EpisodeResults(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


def controller_steps(results: EpisodeResults) -> NDArray[np.int64]:
    """Return the decisions that each host's episode had, ``[N]``."""
    return results.op_counts.sum(1)
