"""Paths of growth: to follow a schedule for some epochs, and then to finish.

All returns of a host's paths are known once it was grown by every schedule, so what a policy can
expect of them is exact: nothing is drawn.

Shapes: S = schedules, T = epochs, N = hosts, H = heads.
"""

from __future__ import annotations

import torch
from torch import Tensor

from esper.simic.policy.masks import LOWEST


def find_new_paths(actions: Tensor) -> Tensor:
    """Return which paths ``[S, T + 1]`` of a host no schedule before it shares.

    Args:
        actions: ``[S, T, H]`` of the schedules.
    """
    n_schedules, n_epochs, _ = actions.shape
    is_new = torch.ones(n_schedules, n_epochs + 1, dtype=torch.bool)
    is_new[1:, 0] = False  # to finish at once is one path
    for later in range(1, n_schedules):
        is_same = (actions[:later] == actions[later]).all(2).cumprod(1).bool()
        is_new[later, 1:] = ~is_same.any(0)
    return is_new


def path_log_probs(taken: Tensor, finishing: Tensor, n_epochs: Tensor) -> Tensor:
    """Return the log-probability of each path, ``[T + 1, S, N]``; those after the end are 0.

    Args:
        taken: ``[T, S, N]`` log-probabilities of what the schedules do.
        finishing: ``[T, S, N]`` log-probabilities of finishing instead.
        n_epochs: ``[N]`` epochs of each host's budget, after which no one has to finish.
    """
    n_steps = len(taken)
    is_before_end = torch.arange(n_steps).view(-1, 1, 1) < n_epochs
    start = taken.new_zeros(1, *taken.shape[1:])
    followed = torch.cat([start, torch.where(is_before_end, taken, 0.0).cumsum(0)])
    finished = torch.cat([torch.where(is_before_end, finishing, 0.0), start])
    is_over = torch.arange(n_steps + 1).view(-1, 1, 1) > n_epochs
    return (followed + finished).masked_fill(is_over, 0.0)


def expected_returns(
    log_probs: Tensor, returns: Tensor, is_path: Tensor, elsewhere: Tensor
) -> Tensor:
    """Return what a policy can expect, ``[N]``.

    Were it relative to the probability of all paths, a policy could gain by leaving a path that
    turns out to be bad.

    Args:
        log_probs: ``[..., N]`` of paths.
        returns: ``[..., N]`` of paths.
        is_path: ``[..., N]``, which of them there are.
        elsewhere: ``[N]``, the return that counts if none of them is taken.
    """
    gains = (returns - elsewhere).flatten(end_dim=-2)
    return elsewhere + (_flat_paths(log_probs, is_path).exp() * gains).sum(0)


def path_entropy(log_probs: Tensor, is_path: Tensor) -> Tensor:
    """Return the entropy ``[N]`` of a policy over paths, as if it took no other."""
    log_shares = _flat_paths(log_probs, is_path).log_softmax(0)
    return -(log_shares.exp() * log_shares).sum(0)


def worst_returns(returns: Tensor, is_path: Tensor) -> Tensor:
    """Return the return of each host's worst path, ``[N]``."""
    return torch.where(is_path, returns, torch.inf).flatten(end_dim=-2).amin(0)


def imitation_loss(
    log_probs: Tensor, returns: Tensor, is_path: Tensor, temperature: float
) -> Tensor:
    """Return the cross-entropy ``[N]`` of a policy and paths drawn by their returns.

    The probability of such a path is proportional to ``exp(return / temperature)``.
    """
    flat = _flat_paths(log_probs, is_path)
    wanted = _flat_paths(returns / temperature, is_path).softmax(0)
    return -(wanted * flat).sum(0)


def _flat_paths(values: Tensor, is_path: Tensor) -> Tensor:
    return torch.where(is_path, values, LOWEST).flatten(end_dim=-2)
