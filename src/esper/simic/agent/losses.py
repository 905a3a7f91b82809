"""The terms of the PPO loss and what is reported about them, as pure functions of tensors.

Shapes: ``N`` steps, ``H`` heads. ``relevant`` and ``available`` are 1 where a head mattered, or
could have mattered, at a step, and else 0. The op head is relevant at every step, so that no sum
of ``relevant`` is zero.
"""

from __future__ import annotations

import torch
from torch import Tensor


def relevant_log_ratio(log_probs: Tensor, old_log_probs: Tensor, relevant: Tensor) -> Tensor:
    """Return log(new probability / old probability) ``[N, H]``, 0 where a head did not matter."""
    return (log_probs - old_log_probs) * relevant


def clipped_surrogate(
    log_ratio: Tensor, advantages: Tensor, relevant: Tensor, weight: Tensor, clip_range: float
) -> Tensor:
    """Return the policy loss: each head's clipped surrogate, summed over the heads that mattered.

    Args:
        log_ratio: ``[N, H]`` from :func:`relevant_log_ratio`.
        advantages: ``[N]``.
        relevant: ``[N, H]``.
        weight: ``[N]``, 0 for steps with only one legal action: there is nothing to learn there,
            and they should not dilute the mean.
        clip_range: How far a ratio may leave 1 before its gradient stops.
    """
    ratio = log_ratio.exp()
    stake = (advantages * weight).unsqueeze(-1) * relevant
    gain = ratio * stake
    # min(gain, limit) as a difference: where the limit binds the ratio is outside the clip range,
    # so the limit is a constant there and needs no gradient of its own.
    limit = ratio.detach().clamp(1.0 - clip_range, 1.0 + clip_range) * stake
    gain = gain - torch.relu(gain - limit)
    # Every step of a minibatch may be forced; the numerator is then 0 as well.
    return -gain.sum() / weight.sum().clamp(min=1.0)


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip_range_vf: float | None
) -> Tensor:
    """Return the mean squared error ``[N]`` values make, the larger of clipped and unclipped."""
    error = (values - returns).square()
    if clip_range_vf is not None:
        moved = (values - old_values).clamp(-clip_range_vf, clip_range_vf)
        error = torch.maximum(error, (old_values + moved - returns).square())
    return error.mean()


def entropy_bonus(entropies: Tensor, available: Tensor) -> Tensor:
    """Return the mean over steps of the summed entropy ``[N, H]`` of the available heads."""
    return (entropies * available).sum() / entropies.shape[0]


def kl_estimates(log_ratio: Tensor) -> Tensor:
    """Return ``(exp(r) - 1) - r`` for each log-ratio ``[N, H]``: 0 where a head did not matter.

    Its mean under the old policy is the divergence of the new policy from it, and unlike ``-r``
    it is never negative. Reference: Schulman (2020), "Approximating KL divergence".
    """
    return torch.expm1(log_ratio) - log_ratio


def normalize_advantages(advantages: Tensor, floor: float = 1e-6) -> Tensor:
    """Return advantages ``[N]`` less their mean, divided by their deviation or by the floor."""
    centred = advantages - advantages.mean()
    return centred / centred.square().mean().sqrt().clamp(min=floor)


def explained_variance(values: Tensor, returns: Tensor) -> Tensor:
    """Return the share of the returns' variance that the values explain; 0 if there is none."""
    variance = returns.var(correction=0)
    share = 1.0 - (returns - values).var(correction=0) / variance
    return torch.where(variance > 0, share, torch.zeros_like(share))
