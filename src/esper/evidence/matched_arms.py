"""Arms that are matched to a learned controller host by host. Shapes: N = hosts, T = epochs.

Each shares something with what the controller did in the same host, but not its decisions: the
number of its actions, the size of the network, or the final architecture.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from esper.arrays import Floats, Integers
from esper.environment.episodes import GrowthEpisodes
from esper.evidence.controllers import MatchedRandom, Shuffled
from esper.evidence.host_runs import Goals, HostRuns, has_spent
from esper.evidence.host_trainer import (
    LONGER,
    HostTrainer,
    MakeController,
    OnShare,
    run_candidates,
)
from esper.evidence.search_space import Candidate, widening_sets
from esper.lifecycle.factored_actions import STYLES, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.tamiyo import Controller, Planting, Replay
from esper.training.trials import MakeNamed


@dataclass(frozen=True, eq=False)
class _MakeRandom:
    """Makes matched random growth."""

    n_actions: Integers
    n_epochs: Integers

    def select(self, batch: slice) -> _MakeRandom:
        """Return what makes the controller of a batch."""
        return _MakeRandom(self.n_actions[batch], self.n_epochs[batch])

    def __call__(self, growth: GrowthEpisodes, n_hosts: int) -> Controller:
        """Return the controller."""
        return MatchedRandom(
            self.n_actions, self.n_epochs, lambda: growth.records.last_op[:n_hosts]
        )


def run_random(
    trainer: HostTrainer,
    learned: HostRuns,
    hosts: Sequence[int],
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Grow at random, with as many actions and epochs as the controller took in each host."""
    n_waits = learned.op_counts[:, Op.WAIT] + learned.op_counts[:, Op.FINISH]
    n_actions = learned.op_counts.sum(1) - n_waits
    return trainer.run(hosts, _MakeRandom(n_actions, learned.n_epochs), on_share=on_share)


def run_wide(
    trainer: HostTrainer,
    learned: HostRuns,
    hosts: Sequence[int],
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train each host, widened from the start to about the final size, for as many epochs."""
    sets = widening_sets(trainer.slot_config)
    nearest = find_nearest(count_added(trainer, sets), learned.parameters - learned.host_parameters)
    pairs = [(Candidate(planted=sets[n]), host) for n, host in zip(nearest, hosts, strict=True)]
    return run_candidates(trainer, pairs, stops=learned.n_epochs, on_share=on_share)


def run_scratch(
    trainer: HostTrainer,
    learned: HostRuns,
    hosts: Sequence[int],
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train the final architecture of each host from scratch, with the same initialization.

    Hosts are scored only after the learned arm's epochs and once they have spent its FLOPs. The
    learned arm also spent FLOPs on isolated, measured and removed seeds, so hosts may train past
    the end of the budget.
    """
    config = trainer.slot_config
    runs = trainer.longer().run(
        hosts,
        MakeNamed("wait"),
        seeds={index: committed_seeds(learned, index, config) for index in range(len(hosts))},
        goals=Goals(n_epochs=learned.n_epochs, flops=learned.flops / LONGER),
        on_share=on_share,
    )
    return replace(runs, flops=LONGER * runs.flops, flops_by_epoch=LONGER * runs.flops_by_epoch)


def at_same_epochs(scratch: HostRuns, learned: HostRuns) -> HostRuns:
    """Return the results from scratch after as many epochs as the learned arm trained."""
    return scratch.stopped_after(learned.n_epochs)


def at_same_flops(scratch: HostRuns, learned: HostRuns) -> HostRuns:
    """Return the results from scratch after the first epoch with at least the learned arm's FLOPs.

    That favors the network from scratch slightly. If :data:`LONGER` times the budget is not enough,
    the results are those at its end.
    """
    return scratch.stopped_after(first_reaching(scratch.flops_by_epoch, learned.flops))


def first_reaching(flops_by_epoch: Floats, flops: Floats) -> Integers:
    """Return the first epoch ``[N]`` whose FLOPs ``[N, T + 1]`` reach ``flops``, or the last."""
    n_below = np.sum(~has_spent(flops_by_epoch, flops[:, None]), axis=1)
    return np.minimum(n_below, flops_by_epoch.shape[1] - 1)


def count_added(trainer: HostTrainer, sets: Sequence[tuple[Planting, ...]]) -> Integers:
    """Return the parameters that each set of seeds adds to a host."""
    costs = trainer.costs
    return np.array(
        [
            sum(costs.seed_work(p.slot, p.blueprint, False).parameters for p in some)
            for some in sets
        ],
        np.int64,
    )


def find_nearest(sizes: Integers, wanted: Integers) -> list[int]:
    """Return the index of the size nearest to each wanted one ``[N]``, the first of equals."""
    nearest: list[int] = np.abs(sizes[None] - wanted[:, None]).argmin(1).tolist()
    return nearest


def committed_seeds(runs: HostRuns, host: int, slot_config: SlotConfig) -> list[FirstSeed]:
    """Return the committed seeds of one host, in the order of germination."""
    indices: list[int] = np.flatnonzero(runs.slot[host] >= 0).tolist()
    return [
        FirstSeed(
            action=GrowthAction(
                op=Op.GERMINATE,
                slot=slot_config.slot_ids[int(runs.slot[host, index])],
                blueprint=slot_config.blueprints[int(runs.blueprint[host, index])],
                style=STYLES[int(runs.style[host, index])],
                alpha_target=float(runs.alpha[host, index]),
            ),
            number=int(runs.number[host, index]),
        )
        for index in indices
    ]


@dataclass(frozen=True, eq=False)
class _MakeShuffled:
    """Makes a controller that sees the observations of other hosts."""

    make: MakeController

    def __call__(self, growth: GrowthEpisodes, n_hosts: int) -> Controller:
        """Return the controller."""
        return Shuffled(self.make(growth, n_hosts), lambda: ~growth.records.is_over[:n_hosts])


def run_shuffled(
    trainer: HostTrainer,
    make: MakeController,
    hosts: Sequence[int],
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Run a controller that sees the observations of other hosts."""
    return trainer.run(hosts, _MakeShuffled(make), on_share=on_share)


@dataclass(frozen=True, eq=False)
class _MakeReplay:
    """Makes a controller that replays actions."""

    actions: Integers

    def select(self, batch: slice) -> _MakeReplay:
        """Return what makes the controller of a batch."""
        return _MakeReplay(self.actions[batch])

    def __call__(self, growth: GrowthEpisodes, n_hosts: int) -> Controller:
        """Return the controller."""
        return Replay(self.actions)


def run_wrong_task(
    trainer: HostTrainer,
    learned: HostRuns,
    hosts: Sequence[int],
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Replay in each host the actions from another host; illegal ones count as wait."""
    actions = learned.actions[derange(len(hosts), seed=hosts[0])]
    return trainer.run(hosts, _MakeReplay(actions), on_share=on_share)


def derange(n: int, *, seed: int) -> Integers:
    """Return a permutation of n >= 2 numbers that leaves none in its place."""
    order = np.random.default_rng((seed, n)).permutation(n)
    numbers = np.empty(n, np.int64)
    numbers[order] = np.roll(order, 1)
    return numbers
