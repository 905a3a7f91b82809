"""The distribution that a layer's weights come from, and drawing more weights from it.

A layer as torch initializes it, or with one of the other usual initializations, is recognized by
the deviation of its weights. In a wider layer the deviation is that of the same initialization at
the new width. Other weights, such as trained ones, keep their deviation at every width.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

Deviation = Callable[[int, int], float]
"""The standard deviation of weights, given fan-in and fan-out."""


def torch_default(fan_in: int, _: int) -> float:
    """Return the deviation of weights and biases as torch initializes linear layers."""
    return 1.0 / math.sqrt(3.0 * fan_in)


KNOWN: tuple[Deviation, ...] = (
    torch_default,
    lambda fan_in, _: math.sqrt(2.0 / fan_in),  # He et al. (2015)
    lambda fan_in, fan_out: math.sqrt(2.0 / (fan_in + fan_out)),  # Glorot and Bengio (2010)
    lambda fan_in, _: math.sqrt(1.0 / fan_in),  # LeCun et al. (1998)
)

TOLERANCE = 0.1
"""Largest relative difference of a deviation from that of a known initialization."""

ROUNDING = 1e-4
"""Share by which uniform weights may exceed their bound."""

UNIFORM_KURTOSIS = 2.4
"""Weights with a lower kurtosis are taken as uniform (1.8), others as normal (3)."""


@dataclass(frozen=True)
class WeightLaw:
    """The distribution of a layer's weights around zero."""

    is_uniform: bool
    deviation: Deviation

    @classmethod
    def of(cls, weight: Tensor, fan_in: int, fan_out: int) -> WeightLaw:
        """Return the law of existing weights of a layer with these fans."""
        values = weight.detach().double()
        square = values.square().mean().item() if values.numel() else 0.0
        size = math.sqrt(square)
        if not 0.0 < size < math.inf:
            return cls(True, _constant(0.0))
        kurtosis = values.pow(4).mean().item() / square**2
        # A few weights scatter more than a tenth around the deviation of their law.
        tolerance = max(TOLERANCE, 3.0 / math.sqrt(values.numel()))
        is_uniform, largest = kurtosis < UNIFORM_KURTOSIS, values.abs().max().item()
        gaps = {known: abs(size / known(fan_in, fan_out) - 1.0) for known in KNOWN}
        near = [known for known, gap in gaps.items() if gap <= tolerance]
        if is_uniform:  # no weight is beyond the bound, and torch's own law is the usual one
            bounds = {known: math.sqrt(3.0) * known(fan_in, fan_out) for known in near}
            near = [known for known in near if largest <= bounds[known] * (1.0 + ROUNDING)]
            if torch_default in near:
                near = [torch_default]
        return cls(is_uniform, min(near, key=gaps.__getitem__) if near else _constant(size))

    @torch.no_grad()
    def draw(
        self, weight: Tensor, fan_in: int, fan_out: int, generator: torch.Generator | None = None
    ) -> None:
        """Draw weights for a layer with these fans, in place."""
        deviation = self.deviation(fan_in, fan_out)
        if self.is_uniform:
            bound = math.sqrt(3.0) * deviation
            weight.uniform_(-bound, bound, generator=generator)
        else:
            weight.normal_(0.0, deviation, generator=generator)


def _constant(deviation: float) -> Deviation:
    def at_every_width(fan_in: int, fan_out: int) -> float:
        return deviation

    return at_every_width
