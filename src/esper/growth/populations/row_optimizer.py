"""The updates of torch's optimizers on many hosts at once, each with its own step size and count.

Shapes: R = rows (hosts), T = parameters of all rows; what is one number for a row is given for each
of its parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.population import PopulationConfig

Floats = NDArray[np.float64]


def decay_weights(
    values: Tensor, gradient: Tensor, rates: Tensor, config: PopulationConfig
) -> None:
    """Pull parameters to zero: adamw by their own size, the others through the gradient.

    Args:
        values: ``[T]`` parameters; changed in place.
        gradient: ``[T]``; changed in place.
        rates: ``[T]`` step sizes.
        config: Which rule, and its settings.
    """
    if config.weight_decay and config.optimizer == "adamw":
        values.mul_(1.0 - rates * config.weight_decay)
    elif config.weight_decay:
        gradient.add_(values, alpha=config.weight_decay)


def update_by_sgd(
    values: Tensor,
    momentum: Tensor | None,
    gradient: Tensor,
    rates: Tensor,
    config: PopulationConfig,
) -> None:
    """Move parameters ``[T]`` as ``torch.optim.SGD`` does, in place; None is no momentum."""
    if momentum is None:
        values.addcmul_(gradient, rates, value=-1.0)
        return
    momentum.mul_(config.momentum).add_(gradient)
    values.addcmul_(momentum, rates, value=-1.0)


def adam_factors(
    learning_rates: Floats, steps: Floats, config: PopulationConfig
) -> tuple[Floats, Floats]:
    """Return the factor ``[R]`` of the root and what is added to it in Adam's denominator.

    Adam's move is ``rate / (1 - beta1**n) * mean / (sqrt(square) / sqrt(1 - beta2**n) + eps)``
    after n steps, which is ``mean / (sqrt(square) * factor + floor)``.
    """
    step_sizes = learning_rates / (1.0 - config.beta1**steps)
    roots = np.sqrt(1.0 - config.beta2**steps)
    return 1.0 / (step_sizes * roots), config.adam_eps / step_sizes


def update_by_adam(
    data: Tensor, gradient: Tensor, factors: Tensor, floors: Tensor, config: PopulationConfig
) -> None:
    """Move parameters as ``torch.optim.Adam`` does.

    Args:
        data: ``[3, T]`` parameters, mean gradients, mean squares; changed in place.
        gradient: ``[T]``; overwritten.
        factors: ``[T]`` as :func:`adam_factors` gives them.
        floors: ``[T]``.
        config: The settings.
    """
    values, mean, square = data
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    # The gradient is not needed any more; its memory holds the denominator.
    torch.sqrt(square, out=gradient)
    torch.addcmul(floors, gradient, factors, out=gradient)
    values.addcdiv_(mean, gradient, value=-1.0)
