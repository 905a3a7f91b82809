"""The samples of many hosts in one place, so that the batches of all are taken at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]
"""The inputs and the targets of one host."""

MAX_WASTE = 4
"""How many times the room that samples need may be kept before they are packed anew."""


@dataclass
class _Region:
    """Where some samples lie, and for whom."""

    pair: Pair
    offset: int
    room: int
    n_hosts: int


class SamplePool:
    """The inputs and targets of many hosts, each distinct pair of tensors once."""

    def __init__(self, pairs: Sequence[Pair]) -> None:
        self.offsets = np.zeros(len(pairs), dtype=np.int64)
        """Where each host's samples begin."""
        self.sizes = np.zeros(len(pairs), dtype=np.int64)
        self._pack(pairs)
        self._taken = self.inputs[:0], self.targets[:0]

    def take(self, numbers: Tensor) -> Pair:
        """Return the samples of these numbers ``[K, B]``, as ``[K, B, ...]`` each.

        They lie in memory of the pool and stay until the next call: memory for many samples that
        is given back to the system and taken again costs more than the copying.
        """
        flat, sources = numbers.reshape(-1), (self.inputs, self.targets)
        rooms = zip(self._taken, sources, strict=True)
        first, second = (_with_room(room, samples, len(flat)) for room, samples in rooms)
        self._taken = first, second
        for samples, room in zip(sources, self._taken, strict=True):
            torch.index_select(samples, 0, flat, out=room[: len(flat)])
        inputs, targets = (
            room[: len(flat)].view(*numbers.shape, *room.shape[1:]) for room in self._taken
        )
        return inputs, targets

    def replace(self, host: int, pair: Pair) -> bool:
        """Put other samples in the place of a host's; return False if they are of another kind."""
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
        """Lay the samples of all hosts out, one after another."""
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
        """Whether the pool's tensors are its own, not the first host's."""
        self.inputs = torch.cat([p[0] for p in distinct]) if self._is_own else distinct[0][0]
        self.targets = torch.cat([p[1] for p in distinct]) if self._is_own else distinct[0][1]

    def _write(self, pair: Pair) -> _Region:
        """Write samples where there is room; make room at the end if there is none."""
        size = len(pair[0])
        free = [r for r in self._regions if not r.n_hosts and r.room >= size]
        if free and self._is_own:
            region = min(free, key=lambda r: r.room)
            region.pair = pair
        else:
            region = self._add_room(pair, size)
        part = slice(region.offset, region.offset + size)
        self.inputs[part], self.targets[part] = pair
        return region

    def _add_room(self, pair: Pair, size: int) -> _Region:
        """Add a region at the end, with room to spare so that others will fit in later."""
        room = 2 ** (size - 1).bit_length()
        region = _Region(pair, len(self.inputs), room, 0)
        self.inputs, self.targets = (
            torch.cat([samples, samples.new_zeros(room, *samples.shape[1:])])
            for samples in (self.inputs, self.targets)
        )
        self._is_own = True
        self._regions.append(region)
        return region


def _with_room(room: Tensor, samples: Tensor, size: int) -> Tensor:
    """Return memory for so many samples: the same as before if it is large enough."""
    return room if len(room) >= size else samples.new_empty(size, *samples.shape[1:])


def _are_alike(first: Tensor, second: Tensor) -> bool:
    return first.dtype == second.dtype and first.shape[1:] == second.shape[1:]


def _is_same(first: Pair, second: Pair) -> bool:
    return first[0] is second[0] and first[1] is second[1]
