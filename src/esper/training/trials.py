"""Trials of controllers on a fixed set of held-out hosts."""

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
"""Determines the hosts of evaluations: the same for all runs, so that runs can be compared."""

OnShare = Callable[[float], None]
"""Called before each step with the share of a trial that is done."""

MIN_HOSTS = 2
"""Hosts that each design has in a trial, however small its share."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialPart:
    """The hosts of one design in a trial; each design is steered separately."""

    task: Task
    first: int
    """Number of its first host; those of the task's own design come first."""
    n_hosts: int


def trial_parts(task: Task, n_hosts: int) -> list[TrialPart]:
    """Return the hosts of a trial by design: the task's own first, then each variant's."""
    parts, first = list[TrialPart](), 0
    for design, count in zip(task.designs, task.share_out(n_hosts, least=MIN_HOSTS), strict=True):
        parts.append(TrialPart(task=design, first=first, n_hosts=count))
        first += count
    return parts


def count_hosts(parts: list[TrialPart]) -> int:
    """Return the number of hosts in a whole trial."""
    return sum(part.n_hosts for part in parts)


class Trials:
    """The evaluations during a run, on draws for tuning."""

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
        """Return the results of a controller.

        Args:
            controller: The controller, which must be able to steer the hosts of any design.
            on_share: Called before each step with the share of the trial that is done.
        """
        return self._run_each([controller] * len(self._parts), on_share)

    def find_stops(self, on_share: OnShare = lambda _: None) -> list[int]:
        """Return the best epochs at which to stop the fixed schedule, one for each design."""
        return [
            find_stop(
                envs, seed=TRIAL_SEED + part.first, wrap=partial(self._stoppable, part, on_share)
            )
            for part, envs in zip(self._parts, self.envs, strict=True)
        ]

    def run_fixed(self, stops: Sequence[int], on_share: OnShare = lambda _: None) -> EpisodeResults:
        """Return the results of the fixed schedule with these stops, one for each design."""
        schedules = [make_fixed(envs, stop) for envs, stop in zip(self.envs, stops, strict=True)]
        return self._run_each(schedules, on_share)

    def _run_each(self, controllers: Sequence[Controller], on_share: OnShare) -> EpisodeResults:
        """Return the joined results of controllers, each on the hosts of one design."""
        results: list[EpisodeResults] = []
        for part, envs, controller in zip(self._parts, self.envs, controllers, strict=True):
            stoppable = self._stoppable(part, on_share, controller)
            results.append(run_episodes(envs, stoppable, seed=TRIAL_SEED + part.first))
        return join_results(results)

    def _stoppable(
        self, part: TrialPart, on_share: OnShare, controller: Controller
    ) -> StoppableController:
        """Return a controller that can be stopped and reports the progress of the whole trial."""
        n_hosts = count_hosts(self._parts)

        def on_step(step: int) -> None:
            on_share((part.first + part.n_hosts * step / self._n_steps) / n_hosts)

        return StoppableController(controller, self._stop, on_step)


def run_final_trials(
    config: RunConfig,
    task: Task,
    make: Callable[[GrowthVectorEnv], Controller],
    stop: StopRequest,
    *,
    made: dict[tuple[int, int], GrowthVectorEnv] | None = None,
    on_share: OnShare = lambda _: None,
) -> tuple[EpisodeResults, NDArray[np.int64]]:
    """Run a controller on the draws for evaluation and score it on the test split.

    The hosts of each design are trained in groups of equal size, of at most ``config.envs`` hosts.

    Args:
        config: Settings of the run.
        task: Task of the run.
        make: Makes the controller for an environment.
        stop: Checked before every step.
        made: The environments of earlier calls with the same settings and task, which this one
            uses and adds to. Making them, and what they find out about seeds, takes seconds.
        on_share: Called before each step with the share of the trial that is done.

    Returns:
        The results, and the actions ``[N, T, 8]``, -1 after the end of an episode.
    """
    parts = trial_parts(task, config.evaluation.n_final_episodes)
    n_hosts = count_hosts(parts)
    actions = np.full((n_hosts, config.budget.n_epochs + 1, len(HEAD_NAMES)), -1, np.int64)
    made = {} if made is None else made
    results: list[EpisodeResults] = []
    for group in (group for part in parts for group in in_groups(part, config.envs)):
        first, size = group.first, group.n_hosts
        key = id(group.task), size
        if key not in made:
            made[key] = make_trial_envs(
                config, group.task, size, purpose="evaluation", final_split="test"
            )

        def on_step(step: int, first: int = first, size: int = size) -> None:
            on_share((first + size * step / config.budget.n_epochs) / n_hosts)

        controller = StoppableController(make(made[key]), stop, on_step)
        results.append(run_episodes(made[key], controller, seed=TRIAL_SEED + first))
        taken = np.stack(controller.actions, axis=1)
        n_decisions = results[-1].op_counts.sum(1)
        taken[np.arange(taken.shape[1])[None] >= n_decisions[:, None]] = -1
        actions[first : first + size, : taken.shape[1]] = taken
    return join_results(results), actions


def in_groups(part: TrialPart, most: int) -> list[TrialPart]:
    """Split a part into groups of about equal size, none larger than ``most`` hosts."""
    n_groups = math.ceil(part.n_hosts / most)
    ends = [part.first + round(part.n_hosts * group / n_groups) for group in range(n_groups + 1)]
    return [
        TrialPart(task=part.task, first=first, n_hosts=end - first) for first, end in pairwise(ends)
    ]


def join_results(parts: list[EpisodeResults]) -> EpisodeResults:
    """Concatenate the results of several groups of hosts."""
    names = [field.name for field in fields(EpisodeResults)]
    return EpisodeResults(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
