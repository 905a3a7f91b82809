"""Trials of controllers on a fixed set of held-out hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.config.run import RunConfig
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.environment.draws import FinalSplit, Purpose
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.factored_actions import HEAD_NAMES
from esper.simic.rollout.jobs import (
    InlinePool,
    Job,
    Parcel,
    Parcels,
    Pool,
    Workplace,
    total_share,
)
from esper.storage.state import State, from_bytes, to_bytes
from esper.tamiyo import Controller, LearnedController, make_controller
from esper.tasks import Task
from esper.training.fixed_schedule import best_stop, make_fixed, returns_by_stop
from esper.training.setup import make_policy, make_task_of_worker, make_trial_envs, split_evenly
from esper.training.stopping import StoppableController, StopRequest

TRIAL_SEED = 0
"""Determines the hosts of evaluations: the same for all runs, so that runs can be compared."""

OnShare = Callable[[float], None]
"""Called with the share of a trial that is done."""

MIN_HOSTS = 2
"""Hosts that each design has in a trial, however small its share."""


class MakeController(Protocol):
    """Makes the controller of a trial. Other processes need one that can be pickled."""

    def __call__(self, envs: GrowthVectorEnv, design: int, /) -> Controller:
        """Return a controller for environments of the task's design of this number."""
        ...


@dataclass(frozen=True)
class MakeNamed:
    """Makes a controller that has a name and learns nothing."""

    name: str

    def __call__(self, hosts: GrowthVectorEnv | GrowthEpisodes, _: int, /) -> Controller:
        """Return the controller."""
        return make_controller(self.name, hosts.layout)


@dataclass(frozen=True)
class MakeFixed:
    """Makes the fixed schedule."""

    stops: tuple[int, ...]
    """The epochs after which it stops the hosts of each design."""

    def __call__(self, envs: GrowthVectorEnv, design: int) -> Controller:
        """Return the schedule."""
        return make_fixed(envs, self.stops[design])


class MakeLearned:
    """Makes the controller that a run has learned."""

    def __init__(self, config: RunConfig, weights: dict[str, Any]) -> None:
        self._config = config
        self._weights = to_bytes(State(weights))  # tensors would be shared, not copied

    def __call__(self, envs: GrowthVectorEnv, design: int) -> Controller:
        """Return the controller."""
        policy = make_policy(self._config, envs.slot_config)
        policy.load_state_dict(from_bytes(self._weights).tensors)
        return LearnedController(policy, deterministic=self._config.evaluation.deterministic)


@dataclass(frozen=True, kw_only=True, eq=False)
class TrialPart:
    """Hosts of one design in a trial; each design is steered separately."""

    task: Task
    design: int
    """Number of the task's design that the hosts have."""
    first: int
    """Number of its first host; those of the task's own design come first."""
    n_hosts: int


def trial_parts(task: Task, n_hosts: int) -> list[TrialPart]:
    """Return the hosts of a trial by design: the task's own first, then each variant's."""
    counts = task.share_out(n_hosts, least=MIN_HOSTS)
    firsts = accumulate(counts, initial=0)
    return [
        TrialPart(task=design, design=number, first=first, n_hosts=count)
        for number, (design, first, count) in enumerate(
            zip(task.designs, firsts, counts, strict=False)
        )
    ]


def in_groups(part: TrialPart, most: int) -> list[TrialPart]:
    """Split a part into groups of about equal size, none larger than ``most`` hosts."""
    sizes = split_evenly(part.n_hosts, most)
    firsts = accumulate(sizes, initial=part.first)
    return [
        TrialPart(task=part.task, design=part.design, first=first, n_hosts=size)
        for first, size in zip(firsts, sizes, strict=False)
    ]


def count_hosts(parts: list[TrialPart]) -> int:
    """Return the number of hosts in a whole trial."""
    return sum(part.n_hosts for part in parts)


@dataclass(frozen=True, kw_only=True, eq=False)
class _Request:
    """What a worker needs to know about a group of hosts in a trial."""

    config: RunConfig
    task: Task | None
    """The task of the hosts; None if the worker has to make it."""
    design: int
    first: int
    n_hosts: int
    purpose: Purpose
    final_split: FinalSplit
    make: MakeController | None
    """Makes the controller; None for the fixed schedule, read before each step."""


@dataclass(frozen=True, eq=False)
class _Outcome:
    """What came of a group of hosts."""

    results: EpisodeResults | None
    actions: NDArray[np.int64] | None
    """``[N, T, 8]``."""
    returns_by_stop: Floats | None
    """``[T + 1, N]``, if the fixed schedule was read."""


