"""The rows of several modules side by side in memory, so that one update moves them all.

Shapes: R = rows of all modules, T = their parameters in all, M = moments.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.config.population import PopulationConfig
from esper.growth.populations.row_optimizer import (
    adam_factors,
    decay_weights,
    update_by_adam,
    update_by_sgd,
)
from esper.growth.populations.rows import ActiveRows, RowStore

Floats = NDArray[np.float64]


class Arena:
    """Copies of some rows of some stores, while they learn.

    One parameter of all rows of a store lies in one piece, as layers like to read it.
    """

    def __init__(self, blocks: Sequence[tuple[RowStore, slice]], learning_rates: Floats) -> None:
        """Copy rows.

        Args:
            blocks: Stores, and which of their rows.
            learning_rates: ``[R]`` step size of each row, block after block.
        """
        self.blocks = blocks
        self.learning_rates = learning_rates
        self._pieces = [piece for store, rows in blocks for piece in _pieces_of(store, rows)]
        self.data = torch.cat([piece.flatten(1) for piece in self._pieces], 1)
        """``[1 + M, T]`` the parameters, then each moment."""
        self.gradient = torch.zeros_like(self.data[0])
        """``[T]``."""
        self.steps = np.concatenate([store.steps[rows] for store, rows in blocks])
        """``[R]`` updates taken."""
        self._lengths, self._chunk_rows = self._measure()
        self._row_of = torch.from_numpy(self._chunk_rows).int().repeat_interleave(self._lengths)
        """``[T]`` the row that each parameter belongs to."""
        # Memory of this size is given back and taken again at each step unless it is kept.
        self._scratch = torch.empty_like(self.data[:2])
        self._rates = self._spread(learning_rates, torch.empty_like(self.gradient))

    def show(self, active: Sequence[ActiveRows]) -> None:
        """Let layers see the copies; their gradients add up in :attr:`gradient`."""
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
        """Return the sum of the squares of each row's gradient, ``[R]``."""
        squares = torch.mul(self.gradient, self.gradient, out=self._scratch[0])
        sums = torch.segment_reduce(squares, "sum", lengths=self._lengths)
        totals = np.zeros(len(self.steps))
        np.add.at(totals, self._chunk_rows, sums.double().numpy())
        return totals

    def update(self, config: PopulationConfig) -> None:
        """Move all parameters against their gradient, which is used up."""
        self.steps += 1.0
        data, gradient = self.data, self.gradient
        decay_weights(data[0], gradient, self._rates, config)
        if config.optimizer == "sgd":
            momentum = data[1] if config.momentum else None
            update_by_sgd(data[0], momentum, gradient, self._rates, config)
            return
        numbers = adam_factors(self.learning_rates, self.steps, config)
        factors, floors = map(self._spread, numbers, self._scratch)
        update_by_adam(data, gradient, factors, floors, config)

    def write_back(self) -> None:
        """Put what was learned into the stores."""
        parts = torch.split(self.data, [piece[0].numel() for piece in self._pieces], 1)
        for piece, part in zip(self._pieces, parts, strict=True):
            piece.copy_(part.view(piece.shape))
        first = 0
        for store, rows in self.blocks:
            n_rows = rows.stop - rows.start
            store.steps[rows] = self.steps[first : first + n_rows]
            first += n_rows

    def _measure(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the length and the row of each run of parameters that belong to one row."""
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

    def _spread(self, numbers: Floats, out: Tensor) -> Tensor:
        """Write one number of each row ``[R]`` for each of its parameters, ``[T]``."""
        values = torch.from_numpy(numbers).to(out.dtype)
        return torch.index_select(values, 0, self._row_of, out=out)


def _pieces_of(store: RowStore, rows: slice) -> tuple[Tensor, ...]:
    """Return each parameter of some rows with its moments, ``[1 + M, rows, size]``, as views."""
    return torch.split(store.data[:, rows], store.sizes, 2)
