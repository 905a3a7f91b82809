"""The learned controller with something taken from it. Shapes: N = hosts."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from esper.simic.environment.episodes import GrowthEpisodes
from esper.simic.evaluation.arms.results import Integers
from esper.simic.evaluation.bench import Bench, MakeController, OnShare
from esper.simic.evaluation.host_runs import HostRuns
from esper.simic.evaluation.steering import Replay, Shuffled
from esper.tamiyo import Controller


def run_shuffled(
    bench: Bench, make: MakeController, hosts: Sequence[int], on_share: OnShare = lambda _: None
) -> HostRuns:
    """Let a controller see other hosts than those it steers."""

    def make_shuffled(growth: GrowthEpisodes, part: slice) -> Controller:
        n = part.stop - part.start
        return Shuffled(make(growth, part), lambda: ~growth.records.is_over[:n])

    return bench.run(hosts, make_shuffled, on_share=on_share)


def run_wrong_task(
    bench: Bench, learned: HostRuns, hosts: Sequence[int], on_share: OnShare = lambda _: None
) -> HostRuns:
    """Do in each host what the controller did in another; what is illegal there is a wait."""
    actions = learned.actions[derange(len(hosts), seed=hosts[0])]
    return bench.run(hosts, lambda _, part: Replay(actions[part]), on_share=on_share)


def derange(n: int, *, seed: int) -> Integers:
    """Return numbers below n in an order in which none is at its own place; n is at least 2."""
    order = np.random.default_rng((seed, n)).permutation(n)
    numbers = np.empty(n, np.int64)
    numbers[order] = np.roll(order, 1)
    return numbers
