"""Actions under construction: rows of choices that are legal at every moment.

Shapes: N = hosts, S = slots, O = ops, H = heads, K = choices of the widest head.
"""

from __future__ import annotations

import numpy as np

from esper.errors import ShapeError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.tamiyo.controllers.controller import Flags, Integers
from esper.tamiyo.policy.action_masks import ActionMasks

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
