"""Trials of controllers on a fixed set of held-out hosts, and the fixed schedule among them.

Shapes: N = hosts, T = epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from itertools import accumulate
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Features, Flags, Floats, Integers
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.config.run import RunConfig
from esper.environment import EpisodeResults, GrowthVectorEnv, run_episodes
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.runner import OnStep, ignore_step, steer_hosts
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo import Controller, FixedSchedule, LearnedController, Planting, make_controller
from esper.tamiyo.controllers.controller import rank_blueprints
from esper.tamiyo.policy.ablation import shuffle_columns, shuffled_columns
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tasks import Task
from esper.training.setup import make_policy, make_task_of_worker, make_trial_envs, split_evenly
from esper.training.signals import StopRequest
from esper.training.worker_pool import Job, OnShare, Pool

TRIAL_SEED = 0
"""Determines the hosts of evaluations: the same for all runs, so that runs can be compared."""

MakeController = Callable[[GrowthVectorEnv], Controller]
"""Makes the controller of a trial. Other processes need one that can be pickled."""


def make_named(name: str, hosts: GrowthVectorEnv | GrowthEpisodes, _: object = None) -> Controller:
    """Return a controller that has a name and learns nothing."""
    return make_controller(name, hosts.layout)


def make_fixed(stop: int | None, envs: GrowthVectorEnv) -> FixedSchedule:
    """Return the fixed schedule, given the epochs after which it stops its hosts."""
    return FixedSchedule(envs.layout, plan_growth(envs.slot_config), finish_after=stop)


def make_learned(
    config: RunConfig, weights: dict[str, Tensor], envs: GrowthVectorEnv
) -> Controller:
    """Return the controller that a run has learned."""
    policy = make_policy(config, envs.slot_config)
    policy.load_state_dict(weights)
    controller = LearnedController(policy, deterministic=config.evaluation.deterministic)
    return shuffle_for(controller, config.ablation.shuffled, envs.growth, envs.num_envs)


_SHUFFLES = 0x5EED
"""Separates the stream of permutations from others of the same seed."""


class Shuffled:
    """A controller wrapper that permutes observations of running hosts at every step.

    Masks, recurrent state and the effects of actions stay those of each host.
    """

    def __init__(
        self, controller: Controller, columns: Sequence[int], is_running: Callable[[], Flags]
    ) -> None:
        self._controller, self._columns, self._is_running = controller, columns, is_running
        self.name = controller.name
        self._generator = np.random.default_rng(0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller and the stream of permutations."""
        self._generator = np.random.default_rng((seed, _SHUFFLES))
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        running = np.flatnonzero(self._is_running())
        shown = shuffle_columns(observations, running, self._columns, self._generator)
        return self._controller.act(shown, masks, starts)


def shuffle_for(
    controller: Controller, patterns: Sequence[str], growth: GrowthEpisodes, n_hosts: int
) -> Controller:
    """Return a controller of the first hosts that sees observations of others, if any are named."""
    if not patterns:
        return controller
    columns = shuffled_columns(patterns, growth.layout.n_slots)
    return Shuffled(controller, columns, lambda: ~growth.records.is_over[:n_hosts])


Envs = dict[str, GrowthVectorEnv]
"""Environments of earlier trials, which are used again."""

_envs_of_worker: Envs = {}


@dataclass(frozen=True, kw_only=True, eq=False)
class _Request:
    """What is needed to train a group of hosts in a trial."""

    config: RunConfig
    first: int
    """Number of the first host."""
    n_hosts: int
    is_final: bool
    make: MakeController | None
    """Makes the controller; None for the fixed schedule, read before each step."""
    task: Task | None = None
    """The task of the run; None if a worker has to make it."""
    envs: Envs | None = None
    """Environments that can be used; None for those of a worker."""


def _run_group(on_share: OnShare, request: _Request) -> Any:
    """Train a group of hosts; return results and actions, or the returns of the schedule."""
    on_share(0.0)
    envs, seed = _find_envs(request), TRIAL_SEED + request.first
    n_epochs = request.config.budget.n_epochs
    actions: list[Integers] = []

    def note(taken: Integers, _: StepResult) -> None:
        on_share(len(actions) / n_epochs)
        actions.append(taken)

    if request.make is None:
        return returns_by_stop(envs, seed=seed, on_step=note)
    controller = request.make(envs)
    results = run_episodes(envs, controller, seed=seed, on_step=note)
    return results, np.stack(actions, axis=1)


