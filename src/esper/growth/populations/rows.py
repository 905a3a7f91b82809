"""The tensors of one module for many hosts, a row for each host.

Shapes: R = rows (hosts that have the module), P = parameters of the module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Positions = NDArray[np.int64]


class RowStore:
    """Parameters, buffers and moments of hosts that have the same module.

    All parameters are one tensor ``[R, P]``, so that an update is a few operations whatever the
    number of layers and hosts; layers see views of it.
    """

    def __init__(self, template: nn.Module, moments: Sequence[str]) -> None:
        parameters = dict(template.named_parameters())
        self.shapes = {name: tuple(p.shape) for name, p in parameters.items()}
        self.sizes = [p.numel() for p in parameters.values()]
        self.hosts: list[int] = []
        """Which host each row belongs to."""
        dtype = next((p.dtype for p in parameters.values()), torch.get_default_dtype())
        self.values = torch.zeros(0, sum(self.sizes), dtype=dtype)
        self.moments = {name: torch.zeros_like(self.values) for name in moments}
        self.steps = np.zeros(0)
        """``[R]`` updates taken."""
        self.buffers = {name: b.new_zeros(0, *b.shape) for name, b in template.named_buffers()}

    def __len__(self) -> int:
        return len(self.hosts)

    def copied(self) -> RowStore:
        """Return a copy that shares nothing."""
        twin = RowStore.__new__(RowStore)
        twin.shapes, twin.sizes, twin.hosts = self.shapes, self.sizes, list(self.hosts)
        twin.values, twin.steps = self.values.clone(), self.steps.copy()
        twin.moments = {name: moment.clone() for name, moment in self.moments.items()}
        twin.buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return twin

    def put(self, rows: dict[int, Row]) -> None:
        """Add the rows of some hosts, or replace them."""
        self.reorder([host for host in self.hosts if host not in rows])
        flats = [self._flat(row.tensors) for row in rows.values()]
        self.values = torch.cat([self.values, *flats])
        for name, moment in self.moments.items():
            flats = [self._flat(row.moments.get(name, {})) for row in rows.values()]
            self.moments[name] = torch.cat([moment, *flats])
        for name, buffer in self.buffers.items():
            added = [row.tensors[name][None].to(buffer) for row in rows.values()]
            self.buffers[name] = torch.cat([buffer, *added])
        self.steps = np.append(self.steps, [row.steps for row in rows.values()])
        self.hosts.extend(rows)

    def get(self, host: int) -> Row:
        """Return a copy of a host's row."""
        index = self.hosts.index(host)
        tensors = self._named(self.values[index])
        tensors.update({name: buffer[index].clone() for name, buffer in self.buffers.items()})
        moments = {name: self._named(moment[index]) for name, moment in self.moments.items()}
        return Row(tensors, moments, float(self.steps[index]))

    def take(self, host: int) -> Row:
        """Remove a host's row and return it."""
        row = self.get(host)
        self.reorder([other for other in self.hosts if other != host])
        return row

    def reorder(self, hosts: Sequence[int]) -> None:
        """Keep the rows of these hosts, in this order."""
        if list(hosts) == self.hosts:
            return
        rows = torch.tensor([self.hosts.index(host) for host in hosts], dtype=torch.int64)
        self.values = self.values[rows]
        self.moments = {name: moment[rows] for name, moment in self.moments.items()}
        self.buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        self.steps = self.steps[rows.numpy()]
        self.hosts = list(hosts)

    def find_unfinite(self) -> list[int]:
        """Return the hosts whose parameters or buffers are not all finite."""
        tensors = [self.values, *(b for b in self.buffers.values() if b.is_floating_point())]
        bad = torch.zeros(len(self), dtype=torch.bool)
        for tensor in tensors:
            if tensor.numel():
                bad |= ~torch.isfinite(tensor.flatten(1).abs().amax(1))
        return [self.hosts[int(row)] for row in bad.nonzero()]

    def _flat(self, tensors: dict[str, Tensor]) -> Tensor:
        """Return tensors by name as one row ``[1, P]``; zeros for those that are missing."""
        parts = [
            tensors[name].reshape(-1).to(self.values)
            if name in tensors
            else self.values.new_zeros(size)
            for name, size in zip(self.shapes, self.sizes, strict=True)
        ]
        return torch.cat(parts)[None] if parts else self.values.new_zeros(1, 0)

    def _named(self, flat: Tensor) -> dict[str, Tensor]:
        parts = torch.split(flat, self.sizes)
        return {
            name: part.reshape(shape).clone()
            for (name, shape), part in zip(self.shapes.items(), parts, strict=True)
        }


@dataclass
class Row:
    """The tensors of one host's module, by name."""

    tensors: dict[str, Tensor]
    moments: dict[str, dict[str, Tensor]]
    steps: float = 0.0

    @classmethod
    def of_module(cls, module: nn.Module) -> Row:
        """Return the row of a module that has not learned yet."""
        tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
        return cls({name: tensor.detach().clone() for name, tensor in tensors.items()}, {})


class ActiveRows:
    """The rows of a store that take part in the present computation, as layers see them."""

    def __init__(self) -> None:
        self.parameters: dict[str, Tensor] = {}
        """Each parameter of the rows, ``[rows, *shape]``."""
        self.buffers: dict[str, Tensor] = {}
        self.leaf: Tensor | None = None
        """The rows' parameters, ``[rows, P]``: what the gradient is taken of."""

    def select(self, store: RowStore, rows: Any, *, needs_grad: bool) -> None:
        """Show some rows of a store: a slice shares their memory, numbers copy them."""
        leaf = store.values[rows].detach()
        leaf.requires_grad_(needs_grad and leaf.numel() > 0)
        parts = torch.split(leaf, store.sizes, 1) if store.sizes else ()
        n_rows = len(leaf)
        self.leaf = leaf
        self.parameters = {
            name: part.view(n_rows, *shape)
            for (name, shape), part in zip(store.shapes.items(), parts, strict=True)
        }
        self.buffers = {name: buffer[rows] for name, buffer in store.buffers.items()}
