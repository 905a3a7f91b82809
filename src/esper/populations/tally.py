"""What an epoch of many hosts comes to. Shapes: N = all hosts, K = some, T = steps, S = slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.growth.governor import GovernorReport, LossWatch
from esper.populations.host import TrainedEpoch


@dataclass(frozen=True, eq=False)
class EpochReport:
    """The results of one epoch of training for each host; zero for finished hosts."""

    losses: Floats
    """``[N]`` mean training loss."""
    gradient_norms: Floats
    """``[N]`` mean gradient norm."""
    flops: Floats
    """``[N]`` FLOPs of the training."""
    seed_gradient_norms: Floats
    """``[N, S]`` mean gradient norm of each slot's uncommitted seed; zero without one."""
    gradient_noise: Floats
    """``[N]`` standard deviation of the batches' gradient norms, relative to their mean."""
    interventions: dict[int, GovernorReport]
    """The governor's report for each host that was rolled back."""


class EpochTally:
    """Accumulates the losses, gradient norms and FLOPs of an epoch, for each host."""

    def __init__(self, n_hosts: int, n_slots: int) -> None:
        self._losses, self._norms, self._squares, self._flops, self._counts = np.zeros((5, n_hosts))
        self._seed_norms = np.zeros((n_hosts, n_slots))
        self._is_alive = np.ones(n_hosts, np.bool_)
        self._is_active = np.zeros(n_hosts, np.bool_)
        self.failures: dict[int, str] = {}
        """Why hosts have to be rolled back."""
        self.interventions: dict[int, GovernorReport] = {}

    def record_epoch(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        losses: Floats,
        norms: Floats,
        step_flops: Floats,
    ) -> None:
        """Check and record the steps of some hosts in order, as if they had been taken one by one.

        A host that fails is ignored from then on.

        Args:
            watch: Loss statistics of all hosts; good losses are added.
            hosts: ``[K]`` host indices.
            lengths: ``[K]`` steps of each.
            losses: ``[K, T + 2]`` losses, then the loss after the last step, then 0 if all
                parameters and buffers are finite.
            norms: ``[K, T, 1 + S]`` gradient norms: of what is the host's, then of each seed.
            step_flops: ``[N]`` FLOPs of a step.
        """
        self._is_active[hosts] = True
        seed_norms = norms[:, :, 1:]
        whole = np.sqrt(np.square(norms).sum(2))
        for step in range(norms.shape[1]):
            now = slice(None) if lengths.min() > step else lengths > step
            some = hosts[now]
            self._flops[some] += step_flops[some] * self._is_alive[some]
            is_well = self._check_losses(watch, some, losses[now, step], whole[now, step])
            if not is_well.all():
                now = np.arange(len(hosts))[now][is_well]
                some = some[is_well]
            watch.add(losses[now, step], some)
            self._losses[some] += losses[now, step]
            self._norms[some] += whole[now, step]
            self._squares[some] += np.square(whole[now, step])
            self._seed_norms[some] += seed_norms[now, step]
            self._counts[some] += 1.0
        rows = np.arange(len(hosts))
        self._check_losses(watch, hosts, losses[rows, lengths])
        for row in np.flatnonzero(losses[rows, lengths + 1] != 0.0).tolist():
            self._fail(int(hosts[row]), "a parameter or buffer is not finite")

    def _check_losses(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        losses: NDArray[Any],
        norms: NDArray[Any] | None = None,
    ) -> NDArray[np.bool_]:
        """Return which hosts are well, ``[K]``; those that are no longer so have failed."""
        is_good = np.isfinite(losses) & (losses <= watch.limits(hosts))
        if norms is not None:
            is_good &= np.isfinite(norms)
        is_alive = self._is_alive[hosts]
        is_well = is_alive & is_good
        if not is_well.all():
            for index in np.flatnonzero(is_alive & ~is_good).tolist():
                host = int(hosts[index])
                reason = watch.judge(float(losses[index]), host)
                self._fail(host, reason or "the gradient is not finite")
        return is_well

    def _fail(self, host: int, reason: str) -> None:
        """Ignore a host from now on; only the first reason is kept."""
        if self._is_alive[host]:
            self._is_alive[host] = False
            self.failures[host] = reason

    def add_epoch(self, host: int, epoch: TrainedEpoch) -> None:
        """Add an epoch that torch has trained."""
        self._is_active[host] = True
        norms = np.array(epoch.norms)
        self._losses[host], self._flops[host] = sum(epoch.losses), epoch.flops
        self._norms[host], self._squares[host] = norms.sum(), np.square(norms).sum()
        self._seed_norms[host, : len(epoch.seed_norms)] = epoch.seed_norms
        self._counts[host] = len(norms)
        if epoch.intervention is not None:
            self.interventions[host] = epoch.intervention

    def report(self) -> EpochReport:
        """Return the means over good steps: NaN for hosts without one."""
        means = self._mean(self._norms)
        spread = np.maximum(self._mean(self._squares) - means * means, 0.0)
        noise = np.divide(np.sqrt(spread), means, out=np.zeros_like(means), where=means != 0.0)
        return EpochReport(
            losses=self._mean(self._losses),
            gradient_norms=means,
            flops=self._flops,
            seed_gradient_norms=self._seed_norms / np.maximum(self._counts, 1.0)[:, None],
            gradient_noise=noise,
            interventions=self.interventions,
        )

    def _mean(self, sums: Floats) -> Floats:
        counts = self._counts
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return np.where(self._is_active, means, 0.0)
