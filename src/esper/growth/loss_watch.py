"""Noticing a loss far outside its recent range. Shapes: N = hosts."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.config.growth import GovernorConfig

Floats = NDArray[np.float64]


class LossWatch:
    """The running mean and spread of the losses of N hosts, each watched by itself.

    Early losses are averaged evenly, later ones with a memory that fades. A loss is an outlier if
    it is many deviations *and* several times the mean above the mean; only rises count, and small
    ones never.
    """

    def __init__(self, n_hosts: int, config: GovernorConfig) -> None:
        self.config = config
        self.count = np.zeros(n_hosts)
        self.mean = np.zeros(n_hosts)
        self.variance = np.zeros(n_hosts)

    def limits(self, hosts: Any = slice(None)) -> Floats:
        """Return the loss beyond which each of some hosts is an outlier, if it is warm yet."""
        mean, config = self.mean[hosts], self.config
        spread = config.outlier_deviations * np.sqrt(self.variance[hosts])
        rise = np.maximum(spread, (config.outlier_factor - 1.0) * np.abs(mean))
        rise = np.maximum(rise, config.outlier_floor)
        return np.where(self.count[hosts] >= config.warmup_losses, mean + rise, np.inf)

    def add(self, losses: Floats, hosts: Any = slice(None)) -> None:
        """Take in one finite loss for each of some hosts."""
        weight = np.maximum(1.0 / (self.count[hosts] + 1.0), 1.0 - self.config.memory)
        change = losses - self.mean[hosts]
        self.mean[hosts] += weight * change
        self.variance[hosts] = (1.0 - weight) * (self.variance[hosts] + weight * change**2)
        self.count[hosts] += 1.0

    def forget(self, host: int = 0) -> None:
        """Know nothing of a host's losses any more."""
        self.set_state([0.0, 0.0, 0.0], host)

    def describe(self, loss: float, host: int = 0) -> str:
        """Return in words why a loss is an outlier."""
        deviation = float(np.sqrt(self.variance[host]))
        return f"the loss is {loss:.4g}; recent ones were {self.mean[host]:.4g} ± {deviation:.2g}"

    def get_state(self, host: int = 0) -> list[float]:
        """Return what is known of one host's losses."""
        return [float(self.count[host]), float(self.mean[host]), float(self.variance[host])]

    def set_state(self, state: list[float], host: int = 0) -> None:
        """Take over what :meth:`get_state` returned."""
        self.count[host], self.mean[host], self.variance[host] = state
