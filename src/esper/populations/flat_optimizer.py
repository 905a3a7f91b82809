"""One optimizer update for the parameters of many hosts, laid out contiguously.

Shapes: R = rows of all modules, T = parameters of all rows, M = moments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats
from esper.config.growth import PopulationConfig
from esper.populations.rows import ActiveRows, RowStore


def decay_weights(
    values: Tensor, gradient: Tensor, rates: Tensor, config: PopulationConfig
) -> None:
    """Apply weight decay in place, ``[T]`` each: decoupled for adamw, else through the gradient."""
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
    """Update parameters ``[T]`` in place like ``torch.optim.SGD``; None means no momentum."""
    if momentum is None:
        values.addcmul_(gradient, rates, value=-1.0)
        return
    momentum.mul_(config.momentum).add_(gradient)
    values.addcmul_(momentum, rates, value=-1.0)


def adam_factors(
    learning_rates: Floats, steps: Floats, config: PopulationConfig
) -> tuple[Floats, Floats]:
    """Return ``factor`` and ``floor`` ``[R]`` of Adam's update.

    After n steps, ``rate / (1 - beta1**n) * mean / (sqrt(square) / sqrt(1 - beta2**n) + eps)``
    equals ``mean / (sqrt(square) * factor + floor)``.
    """
    step_sizes = learning_rates / (1.0 - config.beta1**steps)
    roots = np.sqrt(1.0 - config.beta2**steps)
    return 1.0 / (step_sizes * roots), config.adam_eps / step_sizes


def update_by_adam(
    data: Tensor, gradient: Tensor, factors: Tensor, floors: Tensor, config: PopulationConfig
) -> None:
    """Update parameters and both moments, ``[3, T]``, in place like ``torch.optim.Adam``.

    Factors and floors ``[T]`` are from :func:`adam_factors`. The gradient is overwritten.
    """
    values, mean, square = data
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    # The gradient is no longer needed, so its memory holds the denominator.
    torch.sqrt(square, out=gradient)
    torch.addcmul(floors, gradient, factors, out=gradient)
    values.addcdiv_(mean, gradient, value=-1.0)


class FlatOptimizer:
    """Copies of some rows of some stores while they are trained.

    Each parameter is contiguous over the rows of a store, as layers read it.
    """

    def __init__(self, blocks: Sequence[tuple[RowStore, slice]], learning_rates: Floats) -> None:
        """Copy rows of stores, each with its learning rate, ``[R]``, block after block."""
        self.blocks = blocks
        self.learning_rates = learning_rates
        self._pieces = [
            piece
            for store, rows in blocks
            for piece in torch.split(store.data[:, rows], store.sizes, 2)
        ]
        """Views of each parameter of some rows with its moments, ``[1 + M, rows, size]``."""
        self.data = torch.cat([piece.flatten(1) for piece in self._pieces], 1)
        """``[1 + M, T]`` parameters, then each moment."""
        self.gradient = torch.zeros_like(self.data[0])
        """``[T]``."""
        self.steps = np.concatenate([store.steps[rows] for store, rows in blocks])
        """``[R]`` number of updates."""
        self._lengths, self._chunk_rows = self._measure()
        self._row_of = torch.from_numpy(self._chunk_rows).int().repeat_interleave(self._lengths)
        """``[T]`` the row that each parameter belongs to."""
        # Allocated once: freeing and reallocating memory of this size at each step is slow.
        self._scratch = torch.empty_like(self.data[:2])
        self._rates = self._expand(learning_rates, torch.empty_like(self.gradient))

    def bind(self, active: Sequence[ActiveRows]) -> None:
        """Bind layers to the copies; their gradients accumulate in :attr:`gradient`."""
        sizes = [piece[0].numel() for piece in self._pieces]
        values, gradients = (
            iter(torch.split(self.data[0], sizes)),
            iter(torch.split(self.gradient, sizes)),
        )
        for (store, rows), seen in zip(self.blocks, active, strict=True):
            n_rows, parameters = rows.stop - rows.start, dict[str, Tensor]()
            for name, shape in store.shapes.items():
                parameters[name] = next(values).view(n_rows, *shape).detach().requires_grad_()
                parameters[name].grad = next(gradients).view(n_rows, *shape)
            buffers = {name: buffer[rows] for name, buffer in store.buffers.items()}
            seen.bind(parameters, buffers)

    def gradient_squares(self) -> Floats:
        """Return the squared gradient norm of each row, ``[R]``."""
        squares = torch.mul(self.gradient, self.gradient, out=self._scratch[0])
        sums = torch.segment_reduce(squares, "sum", lengths=self._lengths)
        totals = np.zeros(len(self.steps))
        np.add.at(totals, self._chunk_rows, sums.double().numpy())
        return totals

    def update(self, config: PopulationConfig) -> None:
        """Update all parameters; the gradient is overwritten."""
        self.steps += 1.0
        data, gradient = self.data, self.gradient
        decay_weights(data[0], gradient, self._rates, config)
        if config.optimizer == "sgd":
            momentum = data[1] if config.momentum else None
            update_by_sgd(data[0], momentum, gradient, self._rates, config)
            return
        by_row = adam_factors(self.learning_rates, self.steps, config)
        factors, floors = map(self._expand, by_row, self._scratch)
        update_by_adam(data, gradient, factors, floors, config)

    def write_back(self) -> None:
        """Copy the trained rows back to their stores."""
        parts = torch.split(self.data, [piece[0].numel() for piece in self._pieces], 1)
        for piece, part in zip(self._pieces, parts, strict=True):
            piece.copy_(part.view(piece.shape))
        first = 0
        for store, rows in self.blocks:
            n_rows = rows.stop - rows.start
            store.steps[rows] = self.steps[first : first + n_rows]
            first += n_rows

    def _measure(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the length and the row of each run of parameters of the same row."""
        lengths: list[int] = []
        rows: list[int] = []
        first = 0
        for store, own in self.blocks:
            n_rows = own.stop - own.start
            for size in store.sizes:
                lengths += [size] * n_rows
                rows += range(first, first + n_rows)
            first += n_rows
        return torch.tensor(lengths), np.array(rows, dtype=np.int64)

    def _expand(self, by_row: Floats, out: Tensor) -> Tensor:
        """Repeat a value of each row ``[R]`` for each of its parameters, ``[T]``."""
        values = torch.from_numpy(by_row).to(out.dtype)
        return torch.index_select(values, 0, self._row_of, out=out)
