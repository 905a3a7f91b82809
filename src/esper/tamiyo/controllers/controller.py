"""The one interface of all controllers, learned or not. Shapes: N = hosts, D = features."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from esper.config.checks import require_int
from esper.errors import ConfigError, ShapeError
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.tamiyo.policy.observations import ObservationLayout

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]


class Controller(Protocol):
    """Steers hosts by what it sees of them: observations and masks, and nothing else."""

    name: str

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Forget everything and get ready to steer hosts, all at the start of an episode."""
        ...

    def act(self, observations: Floats, masks: ActionMasks, starts: Flags) -> Integers:
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

    def count(self, observations: Floats, starts: Flags) -> Integers:
        """Return the epochs ``[N]`` that came before this decision, and count the decision."""
        require_hosts(len(self._epochs), observations, starts)
        self._epochs[starts] = 0
        epochs = self._epochs.copy()
        self._epochs += 1
        return epochs


def require_hosts(n_hosts: int, observations: Floats, starts: Flags) -> None:
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
