"""The controller that never grows anything."""

from __future__ import annotations

import numpy as np

from esper.config.checks import require_int
from esper.tamiyo.controllers.action_rows import ActionRows
from esper.tamiyo.controllers.controller import EpochCounter, Flags, Floats, Integers
from esper.tamiyo.policy.action_masks import ActionMasks


class WaitController:
    """Always waits, so that a host trains as it is; or ends its training after some epochs."""

    def __init__(self, *, finish_after: int | None = None, name: str = "wait") -> None:
        """Make the controller.

        Args:
            finish_after: Epochs of training after which a host is finished, where that is legal;
                None for never.
            name: What the controller is called in comparisons.
        """
        if finish_after is not None:
            require_int("finish_after", finish_after, least=0)
        self.finish_after = finish_after
        self.name = name
        self._epochs = EpochCounter()

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts; nothing here is drawn."""
        self._epochs.start(n_hosts)

    def act(self, observations: Floats, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        epochs = self._epochs.count(observations, np.asarray(starts, np.bool_))
        actions = ActionRows(masks, len(epochs))
        if self.finish_after is not None:
            actions.finish(epochs >= self.finish_after)
        return actions.rows
