"""The samples of many hosts in one tensor, so that all batches are gathered at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The inputs and the targets of one host."""

MAX_WASTE = 4
"""Capacity relative to the samples in use above which the pool is repacked."""


@dataclass
class _Region:
    """A range of the pool that holds one pair of tensors."""

    pair: Pair
    offset: int
    capacity: int
    n_hosts: int
    """Number of hosts that use it."""


class SamplePool:
    """The inputs and targets of many hosts; pairs of tensors that hosts share are stored once."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.offsets = np.zeros(len(pairs), dtype=np.int64)
        """Index of each host's first sample."""
        self.sizes = np.zeros(len(pairs), dtype=np.int64)
        self._pack(pairs)
        self._taken = self.inputs[:0], self.targets[:0]

    def take(self, numbers: Tensor) -> Pair:
        """Return the samples with these indices ``[K, B]``, as ``[K, B, ...]`` each.

        They are valid until the next call: the pool reuses the memory, because allocating that
        much at each call costs more than the copying.
        """
        flat, sources = numbers.reshape(-1), (self.inputs, self.targets)
        pairs = zip(self._taken, sources, strict=True)
        first, second = (_with_capacity(buffer, samples, len(flat)) for buffer, samples in pairs)
        self._taken = first, second
        for samples, buffer in zip(sources, self._taken, strict=True):
            torch.index_select(samples, 0, flat, out=buffer[: len(flat)])
        inputs, targets = (
            buffer[: len(flat)].view(*numbers.shape, *buffer.shape[1:]) for buffer in self._taken
        )
        return inputs, targets

    def replace(self, host: int, pair: Pair) -> bool:
        """Replace a host's samples; return False if their dtype or shape differs."""
        if not all(
            _are_alike(*both) for both in zip((self.inputs, self.targets), pair, strict=True)
        ):
            return False
        old = self._of_host[host]
        old.n_hosts -= 1
        region = next((r for r in self._regions if r.n_hosts and _is_same(r.pair, pair)), None)
        if region is None:
            region = self._write(pair)
        self._of_host[host] = region
        region.n_hosts += 1
        self.offsets[host], self.sizes[host] = region.offset, len(pair[0])
        if len(self.inputs) > MAX_WASTE * self.sizes.sum():
            self._pack([region.pair for region in self._of_host])
        return True

    def _pack(self, pairs: Sequence[Pair]) -> None:
        """Concatenate the samples of all hosts."""
        self._regions: list[_Region] = []
        self._of_host: list[_Region] = []
        found: dict[tuple[int, int], _Region] = {}
        total = 0
        for host, pair in enumerate(pairs):
            key, size = (id(pair[0]), id(pair[1])), len(pair[0])
            if key not in found:
                found[key] = _Region(pair, total, size, 0)
                total += size
            region = found[key]
            region.n_hosts += 1
            self._of_host.append(region)
            self.offsets[host], self.sizes[host] = region.offset, size
        self._regions = list(found.values())
        distinct = [region.pair for region in self._regions]
        self._is_own = len(distinct) > 1
        """Whether the pool's tensors are its own, rather than the first host's."""
        self.inputs = torch.cat([p[0] for p in distinct]) if self._is_own else distinct[0][0]
        self.targets = torch.cat([p[1] for p in distinct]) if self._is_own else distinct[0][1]

    def _write(self, pair: Pair) -> _Region:
        """Write samples into the smallest free region that fits, or into a new one."""
        size = len(pair[0])
        free = [r for r in self._regions if not r.n_hosts and r.capacity >= size]
        if free and self._is_own:
            region = min(free, key=lambda r: r.capacity)
            region.pair = pair
        else:
            region = self._add_region(pair, size)
        part = slice(region.offset, region.offset + size)
        self.inputs[part], self.targets[part] = pair
        return region

    def _add_region(self, pair: Pair, size: int) -> _Region:
        """Append a region whose capacity is a power of two, so that other samples fit later."""
        capacity = 2 ** (size - 1).bit_length()
        region = _Region(pair, len(self.inputs), capacity, 0)
        self.inputs, self.targets = (
            torch.cat([samples, samples.new_zeros(capacity, *samples.shape[1:])])
            for samples in (self.inputs, self.targets)
        )
        self._is_own = True
        self._regions.append(region)
        return region


def _with_capacity(buffer: Tensor, samples: Tensor, size: int) -> Tensor:
    """Return a buffer for ``size`` samples: the given one if it is large enough."""
    return buffer if len(buffer) >= size else samples.new_empty(size, *samples.shape[1:])


def _are_alike(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape[1:] == second.shape[1:]


def _is_same(first: Pair, second: Pair) -> bool:
    return first[0] is second[0] and first[1] is second[1]
