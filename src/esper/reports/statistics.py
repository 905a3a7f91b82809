"""Means and paired differences with bootstrap intervals. Shapes: N = episodes, B = resamples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.errors import ShapeError

N_RESAMPLES = 10_000
CONFIDENCE = 0.95
FEWEST = 10
"""Values below which a bootstrap interval is much too narrow to decide anything."""


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    n: int
    """Values that it is from."""

    @property
    def is_from_enough(self) -> bool:
        """Whether there are enough values for the interval to be believed."""
        return self.n >= FEWEST

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference stands out from noise."""
        return self.is_from_enough and (self.low > 0.0 or self.high < 0.0)


def mean_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of values ``[N]`` with its percentile bootstrap interval.

    Resamples have N values drawn with replacement; the interval holds the middle 95 % of their
    means.

    Raises:
        ShapeError: If the values are not a list of at least one finite number.

    Reference: Efron and Tibshirani (1993), chapter 13.
    """
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise ShapeError(
            f"values have shape {sample.shape}; a list of at least one finite number is needed."
        )
    edge = (1.0 - CONFIDENCE) / 2.0
    low, high = np.quantile(_resampled_means(sample, seed), [edge, 1.0 - edge])
    return Interval(float(sample.mean()), float(low), float(high), len(sample))


def paired_interval(values: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of ``values - others``, both ``[N]`` of the same hosts, with its interval.

    Raises:
        ShapeError: If there are not as many values as others.
    """
    first, second = np.asarray(values, np.float64), np.asarray(others, np.float64)
    if first.shape != second.shape:
        raise ShapeError(
            f"values have shape {first.shape} and others {second.shape}; "
            "pairs need the same hosts in the same order."
        )
    return mean_interval(first - second, seed=seed)


def _resampled_means(sample: NDArray[np.float64], seed: int) -> NDArray[np.float64]:
    """Return the means ``[B]`` of resamples, a block at a time to bound memory."""
    generator = np.random.default_rng(seed)
    block = max(1, 1_000_000 // len(sample))
    means: list[NDArray[np.float64]] = []
    for first in range(0, N_RESAMPLES, block):
        shape = (min(block, N_RESAMPLES - first), len(sample))
        means.append(sample[generator.integers(0, len(sample), shape)].mean(1))
    return np.concatenate(means)
