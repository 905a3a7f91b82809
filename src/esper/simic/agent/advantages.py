"""Advantage estimation. Shapes: E = parallel environments, T = stored steps of each."""

from __future__ import annotations

import torch
from torch import Tensor

from esper.config.checks import UnitInterval, check
from esper.simic.tensors import check_tensor

try:
    from esper.simic.agent import _advantages as _kernel
except ImportError:
    _kernel = None


def reverse_scan(inputs: Tensor, decay: float, stops: Tensor) -> Tensor:
    """Return ``x[t] = inputs[t] + (0 if stops[t] else decay * x[t + 1])`` along the last axis.

    Each round doubles the number of steps that every entry has summed, so T steps take log2(T)
    rounds of whole-tensor operations: the form for accelerators, where a loop over steps is slow.
    Whatever lies beyond a stop is selected away, not multiplied by zero, so a NaN there is gone.

    Args:
        inputs: ``[..., T]`` floating point.
        decay: What each step keeps of its successor.
        stops: ``[..., T]`` bool, where nothing is carried over from the next step.
    """
    total, stopped, weight, reach = inputs.clone(), stops, decay, 1
    n_steps = inputs.shape[-1]
    while reach < n_steps:
        head, tail = total[..., :-reach], total[..., reach:]
        joined = torch.where(stopped[..., :-reach], head, head + weight * tail)
        total = torch.cat([joined, total[..., n_steps - reach :]], dim=-1)
        is_cut = stopped[..., :-reach] | stopped[..., reach:]
        stopped = torch.cat([is_cut, stopped[..., n_steps - reach :]], dim=-1)
        weight, reach = weight * weight, 2 * reach
    return total


# What the compiled kernel handles: [T, E] or [E, T] in memory, float32 or float64.
_ENV_MAJOR, _DOUBLE = 1, 2

# From this many entries on, both results share one block: two large blocks that are freed together
# make the C library return the memory to the system, and every call then pays for fresh pages.
_LARGE = 1 << 16

_empty_like = torch.empty_like


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

    On the CPU this is one pass of a compiled kernel, fastest when the tensors are views of
    time-major storage; elsewhere, or without a compiler, a scan of logarithmic depth.

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
    try:
        shape, dtype = rewards.shape, rewards.dtype
        are_on_cpu = (
            rewards.is_cpu
            and values.is_cpu
            and next_values.is_cpu
            and terminated.is_cpu
            and truncated.is_cpu
        )
        fits = (
            values.shape == next_values.shape == terminated.shape == truncated.shape == shape
            and len(shape) == 2
            and 0 not in shape
            and values.dtype is next_values.dtype is dtype
            and (dtype is torch.float32 or dtype is torch.float64)
            and terminated.dtype is truncated.dtype is torch.bool
            and (are_on_cpu or _share_a_device(rewards, values, next_values, terminated, truncated))
            and 0.0 <= gamma <= 1.0
            and 0.0 <= gae_lambda <= 1.0
        )
        if not fits:
            raise ValueError("the arguments do not fit together")
        if _kernel is None or not are_on_cpu:
            deltas = rewards + gamma * next_values.masked_fill(terminated, 0.0) - values
            advantages = reverse_scan(deltas.detach(), gamma * gae_lambda, terminated | truncated)
            return advantages, advantages + values.detach()

        form = _DOUBLE if dtype is torch.float64 else 0
        tensors = rewards, values, next_values, terminated, truncated
        return _run_kernel(tensors, shape, form, gamma, gae_lambda)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        _check_arguments(rewards, values, next_values, terminated, truncated, gamma, gae_lambda)
        raise


def _run_kernel(
    tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor],
    shape: torch.Size,
    form: int,
    gamma: float,
    gae_lambda: float,
) -> tuple[Tensor, Tensor]:
    """Make one pass of the compiled kernel over tensors that are known to fit together."""
    assert _kernel is not None
    rewards, values, next_values, terminated, truncated = tensors
    n_envs, n_steps = shape
    strides = rewards.stride()
    same_layout = (
        values.stride() == next_values.stride() == strides
        and terminated.stride() == truncated.stride() == strides
    )
    if not (same_layout and strides == (1, n_envs)):
        form |= _ENV_MAJOR
        if not (same_layout and strides == (n_steps, 1)):
            rewards, values = rewards.contiguous(), values.contiguous()
            next_values = next_values.contiguous()
            terminated, truncated = terminated.contiguous(), truncated.contiguous()
    if n_envs * n_steps < _LARGE:
        advantages, returns = _empty_like(rewards), _empty_like(rewards)
    else:
        size = n_envs * n_steps
        strides = (size, *rewards.stride())
        pair = torch.empty_strided((2, n_envs, n_steps), strides, dtype=rewards.dtype)
        advantages, returns = pair[0], pair[1]
    _kernel.estimate(
        rewards.data_ptr(),
        values.data_ptr(),
        next_values.data_ptr(),
        terminated.data_ptr(),
        truncated.data_ptr(),
        advantages.data_ptr(),
        returns.data_ptr(),
        n_envs,
        n_steps,
        gamma,
        gae_lambda,
        form,
    )
    return advantages, returns


def _share_a_device(first: Tensor, *others: Tensor) -> bool:
    return all(tensor.device == first.device for tensor in others)


def _check_arguments(
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    gamma: float,
    gae_lambda: float,
) -> None:
    """Say which argument of :func:`estimate_advantages` is not what it must be."""
    check("gamma", gamma, UnitInterval)
    check("gae_lambda", gae_lambda, UnitInterval)
    sizes, floats = ("environments", "steps"), (torch.float32, torch.float64)
    check_tensor("rewards", rewards, sizes, floats)
    shape, device = rewards.shape, rewards.device
    check_tensor("values", values, shape, rewards.dtype, device)
    check_tensor("next_values", next_values, shape, rewards.dtype, device)
    check_tensor("terminated", terminated, shape, torch.bool, device)
    check_tensor("truncated", truncated, shape, torch.bool, device)
