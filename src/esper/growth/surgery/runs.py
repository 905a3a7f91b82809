"""Where entries of tensors stand after units were added to places or cut out of them.

Everything here is arithmetic with whole numbers; no tensor is read to plan a change.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from esper.growth.surgery.layers import Entries
from esper.growth.surgery.places import Place

Run = tuple[int, int, int]
"""Entries that stay together along an axis: their first index before and after, and how many."""

Runs = dict[int, tuple[Run, ...]]
"""The runs of a tensor's old entries along each axis that has changed."""


@dataclass(frozen=True)
class Insertion:
    """Entries that are added to a tensor, or with a negative count taken out of it."""

    entries: Entries
    position: int
    """Where they come to stand along the axis of the old tensor, or where they end."""
    count: int

    @property
    def removed(self) -> tuple[int, int]:
        """Where entries that are taken out start, and how many there are."""
        return self.position + self.count, -self.count


Insertions = dict[str, list[Insertion]]
"""What is added to each tensor."""


def find_insertions(counts: Mapping[Place, int]) -> Insertions:
    """Return where new units of places, so many of each, come to stand: behind the others."""
    found: Insertions = {}
    for place, n_new in counts.items():
        for entries in place.entries:
            position = entries.start + place.units * entries.size
            new = Insertion(entries, position, n_new * entries.size)
            found.setdefault(entries.tensor, []).append(new)
    return found


def find_runs(shape: Sequence[int], insertions: Sequence[Insertion]) -> Runs:
    """Return the runs of a tensor of a shape that gets entries, or loses some."""
    found: Runs = {}
    for axis in sorted({each.entries.axis for each in insertions}):
        own = [each for each in insertions if each.entries.axis == axis]
        runs: list[Run] = []
        start = shift = 0
        for each in sorted(own, key=lambda each: each.position):
            end = each.position + min(0, each.count)
            if end > start:
                runs.append((start, start + shift, end - start))
            start, shift = each.position, shift + each.count
        if shape[axis] > start:
            runs.append((start, start + shift, shape[axis] - start))
        found[axis] = tuple(runs)
    return found


def shape_after(shape: Sequence[int], insertions: Sequence[Insertion]) -> tuple[int, ...]:
    """Return the shape of a tensor that gets entries, or loses some."""
    new = list(shape)
    for each in insertions:
        new[each.entries.axis] += each.count
    return tuple(new)


def place_after(place: Place, n_new: int, insertions: Insertions) -> Place:
    """Return a place after it got some units, or lost them, among all changes of tensors."""
    entries = tuple(_moved(each, insertions.get(each.tensor, ())) for each in place.entries)
    if not n_new and entries == place.entries:
        return place
    return replace(place, units=place.units + n_new, entries=entries)


def _moved(entries: Entries, insertions: Sequence[Insertion]) -> Entries:
    shift = sum(
        each.count
        for each in insertions
        if each.entries.axis == entries.axis and each.position <= entries.start
    )
    return replace(entries, start=entries.start + shift) if shift else entries


def write_old(new: Tensor, old: Tensor, runs: Runs) -> Tensor:
    """Copy the old entries of a tensor to where they stand in a new one, and return that."""
    for chosen in product(*runs.values()):
        source, target = old, new
        for axis, (before, after, length) in zip(runs, chosen, strict=True):
            source = source.narrow(axis, before, length)
            target = target.narrow(axis, after, length)
        target.copy_(source)
    return new


def reverted(runs: Runs) -> Runs:
    """Return the runs of the change that undoes one."""
    return {
        axis: tuple((after, before, n) for before, after, n in own) for axis, own in runs.items()
    }


def composed(first: Runs, second: Runs) -> Runs:
    """Return the runs of two changes, one after the other."""
    found = {**first, **second}
    for axis in first.keys() & second.keys():
        found[axis] = tuple(_overlaps(first[axis], second[axis]))
    return found


def _overlaps(first: Sequence[Run], second: Sequence[Run]) -> Iterator[Run]:
    for (before, between, n), (same, after, m) in product(first, second):
        start, end = max(between, same), min(between + n, same + m)
        if start < end:
            yield before + start - between, after + start - same, end - start


def gaps(runs: Sequence[Run], size: int) -> Iterator[tuple[int, int]]:
    """Yield where new entries along an axis of a size start, and how many there are of each."""
    start = 0
    for _, after, length in sorted(runs, key=lambda run: run[1]):
        if after > start:
            yield start, after - start
        start = after + length
    if size > start:
        yield start, size - start
