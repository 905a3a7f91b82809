"""The tensors of a host in one block of memory, as the kernel reads and writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from esper.populations.vector_programs import TensorTable

LINE = 64
"""Bytes that the numbers are aligned to."""


class HostMemory:
    """Step counts, parameters, moments and buffers; the model's and optimizer's own are views.

    Parameters and buffers stay the same objects.
    """

    def __init__(
        self, table: TensorTable, optimizer: Optimizer, moments: Sequence[str], *, has_steps: bool
    ) -> None:
        """Move the tensors here.

        Args:
            table: The tensors of the model, all of one dtype.
            optimizer: The optimizer of its parameters.
            moments: The names of the optimizer's moments.
            has_steps: Whether the optimizer counts the steps of each parameter.
        """
        dtype = table.parameters[0].dtype
        first = -(-4 * len(table.parameters) // LINE) * LINE
        length = first + table.length * dtype.itemsize
        whole = torch.zeros(length, dtype=torch.uint8)
        steps = whole[: 4 * len(table.parameters)].view(torch.float32)
        self._numbers: Tensor = whole[first:].view(dtype)
        end = table.n_planes * table.plane
        planes = self._numbers[:end].view(table.n_planes, table.plane)
        # As grown parameters differ in age, each has a step count of its own, as in torch.
        counts: list[Tensor] = list(cast(Any, steps).unbind(0))
        pieces: list[Tensor] = list(cast(Any, planes).split(table.sizes, 1))
        for index, piece in enumerate(pieces):
            parameter = table.parameters[index]
            views = piece.view(table.n_planes, *table.shapes[index]).unbind(0)
            state: dict[str, Any] = {}
            if moments:
                state = optimizer.state.setdefault(parameter, {})
            for name, view in zip(moments, views[1:], strict=True):
                if state.get(name) is not None:
                    view.copy_(state[name])
                state[name] = view
            if has_steps:
                if "step" in state:
                    counts[index].copy_(state["step"])
                state["step"] = counts[index]
            parameter.data = views[0].copy_(parameter.data)
        rest = cast(Any, self._numbers[end:]).split(table.buffer_sizes)
        for buffer, own in zip(table.buffers, rest, strict=True):
            own.copy_(buffer.flatten())
            buffer.data = own.view(buffer.shape)
        self._bytes = whole.numpy()
        self._saved = self._bytes.copy()
        self.steps_address: int = steps.data_ptr()
        self.address: int = self._numbers.data_ptr()
        self._values = [self._numbers[: table.plane], self._numbers[end:]]

    def is_finite(self) -> bool:
        """Return whether all parameters and buffers are finite."""
        return all(bool(torch.isfinite(values).all()) for values in self._values)

    def save(self) -> None:
        """Save the current state for :meth:`restore`."""
        np.copyto(self._saved, self._bytes)

    def restore(self) -> None:
        """Restore the saved state, at first the initial one."""
        np.copyto(self._bytes, self._saved)
