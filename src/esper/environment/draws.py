"""The data and draw seeds of episodes."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from esper.errors import TaskError
from esper.populations import HostData
from esper.tasks import Samples, TaskDraw

FinalSplit = Literal["validation", "test"]


def make_host_data(draw: TaskDraw, final_split: FinalSplit) -> HostData:
    """Return a draw's data as an episode uses them.

    Validation is split in half. The controller sees the score on the first half after each epoch;
    the final score is on the second half, unseen during the episode, or on the test split.
    """
    seen, unseen = split_in_half(draw.data.validation)
    final = draw.data.test if final_split == "test" else unseen
    train = draw.data.train
    parts = (train, seen, final)
    return HostData(*(tensor for part in parts for tensor in (part.inputs, part.targets)))


def split_in_half(samples: Samples) -> tuple[Samples, Samples]:
    """Return two halves whose sample counts differ by at most one in each class.

    The halves of a regression have alike targets: they split each pair of successive ones.
    """
    n = len(samples)
    if n < 4:
        raise TaskError(
            f"the validation split has {n} samples; at least 4 are needed, because half of them "
            "are used during an episode and the other half for its final score."
        )
    targets = samples.targets
    if targets.is_floating_point() and targets.ndim == 2:
        targets = targets.mean(1)
    # Sorted by class, every second sample is half of each class.
    order = torch.argsort(targets, stable=True) if targets.ndim == 1 else torch.arange(n)
    first, second = order[0::2].sort().values, order[1::2].sort().values
    return _select(samples, first), _select(samples, second)


def _select(samples: Samples, indices: Tensor) -> Samples:
    return Samples(*(each.index_select(0, indices) for each in (samples.inputs, samples.targets)))


Purpose = Literal["training", "tuning", "evaluation"]
PURPOSES: tuple[Purpose, ...] = get_args(Purpose)


def draw_seed(purpose: Purpose, seed: int, episode: int) -> int:
    """Return the seed of an episode's draw, which determines its data and initial weights.

    The last two bits encode the purpose, so episodes for different purposes never share a seed.
    """
    index = PURPOSES.index(purpose)
    # Two words of fixed size for each number, so that different pairs never collide.
    words = [number >> shift & 0xFFFFFFFF for number in (seed, episode) for shift in (0, 32)]
    sequence = np.random.SeedSequence([index, *words])
    return (int(sequence.generate_state(1, np.uint64)[0]) >> 4 << 2) | index
