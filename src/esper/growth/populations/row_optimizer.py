"""The updates of torch's optimizers on rows: each host with its own step size and step count.

Shapes: R = rows (hosts), P = parameters.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.population import PopulationConfig
from esper.growth.populations.rows import RowStore

Floats = NDArray[np.float64]


def update_rows(
    store: RowStore, rows: slice, gradient: Tensor, learning_rates: Floats, config: PopulationConfig
) -> None:
    """Move the parameters of some rows against their gradient, as ``torch.optim`` would one host's.

    Args:
        store: Holds the parameters and moments; changed in place.
        rows: The R rows that learn.
        gradient: ``[R, P]``; overwritten.
        learning_rates: ``[R]`` step size of each row.
        config: Which rule, and its settings.
    """
    values = store.values[rows]
    store.steps[rows] += 1.0
    rates = _column(learning_rates, values)
    if config.weight_decay and config.optimizer == "adamw":
        values.mul_(1.0 - rates * config.weight_decay)
    elif config.weight_decay:
        gradient.add_(values, alpha=config.weight_decay)
    if config.optimizer == "sgd":
        momentum = store.moments["momentum_buffer"][rows]
        momentum.mul_(config.momentum).add_(gradient)
        values.sub_(momentum * rates)
        return
    mean, square = store.moments["exp_avg"][rows], store.moments["exp_avg_sq"][rows]
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    steps = store.steps[rows]
    step_sizes = _column(learning_rates / (1.0 - config.beta1**steps), values)
    roots = _column(np.sqrt(1.0 - config.beta2**steps), values)
    # The gradient is not needed any more; its memory holds the denominator.
    torch.sqrt(square, out=gradient).div_(roots).add_(config.adam_eps)
    values.sub_(torch.div(mean, gradient, out=gradient).mul_(step_sizes))


def _column(numbers: Floats, like: Tensor) -> Tensor:
    """Return one number for each row, to be spread over its parameters."""
    return torch.from_numpy(numbers).to(like.dtype)[:, None]
