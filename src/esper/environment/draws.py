"""What the hosts of episodes learn from: a task's draws as specifications of hosts."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from esper.errors import TaskError
from esper.populations import HostData
from esper.tasks import Samples, TaskDraw

FinalSplit = Literal["validation", "test"]
FINAL_SPLITS = ("validation", "test")


def make_host_data(draw: TaskDraw, final_split: FinalSplit) -> HostData:
    """Return a draw's data as an episode uses them.

    Validation is cut in two: one half is what the controller sees after each epoch. At the end a
    host is scored on the other half, which nobody has seen in the episode, or on the test split.
    """
    seen, unseen = split_in_half(draw.data.validation)
    final = draw.data.test if final_split == "test" else unseen
    train = draw.data.train
    parts = (train, seen, final)
    return HostData(*(tensor for part in parts for tensor in (part.inputs, part.targets)))


def split_in_half(samples: Samples) -> tuple[Samples, Samples]:
    """Return two halves with as many samples of each class, give or take one."""
    n = len(samples)
    if n < 4:
        raise TaskError(
            f"the validation split has {n} samples; at least 4 are needed, because half of it is "
            "seen during an episode and the other half scores its end."
        )
    targets = samples.targets
    # Samples of one class lie side by side, so that every second one is half of each class.
    order = torch.argsort(targets, stable=True) if targets.ndim == 1 else torch.arange(n)
    first, second = order[0::2].sort().values, order[1::2].sort().values
    return _pick(samples, first), _pick(samples, second)


def _pick(samples: Samples, numbers: Tensor) -> Samples:
    return Samples(samples.inputs[numbers], samples.targets[numbers])


Purpose = Literal["training", "tuning", "evaluation"]
PURPOSES: tuple[str, ...] = ("training", "tuning", "evaluation")


def draw_seed(purpose: Purpose, seed: int, episode: int) -> int:
    """Return the number that decides what the host of an episode learns, and its weights.

    Its last two bits are the purpose, so episodes for different purposes never share a number.
    """
    index = PURPOSES.index(purpose)
    # Each number as two words of fixed size, so that no two pairs of numbers become one.
    words = [number >> shift & 0xFFFFFFFF for number in (seed, episode) for shift in (0, 32)]
    sequence = np.random.SeedSequence([index, *words])
    return (int(sequence.generate_state(1, np.uint64)[0]) >> 4 << 2) | index
