"""Probabilities of an action's choices, packed: two bytes each, little-endian.

``ILLEGAL`` stands for a choice that was masked; any other value, divided by ``SCALE``, is the
probability.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence

SCALE = 65534
ILLEGAL = 65535


def unpack_probabilities(packed: bytes, sizes: Sequence[int]) -> list[list[float | None]]:
    """Return the probabilities of each head's choices; None for a choice that was masked.

    Args:
        packed: The choices of all heads side by side.
        sizes: How many choices each head has.

    Raises:
        ValueError: If there are more or fewer numbers than choices.
    """
    numbers = array("H", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != sum(sizes):
        raise ValueError(f"there are {len(numbers)} probabilities and {sum(sizes)} choices.")
    values = iter([None if number == ILLEGAL else number / SCALE for number in numbers])
    return [[next(values) for _ in range(size)] for size in sizes]
