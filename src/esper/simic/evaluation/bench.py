"""Where hosts of a task are trained for an evaluation, so many at a time. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from esper.growth.populations import FirstSeed
from esper.growth.populations.host_data import Split
from esper.simic.environment import GrowthVectorEnv
from esper.simic.environment.seeds import Purpose
from esper.simic.environment.splits import FinalSplit
from esper.simic.evaluation.host_runs import HostRuns, run_hosts
from esper.tamiyo import Controller
from esper.tasks import Task

PART = 128
"""Hosts that are trained side by side."""

MakeController = Callable[[GrowthVectorEnv, slice], Controller]
"""Makes the controller of a part of all hosts."""
OnShare = Callable[[float], None]
"""Told which share of the hosts is done."""


class Bench:
    """Trains hosts of one task, for one purpose, scored on one split."""

    def __init__(self, task: Task, *, purpose: Purpose, final_split: FinalSplit) -> None:
        self.task = task
        self.purpose: Purpose = purpose
        self.final_split: FinalSplit = final_split
        self._envs: dict[int, GrowthVectorEnv] = {}

    @property
    def stops(self) -> tuple[int, ...]:
        """The epochs after which a host may stop."""
        n_epochs = self.task.budget.n_epochs
        allows = self.envs(1).slot_config.allow_finish
        return tuple(range(n_epochs + 1)) if allows else (n_epochs,)

    def envs(self, n_hosts: int) -> GrowthVectorEnv:
        """Return environments of so many hosts; those of a size are made once."""
        if n_hosts not in self._envs:
            self._envs[n_hosts] = GrowthVectorEnv(
                self.task,
                n_hosts,
                purpose=self.purpose,
                final_split=self.final_split,
                autoreset=False,
            )
        return self._envs[n_hosts]

    def run(
        self,
        hosts: Sequence[int],
        make: MakeController,
        *,
        seeds: Mapping[int, Sequence[FirstSeed]] | None = None,
        every_epoch: Sequence[Split] = (),
        on_share: OnShare = lambda _: None,
    ) -> HostRuns:
        """Train hosts to their end, part after part; a caller's random numbers stay as they are.

        Args:
            hosts: The number of each host.
            make: Makes the controller of a part.
            seeds: What hosts start with, by their place in ``hosts``.
            every_epoch: Splits to score by after every epoch.
            on_share: Told how far it is.
        """
        planted, parts = seeds or {}, list[HostRuns]()
        with torch.random.fork_rng(devices=[]):
            for first in range(0, len(hosts), PART):
                on_share(first / len(hosts))
                part = slice(first, min(first + PART, len(hosts)))
                own = hosts[part]
                envs = self.envs(len(own))
                here = {place: planted.get(first + place, ()) for place in range(len(own))}
                parts.append(
                    run_hosts(
                        envs,
                        make(envs, part),
                        own,
                        seeds={place: some for place, some in here.items() if some},
                        every_epoch=every_epoch,
                    )
                )
        return join_runs(parts)


def join_runs(parts: Sequence[HostRuns]) -> HostRuns:
    """Return the runs of several groups of hosts as one."""
    names = parts[0].arrays()
    return HostRuns(
        **{name: np.concatenate([part.arrays()[name] for part in parts]) for name in names}
    )
