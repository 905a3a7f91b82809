"""Training the hosts of a task for an evaluation, in batches. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import numpy as np
import torch

from esper.arrays import Integers
from esper.environment.draws import FinalSplit, Purpose, draw_seed
from esper.environment.episodes import GrowthEpisodes
from esper.environment.options import require_splits
from esper.evidence.controllers import ControllerGroup, Stopping
from esper.evidence.host_runs import Goals, HostRuns, join_runs, run_hosts
from esper.evidence.search_space import Candidate
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.populations.host_models import CostTable
from esper.tamiyo import Controller
from esper.tasks import Task, TaskDraw

BATCH_HOSTS = 128
"""Number of hosts that are trained together."""
LONGER = 2
"""Factor on the budget of hosts that must spend as many FLOPs as others."""

MakeController = Callable[[GrowthEpisodes, slice], Controller]
"""Makes the controller of a batch of hosts."""
OnShare = Callable[[float], None]
"""Called with the share of the work that is done."""


class HostTrainer:
    """Trains hosts of one task for one purpose and scores them on one split."""

    def __init__(
        self, task: Task, *, purpose: Purpose, final_split: FinalSplit, training: int = 0
    ) -> None:
        """Prepare to train.

        Args:
            task: The task.
            purpose: The purpose that hosts are drawn for.
            final_split: The split that hosts are scored on.
            training: Number of the training; each has other weights and batches on the same draws.
        """
        self.task = task
        self._training, self._draws = training, dict[int, int]()
        self.purpose: Purpose = purpose
        self.final_split: FinalSplit = final_split
        require_splits(purpose, final_split)
        self._growth: GrowthEpisodes | None = None
        self._longer: HostTrainer | None = None
        self._again: HostTrainer | None = None
        self._contexts: dict[int, tuple[int, int]] = {}

    @property
    def stops(self) -> tuple[int, ...]:
        """The epochs after which a host may stop."""
        n_epochs = self.task.budget.n_epochs
        allows = self.slot_config.allow_finish
        return tuple(range(n_epochs + 1)) if allows else (n_epochs,)

    @property
    def slot_config(self) -> SlotConfig:
        """The slots of the hosts."""
        return self._any().slot_config

    @property
    def costs(self) -> CostTable:
        """The costs of hosts of the task's design."""
        return self._any().population.costs

    def longer(self) -> HostTrainer:
        """Return a trainer of the same hosts with :data:`LONGER` times the epochs.

        Its reference run is longer too, so equal FLOPs are a smaller share of it.
        """
        if self._longer is None:
            budget = replace(self.task.budget, n_epochs=LONGER * self.task.budget.n_epochs)
            task = replace(self.task, budget=budget)
            self._longer = HostTrainer(task, purpose=self.purpose, final_split=self.final_split)
        return self._longer

    def again(self) -> HostTrainer:
        """Return a trainer of the same draws with other initial weights and batches."""
        if self._again is None:
            self._again = HostTrainer(
                self.task,
                purpose=self.purpose,
                final_split=self.final_split,
                training=self._training + 1,
            )
        return self._again

    def contexts(self, hosts: Sequence[int]) -> tuple[Integers, Integers]:
        """Return the numbers of classes and samples of hosts, ``[N]`` each."""
        for host in hosts:
            if host not in self._contexts:
                draw = self.task.sample(draw_seed(self.purpose, host, 0))
                self._contexts[host] = draw.n_classes, len(draw.data.train)
        found = np.array([self._contexts[host] for host in hosts], np.int64)
        return found[:, 0], found[:, 1]

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

    def _any(self) -> GrowthEpisodes:
        return self.start([0]) if self._growth is None else self._growth

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

        Args:
            hosts: Numbers of the hosts.
            make: Makes the controller of a batch.
            seeds: Committed seeds that hosts start with, by index into ``hosts``.
            every_epoch: Splits to score on after every epoch.
            goals: When to score and end hosts, if not at the end of the budget.
            on_share: Called with the share that is done.
        """
        planted, batches = seeds or {}, list[HostRuns]()
        with torch.random.fork_rng(devices=[]):
            for first in range(0, len(hosts), BATCH_HOSTS):
                on_share(first / len(hosts))
                batch = slice(first, min(first + BATCH_HOSTS, len(hosts)))
                numbers = hosts[batch]
                growth = self.start(numbers)
                first_seeds = {i: planted.get(first + i, ()) for i in range(len(numbers))}
                batches.append(
                    run_hosts(
                        growth,
                        make(growth, batch),
                        len(numbers),
                        seed=numbers[0],
                        seeds={host: some for host, some in first_seeds.items() if some},
                        every_epoch=every_epoch,
                        goals=None if goals is None else goals.select(batch),
                    )
                )
        return join_runs(batches)


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

    def make(growth: GrowthEpisodes, batch: slice) -> Controller:
        candidates = [candidate for candidate, _ in pairs[batch]]
        groups = [(candidate, len(list(same))) for candidate, same in groupby(candidates)]
        controllers = [candidate.make(growth.layout) for candidate, _ in groups]
        group = ControllerGroup(controllers, [size for _, size in groups])
        return group if stops is None else Stopping(group, np.asarray(stops)[batch])

    return trainer.run(
        [host for _, host in pairs],
        make,
        seeds={index: candidate.first_seeds() for index, (candidate, _) in enumerate(pairs)},
        every_epoch=every_epoch,
        on_share=on_share,
    )
