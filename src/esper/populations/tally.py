"""What an epoch of hosts comes to. Shapes: N = all hosts, K = some, T = steps, S = slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats
from esper.growth.governor import GovernorReport, LossWatch


class EpochTally:
    """The losses, gradient norms and FLOPs of an epoch of training, for each host.

    Means are over good steps: NaN for hosts without one, 0 for hosts that are not trained.
    """

    def __init__(self, n_hosts: int, n_slots: int) -> None:
        """Start an epoch in which no host is trained yet."""
        self.flops: Floats = np.zeros(n_hosts)
        """``[N]`` FLOPs of the training."""
        self.n_losses: Floats = np.zeros(n_hosts)
        """Good losses so far."""
        self._losses, self._norms, self._squares, self._n_norms = np.zeros((4, n_hosts))
        self._seed_norms = np.zeros((n_hosts, n_slots))
        self._is_alive = np.ones(n_hosts, np.bool_)
        self._is_active = np.zeros(n_hosts, np.bool_)
        self.failures: dict[int, str] = {}
        """Why hosts have to be rolled back."""
        self.interventions: dict[int, GovernorReport] = {}
        """The governor's report for each host that was rolled back."""

    def start(self, hosts: NDArray[np.int64] | Sequence[int] | slice = slice(None)) -> None:
        """Note that hosts are trained; the means of the others are 0."""
        self._is_active[hosts] = True

    def add_loss(self, host: int, loss: float) -> None:
        """Add a good loss."""
        self._losses[host] += loss
        self.n_losses[host] += 1.0

    def add_norms(self, host: int, norm: float, seed_norms: Sequence[float]) -> None:
        """Add the norm of the gradients of a good step, and those of each slot's seed alone."""
        self._norms[host] += norm
        self._squares[host] += norm * norm
        self._seed_norms[host, : len(seed_norms)] += seed_norms
        self._n_norms[host] += 1.0

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
        self.start(hosts)
        seed_norms = norms[:, :, 1:]
        whole = np.sqrt(np.square(norms).sum(2))
        for step in range(norms.shape[1]):
            now = slice(None) if lengths.min() > step else lengths > step
            some = hosts[now]
            self.flops[some] += step_flops[some] * self._is_alive[some]
            is_well = self._check_losses(watch, some, losses[now, step], whole[now, step])
            if not is_well.all():
                now = np.arange(len(hosts))[now][is_well]
                some = some[is_well]
            watch.add(losses[now, step], some)
            self._losses[some] += losses[now, step]
            self._norms[some] += whole[now, step]
            self._squares[some] += np.square(whole[now, step])
            self._seed_norms[some] += seed_norms[now, step]
            self.n_losses[some] += 1.0
            self._n_norms[some] += 1.0
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

    @property
    def losses(self) -> Floats:
        """``[N]`` mean training loss."""
        return self._mean(self._losses, self.n_losses)

    @property
    def gradient_norms(self) -> Floats:
        """``[N]`` mean gradient norm."""
        return self._mean(self._norms, self._n_norms)

    @property
    def gradient_noise(self) -> Floats:
        """``[N]`` standard deviation of the batches' gradient norms, relative to their mean."""
        means = self.gradient_norms
        spread = np.maximum(self._mean(self._squares, self._n_norms) - means * means, 0.0)
        return np.divide(np.sqrt(spread), means, out=np.zeros_like(means), where=means != 0.0)

    @property
    def seed_gradient_norms(self) -> Floats:
        """``[N, S]`` mean gradient norm of each slot's uncommitted seed; 0 without one."""
        return self._seed_norms / np.maximum(self._n_norms, 1.0)[:, None]

    def _mean(self, sums: Floats, counts: Floats) -> Floats:
        means = np.divide(sums, counts, out=np.full_like(sums, np.nan), where=counts > 0)
        return np.where(self._is_active, means, 0.0)
