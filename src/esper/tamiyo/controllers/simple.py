"""Simple controllers: no growth, recorded actions again, random actions.

Shapes: N = hosts, T = steps, H = heads, O = ops, K = choices.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Features, Flags, Integers
from esper.config.checks import NonNegativeFloat, NonNegativeInt, PositiveInt, Seed, check
from esper.errors import ConfigError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo.controllers.controller import (
    COLUMNS,
    ActionRows,
    EpochCounter,
    NamedController,
    require_hosts,
)
from esper.tamiyo.policy.action_masks import ActionMasks


class NoGrowth(NamedController):
    """No growth; optionally finishes a host's training early."""

    def __init__(self, *, finish_after: int | None = None, name: str = "no-growth") -> None:
        """Create the controller.

        Args:
            finish_after: Epochs after which to finish a host, if that is legal; None for never.
            name: The controller's name in comparisons.
        """
        check("finish_after", finish_after, NonNegativeInt | None)
        self.finish_after = finish_after
        self.name = name
        self._epochs = EpochCounter()

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller; it ignores the seed."""
        self._epochs.start(n_hosts)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        epochs = self._epochs.count(observations, np.asarray(starts, np.bool_))
        actions = ActionRows(masks, len(epochs))
        if self.finish_after is not None:
            actions.finish(epochs >= self.finish_after)
        return actions.rows


class Replay(NamedController):
    """Repeats recorded actions; waits for an op of -1, an illegal action and after the end."""

    name = "replay"

    def __init__(self, actions: Integers) -> None:
        """Create the controller from the actions ``[N, T, H]`` of each host."""
        self._actions, self._step = np.asarray(actions, np.int64), 0

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Go back to the first action."""
        self._step = 0

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Return the next action of each host."""
        n_hosts, n_steps, n_heads = self._actions.shape
        rows = np.zeros((n_hosts, n_heads), np.int64)
        if self._step < n_steps:
            rows = self._actions[:, self._step].copy()
        self._step += 1
        rows[rows[:, COLUMNS["op"]] < 0] = 0
        rows[~masks.are_legal(rows), COLUMNS["op"]] = Op.WAIT
        return rows


OP_WEIGHTS: Mapping[Op, float] = MappingProxyType(
    {Op.SET_ALPHA_TARGET: 0.1, Op.PRUNE: 0.05, Op.FINISH: 0.01}
)
"""Default weights of the ops that are drawn less often than others.

With them, about half of the hosts with 16 epochs commit a seed and 9 of 10 reach their last epoch.
With equal weights, only one in 20 would commit a seed: most would be pruned young.
"""

_STEPS_AHEAD = 64


class RandomController(NamedController):
    """Draws a legal op, then every other head given the earlier ones.

    Each host has its own random stream, which depends on the seed, the host's number and the
    number of decisions before, but not on other hosts or on what was legal.
    """

    def __init__(
        self, *, op_weights: Mapping[Op, float] | None = None, name: str = "random"
    ) -> None:
        """Create the controller.

        Args:
            op_weights: How often each op is drawn, relative to the other legal ones. The default
                is 0.1 for set_alpha_target, 0.05 for prune, 0.01 for finish and 1 for all others.
                An op of weight 0 is drawn only if no other is legal.
            name: The controller's name in comparisons.
        """
        self.op_weights = _read_weights({} if op_weights is None else op_weights)
        self.name = name
        self._streams: list[np.random.Generator] = []
        self._uniform: NDArray[np.float64] = np.zeros((0, 0, 0))
        self._step = 0

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller, with the seed of the hosts' random streams."""
        check("n_hosts", n_hosts, PositiveInt)
        check("seed", seed, Seed)
        self._streams = [np.random.default_rng((seed, host)) for host in range(n_hosts)]
        self._step = 0

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        require_hosts(len(self._streams), observations, np.asarray(starts))
        return draw_rows(masks, self.op_weights, self._draw())

    def _draw(self) -> NDArray[np.float64]:
        """Return uniform numbers ``[N, H]``, which are drawn for many steps at once."""
        ahead = self._step % _STEPS_AHEAD
        if ahead == 0:
            shape = (_STEPS_AHEAD, len(HEAD_NAMES))
            self._uniform = np.stack([stream.random(shape) for stream in self._streams])
        self._step += 1
        return self._uniform[:, ahead]


def draw_rows(
    masks: ActionMasks, op_weights: NDArray[np.float64], uniform: NDArray[np.float64]
) -> Integers:
    """Draw legal actions ``[N, H]``.

    Args:
        masks: The legal actions of a batch of N hosts.
        op_weights: ``[O]`` how often each op is drawn, relative to the other legal ones.
        uniform: ``[N, H]`` uniform numbers in [0, 1) that determine the actions.
    """
    choices = masks.for_policy()
    weights = choices.legal.cpu().numpy().astype(np.float64)
    op_column, slot_column = COLUMNS["op"], COLUMNS["slot"]
    legal_ops = weights[:, op_column, : len(Op)]
    weighted = legal_ops * op_weights
    weighted = np.where(weighted.any(1, keepdims=True), weighted, legal_ops)
    ops = pick(weighted, uniform[:, op_column])
    hosts = np.arange(len(ops))

    by_slot, *by_blueprint = (condition.table.cpu().numpy() for condition in choices.conditions)
    n_slots = by_slot.shape[-1]
    weights[:, slot_column, :n_slots] *= by_slot[hosts, ops]
    slots = pick(weights[:, slot_column], uniform[:, slot_column])
    for fits in by_blueprint:
        is_read = (ops == Op.GERMINATE)[:, None]
        fitting = fits[slots] if fits.ndim == 2 else fits[hosts, slots]
        weights[:, COLUMNS["blueprint"], : fits.shape[-1]] *= fitting | ~is_read

    rows = pick(weights, uniform)
    rows[:, op_column], rows[:, slot_column] = ops, slots
    return rows


def pick(weights: NDArray[np.float64], uniform: NDArray[np.float64]) -> Integers:
    """Return choices drawn in proportion to weights ``[..., K]`` by uniform numbers ``[...]``.

    A choice of weight 0 is never returned; some weight must be positive.
    """
    cumulative = weights.cumsum(-1)
    # A number below 1 times the total is below the total even after rounding.
    points = uniform * cumulative[..., -1]
    return (cumulative > points[..., None]).argmax(-1)


def _read_weights(given: Mapping[Op, float]) -> NDArray[np.float64]:
    """Return the weight of each op, ``[O]``."""
    if not isinstance(given, Mapping):
        raise ConfigError(f"op_weights is {given!r}; it must be a mapping of ops to numbers.")
    weights = np.ones(len(Op))
    for op, weight in {**OP_WEIGHTS, **given}.items():
        if not isinstance(op, Op):
            names = ", ".join(f"Op.{member.name}" for member in Op)
            raise ConfigError(f"op_weights contains {op!r}; the ops are {names}.")
        check(f"op_weights[Op.{op.name}]", weight, NonNegativeFloat)
        weights[op] = weight
    return weights
