"""Adding up the steps of a stacked population's epoch. Shapes: N = hosts, S = slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[Any]


class EpochTally:
    """What an epoch's steps add up to, for each host. Shapes: N = hosts, S = slots."""

    def __init__(self, n_hosts: int, n_slots: int) -> None:
        self.losses = np.zeros(n_hosts)
        self.norms = np.zeros(n_hosts)
        self.seed_norms = np.zeros((n_hosts, n_slots))
        """``[N, S]`` of the seed in each slot."""
        self.flops = np.zeros(n_hosts)
        self.counts = np.zeros(n_hosts)
        self.is_alive = np.ones(n_hosts, dtype=np.bool_)
        self.failures: dict[int, str] = {}

    def add(self, hosts: Floats, losses: Floats, norms: Floats, seed_norms: Floats) -> None:
        """Count one good step of some hosts."""
        self.losses[hosts] += losses
        self.norms[hosts] += norms
        self.seed_norms[hosts] += seed_norms
        self.counts[hosts] += 1.0

    def fail(self, host: int, reason: str) -> None:
        """Count nothing more of a host."""
        if self.is_alive[host]:
            self.is_alive[host] = False
            self.failures[host] = reason

    def mean(self, sums: Floats, is_active: NDArray[np.bool_]) -> Floats:
        """Return sums by good step: NaN for a host without one, 0 for one that did not train."""
        means = np.divide(sums, self.counts, out=np.full_like(sums, np.nan), where=self.counts > 0)
        return np.where(is_active, means, 0.0)
