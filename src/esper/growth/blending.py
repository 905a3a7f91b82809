"""How strongly a seed counts, epoch by epoch, and how its output joins the block's.

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
"""The curve of a seed's first ramp, which its style decides."""


def curve_value(curve: AlphaCurve, progress: float) -> float:
    """Return how far along a curve is at ``progress``, both in [0, 1]; 0 at 0 and 1 at 1."""
    if progress <= 0.0 or progress >= 1.0:
        return float(progress >= 1.0)
    match curve:
        case AlphaCurve.LINEAR:
            return progress
        case AlphaCurve.COSINE:
            return 0.5 - 0.5 * math.cos(math.pi * progress)
        case _:
            half = SIGMOID_STEEPNESS[curve] / 2.0
            # A sigmoid is (1 + tanh) / 2; scaled so that its ends are exactly 0 and 1.
            return 0.5 + 0.5 * math.tanh(half * (progress - 0.5)) / math.tanh(half / 2.0)


@dataclass(frozen=True)
class AlphaSchedule:
    """Alpha on its way from one value to another, one step an epoch.

    A ramp of n epochs takes its first step at once: alpha is 1/n of the way in its first epoch
    and at its target in its n-th. A ramp of 0 epochs is at its target at once.
    """

    start: float = 0.0
    target: float = 0.0
    n_epochs: int = 0
    curve: AlphaCurve = AlphaCurve.LINEAR
    epoch: int = 1

    @property
    def alpha(self) -> float:
        """How strongly the seed counts in the present epoch."""
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
    """Return what a seed at alpha 1 adds to ``y``, given its output ``delta``.

    Adding: ``delta``. Multiplying: ``y * tanh(delta)``, so that ``y`` is scaled by a factor in
    (0, 2). Gated: ``2 * sigmoid(gate) * delta``, which equals adding while the gate is zero.
    All three are zero where ``delta`` is.
    """
    match style:
        case BlendStyle.MULTIPLY_LINEAR:
            return y * torch.tanh(delta)
        case BlendStyle.LEARNED_GATE:
            assert gate is not None, "a gated style needs the gate's output"
            return 2.0 * torch.sigmoid(gate) * delta
        case BlendStyle.ADD_LINEAR | BlendStyle.ADD_SIGMOID:
            return delta


class _StraightThrough(torch.autograd.Function):
    """The first argument forward, to the bit; backward, the gradient goes to both."""

    @staticmethod
    def forward(y: Tensor, change: Tensor) -> Tensor:
        """Return a copy, because what follows a block may work in place."""
        return y.clone()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        ctx.change_dtype = inputs[1].dtype

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], grads[0].to(ctx.change_dtype)


def straight_through(y: Tensor, change: Tensor) -> Tensor:
    """Return ``y`` unchanged while ``change`` receives the gradient it would get at alpha 1."""
    return cast(Tensor, _StraightThrough.apply(y, change))


def blend(y: Tensor, change: Tensor, alpha: float) -> Tensor:
    """Return ``y + alpha * change``; at alpha 0, ``y`` itself, whatever the change is."""
    if alpha == 0.0:
        return y
    return torch.add(y, change.to(y.dtype), alpha=alpha)
