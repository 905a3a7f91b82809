"""Training the hosts of a task for an evaluation, in batches. Shapes: N = hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch

from esper.arrays import Features, Flags, Integers
from esper.config.growth import Budget, GrowthConfig
from esper.environment.draws import FinalSplit, Purpose, draw_seed
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.options import find_task, require_splits
from esper.environment.runner import steer_hosts
from esper.evidence.host_runs import Goals, HostRuns, Recorder, join_runs
from esper.evidence.search_space import Candidate
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.tamiyo import Controller, SavedController
from esper.tamiyo.controllers.controller import EpochCounter
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tasks import Task, TaskDraw
from esper.training.setup import make_in_worker
from esper.training.trials import shuffle_for
from esper.training.worker_pool import Job, OnShare, Pool

BATCH_HOSTS = 128
"""Number of hosts that are trained together, which is what a worker does at a time."""
MAX_TRAINERS = 4
"""Trainers that a worker remembers: those of one price, and the one for tuning."""
LONGER = 2
"""Factor on the budget of hosts that must spend as many FLOPs as others."""

_OP = HEAD_NAMES.index("op")

MakeController = Callable[[GrowthEpisodes, slice], Controller]
"""Makes the controller of a batch from its episodes and the indices of its hosts. Workers need one
that can be pickled."""


def count_batches(n_hosts: int) -> int:
    """Return the number of batches that hosts are trained in."""
    return math.ceil(n_hosts / BATCH_HOSTS)


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


@dataclass(frozen=True, kw_only=True, eq=False)
class Helpers:
    """Workers that train hosts of a task, which they make by its name."""

    pool: Pool
    task: str
    options: Mapping[str, Any]
    """Options of the task."""


@dataclass(frozen=True, kw_only=True)
class _TrainerSpec:
    """What another process needs to make a trainer."""

    task: str
    options: Mapping[str, Any]
    budget: Budget
    growth: GrowthConfig | None
    purpose: Purpose
    final_split: FinalSplit
    training: int

    def make(self) -> HostTrainer:
        """Return the trainer."""
        task = make_in_worker(self.task, lambda: find_task(self.task, dict(self.options)))
        return HostTrainer(
            replace(task, budget=self.budget, growth=self.growth),
            purpose=self.purpose,
            final_split=self.final_split,
            training=self.training,
        )


class HostTrainer:
    """Trains hosts of one task for one purpose and scores them on one split."""

    def __init__(
        self,
        task: Task,
        *,
        purpose: Purpose,
        final_split: FinalSplit,
        training: int = 0,
        helpers: Helpers | None = None,
    ) -> None:
        """Prepare to train.

        Args:
            task: The task.
            purpose: The purpose that hosts are drawn for.
            final_split: The split that hosts are scored on.
            training: Number of the training; each has other weights and batches on the same draws.
            helpers: Train the batches of hosts; None for this process.
        """
        self.task, self._helpers = task, helpers
        self._training, self._draws = training, dict[int, int]()
        self.purpose: Purpose = purpose
        self.final_split: FinalSplit = final_split
        require_splits(purpose, final_split)
        self._growth: GrowthEpisodes | None = None
        self._longer: HostTrainer | None = None

    @property
    def stops(self) -> tuple[int, ...]:
        """The epochs after which a host may stop."""
        n_epochs = self.task.budget.n_epochs
        allows = self.slot_config.allow_finish
        return tuple(range(n_epochs + 1)) if allows else (n_epochs,)

    @property
    def slot_config(self) -> SlotConfig:
        """The slots of the hosts."""
        return (self._growth or self.start([0])).slot_config

    def longer(self) -> HostTrainer:
        """Return a trainer of the same hosts with :data:`LONGER` times the epochs.

        Its reference run is longer too, so equal FLOPs are a smaller share of it.
        """
        if self._longer is None:
            budget = replace(self.task.budget, n_epochs=LONGER * self.task.budget.n_epochs)
            self._longer = self._like(replace(self.task, budget=budget), 0)
        return self._longer

    def again(self) -> HostTrainer:
        """Return a trainer of the same draws with other initial weights and batches."""
        return self._like(self.task, self._training + 1)

    def _like(self, task: Task, training: int) -> HostTrainer:
        return HostTrainer(
            task,
            purpose=self.purpose,
            final_split=self.final_split,
            training=training,
            helpers=self._helpers,
        )

    def start(self, hosts: Sequence[int]) -> GrowthEpisodes:
        """Start the episodes of hosts, the first of a population that may hold more."""
        seeds = [self._draw_seed(host) for host in hosts]
        if self._growth is None or self._growth.n_hosts < len(hosts):
            self._growth = GrowthEpisodes(
                self._repeated_task(), seeds, final_split=self.final_split
            )
            return self._growth
        self._growth.begin(range(len(hosts)), seeds)
        for host in range(len(hosts), self._growth.n_hosts):
            self._growth.stop(host)
        return self._growth

    def _draw_seed(self, host: int) -> int:
        """Return the seed of a host's weights and batches."""
        seed = draw_seed(self.purpose, host, self._training)
        self._draws[seed] = draw_seed(self.purpose, host, 0)
        return seed

    def _repeated_task(self) -> Task:
        """Return the task with the same draws in every training."""
        if self._training == 0 or self.task.draw is None:
            return self.task
        sample, draws = self.task.sample, self._draws

        def draw(seed: int) -> TaskDraw:
            return sample(draws.get(seed, seed))

        return replace(self.task, draw=draw)

    def run(
        self,
        hosts: Sequence[int],
        make: MakeController,
        *,
        seeds: Mapping[int, Sequence[FirstSeed]] | None = None,
        every_epoch: Sequence[Split] = (),
        goals: Goals | None = None,
        on_share: OnShare = lambda _: None,
    ) -> HostRuns:
        """Train hosts to their end, batch by batch, and leave the caller's random state alone.

        A batch has the same results whoever trains it.

        Args:
            hosts: Numbers of the hosts.
            make: Makes the controller of a batch.
            seeds: Committed seeds that hosts start with, by index into ``hosts``.
            every_epoch: Splits to score on after every epoch: "final", "validation" or both.
            goals: Score hosts on the final split when they reach these, and end those that reach
                both.
            on_share: Called with the share that is done.
        """
        firsts = range(0, len(hosts), BATCH_HOSTS)
        batches = [slice(first, min(first + BATCH_HOSTS, len(hosts))) for first in firsts]
        trainer = self if self._helpers is None else self._spec(self._helpers)
        requests = [
            _Batch(
                trainer=trainer,
                hosts=hosts[batch],
                place=batch,
                make=make,
                seeds=_select_seeds(seeds or {}, batch),
                every_epoch=every_epoch,
                goals=None if goals is None else goals.select(batch),
            )
            for batch in batches
        ]
        on_share(0.0)
        pool = Pool() if self._helpers is None else self._helpers.pool
        jobs = [
            Job(f"training {size} hosts", _run_batch, (one,), size)
            for one in requests
            for size in [len(one.hosts)]
        ]
        return join_runs(pool.run(jobs, on_share=on_share))

    def _spec(self, helpers: Helpers) -> _TrainerSpec:
        return _TrainerSpec(
            task=helpers.task,
            options=helpers.options,
            budget=self.task.budget,
            growth=self.task.growth,
            purpose=self.purpose,
            final_split=self.final_split,
            training=self._training,
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class _Batch:
    """Hosts that are trained together, and how."""

    trainer: HostTrainer | _TrainerSpec
    hosts: Sequence[int]
    place: slice
    """Their indices among all hosts."""
    make: MakeController
    seeds: Mapping[int, Sequence[FirstSeed]]
    every_epoch: Sequence[Split]
    goals: Goals | None


def _run_batch(on_share: OnShare, batch: _Batch) -> HostRuns:
    """Train a batch of hosts."""
    trainer, n_hosts = _find_trainer(batch.trainer), len(batch.hosts)
    n_epochs = trainer.task.budget.n_epochs
    with torch.random.fork_rng(devices=[]):
        growth = trainer.start(batch.hosts)
        controller = batch.make(growth, batch.place)
        if batch.seeds:
            growth.plant(batch.seeds)
        recorder = Recorder(growth, n_hosts, batch.every_epoch, batch.goals)
        recorder.add_planted(batch.seeds)

        def record(actions: Integers, result: StepResult) -> None:
            recorder.add_step(actions, result)
            on_share(min(1.0, recorder.n_steps / n_epochs))

        steer_hosts(growth, controller, seed=batch.hosts[0], n_hosts=n_hosts, on_step=record)
        return recorder.results()


_trainers_of_worker: dict[str, HostTrainer] = {}
"""The trainers that a worker used last, by their specification."""


def _find_trainer(wanted: HostTrainer | _TrainerSpec) -> HostTrainer:
    """Return a trainer; a worker remembers the last ones that it used."""
    if isinstance(wanted, HostTrainer):
        return wanted
    trainers, key = _trainers_of_worker, repr(wanted)
    trainer = trainers.pop(key, None) or wanted.make()
    trainers[key] = trainer
    if len(trainers) > MAX_TRAINERS:
        del trainers[next(iter(trainers))]
    return trainer


def _select_seeds(
    seeds: Mapping[int, Sequence[FirstSeed]], batch: slice
) -> dict[int, Sequence[FirstSeed]]:
    """Return the seeds of the hosts of a batch, by index into it, where there are any."""
    found = {index: seeds.get(batch.start + index) for index in range(batch.stop - batch.start)}
    return {index: some for index, some in found.items() if some}


class Stopping:
    """A controller wrapper that finishes each host after its own number of epochs."""

    def __init__(self, controller: Controller, stops: Integers) -> None:
        self._controller, self._stops = controller, np.asarray(stops, np.int64)
        self.name = controller.name
        self._epochs = EpochCounter()

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller."""
        self._epochs.start(n_hosts)
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        is_due = self._epochs.count(observations, starts) >= self._stops
        actions = self._controller.act(observations, masks, starts).copy()
        actions[is_due, _OP] = Op.FINISH
        return actions


class ControllerGroup:
    """Several controllers, each of which steers a consecutive range of hosts."""

    name = "group"

    def __init__(self, controllers: Sequence[Controller], sizes: Sequence[int]) -> None:
        self._controllers = list(controllers)
        self._ends = np.cumsum(sizes).tolist()
        self._ranges = list(zip([0, *self._ends[:-1]], self._ends, strict=True))

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start every controller for its hosts."""
        assert n_hosts == self._ends[-1], "the controllers steer all hosts"
        for controller, (first, end) in zip(self._controllers, self._ranges, strict=True):
            controller.start(end - first, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Let every controller choose for its hosts."""
        rows = [
            controller.act(observations[first:end], masks.of_hosts(first, end), starts[first:end])
            for controller, (first, end) in zip(self._controllers, self._ranges, strict=True)
        ]
        return np.concatenate(rows)


def _make_candidates(
    candidates: Sequence[Candidate], stops: Integers | None, growth: GrowthEpisodes, batch: slice
) -> Controller:
    """Return controllers of which each follows the candidate of its hosts."""
    own = groupby(candidates[batch])
    groups = [(candidate, len(list(same))) for candidate, same in own]
    controllers = [candidate.make(growth.layout) for candidate, _ in groups]
    group = ControllerGroup(controllers, [size for _, size in groups])
    return group if stops is None else Stopping(group, stops[batch])


def run_candidates(
    trainer: HostTrainer,
    pairs: Sequence[tuple[Candidate, int]],
    *,
    stops: Integers | None = None,
    every_epoch: Sequence[Split] = (),
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train hosts, each with its own candidate.

    Args:
        trainer: Trains the hosts.
        pairs: The candidate and the number of each host.
        stops: ``[N]`` epochs after which each host is finished; by default the end of the budget.
        every_epoch: Splits to score on after every epoch.
        on_share: Called with the share that is done.
    """
    candidates = [candidate for candidate, _ in pairs]
    return trainer.run(
        [host for _, host in pairs],
        partial(_make_candidates, candidates, None if stops is None else np.asarray(stops)),
        seeds={index: candidate.first_seeds() for index, (candidate, _) in enumerate(pairs)},
        every_epoch=every_epoch,
        on_share=on_share,
    )
