"""A linear layer whose output has the steps last, as everything that follows it wants them.

Shapes: ``N`` steps, ``M`` inputs, ``P`` outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _StepsLastLinear(torch.autograd.Function):
    """``weight @ inputs.T + bias`` with every product laid out the way its reader wants it."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Take inputs ``[N, M]``, weight ``[P, M]`` and bias ``[P]``; return ``[P, N]``."""
        ctx.save_for_backward(inputs, weight)
        return torch.addmm(bias.unsqueeze(1), weight, inputs.t())

    @staticmethod
    @once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of inputs, weight and bias."""
        inputs, weight = ctx.saved_tensors
        (gradient,) = gradients
        return gradient.t() @ weight, gradient @ inputs, gradient.sum(dim=1)


def steps_last_linear(inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Apply a linear layer to inputs ``[N, M]`` and return ``[P, N]``, the steps contiguous."""
    return cast(Callable[..., Tensor], _StepsLastLinear.apply)(inputs, weight, bias)
