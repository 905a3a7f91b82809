"""Flipping single bits of a file, to see what a reader makes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esper.errors import EsperError

Outcomes = Counter[str]
"""How often a damaged file was "refused", read as "equal", or read as "changed"."""


def flip_bits(path: Path, read: Callable[[], Any], *, n_flips: int, seed: int = 0) -> Outcomes:
    """Flip random bits of a file, one at a time, and count what reading it gives.

    Args:
        path: The file, which is restored at the end.
        read: Returns what the file says, comparable by ``==``; raises EsperError to refuse it.
            Any other exception is a failure of the test.
        n_flips: The number of bits to flip.
        seed: Selects the bits.
    """
    whole, intact, outcomes = path.read_bytes(), read(), Outcomes()
    bits = random.Random(seed).sample(range(8 * len(whole)), min(n_flips, 8 * len(whole)))
    for bit in bits:
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        path.write_bytes(bytes(damaged))
        try:
            outcomes["equal" if read() == intact else "changed"] += 1
        except EsperError as error:
            outcomes["refused" if "\n" not in str(error) else "refused in several lines"] += 1
    path.write_bytes(whole)
    return outcomes
