"""The numbers that decide an episode: from a seed, the number of the episode and its purpose."""

from __future__ import annotations

from typing import Literal

import numpy as np

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
