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


def lay_out(
    sequences: Sequences, starts_episode: Flags, device: torch.device | str = "cpu"
) -> SequenceGrid:
    """Put sequences side by side.

    Args:
        sequences: The sequences; each holds at least one step.
        starts_episode: ``[T, E]`` bool, steps that are the first of an episode.
        device: Where the grid's tensors are made.
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

    def tensor(array: Indices | Flags) -> Tensor:
        return torch.from_numpy(array).to(device)

    return SequenceGrid(
        shape=shape,
        source=tensor(source),
        resets=None if resets is None else tensor(resets).view(shape),
        cells=None if len(cells) == n_cells else tensor(cells),
        steps=tensor(steps),
        starts=tensor(sequences.start * n_envs + sequences.env),
        is_storage_order=len(steps) == n_cells == starts_episode.size
        and bool((np.diff(steps) == 1).all()),
    )
