"""The tensors of one module for many hosts, a row for each host.

Shapes: R = rows (hosts that have the module), P = parameters of the module, M = moments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Shape = tuple[int, ...]


def is_corner(shape: Shape, of: Shape) -> bool:
    """Return whether a tensor of one shape fits into one of another."""
    return len(shape) == len(of) and all(a <= b for a, b in zip(shape, of, strict=True))


def cut_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return the leading corner of a tensor, in its memory."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.narrow(axis, 0, size)
    return tensor


def pad_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor of this shape that has ``tensor`` in its corner; itself if it is as large."""
    if tuple(tensor.shape) == shape:
        return tensor
    padded = tensor.new_zeros(shape)
    cut_corner(padded, tuple(tensor.shape)).copy_(tensor)
    return padded


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Return the shape of each tensor by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def find_misfit(shapes: Mapping[str, Shape], design: Mapping[str, Shape]) -> str | None:
    """Return why tensors of these shapes are no corners of a design's, or None if they are."""
    if shapes.keys() != design.keys():
        name = min(shapes.keys() ^ design.keys())
        owner = "the design" if name in design else "it"
        return f"only {owner} has a tensor {name}"
    for name, shape in shapes.items():
        if not is_corner(shape, design[name]):
            return f"its {name} has shape {list(shape)}, the design's {list(design[name])}"
    return None


Positions = NDArray[np.int64]
Shapes = dict[str, Shape]


