"""What one PPO update did, in numbers, and how an epoch is measured.

Shapes: ``N`` steps, ``H`` heads.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from esper.errors import NonFiniteError
from esper.simic import tensors
from esper.simic.agent.losses import kl_estimates
from esper.simic.agent.minibatches import EvaluatedMinibatch
from esper.simic.policy.action_spec import ActionSpec


@dataclass(frozen=True, kw_only=True)
class UpdateReport:
    """The outcome of one update. Losses, ratios and entropies are means over its last epoch."""

    loss: float
    """What was minimised."""

    policy_loss: float
    """Clipped surrogate, summed over the heads that mattered; lower is better."""

    value_loss: float
    """Squared error of the critic, in squared deviations of the return."""

    entropy: float
    """Entropy of an action, summed over the heads that could have mattered."""

    other_terms: dict[str, float]
    """Other terms that a loss of your own returned, by name."""

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


class EpochMeter:
    """Collects what happens in an epoch on the device, and reads it once at the end.

    Shapes: ``B`` minibatches.
    """

    def __init__(self, spec: ActionSpec, clip_range: float) -> None:
        self._spec, self._clip_range = spec, clip_range
        self._by_head: list[tuple[Tensor, Tensor, Tensor, Tensor]] = []
        self._terms: list[Tensor] = []
        self._names: list[str] = []
        self._n_steps = 0

    def add(self, batch: EvaluatedMinibatch, loss: Tensor, terms: Mapping[str, Tensor]) -> None:
        """Take note of a minibatch, its loss and the terms of its loss."""
        log_ratio, entropies = batch.log_ratio.detach(), batch.entropies.detach()
        self._by_head.append((log_ratio, entropies, batch.relevant, batch.available))
        self._names = ["loss", *terms]
        n_steps = loss.new_full((), len(log_ratio))
        self._terms.append(torch.stack([batch.n_free, n_steps, loss, *terms.values()]).detach())
        self._n_steps += len(log_ratio)

    @torch.no_grad()
    def read(self) -> EpochMeasures:
        """Return sums over all steps so far, the only time in an epoch that the host waits.

        Raises:
            NonFiniteError: If a number is not finite.
        """
        log_ratio, entropies, relevant, available = (
            torch.cat(parts) for parts in zip(*self._by_head, strict=True)
        )
        low = math.log1p(-self._clip_range) if self._clip_range < 1.0 else -math.inf
        is_clipped = log_ratio != log_ratio.clamp(low, math.log1p(self._clip_range))
        by_head = torch.stack(
            [
                kl_estimates(log_ratio),
                is_clipped.to(log_ratio.dtype),
                entropies * available,
                relevant,
                available,
            ]
        )
        n_free, n_steps, *terms = torch.stack(self._terms, dim=1)  # [B] each
        # A mean over a minibatch counts as often as the minibatch has steps.
        totals = [
            (term * (n_free if name in OF_FREE_STEPS else n_steps)).sum()
            for name, term in zip(self._names, terms, strict=True)
        ]
        sums = torch.cat([torch.stack([n_free.sum(), *totals]), by_head.sum(dim=1).flatten()])
        numbers = tensors.read_numbers(sums)
        if not all(map(math.isfinite, numbers)):
            raise NonFiniteError(
                "the loss of the update is not finite, so the update was undone; the observations "
                "hold NaN or infinity, or learning_rate is too high."
            )
        first, n_heads = 1 + len(totals), self._spec.n_heads
        heads = [numbers[i : i + n_heads] for i in range(first, len(numbers), n_heads)]
        named = dict(zip(self._names, numbers[1:first], strict=True))
        return EpochMeasures(self._n_steps, numbers[0], named, *heads)


OF_FREE_STEPS = ("policy_loss", "entropy")
"""Terms of the loss that are means over free steps."""


@dataclass(frozen=True)
class EpochMeasures:
    """Sums over the steps of an epoch, by head where it says so."""

    n_steps: int
    n_free: float
    terms: dict[str, float]
    kl: list[float]
    clipped: list[float]
    head_entropy: list[float]
    relevant: list[float]
    available: list[float]

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
        means = {
            name: total / (n_free if name in OF_FREE_STEPS else self.n_steps)
            for name, total in self.terms.items()
        }
        return UpdateReport(
            loss=means.pop("loss"),
            policy_loss=means.pop("policy_loss", math.nan),
            value_loss=means.pop("value_loss", math.nan),
            entropy=means.pop("entropy", math.nan),
            other_terms=means,
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
            n_steps=self.n_steps,
            n_free_steps=round(self.n_free),
        )
