"""Bringing numbers of any size to the unit scale, finite whatever comes in. All are elementwise."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]


def squash(values: Floats, *, missing: float = 0.0) -> Floats:
    """Return ``x / (1 + |x|)``, in [-1, 1]: 0.5 at 1, 1 at infinity; ``missing`` where NaN."""
    limited = np.minimum(np.maximum(values, -1e300), 1e300)
    ratios = limited / (1.0 + np.abs(limited))
    return np.where(np.isnan(values), missing, ratios)


def clip(values: Floats, low: float, high: float, *, missing: float = 0.0) -> Floats:
    """Return the values limited to [low, high]; ``missing`` where NaN."""
    return np.where(np.isnan(values), missing, np.minimum(np.maximum(values, low), high))


def log_scale(
    values: Floats, low: float | Floats, high: float | Floats, *, missing: float = -1.0
) -> Floats:
    """Return where values are between two sizes by their logarithm: -1 at low, 1 at high, limited.

    Zero and what is negative count as small; ``missing`` where NaN.
    """
    inside = np.minimum(np.maximum(values, low), high)
    scaled = 2.0 * np.log(inside / low) / np.log(high / low) - 1.0
    return np.where(np.isnan(values), missing, scaled)


def one_hot(numbers: NDArray[np.int64], n: int) -> Floats:
    """Return ``[n, ...]`` with a 1 where a number is that of its row; zeros for any other."""
    rows = np.arange(n).reshape(-1, *(1,) * numbers.ndim)
    return (numbers == rows).astype(np.float64)
