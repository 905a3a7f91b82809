"""Where hosts of a task are trained for an evaluation, so many at a time. Shapes: N = hosts."""

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
from esper.evidence.controllers import Side, Stopping
from esper.evidence.host_runs import Goals, HostRuns, run_hosts
from esper.evidence.search_space import Candidate
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.populations.host_data import Split
from esper.populations.host_models import CostTable
from esper.tamiyo import Controller
from esper.tasks import Task, TaskDraw

PART = 128
"""Hosts that are trained side by side."""
LONGER = 2
"""How many times the budget hosts may train that are to spend what others have spent."""

MakeController = Callable[[GrowthEpisodes, slice], Controller]
"""Makes the controller of a part of all hosts."""
OnShare = Callable[[float], None]
"""Told which share of the hosts is done."""


class Bench:
    """Trains hosts of one task, for one purpose, scored on one split."""

    def __init__(
        self, task: Task, *, purpose: Purpose, final_split: FinalSplit, training: int = 0
    ) -> None:
        """Get ready.

        Args:
            task: What hosts learn.
            purpose: The space of draws that they are from.
            final_split: What they are scored on.
            training: Which training of the same draws: others have other weights and batches.
        """
        self.task = task
        self._training, self._draws = training, dict[int, int]()
        self.purpose: Purpose = purpose
        self.final_split: FinalSplit = final_split
        require_splits(purpose, final_split)
        self._growth: GrowthEpisodes | None = None
        self._longer: Bench | None = None
        self._again: Bench | None = None
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
        """What hosts of the task's design cost."""
        return self._any().population.costs

    def longer(self) -> Bench:
        """Return a bench of the same hosts with :data:`LONGER` times the epochs.

        A share of the reference run's FLOPs is as much smaller there, as that run is longer too.
        """
        if self._longer is None:
            budget = replace(self.task.budget, n_epochs=LONGER * self.task.budget.n_epochs)
            task = replace(self.task, budget=budget)
            self._longer = Bench(task, purpose=self.purpose, final_split=self.final_split)
        return self._longer

    def again(self) -> Bench:
        """Return a bench where the same draws are trained from other weights, on other batches."""
        if self._again is None:
            self._again = Bench(
                self.task,
                purpose=self.purpose,
                final_split=self.final_split,
                training=self._training + 1,
            )
        return self._again

    def contexts(self, hosts: Sequence[int]) -> tuple[Integers, Integers]:
        """Return the classes and samples of hosts, ``[N]`` each, before any of them trains."""
        for host in hosts:
            if host not in self._contexts:
                draw = self.task.sample(draw_seed(self.purpose, host, 0))
                self._contexts[host] = draw.n_classes, len(draw.data.train)
        found = np.array([self._contexts[host] for host in hosts], np.int64)
        return found[:, 0], found[:, 1]

    def start(self, hosts: Sequence[int]) -> GrowthEpisodes:
        """Return hosts at the start of their episodes, first in a population that may have more."""
        numbers = [self._number(host) for host in hosts]
        if self._growth is None or self._growth.n_hosts < len(hosts):
            self._growth = GrowthEpisodes(self._task_again(), numbers, final_split=self.final_split)
            return self._growth
        self._growth.begin(range(len(hosts)), numbers)
        for host in range(len(hosts), self._growth.n_hosts):
            self._growth.stop(host)
        return self._growth

    def _number(self, host: int) -> int:
        """Return what decides the weights and batches of a host."""
        number = draw_seed(self.purpose, host, self._training)
        self._draws[number] = draw_seed(self.purpose, host, 0)
        return number

    def _task_again(self) -> Task:
        """Return the task, whose draws do not follow the number of the training."""
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
        """Train hosts to their end, part after part; a caller's random numbers stay as they are.

        Args:
            hosts: The number of each host.
            make: Makes the controller of a part.
            seeds: What hosts start with, by their place in ``hosts``.
            every_epoch: Splits to score by after every epoch.
            goals: Where hosts are scored by the final split and when they end, if not at the end.
            on_share: Told how far it is.
        """
        planted, parts = seeds or {}, list[HostRuns]()
        with torch.random.fork_rng(devices=[]):
            for first in range(0, len(hosts), PART):
                on_share(first / len(hosts))
                part = slice(first, min(first + PART, len(hosts)))
                own = hosts[part]
                growth = self.start(own)
                here = {place: planted.get(first + place, ()) for place in range(len(own))}
                parts.append(
                    run_hosts(
                        growth,
                        make(growth, part),
                        len(own),
                        seed=own[0],
                        seeds={place: some for place, some in here.items() if some},
                        every_epoch=every_epoch,
                        goals=None if goals is None else goals.of_part(part),
                    )
                )
        return join_runs(parts)


def join_runs(parts: Sequence[HostRuns]) -> HostRuns:
    """Return the runs of several groups of hosts as one."""
    names = parts[0].arrays()
    return HostRuns(
        **{name: np.concatenate([part.arrays()[name] for part in parts]) for name in names}
    )


def treat(
    bench: Bench,
    pairs: Sequence[tuple[Candidate, int]],
    *,
    stops: Integers | None = None,
    every_epoch: Sequence[Split] = (),
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train hosts, each by its candidate.

    Args:
        bench: Where they are trained.
        pairs: The candidate and the number of each host.
        stops: ``[N]`` epochs after which each host is finished; None for the end of the budget.
        every_epoch: Splits to score by after every epoch.
        on_share: Told how far it is.
    """

    def make(growth: GrowthEpisodes, part: slice) -> Controller:
        own = [candidate for candidate, _ in pairs[part]]
        groups = [(candidate, len(list(same))) for candidate, same in groupby(own)]
        controllers = [candidate.make(growth.layout) for candidate, _ in groups]
        together = Side(controllers, [size for _, size in groups])
        return together if stops is None else Stopping(together, np.asarray(stops)[part])

    return bench.run(
        [host for _, host in pairs],
        make,
        seeds={place: candidate.first_seeds() for place, (candidate, _) in enumerate(pairs)},
        every_epoch=every_epoch,
        on_share=on_share,
    )
