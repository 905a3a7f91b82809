"""Training the held-out hosts of a task under a controller, in batches. Shapes: N = hosts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from typing import Any

import torch

from esper.arrays import Integers
from esper.config.growth import Budget, GrowthConfig, RewardConfig
from esper.environment.draws import FinalSplit, Purpose, draw_seed
from esper.environment.episodes import GrowthEpisodes, StepResult
from esper.environment.options import require_splits
from esper.environment.runner import steer_hosts
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.tamiyo import Controller
from esper.tasks import Task
from esper.tasks.registry import create_task
from esper.training.host_runs import Goals, HostRuns, Recorder, join_runs
from esper.training.setup import make_in_worker, split_evenly
from esper.training.worker_pool import Job, OnShare, Pool

BATCH_HOSTS = 128
"""Number of hosts that are trained together, which is what a worker does at a time."""
MAX_TRAINERS = 4
"""Trainers that a worker remembers: those of one price, and the one for tuning."""
LONGER = 2
"""Factor on the budget of hosts that must spend as many FLOPs as others."""

MakeController = Callable[[GrowthEpisodes, slice], Controller]
"""Makes the controller of a batch from its episodes and the indices of its hosts. Workers need one
that can be pickled."""


def count_batches(n_hosts: int) -> int:
    """Return the number of batches that hosts are trained in."""
    return math.ceil(n_hosts / BATCH_HOSTS)


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
    rewards: RewardConfig | None

    def make(self) -> HostTrainer:
        """Return the trainer."""
        task = make_in_worker(self.task, lambda: create_task(self.task, dict(self.options)))
        return HostTrainer(
            replace(task, budget=self.budget, growth=self.growth),
            purpose=self.purpose,
            final_split=self.final_split,
            rewards=self.rewards,
        )


class HostTrainer:
    """Trains hosts of one task for one purpose and scores them on one split."""

    def __init__(
        self,
        task: Task,
        *,
        purpose: Purpose,
        final_split: FinalSplit,
        rewards: RewardConfig | None = None,
        helpers: Helpers | None = None,
    ) -> None:
        """Prepare to train.

        Args:
            task: The task.
            purpose: The purpose that hosts are drawn for.
            final_split: The split that hosts are scored on.
            rewards: Settings of the rewards, which returns are sums of.
            helpers: Train the batches of hosts; None for this process.
        """
        self.task, self._rewards, self._helpers = task, rewards, helpers
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
            self._longer = HostTrainer(
                replace(self.task, budget=budget),
                purpose=self.purpose,
                final_split=self.final_split,
                rewards=self._rewards,
                helpers=self._helpers,
            )
        return self._longer

    def start(self, hosts: Sequence[int]) -> GrowthEpisodes:
        """Start the episodes of hosts, the first of a population that may hold more."""
        seeds = [draw_seed(self.purpose, host, 0) for host in hosts]
        if self._growth is None or self._growth.n_hosts < len(hosts):
            self._growth = GrowthEpisodes(
                self.task, seeds, rewards=self._rewards, final_split=self.final_split
            )
            return self._growth
        self._growth.begin(range(len(hosts)), seeds)
        for host in range(len(hosts), self._growth.n_hosts):
            self._growth.stop(host)
        return self._growth

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
        jobs = self.jobs(hosts, make, seeds=seeds, every_epoch=every_epoch, goals=goals)
        pool = Pool() if self._helpers is None else self._helpers.pool
        return join_runs(pool.run(jobs, on_share=on_share))

    def jobs(
        self,
        hosts: Sequence[int],
        make: MakeController,
        *,
        seeds: Mapping[int, Sequence[FirstSeed]] | None = None,
        every_epoch: Sequence[Split] = (),
        goals: Goals | None = None,
        max_batch: int | None = None,
    ) -> list[Job]:
        """Return a job of :meth:`run` for each batch of at most ``max_batch`` hosts."""
        trainer = self if self._helpers is None else self._spec(self._helpers)
        ends = list(accumulate(split_evenly(len(hosts), max_batch or BATCH_HOSTS), initial=0))
        batches = [
            _Batch(
                trainer=trainer,
                hosts=hosts[place],
                place=place,
                make=make,
                seeds=_select_seeds(seeds or {}, place),
                every_epoch=every_epoch,
                goals=None if goals is None else goals.select(place),
            )
            for place in (slice(first, end) for first, end in pairwise(ends))
        ]
        return [
            Job(f"training {size} hosts", _run_batch, (batch,), size)
            for batch in batches
            for size in [len(batch.hosts)]
        ]

    def _spec(self, helpers: Helpers) -> _TrainerSpec:
        return _TrainerSpec(
            task=helpers.task,
            options=helpers.options,
            budget=self.task.budget,
            growth=self.task.growth,
            purpose=self.purpose,
            final_split=self.final_split,
            rewards=self._rewards,
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
