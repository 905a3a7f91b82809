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

    def __len__(self) -> int:
        return len(self.env)

    def take(self, rows: Indices) -> Sequences:
        """Return some of the sequences."""
        return Sequences(self.env[rows], self.start[rows], self.stop[rows])


def split_into_sequences(lengths: Indices, sequence_length: int | None) -> Sequences:
    """Cut each environment's steps into sequences of at most ``sequence_length``; None: one each.

    Args:
        lengths: ``[E]`` steps stored for each environment.
        sequence_length: Longest sequence.
    """
    longest = int(sequence_length or max(lengths.max(), 1))
    counts = -(-lengths // longest)
    env = np.repeat(np.arange(len(lengths)), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    start = (np.arange(len(env)) - first) * longest
    return Sequences(env, start, np.minimum(start + longest, lengths[env]))


def split_into_episodes(
    lengths: Indices, starts_episode: Flags, sequence_length: int | None
) -> tuple[Sequences, Flags]:
    """Cut each environment's steps at the starts of episodes, and into at most that length.

    Args:
        lengths: ``[E]`` steps stored for each environment.
        starts_episode: ``[T, E]`` bool, steps that are the first of an episode.
        sequence_length: Longest sequence; None for any.

    Returns:
        The sequences, and whether each starts with the state zero.
    """
    n_steps = len(starts_episode)
    is_stored = np.arange(n_steps)[:, None] < lengths
    is_first = starts_episode & is_stored
    is_first[0] = is_stored[0]
    env, start = np.nonzero(is_first.T)
    is_last = np.append(env[1:] != env[:-1], True)
    stop = np.where(is_last, lengths[env], np.append(start[1:], 0))
    is_fresh = starts_episode.T[env, start]
    if sequence_length is None:
        return Sequences(env, start, stop), is_fresh
    counts = -(-(stop - start) // sequence_length)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    part = np.arange(len(first)) - first
    env, start, stop = (np.repeat(values, counts) for values in (env, start, stop))
    begin = start + part * sequence_length
    end = np.minimum(begin + sequence_length, stop)
    return Sequences(env, begin, end), np.repeat(is_fresh, counts) & (part == 0)


def pack(sequences: Sequences, is_fresh: Flags) -> tuple[Indices, Indices]:
    """Assign sequences to columns of a grid that is as short as its longest sequence.

    A sequence that starts with the state zero may stand below another, after a reset; one that
    does not stands on top. Longest first, each goes into the first column that has room.

    Returns:
        ``[R]`` column of each sequence, and ``[R]`` row of its first step.
    """
    sizes = (sequences.stop - sequences.start).tolist()
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


def lay_out_packed(
    sequences: Sequences,
    is_fresh: Flags,
    n_envs: int,
    device: torch.device | str = "cpu",
    skipped: Flags | None = None,
) -> SequenceGrid:
    """Put sequences from :func:`split_into_episodes` into a grid with as few rows as they allow.

    Args:
        sequences: The sequences; each holds at least one step.
        is_fresh: Whether each starts with the state zero.
        n_envs: Number of environments.
        device: Where the grid's tensors are made.
        skipped: ``[T, E]`` bool, steps that are shown to the network but not learned from.
    """
    columns, first_rows = pack(sequences, is_fresh)
    counts = sequences.stop - sequences.start
    number = np.repeat(np.arange(len(counts)), counts)
    offset = np.arange(len(number)) - np.repeat(np.cumsum(counts) - counts, counts)
    steps = (sequences.start[number] + offset) * n_envs + sequences.env[number]
    shape = (int((first_rows + counts).max()), int(columns.max()) + 1)
    cells = (first_rows[number] + offset) * shape[1] + columns[number]
    order = np.argsort(cells)
    cells, steps = cells[order], steps[order]
    source = np.full(shape[0] * shape[1], steps[0])
    source[cells] = steps
    is_top = first_rows == 0
    starts = np.zeros(shape[1], np.int64)
    tops = np.flatnonzero(is_top)
    starts[columns[tops]] = sequences.start[tops] * n_envs + sequences.env[tops]
    resets = None
    if not is_top.all():
        resets = np.zeros(shape, np.bool_)
        resets[first_rows[~is_top] - 1, columns[~is_top]] = True
    if skipped is not None:
        is_kept = ~skipped.reshape(-1)[steps]
        cells, steps = cells[is_kept], steps[is_kept]

    def tensor(array: Indices | Flags) -> Tensor:
        return torch.from_numpy(array).to(device)

    return SequenceGrid(
        shape=shape,
        source=tensor(source),
        resets=None if resets is None else tensor(resets),
        cells=None if len(cells) == len(source) else tensor(cells),
        steps=tensor(steps),
        starts=tensor(starts),
        is_storage_order=False,
    )


def lay_out(
    sequences: Sequences,
    starts_episode: Flags,
    device: torch.device | str = "cpu",
    skipped: Flags | None = None,
) -> SequenceGrid:
    """Put sequences side by side.

    Args:
        sequences: The sequences; each holds at least one step.
        starts_episode: ``[T, E]`` bool, steps that are the first of an episode.
        device: Where the grid's tensors are made.
        skipped: ``[T, E]`` bool, steps that are shown to the network but not learned from.
    """
    n_rows, n_envs = len(sequences), starts_episode.shape[1]
    counts = sequences.stop - sequences.start
    row = np.repeat(np.arange(n_rows), counts)
    first = np.repeat(np.cumsum(counts) - counts, counts)
    offset = np.arange(len(row)) - first
    time = sequences.start[row] + offset
    steps = time * n_envs + sequences.env[row]

    # The state before the first step is stored, so only later starts need a reset before them.
    is_reset = starts_episode.reshape(-1)[steps] & (offset > 0)
    resets_so_far = np.cumsum(is_reset)
    position = offset + resets_so_far - resets_so_far[first]
    shape = (int(position.max()) + 1, n_rows)
    cells = position * n_rows + row
    order = np.argsort(cells)
    cells, steps = cells[order], steps[order]

    n_cells = shape[0] * shape[1]
    source = np.full(n_cells, steps[0])
    source[cells] = steps
    resets = None
    if is_reset.any():
        resets = np.zeros(n_cells, dtype=np.bool_)
        resets[(position[is_reset] - 1) * n_rows + row[is_reset]] = True

    is_whole = len(steps) == n_cells
    if skipped is not None:
        is_kept = ~skipped.reshape(-1)[steps]
        cells, steps = cells[is_kept], steps[is_kept]
        is_whole = is_whole and bool(is_kept.all())

    def tensor(array: Indices | Flags) -> Tensor:
        return torch.from_numpy(array).to(device)

    return SequenceGrid(
        shape=shape,
        source=tensor(source),
        resets=None if resets is None else tensor(resets).view(shape),
        cells=None if is_whole else tensor(cells),
        steps=tensor(steps),
        starts=tensor(sequences.start * n_envs + sequences.env),
        is_storage_order=is_whole
        and n_cells == starts_episode.size
        and bool((np.diff(steps) == 1).all()),
    )
