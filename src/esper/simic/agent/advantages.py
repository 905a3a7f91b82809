"""Advantage estimation. Shapes: E = parallel environments, T = stored steps of each."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.config.checks import UnitInterval, check
from esper.simic.tensors import check_tensor


def reverse_scan(inputs: Tensor, decay: float, stops: Tensor) -> Tensor:
    """Return ``x[t] = inputs[t] + (0 if stops[t] else decay * x[t + 1])`` along the last axis.

    Each round doubles the number of steps that every entry has summed, so T steps take log2(T)
    rounds of whole-tensor operations, on any device.
    Whatever lies beyond a stop is selected away, not multiplied by zero, so a NaN there is gone.

    Args:
        inputs: ``[..., T]`` floating point.
        decay: What each step keeps of its successor.
        stops: ``[..., T]`` bool, where nothing is carried over from the next step.
    """
    total, stopped, weight, reach = inputs.clone(), stops.clone(), decay, 1
    while reach < inputs.shape[-1]:
        tail = total[..., reach:].masked_fill(stopped[..., :-reach], 0.0)
        total[..., :-reach].add_(tail, alpha=weight)
        stopped[..., :-reach].logical_or_(stopped[..., reach:].clone())
        weight, reach = weight * weight, 2 * reach
    return total


def estimate_advantages(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    *,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Return GAE(lambda) advantages and the critic's targets, both ``[E, T]``.

        delta[t]     = rewards[t] + gamma * next_values[t] - values[t]
        advantage[t] = delta[t] + gamma * gae_lambda * advantage[t + 1]

    Nothing follows a *terminated* step, so its next value counts as zero. A *truncated* step
    was only cut short, so the critic's estimate stands in for the rest. After either, the
    recursion restarts, because step ``t + 1`` belongs to another episode. What is stored beyond
    such a step, NaN included, has no influence on it. No gradient flows through the result.

    Args:
        rewards: ``[E, T]`` reward received for step t, float32 or float64.
        values: ``[E, T]`` value of the state before step t, in units of reward.
        next_values: ``[E, T]`` value of the state step t led to, before any reset.
        terminated: ``[E, T]`` bool, the task itself ended at step t.
        truncated: ``[E, T]`` bool, a limit outside the task ended the episode at step t.
        gamma: Discount factor, in [0, 1].
        gae_lambda: 0 trusts the critic alone, 1 the observed rewards alone.

    Raises:
        ShapeError: If a tensor does not have the shape of ``rewards``, or that is not ``[E, T]``.
        DtypeError: If an argument is not a dense tensor, the numbers are not all float32 or all
            float64, or a flag is not bool.
        DeviceError: If the tensors are not on one device.
        ConfigError: If ``gamma`` or ``gae_lambda`` is outside [0, 1].

    Reference: Schulman et al. (2016), equation 16.
    """
    check("gamma", gamma, UnitInterval)
    check("gae_lambda", gae_lambda, UnitInterval)
    floats = (torch.float32, torch.float64)
    check_tensor("rewards", rewards, ("environments", "steps"), floats)
    shape, device = rewards.shape, rewards.device
    check_tensor("values", values, shape, rewards.dtype, device)
    check_tensor("next_values", next_values, shape, rewards.dtype, device)
    check_tensor("terminated", terminated, shape, torch.bool, device)
    check_tensor("truncated", truncated, shape, torch.bool, device)
    # Filled, not multiplied by zero: a NaN stored after a terminal step must not survive.
    deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
    advantages = reverse_scan(deltas.detach(), gamma * gae_lambda, terminated | truncated)
    return advantages, advantages + values.detach()
