"""Means and paired differences with bootstrap intervals. Shapes: N = episodes, B = resamples."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.errors import ShapeError

N_RESAMPLES = 10_000
CONFIDENCE = 0.95
ENDS = (0.025, 0.975)
"""Quantiles that an interval lies between."""
FEWEST = 10
"""Values below which no interval decides anything."""
LARGEST_KEPT = 600
"""Values up to which resamples are drawn once for all samples of a size, to bound memory."""
LEAST = 0.0005
"""Differences in score, return or share of computing below this are shown as zero, and are."""


@dataclass(frozen=True)
class Interval:
    """A mean and where it lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    n: int
    """Values that it is from."""

    def text(self, *, signed: bool = True) -> str:
        """Return the mean with its ends; differences have their sign."""
        sign = "+" if signed else ""
        return f"{self.mean:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]"

    @property
    def is_from_enough(self) -> bool:
        """Whether there are enough values for the interval to be believed."""
        return self.n >= FEWEST

    @property
    def excludes_zero(self) -> bool:
        """Whether the difference stands out from noise, and from what is shown as zero."""
        return self.is_from_enough and (self.low >= LEAST or self.high <= -LEAST)

    @property
    def is_above_zero(self) -> bool:
        """Whether it is shown to be greater than zero."""
        return self.excludes_zero and self.mean > 0.0

    @property
    def is_below_zero(self) -> bool:
        """Whether it is shown to be less than zero."""
        return self.excludes_zero and self.mean < 0.0


def mean_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of values ``[N]`` with its expanded percentile bootstrap interval.

    Resamples have N values drawn with replacement; the middle 95 % of their means are the plain
    interval. It is too narrow for few values, by as much as a normal interval is than Student's,
    and is widened around the mean by that.

    Raises:
        ShapeError: If the values are not a list of at least one finite number.

    References: Efron and Tibshirani (1993), chapter 13; Hesterberg (2015), section 3.2.
    """
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise ShapeError(
            f"values have shape {sample.shape}; a list of at least one finite number is needed."
        )
    low, high = np.quantile(resampled_means(sample, seed=seed), ENDS)
    mean, wider = float(sample.mean()), expansion(len(sample))
    return Interval(
        mean, mean + wider * (float(low) - mean), mean + wider * (float(high) - mean), len(sample)
    )


def expansion(n: int) -> float:
    """Return how much wider a 95 % interval of the mean of n values is than its bootstrap's.

        sqrt(n / (n - 1)) * t / z

    with Student's 97.5 % quantile t for n - 1 degrees of freedom and the normal one z. The first
    factor is because resamples vary around the sample's own mean.

    Reference for t: Abramowitz and Stegun (1964), 26.7.3 to 26.7.5.
    """
    if n < 2:
        return 1.0
    z, freedom = 1.959963984540054, n - 1
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    t = z + sum(term / freedom ** (power + 1) for power, term in enumerate(terms))
    if freedom <= 2:  # the series is short of these two
        t = math.tan(math.pi / 2 * CONFIDENCE)
        t = t if freedom == 1 else CONFIDENCE * math.sqrt(2.0 / (1.0 - CONFIDENCE**2))
    return math.sqrt(n / freedom) * t / z


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


def resampled_means(sample: NDArray[np.float64], *, seed: int) -> NDArray[np.float64]:
    """Return the means ``[B]`` of resamples of ``[N]``; a seed stands for the same resamples."""
    n = len(sample)
    if n <= LARGEST_KEPT:
        return _shares(N_RESAMPLES, n, seed) @ sample
    generator = np.random.default_rng(seed)
    block = max(1, 1_000_000 // n)
    means: list[NDArray[np.float64]] = []
    for first in range(0, N_RESAMPLES, block):
        shape = (min(block, N_RESAMPLES - first), n)
        means.append(sample[generator.integers(0, n, shape)].mean(1))
    return np.concatenate(means)


@lru_cache(maxsize=2)
def _shares(n_resamples: int, n: int, seed: int) -> NDArray[np.float64]:
    """Return how large a share of each resample each of n values is, ``[B, N]``."""
    drawn = np.random.default_rng(seed).integers(0, n, (n_resamples, n))
    drawn += n * np.arange(n_resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n_resamples * n).reshape(-1, n) / n
