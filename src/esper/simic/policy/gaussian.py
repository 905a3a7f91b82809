"""Continuous heads: independent Gaussians, clipped to their bounds or squashed by tanh.

Shapes: ``N`` steps, ``G`` continuous heads, ``C`` numbers of all of them side by side.

A squashed action is ``tanh(u)`` of a Gaussian number ``u``. Steps store ``u``: the density of
``tanh(u)`` is that of ``u`` times a factor that depends on ``u`` alone, so ratios of new and old
probabilities are those of ``u``. Only the entropy has a term of its own.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

_HALF_LOG_TAU = 0.5 * math.log(2.0 * math.pi)
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(16)


def log_density(mean: Tensor, log_std: Tensor, numbers: Tensor) -> Tensor:
    """Return the log-density ``[N, C]`` of numbers under ``N(mean, exp(log_std)^2)``."""
    return log_density_of_noise((numbers - mean) / log_std.exp(), log_std)


def log_density_of_noise(noise: Tensor, log_std: Tensor) -> Tensor:
    """Return the log-density ``[N, C]`` of numbers that are ``noise`` deviations from the mean."""
    return -0.5 * noise.square() - (log_std + _HALF_LOG_TAU)


def entropy(mean: Tensor, log_std: Tensor, *, squash: bool) -> Tensor:
    """Return the differential entropy ``[N, C]`` of each number, of ``tanh`` of it if squashed.

        H[u]       = log std + log(2 pi e) / 2
        H[tanh(u)] = H[u] + E[log(1 - tanh(u)^2)]

    The expectation is a Gauss-Hermite sum of 16 terms.
    """
    plain = (log_std + (_HALF_LOG_TAU + 0.5)).expand_as(mean)
    if not squash:
        return plain
    nodes, weights = _quadrature(mean.device, mean.dtype)
    u = mean.unsqueeze(-1) + log_std.exp().unsqueeze(-1) * nodes
    # log(1 - tanh(u)^2) without cancellation for large |u|.
    log_slope = 2.0 * (math.log(2.0) - u - torch.nn.functional.softplus(-2.0 * u))
    return plain + (log_slope * weights).sum(-1)


@lru_cache(maxsize=16)
def _quadrature(device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return nodes and weights on a device, made once."""
    shares = _WEIGHTS / _WEIGHTS.sum()
    return (
        torch.tensor(_NODES, dtype=dtype, device=device),
        torch.tensor(shares, dtype=dtype, device=device),
    )


def sum_by_head(values: Tensor, dims: tuple[int, ...]) -> Tensor:
    """Return the sum ``[N, G]`` over each head's numbers ``[N, C]``."""
    if len(dims) == 1:
        return values.sum(-1, keepdim=True)
    return torch.stack([part.sum(-1) for part in torch.split(values, list(dims), dim=-1)], dim=-1)
