"""The running mean and deviation of returns, in which the critic learns."""

from __future__ import annotations

import torch
from torch import Tensor


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
        # Returns that do not vary, as before the first reward, say nothing about their scale.
        std = torch.where(variance > 1e-8, variance.sqrt(), self.std)
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
