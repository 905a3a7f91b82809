"""The interface of controllers, and parts they share.

Shapes: N = hosts, S = slots, H = heads, D = features.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from esper.arrays import Features, Flags, Integers
from esper.config.checks import PositiveInt, check
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.errors import ConfigError, ShapeError, did_you_mean, shown
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.tamiyo.policy.action_masks import ActionMasks


class Controller(Protocol):
    """Chooses actions for hosts, given only their observations and masks."""

    name: str

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Reset the controller for hosts that all start an episode."""
        ...

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose a legal action for each host.

        Args:
            observations: ``[N, D]`` in the order of the layout.
            masks: The legal actions of a batch of N hosts.
            starts: ``[N]`` whether each host's episode starts with this observation.

        Returns:
            ``[N, H]``, one choice for each head in the order of ``HEAD_NAMES``.
        """
        ...


class NamedController:
    """A controller that prints as its class and its name."""

    name: str

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class EpochCounter:
    """Counts the epochs of each host's episode; one decision is one epoch."""

    def __init__(self) -> None:
        self._epochs = np.zeros(0, np.int64)

    def start(self, n_hosts: int) -> None:
        """Reset the counters of this many hosts."""
        check("n_hosts", n_hosts, PositiveInt)
        self._epochs = np.zeros(n_hosts, np.int64)

    def count(self, observations: Features, starts: Flags) -> Integers:
        """Return the epochs ``[N]`` before this decision, and count the decision."""
        require_hosts(len(self._epochs), observations, starts)
        self._epochs[starts] = 0
        epochs = self._epochs.copy()
        self._epochs += 1
        return epochs


def require_hosts(n_hosts: int, observations: Features, starts: Flags) -> None:
    """Reject observations of a different number of hosts than the controller was started for."""
    if len(observations) != n_hosts or starts.shape != (n_hosts,):
        n_seen = len(observations)
        raise ShapeError(
            f"there are {n_seen} observations and starts of shape {starts.shape}, but the "
            f"controller was started for {n_hosts} hosts; call start({n_seen}) first."
        )


def require_controller(controller: object) -> None:
    """Reject anything that cannot start and act."""
    can_act = all(callable(getattr(controller, name, None)) for name in ("start", "act"))
    if not can_act or isinstance(controller, type):
        raise ConfigError(
            f"controller is {shown(controller)}; it must have start() and act(), like those of "
            "make_controller."
        )


COLUMNS: dict[str, int] = {name: column for column, name in enumerate(HEAD_NAMES)}
"""The column of each head in an action."""

_OP, _SLOT = COLUMNS["op"], COLUMNS["slot"]


class ActionRows:
    """One action per host: wait, unless another op is chosen, at most once per host.

    Heads that an op does not read hold their first legal choice.
    """

    def __init__(self, masks: ActionMasks, n_hosts: int) -> None:
        if masks.choices.ndim != 3 or len(masks.choices) != n_hosts:
            raise ShapeError(
                f"the masks have shape {tuple(masks.choices.shape)}; they must be of a batch of "
                f"{n_hosts} hosts, as from compute_batch_masks."
            )
        self._slot_by_op: Flags = masks.slot_by_op.cpu().numpy()
        choices: Flags = masks.choices.cpu().numpy()
        self._may_finish = choices[:, _OP, Op.FINISH]
        fits: Flags = masks.blueprint_fits.cpu().numpy()
        self.fits: Flags = np.broadcast_to(fits, (n_hosts, *fits.shape[-2:]))
        """``[N, S, blueprints]`` the blueprints that fit each slot of each host."""
        self.rows: Integers = choices.argmax(2)
        """``[N, H]``."""
        self.rows[:, _OP] = Op.WAIT
        self.is_free: Flags = np.ones(n_hosts, np.bool_)
        """``[N]`` hosts for which no op has been chosen yet."""

    def may(self, op: Op) -> Flags:
        """Return the slots ``[N, S]`` of free hosts to which an op may be applied."""
        return self._slot_by_op[:, op] & self.is_free[:, None]

    def finish(self, wanted: Flags) -> Flags:
        """Finish the wanted hosts ``[N]`` where that is legal; return which did."""
        taken = wanted & self.is_free & self._may_finish
        self.rows[taken, _OP] = Op.FINISH
        self.is_free &= ~taken
        return taken

    def choose(
        self, op: Op | Integers, wanted: Flags, *, oldest: np.ndarray | None = None
    ) -> Flags:
        """Apply an op to one slot of each free host, where that is wanted and legal.

        Args:
            op: The op, or one for each slot ``[N, S]``.
            wanted: ``[N, S]`` slots to choose from.
            oldest: ``[N, S]`` non-negative ages; the oldest slot is chosen. None for the first.

        Returns:
            ``[N]`` hosts that took the op.
        """
        if isinstance(op, Op):
            legal = self.may(op)
        else:
            of_slot = np.take_along_axis(self._slot_by_op, op[:, None, :], axis=1)[:, 0]
            legal = of_slot & self.is_free[:, None]
        candidates = wanted & legal
        taken: Flags = np.any(candidates, axis=1)
        hosts = np.flatnonzero(taken)
        if len(hosts) == 0:
            return taken
        rank = candidates if oldest is None else np.where(candidates, oldest, -1.0)
        slots = rank.argmax(1)[hosts]
        self.rows[hosts, _SLOT] = slots
        self.rows[hosts, _OP] = op if isinstance(op, Op) else op[hosts, slots]
        self.is_free &= ~taken
        return taken

    def fill(self, taken: Flags, head: str, choice: int | Integers) -> None:
        """Set a head of the hosts ``[N]`` that took an op, to one choice or one per host."""
        column = self.rows[:, COLUMNS[head]]
        column[taken] = choice if isinstance(choice, int) else choice[taken]


def rank_blueprints(
    slot_config: SlotConfig, slot: str, preferred: Sequence[str] = PREFERRED_BLUEPRINTS
) -> list[str]:
    """Return the blueprints that fit a slot, the preferred ones first.

    Raises:
        ConfigError: If a preferred blueprint is neither the host's nor built in.
    """
    known = {*slot_config.blueprints, *BUILTIN_BLUEPRINTS}
    for name in preferred:
        if name not in known:
            hint = did_you_mean(name, known)
            allowed = ", ".join(slot_config.blueprints)
            raise ConfigError(f"there is no blueprint {name!r}; the host has {allowed}.{hint}")
    ranked = dict.fromkeys([*preferred, *slot_config.blueprints])
    return [
        name
        for name in ranked
        if name in slot_config.blueprints and slot_config.does_fit(name, slot)
    ]
