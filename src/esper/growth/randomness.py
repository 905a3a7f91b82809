"""Drawing from torch's default generator without leaving a trace in it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def seeded(number: int) -> Generator[None]:
    """Let whatever draws from torch's default generator draw from ``number`` while this lasts.

    Layers initialise themselves, and dropout draws, from that generator and no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(number)
        yield
