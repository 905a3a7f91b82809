"""The tensors of one module for many hosts, with one row per host.

Shapes: R = rows (hosts that have the module), P = parameters of the module, M = moments.

A host may have smaller tensors than the module: they are stored in the leading corner of the
module's tensors and padded with zeros.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from esper.growth.modules import named_tensors

Shape = tuple[int, ...]


def cut_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a view of the leading corner of a tensor."""
    for axis, size in enumerate(shape):
        if tensor.shape[axis] != size:
            tensor = tensor.narrow(axis, 0, size)
    return tensor


def pad_corner(tensor: Tensor, shape: Shape) -> Tensor:
    """Return a tensor padded with zeros to this shape; itself if it already has it."""
    if tuple(tensor.shape) == shape:
        return tensor
    padded = tensor.new_zeros(shape)
    cut_corner(padded, tuple(tensor.shape)).copy_(tensor)
    return padded


def shapes_of(tensors: Mapping[str, Tensor]) -> dict[str, Shape]:
    """Return the shape of each tensor by name."""
    return {name: tuple(tensor.shape) for name, tensor in tensors.items()}


def find_misfit(shapes: Mapping[str, Shape], design: Mapping[str, Shape]) -> str | None:
    """Return why tensors of these shapes do not fit in a design's, or None if they do."""
    if shapes.keys() != design.keys():
        name = min(shapes.keys() ^ design.keys())
        owner = "the design" if name in design else "the host"
        return f"only {owner} has a tensor {name}"
    for name, shape in shapes.items():
        whole = design[name]
        if len(shape) != len(whole) or any(a > b for a, b in zip(shape, whole, strict=True)):
            return f"{name} has shape {list(shape)}, the design's has {list(whole)}"
    return None


Shapes = dict[str, Shape]


