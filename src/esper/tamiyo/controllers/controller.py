"""The one interface of all controllers, learned or not. Shapes: N = hosts, D = features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from esper.arrays import Features, Flags, Integers
from esper.config.checks import require_int
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.errors import ConfigError, ShapeError, did_you_mean
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout


class Controller(Protocol):
    """Steers hosts by what it sees of them: observations and masks, and nothing else."""

    name: str

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts, all at the start of an episode."""
        ...

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host; never an illegal combination.

        Args:
            observations: ``[N, D]`` in the order of the layout.
            masks: What is legal, of a batch of N hosts.
            starts: ``[N]`` hosts whose episode starts with this observation.

        Returns:
            ``[N, 8]``, one choice for each head in the order of ``HEAD_NAMES``.
        """
        ...


class EpochCounter:
    """Counts the epochs of each host's episode; one decision is one epoch."""

    def __init__(self) -> None:
        self._epochs = np.zeros(0, np.int64)

    def start(self, n_hosts: int) -> None:
        """Count for this many hosts from zero."""
        require_int("n_hosts", n_hosts, least=1)
        self._epochs = np.zeros(n_hosts, np.int64)

    def count(self, observations: Features, starts: Flags) -> Integers:
        """Return the epochs ``[N]`` that came before this decision, and count the decision."""
        require_hosts(len(self._epochs), observations, starts)
        self._epochs[starts] = 0
        epochs = self._epochs.copy()
        self._epochs += 1
        return epochs


def require_hosts(n_hosts: int, observations: Features, starts: Flags) -> None:
    """Refuse what is seen of another number of hosts than a controller was started for."""
    if len(observations) != n_hosts or starts.shape != (n_hosts,):
        n_seen = len(observations)
        raise ShapeError(
            f"there are {n_seen} observations and starts of shape {starts.shape}; the controller "
            f"was started for {n_hosts} hosts. Call start({n_seen}) and give one of each per host."
        )


def require_layout(layout: object) -> None:
    """Refuse anything but the layout of observations."""
    if not isinstance(layout, ObservationLayout):
        raise ConfigError(
            f"layout is a {type(layout).__name__}; it must be an ObservationLayout, such as the "
            "attribute layout of an environment."
        )


COLUMNS: dict[str, int] = {name: column for column, name in enumerate(HEAD_NAMES)}
"""The column of each head in an action."""

_OP, _SLOT = COLUMNS["op"], COLUMNS["slot"]


class ActionRows:
    """One action for each host: wait, until the host is given something else to do, once.

    Heads that an action does not read show their first legal choice.
    """

    def __init__(self, masks: ActionMasks, n_hosts: int) -> None:
        if masks.choices.ndim != 3 or len(masks.choices) != n_hosts:
            raise ShapeError(
                f"the masks have shape {tuple(masks.choices.shape)}; masks of a batch of "
                f"{n_hosts} hosts are needed, as compute_array_masks gives them."
            )
        self._slot_by_op: Flags = masks.slot_by_op.cpu().numpy()
        choices: Flags = masks.choices.cpu().numpy()
        self._may_finish = choices[:, _OP, Op.FINISH]
        self.rows: Integers = choices.argmax(2)
        """``[N, H]``."""
        self.rows[:, _OP] = Op.WAIT
        self.is_free: Flags = np.ones(n_hosts, np.bool_)
        """``[N]`` hosts that have nothing to do so far."""

    def may(self, op: Op) -> Flags:
        """Return the slots ``[N, S]`` that an op may be applied to, in hosts that are free."""
        return self._slot_by_op[:, op] & self.is_free[:, None]

    def finish(self, wanted: Flags) -> Flags:
        """End the runs of hosts ``[N]`` where that is legal; return where it was."""
        taken = wanted & self.is_free & self._may_finish
        self.rows[taken, _OP] = Op.FINISH
        self.is_free &= ~taken
        return taken

    def choose(
        self, op: Op | Integers, wanted: Flags, *, oldest: np.ndarray | None = None
    ) -> Flags:
        """Apply an op to one slot of each host where that is wanted and legal.

        Args:
            op: The op, or one for each slot ``[N, S]``.
            wanted: ``[N, S]`` slots to choose from.
            oldest: ``[N, S]`` numbers of at least 0, the slot with the largest of which is chosen;
                the first slot if not given.

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
        """Set a head of the hosts ``[N]`` that took an op: one choice, or one for each host."""
        column = self.rows[:, COLUMNS[head]]
        column[taken] = choice if isinstance(choice, int) else choice[taken]


def rank_blueprints(
    slot_config: SlotConfig, slot: str, preferred: Sequence[str] = PREFERRED_BLUEPRINTS
) -> list[str]:
    """Return the blueprints that fit a slot: the preferred ones first, then as they are numbered.

    Raises:
        ConfigError: If a preferred blueprint is neither the host's nor one that Esper has.
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
