"""Numbers as JSON can hold them, the gain, and thinning the series of long runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

Row = dict[str, Any]
"""Values by name, as JSON can hold them."""


def finite(value: Any) -> float | None:
    """Return a finite number, or None for NaN, infinity and non-numbers.

    The database stores some NaN values as text, so text is None too.
    """
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def gain(score: float | None, no_growth: float | None) -> float | None:
    """Return the final score minus that of the same host, or hosts, with no growth."""
    return None if score is None or no_growth is None else score - no_growth


MAX_POINTS = 800
"""Points of a series that a chart needs; a longer series is thinned to about this number."""

DIGITS = 8
"""Significant digits of a thinned value."""


def kept_points(values: Sequence[float | None], maximum: int = MAX_POINTS) -> list[int]:
    """Return the indices of the points that stay if a series is thinned, in order.

    The series is cut into stretches of equal length. The lowest and the highest value of each
    stretch stay, and the first and last point of the series.

    Args:
        values: The series; None where there is no value.
        maximum: The number of points up to which a series is not thinned.
    """
    n = len(values)
    if n <= maximum:
        return list(range(n))
    import numpy as np  # most runs are shorter, and importing it takes longer than reading them

    numbers = np.array(values, np.float64)  # None becomes NaN
    length = -(-n // max(1, maximum // 2))
    table = np.full((-(-n // length), length), np.nan)
    table.reshape(-1)[:n] = numbers
    starts = length * np.arange(len(table))
    gaps = ~np.isfinite(table)
    lowest = starts + np.where(gaps, np.inf, table).argmin(axis=1)
    highest = starts + np.where(gaps, -np.inf, table).argmax(axis=1)
    return np.unique(np.concatenate([[0], lowest, highest, [n - 1]])).tolist()


def rounded(value: float | None) -> float | None:
    """Return a value with the digits that a chart can show."""
    return None if value is None else float(f"{value:.{DIGITS}g}")