def _find_envs(request: _Request) -> GrowthVectorEnv:
    """Return the environments of a group, which those of earlier trials have too."""
    config, n_hosts = request.config, request.n_hosts
    key = f"{n_hosts} hosts, {request.is_final=}, {config}"
    envs = _envs_of_worker if request.envs is None else request.envs
    if key not in envs:
        task = request.task or make_task_of_worker(config)
        envs[key] = make_trial_envs(config, task, n_hosts, is_final=request.is_final)
    return envs[key]


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
        self._config, self._task, self._stop, self._is_final = config, task, stop, is_final
        self._pool = pool or Pool()
        self._envs: Envs = {}
        sizes = config.evaluation
        self.n_hosts = sizes.n_final_episodes if is_final else sizes.n_eval_episodes
        maximum = config.envs_per_shard or (config.envs if is_final else self.n_hosts)
        self._sizes = split_evenly(self.n_hosts, maximum)
        """The number of hosts in each group; those of a group are trained together."""

    def run(
        self, make: MakeController, on_share: OnShare = lambda _: None
    ) -> tuple[EpisodeResults, NDArray[np.int64]]:
        """Let a controller grow all hosts.

        Args:
            make: Makes the controller.
            on_share: Called with the share of the trial that is done.

        Returns:
            The results, and the actions ``[N, T, 8]``, -1 after the end of an episode.
        """
        outcomes: list[tuple[EpisodeResults, Integers]] = self._run(make, on_share)
        results = join_results([results for results, _ in outcomes])
        actions = np.full(
            (self.n_hosts, self._config.budget.n_epochs + 1, len(HEAD_NAMES)), -1, np.int64
        )
        firsts = accumulate(self._sizes, initial=0)
        for first, size, (_, taken) in zip(firsts, self._sizes, outcomes, strict=False):
            actions[first : first + size, : taken.shape[1]] = taken
        actions[np.arange(actions.shape[1])[None] >= results.op_counts.sum(1)[:, None]] = -1
        return results, actions

    def find_stop(self, on_share: OnShare = lambda _: None) -> int:
        """Return the best epoch at which to stop the fixed schedule."""
        return best_stop(np.concatenate(self._run(None, on_share), axis=1))

    def _run(self, make: MakeController | None, on_share: OnShare) -> list[Any]:
        own: dict[str, Any] = {"task": self._task, "envs": self._envs}
        requests = [
            _Request(
                config=self._config,
                first=first,
                n_hosts=size,
                is_final=self._is_final,
                make=make,
                **(own if self._pool.is_local else {}),
            )
            for first, size in zip(accumulate(self._sizes, initial=0), self._sizes, strict=False)
        ]
        jobs = [
            Job(f"a trial of {one.n_hosts} hosts", _run_group, (one,), one.n_hosts)
            for one in requests
        ]
        return self._pool.run(jobs, check=self._stop.check, on_share=on_share)


def join_results(parts: Sequence[EpisodeResults]) -> EpisodeResults:
    """Concatenate the results of several groups of hosts."""
    names = [field.name for field in fields(EpisodeResults)]
    return EpisodeResults(
        **{name: np.concatenate([getattr(part, name) for part in parts]) for name in names}
    )


FIRST_CHOICE = "widen_medium"
"""The blueprint that grows wherever it fits."""


def plan_growth(slot_config: SlotConfig) -> tuple[Planting, ...]:
    """Return what the schedule grows in each slot: the first choice, or else what is preferred."""
    plantings: list[Planting] = []
    for slot in slot_config.slot_ids:
        ranked = rank_blueprints(slot_config, slot, (FIRST_CHOICE, *PREFERRED_BLUEPRINTS))
        ranked = [name for name in ranked if name != "noop"]
        if slot_config.is_enabled(slot) and ranked:
            plantings.append(Planting(slot=slot, blueprint=ranked[0]))
    return tuple(plantings)


def returns_by_stop(envs: GrowthVectorEnv, *, seed: int, on_step: OnStep = ignore_step) -> Floats:
    """Return the return ``[T + 1, N]`` of stopping the schedule after 0, 1, 2, ... epochs.

    The hosts are trained once. After each step, the return of stopping there is computed, which is
    free and changes nothing. A host that may not stop has the return of its last epoch;
    if none may, stopping early is minus infinity.

    Args:
        envs: The environments to train in.
        seed: Determines the hosts.
        on_step: Called after each step with the actions and their result.
    """
    growth, n_epochs = envs.growth, envs.task.budget.n_epochs
    envs.reset(seed=seed)
    may_finish = growth.masks()["op"][:, Op.FINISH].numpy().copy()
    found = [growth.returns_if_stopped()]

    def note(actions: Integers, result: StepResult) -> None:
        found.append(growth.returns_if_stopped())
        on_step(actions, result)

    steer_hosts(growth, make_fixed(n_epochs, envs), seed=seed, on_step=note)
    n_left = n_epochs + 1 - len(found)  # all budgets were shorter
    returns = np.stack([*found, *found[-1:] * n_left])
    if may_finish.any():  # those that may not finish train on when the others stop
        return np.where(may_finish, returns, returns[-1])
    returns[:-1] = -np.inf
    return returns


def best_stop(returns: Floats) -> int:
    """Return the epoch at which stopping gives the best mean return, given ``[T + 1, N]``."""
    # Rounded, so that ties go to the earliest epoch and not to the last digit.
    return int(returns.mean(1).round(9).argmax())
