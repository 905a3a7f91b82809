"""Adding up the steps of a stacked population's epoch. Shapes: N = hosts, S = slots."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.growth.loss_watch import LossWatch

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

    def settle(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        losses: Floats,
        norms: Floats,
        seed_norms: Floats,
        flops: Floats,
    ) -> None:
        """Judge one step of some hosts and note it; a host that fails counts no more.

        Args:
            watch: What is known of the losses so far; good ones are added.
            hosts: ``[K]`` their numbers.
            losses: ``[K]`` in this step.
            norms: ``[K]`` of the whole gradient.
            seed_norms: ``[K, S]`` of the gradient of each seed.
            flops: ``[K]`` of a step.
        """
        is_alive = self.is_alive[hosts]
        self.flops[hosts] += flops * is_alive
        is_well = is_alive & (losses <= watch.limits(hosts)) & np.isfinite(losses)
        is_well &= np.isfinite(norms)
        if not is_well.all():
            for index in np.flatnonzero(is_alive & ~is_well).tolist():
                host = int(hosts[index])
                self.fail(host, _describe_failure(watch, host, losses[index]))
            hosts, losses = hosts[is_well], losses[is_well]
            norms, seed_norms = norms[is_well], seed_norms[is_well]
        watch.add(losses, hosts)
        self.add(hosts, losses, norms, seed_norms)

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


def _describe_failure(watch: LossWatch, host: int, loss: float) -> str:
    if not np.isfinite(loss):
        return f"the loss is {loss}"
    if loss > watch.limits(host):
        return watch.describe(loss, host)
    return "the gradient is not finite"
