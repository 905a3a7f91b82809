"""Alpha schedules, and how a seed's output is blended into its block's output.

Shapes: ``y`` is a block's output, ``[B, C, H, W]``, ``[B, T, D]`` or ``[B, D]``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from esper.lifecycle.factored_actions import AlphaCurve, BlendStyle

SIGMOID_STEEPNESS: dict[AlphaCurve, float] = {
    AlphaCurve.SIGMOID_GENTLE: 6.0,
    AlphaCurve.SIGMOID: 10.0,
    AlphaCurve.SIGMOID_SHARP: 16.0,
}

FIRST_CURVE: dict[BlendStyle, AlphaCurve] = {
    BlendStyle.ADD_LINEAR: AlphaCurve.LINEAR,
    BlendStyle.MULTIPLY_LINEAR: AlphaCurve.LINEAR,
    BlendStyle.ADD_SIGMOID: AlphaCurve.SIGMOID,
    BlendStyle.LEARNED_GATE: AlphaCurve.LINEAR,
}
"""The curve of a seed's first alpha ramp, by blend style."""


def curve_value(curve: AlphaCurve, progress: float) -> float:
    """Return the value of a curve that rises from 0 at ``progress`` 0 to 1 at ``progress`` 1."""
    if progress <= 0.0 or progress >= 1.0:
        return float(progress >= 1.0)
    match curve:
        case AlphaCurve.LINEAR:
            return progress
        case AlphaCurve.COSINE:
            return 0.5 - 0.5 * math.cos(math.pi * progress)
        case _:
            half = SIGMOID_STEEPNESS[curve] / 2.0
            # A sigmoid is (1 + tanh) / 2; rescaled so that its ends are exactly 0 and 1.
            return 0.5 + 0.5 * math.tanh(half * (progress - 0.5)) / math.tanh(half / 2.0)


@dataclass(frozen=True)
class AlphaSchedule:
    """An alpha ramp from one value to another, with one step per epoch.

    A ramp of n epochs takes its first step immediately: alpha has covered 1/n of the way in the
    first epoch and reaches its target in the n-th. A ramp of 0 epochs is at its target immediately.
    """

    start: float = 0.0
    target: float = 0.0
    n_epochs: int = 0
    curve: AlphaCurve = AlphaCurve.LINEAR
    epoch: int = 1

    @property
    def alpha(self) -> float:
        """Alpha in the current epoch."""
        if self.is_at_rest:
            return self.target
        share = curve_value(self.curve, self.epoch / self.n_epochs)
        return self.start + (self.target - self.start) * share

    @property
    def is_at_rest(self) -> bool:
        """Whether alpha has reached its target."""
        return self.epoch >= self.n_epochs

    def after_epoch(self) -> AlphaSchedule:
        """Return the schedule one epoch later."""
        return self if self.is_at_rest else replace(self, epoch=self.epoch + 1)


def effective_change(style: BlendStyle, y: Tensor, delta: Tensor, gate: Tensor | None) -> Tensor:
    """Return what a seed with output ``delta`` adds to ``y`` at alpha 1.

    Additive styles add ``delta``. The multiplicative style adds ``y * tanh(delta)``, which scales
    ``y`` by a factor in (0, 2). The gated style adds ``2 * sigmoid(gate) * delta``, which equals
    ``delta`` while the gate is zero. All are zero where ``delta`` is zero.
    """
    match style:
        case BlendStyle.MULTIPLY_LINEAR:
            return y * torch.tanh(delta)
        case BlendStyle.LEARNED_GATE:
            assert gate is not None, "the gated style needs a gate output"
            return 2.0 * torch.sigmoid(gate) * delta
        case BlendStyle.ADD_LINEAR | BlendStyle.ADD_SIGMOID:
            return delta


class _StraightThrough(torch.autograd.Function):
    """Returns the first argument bit for bit; in the backward pass both get the gradient."""

    @staticmethod
    def forward(y: Tensor, change: Tensor) -> Tensor:
        """Return a copy, because an in-place operation may follow the block."""
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.change_dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].to(ctx.change_dtype)


def straight_through(y: Tensor, change: Tensor) -> Tensor:
    """Return ``y`` unchanged, but pass ``change`` the gradient it would get at alpha 1."""
    return cast(Tensor, _StraightThrough.apply(y, change))


def blend(y: Tensor, change: Tensor, alpha: float | Tensor) -> Tensor:
    """Return ``y + alpha * change``; at alpha 0, ``y`` itself even if the change is not finite.

    An alpha that is a scalar tensor is taken to be positive.
    """
    if isinstance(alpha, Tensor):
        return y + alpha.to(y) * change.to(y.dtype)
    if alpha == 0.0:
        return y
    return torch.add(y, change.to(y.dtype), alpha=alpha)
