"""Controllers that evaluations use: wrappers, groups and matched random growth.

Shapes: N = hosts, T = epochs, H = heads, D = features.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Features, Flags, Integers
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo import Controller, RandomController
from esper.tamiyo.controllers.controller import EpochCounter
from esper.tamiyo.controllers.simple import draw_rows
from esper.tamiyo.policy.action_masks import ActionMasks

_OP = HEAD_NAMES.index("op")
_SHUFFLES = 0x5EED
"""Separates the stream of permutations from others of the same seed."""


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


class Shuffled:
    """A controller wrapper that permutes the observations of running hosts at every step.

    Masks, recurrent state and the effects of actions stay those of each host.
    """

    def __init__(self, controller: Controller, is_running: Callable[[], Flags]) -> None:
        self._controller, self._is_running = controller, is_running
        self.name = controller.name
        self._generator = np.random.default_rng(0)

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller and the stream of permutations."""
        self._generator = np.random.default_rng((seed, _SHUFFLES))
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        running = np.flatnonzero(self._is_running())
        shown = observations.copy()
        shown[running] = observations[self._generator.permutation(running)]
        return self._controller.act(shown, masks, starts)


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
