"""The terms of the PPO loss, as pure functions of tensors.

Shapes: ``N`` steps, ``H`` heads. ``relevant`` and ``available`` are 1 where a head mattered, or
could have mattered, at a step, and else 0. Steps with only one legal action teach a policy nothing
and dilute every mean over steps, so they are 0 in both: the policy loss, the entropy, the
divergence and the clip fraction all count the same steps.

With ``r[n, h]`` the ratio of the new to the old probability of what head h chose at step n and
``A[n]`` the advantage, the objective of Schulman et al. (2017), equation 7, has one ratio per step:

    joint     L = mean_n min(R A, clip(R, 1 - e, 1 + e) A)      R[n] = prod_h r[n, h]

With several heads the product leaves the clip range as soon as any head moves, and then stops the
gradient of all of them. The default therefore clips each head by itself and adds up:

    per-head  L = mean_n sum_h min(r A, clip(r, 1 - e, 1 + e) A)

Both have the same gradient where nothing is clipped and all ratios are 1, and they are the same
loss for a single head. Per-head clipping bounds how far each head moves, not how far their product
does: ``joint_kl`` of the report shows the latter.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

MAX_LOG_RATIO = 20.0
"""Where log-ratios are cut off: a ratio of 5e8 is as far from 1 as any, and finite."""


def relevant_log_ratio(log_probs: Tensor, old_log_probs: Tensor, relevant: Tensor) -> Tensor:
    """Return log(new probability / old probability) ``[N, H]``, 0 where a head did not matter."""
    return ((log_probs - old_log_probs) * relevant).clamp(max=MAX_LOG_RATIO)


def clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    relevant: Tensor,
    n_free: Tensor,
    clip_range: float,
) -> Tensor:
    """Return the policy loss with each head's ratio clipped by itself.

        loss = -1 / n_free * sum over n, h of min(r A, clip(r, 1 - e, 1 + e) A) * relevant

    The minimum is ``min(r A, A + e |A|)``: the clip only binds where the ratio has moved in favour
    of the advantage. With the cost ``C = -A / n_free`` it is ``max(r C, C - e |C|)``.

    Args:
        log_ratio: ``[N, H]`` from :func:`relevant_log_ratio`.
        advantages: ``[N]``.
        relevant: ``[N, H]``.
        n_free: Number of steps with more than one legal action, at least 1.
        clip_range: How far a ratio may leave 1 before its gradient stops (e).

    Reference: Schulman et al. (2017), "Proximal policy optimization algorithms", equation 7,
    applied to each head.
    """
    cost = advantages.unsqueeze(-1) * relevant / -n_free
    bound = torch.sub(cost, cost.abs(), alpha=clip_range)
    return (log_ratio.exp() * cost).clamp(min=bound).sum()


def joint_clipped_surrogate(
    log_ratio: Tensor,
    advantages: Tensor,
    relevant: Tensor,
    n_free: Tensor,
    clip_range: float,
) -> Tensor:
    """Return the policy loss with the ratio of the whole action clipped.

        loss = -1 / n_free * sum over n of min(R A, clip(R, 1 - e, 1 + e) A),  R = prod over h of r

    Arguments are those of :func:`clipped_surrogate`.

    Reference: Schulman et al. (2017), "Proximal policy optimization algorithms", equation 7.
    """
    is_free = relevant.amax(dim=1, keepdim=True)
    joint = log_ratio.sum(dim=1, keepdim=True).clamp(max=MAX_LOG_RATIO)
    return clipped_surrogate(joint, advantages, is_free, n_free, clip_range)


def value_loss(
    values: Tensor, returns: Tensor, old_values: Tensor, clip_range_vf: float | None
) -> Tensor:
    """Return the mean squared error of values ``[N]``.

    loss = mean of (V - G)^2, or of max((V - G)^2, (clip(V, V_old - e, V_old + e) - G)^2)
    """
    if clip_range_vf is None:
        return mse_loss(values, returns)
    moved = (values - old_values).clamp(-clip_range_vf, clip_range_vf)
    clipped = (old_values + moved - returns).square()
    return torch.maximum((values - returns).square(), clipped).mean()


def entropy_bonus(entropies: Tensor, available: Tensor, n_free: Tensor) -> Tensor:
    """Return the mean over free steps of the available heads' entropy ``[N, H]``.

    bonus = 1 / n_free * sum over n, h of H * available
    """
    return (entropies * available).sum() / n_free


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
    """Return the share of the returns' variance that the values explain; 0 for constant returns."""
    variance = returns.var(correction=0)
    share = 1.0 - (returns - values).var(correction=0) / variance
    return torch.where(variance > 0, share, torch.zeros_like(share))
