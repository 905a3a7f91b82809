"""Numbers as JSON can hold them, and the gain."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> float | None:
    """Return a finite number, or None for NaN, infinity and non-numbers.

    The database stores some NaN values as text, so text is None too.
    """
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def gain(score: float | None, left_alone: float | None) -> float | None:
    """Return the final score minus that of the same host, or hosts, left alone."""
    return None if score is None or left_alone is None else score - left_alone
