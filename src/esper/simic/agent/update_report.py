"""What one PPO update did, in numbers, and how an epoch is measured.

Shapes: ``N`` steps, ``H`` heads.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from esper.errors import NonFiniteError
from esper.simic.agent.losses import kl_estimates
from esper.simic.agent.minibatches import Minibatch
from esper.simic.policy.action_spec import ActionSpec


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """The outcome of one update. Losses, ratios and entropies are means over its last epoch."""

    policy_loss: float
    """Clipped surrogate, summed over the heads that mattered; lower is better."""

    value_loss: float
    """Squared error of the critic, in squared deviations of the return."""

    entropy: float
    """Entropy of an action, summed over the heads that could have mattered."""

    approx_kl: float
    """Divergence from the policy that collected the steps, a mean over heads and steps that
    mattered; what the early stop looks at."""

    joint_kl: float
    """The same for whole actions: summed over heads, a mean over steps."""

    approx_kl_by_head: dict[str, float]
    """Divergence of each head over the steps at which it mattered; 0 if it never did."""

    clip_fraction: float
    """Share of the ratios that mattered which left the clip range."""

    clip_fraction_by_head: dict[str, float]
    """The same for each head; 0 if it never mattered."""

    entropy_by_head: dict[str, float]
    """Entropy of each head over the steps at which it could have mattered; 0 if it never could."""

    explained_variance: float
    """Share of the returns' variance that the values, as collected, explain; 1 is perfect."""

    gradient_norm: float
    """Norm of the gradient before clipping, a mean over all gradient steps of the update."""

    epochs_run: int
    """Passes over the rollout that were begun."""

    gradient_steps: int
    """Gradient steps taken."""

    stopped_early: bool
    """Whether approx_kl went beyond 1.5 times target_kl; the gradient step before which that was
    measured is not taken."""

    n_steps: int
    """Environment steps learned from."""

    n_free_steps: int
    """Those with more than one legal action; losses of the policy are means over them."""


@dataclass(frozen=True)
class EpochMeasures:
    """Sums over the steps of an epoch, by head where it says so; read from the device at once."""

    n_steps: float
    n_free: float
    policy_loss: float
    value_loss: float
    entropy: float
    kl: list[float]
    clipped: list[float]
    head_entropy: list[float]
    relevant: list[float]
    available: list[float]

    @classmethod
    def read(cls, sums: Tensor, spec: ActionSpec) -> EpochMeasures | None:
        """Read sums made by :func:`measure`, the only time in an epoch that the host waits.

        Return None for a single number, the loss of an epoch that was not measured.
        """
        numbers = cast(list[float], sums.reshape(-1).tolist())
        if not all(map(math.isfinite, numbers)):
            raise NonFiniteError(
                "the loss of the update is not finite, so its gradient step was not taken; the "
                "observations hold NaN or infinity, or learning_rate is too high."
            )
        if len(numbers) == 1:
            return None
        n_steps, n_free, policy_loss, value_loss, entropy = numbers[:5]
        heads = [numbers[i : i + spec.n_heads] for i in range(5, len(numbers), spec.n_heads)]
        return cls(n_steps, n_free, policy_loss, value_loss, entropy, *heads)

    @property
    def approx_kl(self) -> float:
        """Mean divergence over all heads and steps that mattered; 0 if every step was forced."""
        return sum(self.kl) / max(sum(self.relevant), 1.0)

    def report(
        self,
        spec: ActionSpec,
        *,
        explained_variance: float,
        gradient_norm: float,
        epochs_run: int,
        gradient_steps: int,
        stopped_early: bool,
    ) -> UpdateReport:
        """Return the report of an update that ended with this epoch."""

        def by_head(sums: list[float], counts: list[float]) -> dict[str, float]:
            return {
                name: total / max(count, 1.0)
                for name, total, count in zip(spec.names, sums, counts, strict=True)
            }

        n_free = max(self.n_free, 1.0)
        return UpdateReport(
            policy_loss=self.policy_loss / n_free,
            value_loss=self.value_loss / self.n_steps,
            entropy=self.entropy / n_free,
            approx_kl=self.approx_kl,
            joint_kl=sum(self.kl) / n_free,
            approx_kl_by_head=by_head(self.kl, self.relevant),
            clip_fraction=sum(self.clipped) / max(sum(self.relevant), 1.0),
            clip_fraction_by_head=by_head(self.clipped, self.relevant),
            entropy_by_head=by_head(self.head_entropy, self.available),
            explained_variance=explained_variance,
            gradient_norm=gradient_norm,
            epochs_run=epochs_run,
            gradient_steps=gradient_steps,
            stopped_early=stopped_early,
            n_steps=round(self.n_steps),
            n_free_steps=round(self.n_free),
        )


@torch.no_grad()
def measure(
    losses: tuple[Tensor, Tensor, Tensor],
    log_ratio: Tensor,
    entropies: Tensor,
    batch: Minibatch,
    clip_range: float,
) -> Tensor:
    """Return the sums of a minibatch that :class:`EpochMeasures` reads; minibatches add up.

    Args:
        losses: Means over the minibatch: policy loss, value loss, entropy.
        log_ratio: ``[N, H]``, 0 where a head did not matter.
        entropies: ``[N, H]``.
        batch: The minibatch.
        clip_range: How far a ratio may leave 1.
    """
    n_steps, n_free = log_ratio.shape[0], batch.n_free
    low = math.log1p(-clip_range) if clip_range < 1.0 else -math.inf
    is_clipped = log_ratio != log_ratio.clamp(low, math.log1p(clip_range))
    by_head = torch.cat(
        [
            kl_estimates(log_ratio),
            is_clipped.to(log_ratio.dtype),
            entropies * batch.available,
            batch.relevant,
            batch.available,
        ],
        dim=1,
    )
    policy, value, entropy = losses
    means = torch.stack([n_free, policy * n_free, value * n_steps, entropy * n_free])
    return torch.cat([means.new_full((1,), n_steps), means, by_head.sum(dim=0)])
