"""Stored steps laid out as sequences side by side, for one call of a recurrent network.

Shapes: ``E`` environments, ``T`` steps stored for each, ``L`` rows of the grid, ``R`` sequences
side by side, ``N`` steps in the grid. Step t of environment e is *step number* ``t * E + e``.

Where a new episode starts inside a sequence, one *reset* cell is inserted before it, in which the
network sets its state to zero; so a sequence never has to be cut and rows stay together.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Flags

Indices = NDArray[np.int64]


@dataclass(frozen=True)
class SequenceGrid:
    """Sequences side by side: where each cell's observation comes from, and which are steps."""

    shape: tuple[int, int]
    """``(L, R)``."""

    source: Tensor
    """``[L * R]`` step number whose observation a cell shows; resets and padding show any."""

    resets: Tensor | None
    """``[L, R]`` bool, cells that only set the state to zero; None for none."""

    cells: Tensor | None
    """``[N]`` the cells, row by row, that are steps; None for all."""

    steps: Tensor
    """``[N]`` step number of each of those cells."""

    starts: Tensor
    """``[R]`` step number that each sequence starts with."""

    is_storage_order: bool
    """Whether the grid is all of the storage, as it lies."""

    def take(self, stored: Tensor, dim: int = 0) -> Tensor:
        """Return what is stored for all step numbers, along ``dim``, for the N steps in order."""
        return stored if self.is_storage_order else stored.index_select(dim, self.steps)


@dataclass(frozen=True)
class Sequences:
    """Stretches of consecutive steps, each of one environment: ``[start, stop)`` of ``env``."""

    env: Indices
    start: Indices
    stop: Indices
    is_fresh: Flags | None = None
    """Whether each starts an episode, if all were cut where episodes start; else None."""

    def __len__(self) -> int:
        return len(self.env)

    def take(self, rows: Indices) -> Sequences:
        """Return some of the sequences."""
        fresh = None if self.is_fresh is None else self.is_fresh[rows]
        return Sequences(self.env[rows], self.start[rows], self.stop[rows], fresh)


def split_into_sequences(
    lengths: Indices, sequence_length: int | None, starts_episode: Flags | None = None
) -> Sequences:
    """Cut each environment's steps into sequences of at most a length.

    Args:
        lengths: ``[E]`` steps stored for each environment.
        sequence_length: Longest sequence; None for any.
        starts_episode: ``[T, E]`` bool, steps that are the first of an episode, to cut there too.
    """
    n_steps = int(lengths.max())
    is_stored = np.arange(n_steps)[:, None] < lengths
    is_first = np.zeros_like(is_stored) if starts_episode is None else starts_episode & is_stored
    is_first[0] = is_stored[0]
    env, start = np.nonzero(is_first.T)
    is_last = np.append(env[1:] != env[:-1], True)
    stop = np.where(is_last, lengths[env], np.append(start[1:], 0))
    longest = sequence_length or n_steps
    counts = -(-(stop - start) // longest)
    part = np.arange(int(counts.sum())) - np.repeat(np.cumsum(counts) - counts, counts)
    env, start, stop = (np.repeat(values, counts) for values in (env, start, stop))
    begin = start + part * longest
    is_fresh = None
    if starts_episode is not None:
        is_fresh = starts_episode.T[env, start] & (part == 0)
    return Sequences(env, begin, np.minimum(begin + longest, stop), is_fresh)


def pack(sizes: list[int], is_fresh: Flags) -> tuple[Indices, Indices]:
    """Assign sequences to columns of a grid that is as short as its longest sequence.

    A sequence that starts with the state zero may stand below another, after a reset; one that
    does not stands on top. Longest first, each goes into the first column that has room.

    Returns:
        ``[R]`` column of each sequence, and ``[R]`` row of its first step.
    """
    height = max(sizes)
    order = sorted(range(len(sizes)), key=lambda i: (bool(is_fresh[i]), -sizes[i]))
    columns, rows = np.zeros(len(sizes), np.int64), np.zeros(len(sizes), np.int64)
    filled: list[int] = []
    # Columns before this one have no room for the shortest sequence.
    open_from, shortest = 0, min(sizes)
    for i in order:
        place = len(filled)
        if is_fresh[i]:
            fits = (c for c in range(open_from, place) if filled[c] + 1 + sizes[i] <= height)
            place = next(fits, place)
        if place == len(filled):
            filled.append(-1)
        columns[i], rows[i] = place, filled[place] + 1
        filled[place] += 1 + sizes[i]
        while open_from < len(filled) and filled[open_from] + 1 + shortest > height:
            open_from += 1
    return columns, rows


def lay_out(
    sequences: Sequences,
    starts_episode: Flags,
    device: torch.device | str = "cpu",
    skipped: Flags | None = None,
) -> SequenceGrid:
    """Put sequences side by side; those that were cut at episodes also below each other.

    Args:
        sequences: The sequences; each holds at least one step.
        starts_episode: ``[T, E]`` bool, steps that are the first of an episode.
        device: Where the grid's tensors are made.
        skipped: ``[T, E]`` bool, steps that are shown to the network but not learned from.
    """
    n_envs, counts = starts_episode.shape[1], sequences.stop - sequences.start
    number = np.repeat(np.arange(len(sequences)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.arange(len(number)) - first
    steps = (sequences.start[number] + offset) * n_envs + sequences.env[number]
    if sequences.is_fresh is None:
        columns, top = np.arange(len(sequences)), np.zeros(len(sequences), np.int64)
        # The state before the first step is stored, so only later starts need a reset before them.
        is_reset = starts_episode.reshape(-1)[steps] & (offset > 0)
        resets_so_far = np.cumsum(is_reset)
        offset = offset + resets_so_far - resets_so_far[first]
    else:
        columns, top = pack(counts.tolist(), sequences.is_fresh)
        is_reset = (offset == 0) & (top[number] > 0)
    rows = top[number] + offset
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    n_cells = shape[0] * shape[1]
    cells = rows * shape[1] + columns[number]
    resets = None
    if is_reset.any():
        resets = np.zeros(n_cells, np.bool_)
        resets[cells[is_reset] - shape[1]] = True
    starts = np.zeros(shape[1], np.int64)
    on_top = np.flatnonzero(top == 0)
    starts[columns[on_top]] = sequences.start[on_top] * n_envs + sequences.env[on_top]

    order = np.argsort(cells)
    cells, steps = cells[order], steps[order]
    source = np.full(n_cells, steps[0])
    source[cells] = steps
    if skipped is not None:
        is_kept = ~skipped.reshape(-1)[steps]
        cells, steps = cells[is_kept], steps[is_kept]
    is_whole = len(steps) == n_cells

    def tensor(array: Indices | Flags) -> Tensor:
        return torch.from_numpy(array).to(device)

    return SequenceGrid(
        shape=shape,
        source=tensor(source),
        resets=None if resets is None else tensor(resets).view(shape),
        cells=None if is_whole else tensor(cells),
        steps=tensor(steps),
        starts=tensor(starts),
        is_storage_order=is_whole
        and n_cells == starts_episode.size
        and bool((np.diff(steps) == 1).all()),
    )
