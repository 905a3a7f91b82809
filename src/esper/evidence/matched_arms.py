"""Arms that follow a learned controller host by host. Shapes: N = hosts, S = slots.

Each has something of what the controller did in the same host, and not its decisions: how much it
did, how large the network became, or which network it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from esper.arrays import Floats, Integers
from esper.environment.episodes import GrowthEpisodes
from esper.evidence.arms import HostEnds, ends_at
from esper.evidence.controllers import MatchedRandom, Shuffled
from esper.evidence.host_runs import Goals, HostRuns
from esper.evidence.host_trainer import LONGER, Bench, MakeController, OnShare, treat
from esper.evidence.search_space import Candidate, widening_sets
from esper.lifecycle.factored_actions import STYLES, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.tamiyo import Controller, Planting, Replay, WaitController


def run_random(
    bench: Bench, learned: HostRuns, hosts: Sequence[int], on_share: OnShare = lambda _: None
) -> HostRuns:
    """Grow at random, with as many actions and epochs as the controller had in each host."""
    n_waits = learned.op_counts[:, Op.WAIT] + learned.op_counts[:, Op.FINISH]
    n_actions = learned.op_counts.sum(1) - n_waits

    def make(growth: GrowthEpisodes, part: slice) -> Controller:
        n = part.stop - part.start
        return MatchedRandom(
            n_actions[part], learned.n_epochs[part], lambda: growth.records.last_op[:n]
        )

    return bench.run(hosts, make, on_share=on_share)


def run_wide(
    bench: Bench, learned: HostRuns, hosts: Sequence[int], on_share: OnShare = lambda _: None
) -> HostRuns:
    """Train each host widened from the start to about the learned one's size, for as long."""
    sets = widening_sets(bench.slot_config)
    nearest = find_nearest(count_added(bench, sets), learned.parameters - learned.host_parameters)
    pairs = [(Candidate(planted=sets[n]), host) for n, host in zip(nearest, hosts, strict=True)]
    return treat(bench, pairs, stops=learned.n_epochs, on_share=on_share)


def run_scratch(
    bench: Bench, learned: HostRuns, hosts: Sequence[int], on_share: OnShare = lambda _: None
) -> HostRuns:
    """Train each host from the start as what the controller made of it, with the same weights.

    Each is scored after the learned arm's epochs and once it has spent the learned arm's FLOPs,
    and not otherwise. Seeds that were trained in isolation, measured or removed have cost what the
    architecture by itself may not reach within the budget, so that hosts train on past its end.
    """
    config = bench.slot_config
    runs = bench.longer().run(
        hosts,
        lambda _, __: WaitController(),
        seeds={place: committed_seeds(learned, place, config) for place in range(len(hosts))},
        goals=Goals(n_epochs=learned.n_epochs, flops=learned.flops / LONGER),
        on_share=on_share,
    )
    return replace(runs, flops=LONGER * runs.flops, flops_by_epoch=LONGER * runs.flops_by_epoch)


def at_same_epochs(scratch: HostRuns, learned: HostRuns) -> HostEnds:
    """Return the results from scratch after as many epochs as the learned arm trained."""
    return ends_at(scratch, learned.n_epochs)


def at_same_flops(scratch: HostRuns, learned: HostRuns) -> HostEnds:
    """Return the results from scratch after the first epoch with at least the learned FLOPs.

    That gives the opponent a little more; where twice the budget ends before, all of that.
    """
    return ends_at(scratch, first_reaching(scratch.flops_by_epoch, learned.flops))


def first_reaching(flops_by_epoch: Floats, flops: Floats) -> Integers:
    """Return the first epoch ``[N]`` whose FLOPs ``[N, T + 1]``, which only rise, are enough."""
    # Sums of the same numbers in another order are off by a last digit.
    n_below = np.sum(flops_by_epoch < flops[:, None] * (1.0 - 1e-9), axis=1)
    return np.minimum(n_below, flops_by_epoch.shape[1] - 1)


def count_added(bench: Bench, sets: Sequence[tuple[Planting, ...]]) -> Integers:
    """Return the parameters that each set of seeds adds to a host."""
    costs = bench.costs
    return np.array(
        [sum(costs.seed_parameters(p.slot, p.blueprint, False) for p in some) for some in sets],
        np.int64,
    )


def find_nearest(sizes: Integers, wanted: Integers) -> list[int]:
    """Return the number of the size nearest to each wanted one ``[N]``, the first of equals."""
    nearest: list[int] = np.abs(sizes[None] - wanted[:, None]).argmin(1).tolist()
    return nearest


def committed_seeds(runs: HostRuns, place: int, slot_config: SlotConfig) -> list[FirstSeed]:
    """Return what was committed in one host, in the order in which it germinated."""
    slots: list[int] = np.flatnonzero(runs.blueprint[place] >= 0).tolist()
    seeds = [
        FirstSeed(
            action=GrowthAction(
                op=Op.GERMINATE,
                slot=slot_config.slot_ids[slot],
                blueprint=slot_config.blueprints[int(runs.blueprint[place, slot])],
                style=STYLES[int(runs.style[place, slot])],
                alpha_target=float(runs.alpha[place, slot]),
            ),
            number=int(runs.number[place, slot]),
        )
        for slot in slots
    ]
    return sorted(seeds, key=lambda seed: seed.number)


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