class RowStore:
    """Parameters, buffers and moments of hosts that have the same module.

    All parameters and moments are one tensor ``[1 + M, R, P]``, so that copying them is one
    operation whatever the number of layers and hosts; layers see views of it. A host whose tensors
    are smaller than the module's has them in the corner, and zeros elsewhere.
    """

    def __init__(self, template: nn.Module, moments: Sequence[str]) -> None:
        parameters = dict(template.named_parameters())
        self.shapes = shapes_of(parameters)
        self.sizes = [p.numel() for p in parameters.values()]
        self.hosts: list[int] = []
        """Which host each row belongs to."""
        self.own_shapes: list[Shapes] = []
        """Shapes of each row's own parameters and buffers; rows of one size share them."""
        dtype = next((p.dtype for p in parameters.values()), torch.get_default_dtype())
        self.moment_names = tuple(moments)
        self.data = torch.zeros(1 + len(moments), 0, sum(self.sizes), dtype=dtype)
        """``[1 + M, R, P]`` the parameters, then each moment."""
        self.steps = np.zeros(0)
        """``[R]`` updates taken."""
        self.buffers = {name: b.new_zeros(0, *b.shape) for name, b in template.named_buffers()}
        self._known_shapes: dict[tuple[tuple[str, Shape], ...], Shapes] = {}

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def values(self) -> Tensor:
        """``[R, P]`` parameters of each row."""
        return self.data[0]

    @property
    def moments(self) -> dict[str, Tensor]:
        """``[R, P]`` each moment of each row's parameters."""
        return {name: self.data[index] for index, name in enumerate(self.moment_names, start=1)}

    def copied(self) -> RowStore:
        """Return a copy that shares nothing that changes."""
        twin = RowStore.__new__(RowStore)
        twin.__dict__.update(self.__dict__)
        twin.hosts, twin.own_shapes = list(self.hosts), list(self.own_shapes)
        twin.data, twin.steps = self.data.clone(), self.steps.copy()
        twin.buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return twin

    def put(self, rows: Mapping[int, Row]) -> None:
        """Add the rows of some hosts, or replace them."""
        added = {host: row for host, row in rows.items() if host not in self.hosts}
        if added:
            self._grow(added)
        for host, row in rows.items():
            self._write(self.hosts.index(host), row)

    def copy_row(self, host: int, other: RowStore) -> None:
        """Take over a host's row from a store of the same hosts and module."""
        index, source = self.hosts.index(host), other.hosts.index(host)
        self.data[:, index] = other.data[:, source]
        self.own_shapes[index] = other.own_shapes[source]
        self.steps[index] = other.steps[source]
        for name, buffer in self.buffers.items():
            buffer[index] = other.buffers[name][source]

    def get(self, host: int) -> Row:
        """Return a copy of a host's row, in its own shapes."""
        index = self.hosts.index(host)
        shapes = self.own_shapes[index]
        tensors = self._named(self.data[0, index], shapes)
        for name, buffer in self.buffers.items():
            tensors[name] = cut_corner(buffer[index], shapes[name]).clone()
        moments = {name: self._named(m[index], shapes) for name, m in self.moments.items()}
        return Row(tensors, moments, float(self.steps[index]))

    def drop(self, host: int) -> None:
        """Remove a host's row."""
        self.reorder([other for other in self.hosts if other != host])

    def reorder(self, hosts: Sequence[int]) -> None:
        """Keep the rows of these hosts, in this order."""
        if list(hosts) == self.hosts:
            return
        places = {host: row for row, host in enumerate(self.hosts)}
        numbers = [places[host] for host in hosts]
        rows = torch.tensor(numbers, dtype=torch.int64)
        self.data = self.data.index_select(1, rows)
        self.buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        self.steps = self.steps[numbers] if numbers else np.zeros(0)
        self.own_shapes = [self.own_shapes[number] for number in numbers]
        self.hosts = list(hosts)

    def find_unfinite(self) -> list[int]:
        """Return the hosts whose parameters or buffers are not all finite."""
        tensors = [self.values, *(b for b in self.buffers.values() if b.is_floating_point())]
        # A sum is finite if all its terms are, but for an overflow; then the terms are looked at.
        if all(bool(torch.isfinite(tensor.sum())) for tensor in tensors):
            return []
        bad = torch.zeros(len(self), dtype=torch.bool)
        for tensor in tensors:
            if tensor.numel():
                bad |= ~torch.isfinite(tensor.flatten(1).abs().amax(1))
        return [self.hosts[int(row)] for row in bad.nonzero()]

    def _grow(self, rows: Mapping[int, Row]) -> None:
        """Make room for hosts at the end."""
        n_moments, _, n_parameters = self.data.shape
        self.data = torch.cat(
            [self.data, self.data.new_zeros(n_moments, len(rows), n_parameters)], 1
        )
        self.buffers = {
            name: torch.cat([buffer, buffer.new_zeros(len(rows), *buffer.shape[1:])])
            for name, buffer in self.buffers.items()
        }
        self.steps = np.append(self.steps, np.zeros(len(rows)))
        self.hosts.extend(rows)
        self.own_shapes.extend({} for _ in rows)

    def _write(self, index: int, row: Row) -> None:
        shapes = shapes_of(row.tensors)
        self.own_shapes[index] = self._known_shapes.setdefault(tuple(shapes.items()), shapes)
        parts = [row.tensors, *(row.moments.get(name, {}) for name in self.moment_names)]
        self.data[:, index] = 0.0
        for data, tensors in zip(self.data[:, index], parts, strict=True):
            if tensors:
                self._place(data, tensors)
        for name, buffer in self.buffers.items():
            buffer[index] = pad_corner(row.tensors[name], tuple(buffer.shape[1:]))
        self.steps[index] = row.steps

    def _place(self, data: Tensor, tensors: Mapping[str, Tensor]) -> None:
        """Write parameters by name into a row ``[P]`` of zeros."""
        for (name, shape), part in zip(
            self.shapes.items(), torch.split(data, self.sizes), strict=True
        ):
            if name in tensors:
                tensor = tensors[name]
                cut_corner(part.view(shape), tuple(tensor.shape)).copy_(tensor)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return parameters by name as one row ``[P]``; zeros for those that are missing."""
        zeros = self.data.new_zeros
        parts = [
            pad_corner(tensors[name], shape).reshape(-1).to(self.data)
            if name in tensors
            else zeros(size)
            for (name, shape), size in zip(self.shapes.items(), self.sizes, strict=True)
        ]
        return torch.cat(parts) if parts else zeros(0)

    def _named(self, flat: Tensor, shapes: Shapes) -> dict[str, Tensor]:
        parts = torch.split(flat, self.sizes)
        return {
            name: cut_corner(part.view(shape), shapes[name]).clone()
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
        """The rows' parameters, ``[rows, P]``, if they are what the gradient is taken of."""

    def select(self, store: RowStore, rows: Any, *, needs_grad: bool) -> None:
        """Show some rows of a store: a slice shares their memory, numbers copy them."""
        leaf = store.values[rows].detach()
        leaf.requires_grad_(needs_grad and leaf.numel() > 0)
        self.leaf = leaf
        parts = torch.split(leaf, store.sizes, 1) if store.sizes else ()
        self.parameters = {
            name: part.view(len(leaf), *shape)
            for (name, shape), part in zip(store.shapes.items(), parts, strict=True)
        }
        self.buffers = {name: buffer[rows] for name, buffer in store.buffers.items()}

    def bind(self, parameters: dict[str, Tensor], buffers: dict[str, Tensor]) -> None:
        """Show rows that lie elsewhere."""
        self.parameters, self.buffers, self.leaf = parameters, buffers, None