class RowStore:
    """Parameters, buffers and moments of the hosts that have a module.

    All parameters and moments are one tensor ``[1 + M, R, P]``, so that copying them is a single
    operation; layers read views of it.
    """

    def __init__(self, template: nn.Module, moments: Sequence[str]) -> None:
        parameters = dict(template.named_parameters())
        self.shapes = shapes_of(parameters)
        self.sizes = [p.numel() for p in parameters.values()]
        self.hosts: list[int] = []
        """The host of each row."""
        self.rows: dict[int, int] = {}
        """The row of each host."""
        self.own_shapes: list[Shapes] = []
        """Unpadded shapes of each row's parameters and buffers; rows of one size share a dict."""
        dtype = next((p.dtype for p in parameters.values()), torch.get_default_dtype())
        self.moment_names = tuple(moments)
        self._memory = torch.zeros(1 + len(moments), 0, sum(self.sizes), dtype=dtype)
        """Rows in use, then spare ones, so that a host can be added without copying the others."""
        self.data = self._memory
        """``[1 + M, R, P]`` parameters, then each moment."""
        self.steps = np.zeros(0)
        """``[R]`` number of updates."""
        self.buffers = {name: b.new_zeros(0, *b.shape) for name, b in template.named_buffers()}
        self._known_shapes: dict[tuple[tuple[str, Shape], ...], Shapes] = {}

    def __len__(self) -> int:
        return len(self.hosts)

    @property
    def values(self) -> Tensor:
        """Parameters of each row, ``[R, P]``."""
        return self.data[0]

    @property
    def moments(self) -> dict[str, Tensor]:
        """Each moment of each row's parameters, ``[R, P]``."""
        return {name: self.data[index] for index, name in enumerate(self.moment_names, start=1)}

    def copied(self) -> RowStore:
        """Return a copy that shares no mutable state."""
        twin = RowStore.__new__(RowStore)
        twin.__dict__.update(self.__dict__)
        twin.hosts, twin.own_shapes = list(self.hosts), list(self.own_shapes)
        twin.rows = dict(self.rows)
        twin.data = twin._memory = self.data.clone()
        twin.steps = self.steps.copy()
        twin.buffers = {name: buffer.clone() for name, buffer in self.buffers.items()}
        return twin

    def put(self, rows: Mapping[int, Row]) -> None:
        """Add or replace the rows of some hosts."""
        added = [host for host in rows if host not in self.rows]
        if added:
            self._grow(added)
        for host, row in rows.items():
            self._write(self.rows[host], row)

    def copy_row(self, host: int, other: RowStore) -> None:
        """Copy a host's row from another store of the same hosts and module."""
        index, source = self.rows[host], other.rows[host]
        self.data[:, index] = other.data[:, source]
        self.own_shapes[index] = other.own_shapes[source]
        self.steps[index] = other.steps[source]
        for name, buffer in self.buffers.items():
            buffer[index] = other.buffers[name][source]

    def get(self, host: int) -> Row:
        """Return an unpadded copy of a host's row."""
        index = self.rows[host]
        shapes = self.own_shapes[index]
        tensors = self._named(self.data[0, index], shapes)
        for name, buffer in self.buffers.items():
            tensors[name] = cut_corner(buffer[index], shapes[name]).clone()
        moments = {name: self._named(m[index], shapes) for name, m in self.moments.items()}
        return Row(tensors, moments, float(self.steps[index]))

    def drop(self, host: int) -> None:
        """Remove a host's row, if it has one; the last row takes its place."""
        index = self.rows.pop(host, None)
        if index is None:
            return
        last = len(self.hosts) - 1
        if index != last:
            self.data[:, index] = self.data[:, last]
            for buffer in self.buffers.values():
                buffer[index] = buffer[last]
            self.steps[index] = self.steps[last]
            self.own_shapes[index], self.hosts[index] = self.own_shapes[last], self.hosts[last]
            self.rows[self.hosts[index]] = index
        self.data, self.steps = self._memory[:, :last], self.steps[:last]
        self.buffers = {name: buffer[:last] for name, buffer in self.buffers.items()}
        self.hosts.pop()
        self.own_shapes.pop()

    def reorder(self, hosts: Sequence[int]) -> None:
        """Keep the rows of these hosts, in this order."""
        if list(hosts) == self.hosts:
            return
        numbers = [self.rows[host] for host in hosts]
        rows = torch.tensor(numbers, dtype=torch.int64)
        self.data = self._memory = self.data.index_select(1, rows)
        self.buffers = {name: buffer[rows] for name, buffer in self.buffers.items()}
        self.steps = self.steps[numbers] if numbers else np.zeros(0)
        self.own_shapes = [self.own_shapes[number] for number in numbers]
        self.hosts = list(hosts)
        self.rows = {host: row for row, host in enumerate(hosts)}

    def find_nonfinite(self) -> list[int]:
        """Return the hosts with a non-finite parameter or buffer."""
        tensors = [self.values, *(b for b in self.buffers.values() if b.is_floating_point())]
        # A finite sum has finite terms; otherwise it may just have overflowed.
        if all(math.isfinite(tensor.sum().item()) for tensor in tensors):
            return []
        bad = torch.zeros(len(self), dtype=torch.bool)
        for tensor in tensors:
            if tensor.numel():
                bad |= ~torch.isfinite(tensor.flatten(1).abs().amax(1))
        return [self.hosts[int(row)] for row in bad.nonzero()]

    def _grow(self, hosts: Sequence[int]) -> None:
        """Append rows for new hosts, to be written."""
        before, after = len(self), len(self) + len(hosts)
        n_planes, capacity, n_parameters = self._memory.shape
        if after > capacity:
            n_rows = max(after, 2 * before)
            self._memory = self._memory.new_empty(n_planes, n_rows, n_parameters)
            self._memory[:, :before] = self.data
        self.data = self._memory[:, :after]
        self.buffers = {
            name: torch.cat([buffer, buffer.new_zeros(len(hosts), *buffer.shape[1:])])
            for name, buffer in self.buffers.items()
        }
        self.steps = np.append(self.steps, np.zeros(len(hosts)))
        self.rows |= {host: before + index for index, host in enumerate(hosts)}
        self.hosts.extend(hosts)
        self.own_shapes.extend({} for _ in hosts)

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
        """Copy named parameters into a row ``[P]`` of zeros."""
        for (name, shape), part in zip(
            self.shapes.items(), torch.split(data, self.sizes), strict=True
        ):
            if name in tensors:
                tensor = tensors[name]
                cut_corner(part.view(shape), tuple(tensor.shape)).copy_(tensor)

    def flatten(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return named parameters as one row ``[P]``, with zeros for missing ones."""
        row = self.data.new_zeros(sum(self.sizes))
        self._place(row, tensors)
        return row

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
        """Return the row of an untrained module, which shares its memory."""
        return cls({name: t.detach() for name, t in named_tensors(module).items()}, {})

    def copied(self) -> Row:
        """Return a copy of an untrained module's row."""
        return Row({name: tensor.clone() for name, tensor in self.tensors.items()}, {})


class ActiveRows:
    """The rows of a store that stacked layers currently read."""

    def __init__(self) -> None:
        self.parameters: dict[str, Tensor] = {}
        """Each parameter of the rows, ``[rows, *shape]``."""
        self.buffers: dict[str, Tensor] = {}
        self.leaf: Tensor | None = None
        """The rows' parameters ``[rows, P]``, if gradients are taken with respect to them."""

    def select(self, store: RowStore, rows: Any, *, needs_grad: bool) -> None:
        """Select some rows of a store: a slice shares their memory, indices copy them."""
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
        """Use rows that are stored elsewhere."""
        self.parameters, self.buffers, self.leaf = parameters, buffers, None
