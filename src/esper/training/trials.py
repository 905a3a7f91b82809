"""Trials of controllers on a fixed set of held-out hosts, and the fixed schedule among them.

Shapes: N = hosts, T = epochs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from torch import Tensor

from esper.arrays import Features, Flags, Integers
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.config.run import RunConfig
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.slot_config import SlotConfig
from esper.populations.host_data import Split
from esper.tamiyo import (
    Controller,
    FixedSchedule,
    LearnedController,
    Planting,
    SavedController,
    make_controller,
)
from esper.tamiyo.controllers.controller import rank_blueprints
from esper.tamiyo.policy.ablation import shuffle_columns, shuffled_columns
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tasks import Task
from esper.training.host_runs import HostRuns, join_runs
from esper.training.host_trainer import Helpers, HostTrainer, MakeController
from esper.training.setup import make_policy, trial_rewards
from esper.training.signals import StopRequest
from esper.training.worker_pool import OnShare, Pool

TRIAL_SEED = 0
"""Determines the hosts of evaluations: the same for all runs, so that runs can be compared."""


def make_named(name: str, growth: GrowthEpisodes, _: object = None) -> Controller:
    """Return a controller that has a name and learns nothing."""
    return make_controller(name, growth.layout)


def make_fixed(stop: int | None, growth: GrowthEpisodes, _: object = None) -> FixedSchedule:
    """Return the fixed schedule that stops after an epoch."""
    return FixedSchedule(growth.layout, plan_growth(growth.slot_config), finish_after=stop)


def make_learned(
    config: RunConfig, weights: dict[str, Tensor], growth: GrowthEpisodes, batch: slice
) -> Controller:
    """Return the controller that a run has learned."""
    policy = make_policy(config, growth.slot_config)
    policy.load_state_dict(weights)
    controller = LearnedController(policy, deterministic=config.evaluation.deterministic)
    return shuffle_for(controller, config.ablation.shuffled, growth, batch.stop - batch.start)


def make_saved(
    saved: SavedController, growth: GrowthEpisodes, batch: slice, shuffled: Sequence[str] = ()
) -> Controller:
    """Return a learned controller that sees some observations of other hosts.

    Args:
        saved: The controller.
        growth: The episodes of its hosts.
        batch: The indices of its hosts among all.
        shuffled: Names of these observations besides those of its ablation.
    """
    controller = saved.make(growth.slot_config, deterministic=saved.deterministic)
    names = (*saved.ablation.shuffled, *shuffled)
    return shuffle_for(controller, names, growth, batch.stop - batch.start)


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
        self._stop, self._pool = stop, pool or Pool()
        sizes = config.evaluation
        n_hosts = sizes.n_final_episodes if is_final else sizes.n_eval_episodes
        self._hosts = range(TRIAL_SEED, TRIAL_SEED + n_hosts)
        self._max_batch = config.envs_per_shard or (config.envs if is_final else n_hosts)
        helpers = Helpers(pool=self._pool, task=config.task, options=config.task_options)
        self._trainer = HostTrainer(
            task,
            purpose="evaluation" if is_final else "tuning",
            final_split="test" if is_final else "validation",
            rewards=trial_rewards(config.rewards),
            helpers=None if self._pool.is_local else helpers,
        )

    @property
    def n_hosts(self) -> int:
        """The number of hosts."""
        return len(self._hosts)

    def run(self, make: MakeController, on_share: OnShare = lambda _: None) -> HostRuns:
        """Let a controller grow all hosts.

        Args:
            make: Makes the controller.
            on_share: Called with the share of the trial that is done.
        """
        return self._run(make, on_share)

    def find_stop(self, on_share: OnShare = lambda _: None) -> int:
        """Return the best epoch at which to stop the fixed schedule.

        The hosts are trained once: the return of stopping is known after each epoch.
        """
        make = partial(make_fixed, self._trainer.task.budget.n_epochs)
        return best_stop(self._run(make, on_share, every_epoch=("final",)))

    def _run(
        self, make: MakeController, on_share: OnShare, *, every_epoch: Sequence[Split] = ()
    ) -> HostRuns:
        jobs = self._trainer.jobs(
            self._hosts, make, every_epoch=every_epoch, max_batch=self._max_batch
        )
        return join_runs(self._pool.run(jobs, check=self._stop.check, on_share=on_share))


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


def best_stop(runs: HostRuns) -> int:
    """Return the epoch at which stopping gives the best mean return.

    Hosts that may not stop train on when the others do.
    """
    returns = runs.returns_by_epoch
    if not runs.may_finish.any():
        return returns.shape[1] - 1
    reached = np.where(runs.may_finish[:, None], returns, returns[:, -1:])
    # Rounded, so that ties go to the earliest epoch and not to the last digit.
    return int(reached.mean(0).round(9).argmax())