def _run_group(
    place: Workplace, request: _Request, parcels: Parcels
) -> tuple[_Outcome, dict[str, Parcel]]:
    """Train a group of hosts."""
    envs, seed = _find_envs(place, request), TRIAL_SEED + request.first
    n_epochs = request.config.budget.n_epochs
    wrapped: list[StoppableController] = []

    def wrap(controller: Controller) -> StoppableController:
        wrapped.append(
            StoppableController(controller, place.check, lambda step: place.report(step / n_epochs))
        )
        return wrapped[-1]

    if request.make is None:
        return _Outcome(None, None, returns_by_stop(envs, seed=seed, wrap=wrap)), {}
    results = run_episodes(envs, wrap(request.make(envs, request.design)), seed=seed)
    return _Outcome(results, np.stack(wrapped[0].actions, axis=1), None), {}


def _find_envs(place: Workplace, request: _Request) -> GrowthVectorEnv:
    """Return the environments of a group; those of earlier trials are used again."""
    key = f"trial of {request.n_hosts} hosts of design {request.design} for {request.purpose}"
    if key not in place.held:
        task = request.task
        if task is None:
            task = make_task_of_worker(request.config).designs[request.design]
        place.held[key] = make_trial_envs(
            request.config,
            task,
            request.n_hosts,
            purpose=request.purpose,
            final_split=request.final_split,
        )
    return place.held[key]


class Trials:
    """Trials on held-out hosts: during a run on draws for tuning, at its end on others."""

    def __init__(
        self,
        config: RunConfig,
        task: Task,
        stop: StopRequest,
        *,
        is_final: bool = False,
        pool: Pool | None = None,
    ) -> None:
        """Choose the hosts.

        Args:
            config: Settings of the run.
            task: Task of the run.
            stop: Checked before every step.
            is_final: Whether the hosts are those for evaluation, scored on the test split.
            pool: Computes the trials; this process by default.
        """
        self._config, self._stop, self._is_final = config, stop, is_final
        self._pool: Pool = InlinePool() if pool is None else pool
        sizes = config.evaluation
        n_hosts = sizes.n_final_episodes if is_final else sizes.n_eval_episodes
        most = config.envs_per_shard or (config.envs if is_final else n_hosts)
        self._n_designs = len(task.designs)
        self._groups = [
            group for part in trial_parts(task, n_hosts) for group in in_groups(part, most)
        ]

    @property
    def n_hosts(self) -> int:
        """The number of hosts."""
        return count_hosts(self._groups)

    def run(
        self, make: MakeController, on_share: OnShare = lambda _: None
    ) -> tuple[EpisodeResults, NDArray[np.int64]]:
        """Let a controller grow all hosts.

        Args:
            make: Makes the controller, which must be able to steer the hosts of any design.
            on_share: Called with the share of the trial that is done.

        Returns:
            The results, and the actions ``[N, T, 8]``, -1 after the end of an episode.
        """
        outcomes = self._run(make, on_share)
        results = join_results([one.results for one in outcomes if one.results is not None])
        actions = np.full(
            (self.n_hosts, self._config.budget.n_epochs + 1, len(HEAD_NAMES)), -1, np.int64
        )
        for group, outcome in zip(self._groups, outcomes, strict=True):
            assert outcome.actions is not None, "the controller has acted"
            taken = outcome.actions
            actions[group.first : group.first + group.n_hosts, : taken.shape[1]] = taken
        actions[np.arange(actions.shape[1])[None] >= results.op_counts.sum(1)[:, None]] = -1
        return results, actions

    def find_stops(self, on_share: OnShare = lambda _: None) -> list[int]:
        """Return the best epochs at which to stop the fixed schedule, one for each design."""
        found: list[list[Floats]] = [[] for _ in range(self._n_designs)]
        for group, outcome in zip(self._groups, self._run(None, on_share), strict=True):
            assert outcome.returns_by_stop is not None, "the schedule was read"
            found[group.design].append(outcome.returns_by_stop)
        return [best_stop(np.concatenate(returns, axis=1)) for returns in found]

    def _run(self, make: MakeController | None, on_share: OnShare) -> list[_Outcome]:
        jobs = [
            Job(
                function=_run_group,
                request=_Request(
                    config=self._config,
                    task=group.task if self._pool.is_local else None,
                    design=group.design,
                    first=group.first,
                    n_hosts=group.n_hosts,
                    purpose="evaluation" if self._is_final else "tuning",
                    final_split="test" if self._is_final else "validation",
                    make=make,
                ),
                name=f"a trial of {group.n_hosts} hosts",
            )
            for group in self._groups
        ]
        show = total_share([group.n_hosts for group in self._groups], on_share)
        results = self._pool.run(jobs, check=self._stop.check, on_share=show)
        return [result.value for result in results]


def join_results(parts: Sequence[EpisodeResults]) -> EpisodeResults:
    """Concatenate the results of several groups of hosts."""
    names = [field.name for field in fields(EpisodeResults)]
    return EpisodeResults(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )
