"""Running normalisation of observations, returns and rewards.

Shapes: ``N`` observations or steps, ``D`` columns, ``E`` environments.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.arrays import Flags, Floats

LIMIT = 10.0
"""Deviations beyond which a column is cut off."""


class ObservationNormalizer(nn.Module):
    """Shifts and scales each column by the mean and deviation of all observations taken in.

    Columns that hold a category are left as they are. Columns that have never varied become zero:
    nothing was learned of what they say, so another value there must not change anything.
    """

    mean: Tensor
    variance: Tensor
    count: Tensor
    is_plain: Tensor

    def __init__(self, observation_size: int, categories: Iterable[int] = ()) -> None:
        super().__init__()
        is_plain = torch.ones(observation_size, dtype=torch.bool)
        is_plain[list(categories)] = False
        self.register_buffer("mean", torch.zeros(observation_size))
        self.register_buffer("variance", torch.ones(observation_size))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))
        self.register_buffer("is_plain", is_plain, persistent=False)

    @torch.no_grad()
    def learn(self, observations: Tensor) -> None:
        """Take in observations ``[N, D]``: mean and variance become those of all so far.

        Reference: Chan, Golub and LeVeque (1979), pairwise combination of moments.
        """
        # Apple's devices have no double precision.
        wide = torch.float32 if observations.device.type == "mps" else torch.float64
        seen, known = len(observations), self.count.to(wide)
        values = observations.to(wide)
        mean, variance = values.mean(0), values.var(0, unbiased=False)
        # 1 for the first observations, which nothing is combined with.
        share = seen / (seen + known)
        gap = mean - self.mean.to(wide)
        spread = (1 - share) * self.variance.to(wide)
        spread = spread + share * variance + share * (1 - share) * gap.square()
        self.mean.copy_(self.mean.to(wide) + share * gap)
        self.variance.copy_(spread)
        self.count += seen

    def forward(self, observations: Tensor) -> Tensor:
        """Return observations ``[..., D]`` in deviations, at most :data:`LIMIT` from 0."""
        varies = (self.variance > 1e-8).to(self.variance.dtype)
        scale = torch.where(self.is_plain, varies * self.variance.clamp(min=1e-8).rsqrt(), 1.0)
        shift = torch.where(self.is_plain, self.mean, 0.0)
        return ((observations - shift) * scale).clamp(-LIMIT, LIMIT)


class RewardNormalizer:
    """Scales rewards by the running standard deviation of discounted returns, and clips them.

    As Stable-Baselines3's ``VecNormalize`` does. The mean is not subtracted: that would change
    which policy is best.
    """

    def __init__(self, n_envs: int, gamma: float, *, clip: float = 10.0) -> None:
        self._gamma, self._clip = gamma, clip
        self._returns = np.zeros(n_envs)
        self._moments = np.array([0.0, 0.0, 0.0])
        """Count, mean, and sum of squared deviations of the discounted returns."""

    def __call__(self, rewards: NDArray[np.floating[Any]], dones: Flags) -> Floats:
        """Update the statistics with rewards ``[E]``; return them scaled."""
        self._returns = self._returns * self._gamma + rewards
        count, mean, squares = self._moments
        n, gap = len(rewards), self._returns.mean() - mean
        total = count + n
        squares += ((self._returns - self._returns.mean()) ** 2).sum() + gap**2 * count * n / total
        self._moments = np.array([total, mean + gap * n / total, squares])
        self._returns = np.where(dones, 0.0, self._returns)
        scale = np.sqrt(squares / total + 1e-16)
        return np.clip(rewards / scale, -self._clip, self._clip)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics."""
        return {
            "returns": torch.from_numpy(self._returns.copy()),
            "moments": torch.from_numpy(self._moments.copy()),
        }

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore what :meth:`state_dict` returned."""
        self._moments = state["moments"].numpy().copy()
        returns = state["returns"].numpy()
        if len(returns) == len(self._returns):
            self._returns = returns.copy()


class ReturnNormalizer:
    """Turns returns into deviations from their running mean, and values back into returns.

    Each update weighs the batch by ``max(1 / updates, rate)``: a plain average at first, then one
    that forgets, because returns grow as a policy learns.
    """

    def __init__(self, device: torch.device | str = "cpu", *, rate: float = 0.05) -> None:
        self.mean = torch.zeros((), device=device)
        self.std = torch.ones((), device=device)
        self.updates = 0
        self._rate = rate

    def update(self, returns: Tensor) -> tuple[Tensor, Tensor]:
        """Take in returns ``[N]``; return the ``(scale, shift)`` that turn normalised values made
        under the old statistics into the same values under the new ones."""
        self.updates += 1
        weight = max(1.0 / self.updates, self._rate)
        mean = self.mean + weight * (returns.mean() - self.mean)
        spread_of_old = self.std.square() + (self.mean - mean).square()
        variance = (1.0 - weight) * spread_of_old + weight * (returns - mean).square().mean()
        # Returns that do not vary, as before the first reward, say nothing about their scale. They
        # are sums of rewards and values, so they have the rounding of values on the old scale.
        rounding = 1e-13 * (self.std.square() + self.mean.square()) + 1e-10 * mean.square()
        varies = variance > rounding
        std = torch.where(varies, variance.sqrt(), self.std)
        scale, shift = self.std / std, (self.mean - mean) / std
        self.mean, self.std = mean, std
        return scale, shift

    def normalize(self, returns: Tensor) -> Tensor:
        """Return returns in deviations from the running mean."""
        return (returns - self.mean) / self.std

    def denormalize(self, values: Tensor) -> Tensor:
        """Return normalised values in units of reward."""
        return torch.addcmul(self.mean, values, self.std)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the statistics."""
        return {"mean": self.mean, "std": self.std, "updates": torch.tensor(self.updates)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take over statistics saved by :meth:`state_dict`."""
        self.mean = state["mean"].to(self.mean.device, copy=True)
        self.std = state["std"].to(self.std.device, copy=True)
        self.updates = int(state["updates"])
