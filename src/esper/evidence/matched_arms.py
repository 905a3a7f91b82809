"""Arms that are matched to a learned controller host by host. Shapes: N = hosts, T = epochs.

Each shares something with what the controller did in the same host, but not its decisions: the
number of its actions, or the final architecture.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Features, Flags, Floats, Integers
from esper.environment.episodes import GrowthEpisodes
from esper.lifecycle.factored_actions import HEAD_NAMES, STYLES, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import FirstSeed
from esper.results.arms import NO_GROWTH
from esper.tamiyo import Controller, RandomController, Replay
from esper.tamiyo.controllers.controller import EpochCounter
from esper.tamiyo.controllers.simple import draw_rows
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.training.host_runs import Goals, HostRuns, has_spent
from esper.training.host_trainer import LONGER, HostTrainer
from esper.training.trials import make_named
from esper.training.worker_pool import OnShare

_OP = HEAD_NAMES.index("op")


class MatchedRandom:
    """Takes a given number of random legal actions in each host, at random epochs, then stops.

    An action that is not possible, or that a gate refuses, is taken later.
    """

    name = "random"

    def __init__(
        self, n_actions: Integers, n_epochs: Integers, last_op: Callable[[], Integers]
    ) -> None:
        """Make the controller.

        Args:
            n_actions: ``[N]`` number of actions besides wait and finish.
            n_epochs: ``[N]`` epochs after which each host is finished.
            last_op: Returns ``[N]`` the last op carried out in each host, -1 before any.
        """
        self._n_actions, self._n_epochs, self._last_op = n_actions, n_epochs, last_op
        self._weights = RandomController(op_weights={Op.WAIT: 0.0, Op.FINISH: 0.0}).op_weights
        self._left = n_actions.copy()
        self._epochs = EpochCounter()
        self._streams: list[np.random.Generator] = []

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset, with a random stream for each host."""
        self._left = self._n_actions.copy()
        self._epochs.start(n_hosts)
        self._streams = [np.random.default_rng((seed, host)) for host in range(n_hosts)]

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        epochs = self._epochs.count(observations, starts)
        self._left -= ~np.isin(self._last_op(), (-1, Op.WAIT, Op.FINISH))
        uniform: NDArray[np.float64] = np.stack(
            [stream.random(1 + len(HEAD_NAMES)) for stream in self._streams]
        )
        rows = draw_rows(masks, self._weights, uniform[:, 1:])
        steps_left = np.maximum(self._n_epochs - epochs, 1)
        # With probability k / n for k actions in n steps, all choices of steps are equally likely.
        acts = uniform[:, 0] * steps_left < self._left
        acts &= (rows[:, _OP] != Op.WAIT) & (rows[:, _OP] != Op.FINISH)
        rows[~acts, _OP] = Op.WAIT
        is_over = epochs >= self._n_epochs
        rows[is_over, _OP] = Op.FINISH
        return rows


def make_random(learned: HostRuns, growth: GrowthEpisodes, batch: slice) -> Controller:
    """Return random growth with as many actions and epochs as a controller took in each host."""
    counts = learned.op_counts[batch]
    n_actions = counts.sum(1) - counts[:, Op.WAIT] - counts[:, Op.FINISH]
    return MatchedRandom(
        n_actions,
        learned.n_epochs[batch],
        lambda: growth.records.last_op[: len(n_actions)],
    )


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
        partial(make_named, NO_GROWTH),
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


def make_wrong_task(actions: Integers, seed: int, _: object, batch: slice) -> Controller:
    """Return a replay of the actions that a controller took in other hosts; illegal ones wait.

    Args:
        actions: ``[N, T + 1, 8]`` of the controller.
        seed: Determines which host's actions each host gets.
        batch: The indices of the hosts.
    """
    return Replay(actions[derange(len(actions), seed=seed)[batch]])


def derange(n: int, *, seed: int) -> Integers:
    """Return a permutation of n >= 2 numbers that leaves none in its place."""
    order = np.random.default_rng((seed, n)).permutation(n)
    numbers = np.empty(n, np.int64)
    numbers[order] = np.roll(order, 1)
    return numbers
