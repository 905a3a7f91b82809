"""What one PPO update did, in numbers.

Shapes: ``N`` steps, ``H`` heads.
"""

from __future__ import annotations

import math
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


Epoch = list[tuple[EvaluatedMinibatch, dict[str, Tensor]]]
"""The minibatches of an epoch, each with the terms of its loss."""


@torch.no_grad()
def report_update(
    epoch: Epoch,
    spec: ActionSpec,
    clip_range: float,
    explained_variance: Tensor,
    gradient_norms: list[Tensor],
    weight_norm: Tensor,
    **counts: int,
) -> UpdateReport:
    """Return the report of an update that ended with an epoch.

    Args:
        epoch: Its minibatches, each with the terms of its loss.
        spec: The heads of an action.
        clip_range: Beyond which a ratio counts as clipped.
        explained_variance: Of the returns, by the values as collected.
        gradient_norms: Before clipping, of each gradient step of the update.
        weight_norm: Of the weights after the last of them.
        **counts: ``epochs_run`` and ``stopped_early`` of the report.

    Raises:
        NonFiniteError: If a gradient, a weight or a term of the loss is not finite.
    """
    names = list(epoch[0][1])
    norms = torch.stack([*gradient_norms, explained_variance.new_zeros(())])
    whole = torch.stack([explained_variance, norms.sum(), weight_norm.to(norms)])
    sums = torch.cat([whole, *_sums(epoch, clip_range)])
    explained, norm, weights, free, *numbers = tensors.read_numbers(sums)
    if not all(map(math.isfinite, (norm, weights, *numbers))):
        is_weight = math.isfinite(norm) and not math.isfinite(weights)
        raise NonFiniteError(
            f"a {'weight after' if is_weight else 'gradient of'} the update is not finite, so the "
            "update was undone; learning_rate is too high, or the loss has no finite slope."
        )
    n_steps = sum(len(batch.relevant) for batch, _ in epoch)
    n_heads = spec.n_heads
    kl, clipped, entropy, n_relevant, n_available = (
        numbers[i : i + n_heads] for i in range(len(names), len(numbers), n_heads)
    )

    def by_name(totals: list[float], counts: list[float]) -> dict[str, float]:
        means = [total / max(count, 1.0) for total, count in zip(totals, counts, strict=True)]
        return dict(zip(spec.names, means, strict=True))

    means = {
        name: total / max(free if name == "policy_loss" else n_steps, 1.0)
        for name, total in zip(names, numbers, strict=False)
    }
    means.pop("entropy", None)
    n_mattered = max(sum(n_relevant), 1.0)
    return UpdateReport(
        loss=means.pop("loss"),
        policy_loss=means.pop("policy_loss", math.nan),
        value_loss=means.pop("value_loss", math.nan),
        entropy=sum(entropy) / max(free, 1.0),
        other_terms=means,
        approx_kl=sum(kl) / n_mattered,
        joint_kl=sum(kl) / max(free, 1.0),
        approx_kl_by_head=by_name(kl, n_relevant),
        clip_fraction=sum(clipped) / n_mattered,
        clip_fraction_by_head=by_name(clipped, n_relevant),
        entropy_by_head=by_name(entropy, n_available),
        explained_variance=explained,
        gradient_norm=norm / max(len(gradient_norms), 1),
        epochs_run=counts["epochs_run"],
        gradient_steps=len(gradient_norms),
        stopped_early=bool(counts["stopped_early"]),
        n_steps=n_steps,
        n_free_steps=round(free),
    )


def _sums(epoch: Epoch, clip_range: float) -> list[Tensor]:
    """Return sums over an epoch, on the device: free steps and terms of the loss, then by head.

    By head they are ``[H]`` each: divergences, ratios that left the clip range, entropies, steps at
    which the head mattered, and at which it could have.
    """
    batches = [batch for batch, _ in epoch]
    log_ratio, relevant, available, entropies = (
        torch.cat([getattr(batch, name) for batch in batches])
        for name in ("log_ratio", "relevant", "available", "entropies")
    )
    low = math.log1p(-clip_range) if clip_range < 1.0 else -math.inf
    is_clipped = log_ratio != log_ratio.clamp(low, math.log1p(clip_range))
    n_free = torch.stack([batch.n_free for batch in batches])
    n_steps = n_free.new_tensor([len(batch.relevant) for batch in batches])
    # A mean over a minibatch counts as often as the minibatch has steps.
    totals = [
        (
            torch.stack([terms[name] for _, terms in epoch])
            * (n_free if name == "policy_loss" else n_steps)
        ).sum()
        for name in epoch[0][1]
    ]
    by_head = (
        kl_estimates(log_ratio),
        is_clipped.float(),
        entropies * available,
        relevant,
        available,
    )
    return [torch.stack([n_free.sum(), *totals]), *(part.sum(dim=0) for part in by_head)]
