"""Means and paired differences with bootstrap intervals. Shapes: N = episodes, B = resamples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.arrays import Floats
from esper.errors import ShapeError, ValueRangeError

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


def nested_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of values ``[R, N]`` with its 95 % interval over runs and hosts.

        mean* = mean + expansion(R) * (run part*) + expansion(N) * (host part*)

    Runs and hosts are resampled independently of each other, with replacement. The run part is
    how far the mean of a resample of the runs' means is from the mean, the host part the same for
    the hosts' means; each is widened as a mean of so few values needs (:func:`.expansion`). The
    interval is the middle 95 % of mean*. Widening both by what the runs need would make an
    interval of five runs half as wide again even where runs hardly differ.

    What varies with run and host together is in both parts, so it is counted twice: the interval
    is rather too wide than too narrow. With five runs or more it covers the mean at least 93
    times in 100, whichever of the three varies most.

    One run has :func:`.mean_interval` over its hosts, which is about that run only.

    Raises:
        ShapeError: If the values are not finite numbers, runs by hosts.

    Reference: Owen (2007), "The pigeonhole bootstrap"; these are its two main effects.
    """
    sample = as_table(values)
    if sample.shape[0] == 1:
        return mean_interval(sample[0], seed=seed)
    mean, spread = float(sample.mean()), np.zeros(())
    for number, means in enumerate((sample.mean(0), sample.mean(1))):
        # Streams of their own: as many runs as hosts are not drawn alike.
        part = resampled_means(means, seed=2 * seed + number) - mean
        spread = spread + expansion(len(means)) * part
    low, high = np.quantile(spread, ENDS)
    return Interval(mean, mean + float(low), mean + float(high), sample.shape[1])


def paired_differences(values: ArrayLike, others: ArrayLike) -> Floats:
    """Return ``values - others``, ``[R, N]``, host by host; a single run stands for all runs.

    Raises:
        ShapeError: If they are not of the same hosts, or of other numbers of runs.
    """
    first, second = as_table(values), as_table(others)
    runs = {first.shape[0], second.shape[0]}
    if first.shape[1] != second.shape[1] or len(runs - {1}) > 1:
        raise ShapeError(
            f"values have shape {first.shape} and others {second.shape}; "
            "pairs need the same hosts in the same order, and one run or as many."
        )
    return first - second


def ratio_interval(values: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Interval:
    """Return mean(values) / mean(others), paired as differences are, with its interval.

    The ratio moves with a host by ``(value - ratio * other) / mean(others)``, to first order;
    the interval is that of these moves around the ratio.

    Raises:
        ShapeError: If they do not pair, or the others' mean is not above zero.

    Reference: Efron and Tibshirani (1993), chapter 22, the infinitesimal jackknife.
    """
    first, second = as_table(values), as_table(others)
    mean = float(second.mean())
    if mean <= 0.0:
        raise ShapeError(f"others have the mean {mean:g}; a ratio needs one above zero.")
    ratio = float(first.mean()) / mean
    moves = nested_interval(paired_differences(first, ratio * second) / mean, seed=seed)
    return Interval(ratio, ratio + moves.low, ratio + moves.high, moves.n)


def as_table(values: ArrayLike) -> Floats:
    """Return values as numbers, runs by hosts.

    Raises:
        ShapeError: If they are not that, or not finite.
    """
    sample = np.asarray(values, np.float64)
    if sample.ndim != 2 or not sample.size or not np.isfinite(sample).all():
        raise ShapeError(
            f"values have shape {sample.shape}; finite numbers, runs by hosts, are needed."
        )
    return sample


N_TABLES = 2_000
"""Resamples of a whole table, fewer than of means because each is sorted."""


def interquartile_mean(values: ArrayLike) -> float:
    """Return the mean of the middle half of all values, whatever their shape.

    A quarter of the values, rounded down, is left out at each end, so a few hosts that failed or
    shone cannot carry it.

    Reference: Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical
    precipice", section 4.3.
    """
    return float(_middle_means(np.asarray(values, np.float64).reshape(1, -1))[0])


def interquartile_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the interquartile mean of ``[R, N]`` with its interval over runs and hosts.

    Runs and hosts are resampled independently of each other and whole tables of them taken. The
    middle 95 % are widened by what the smaller number of the two needs, runs counting only where
    there are several: sorting mixes runs and hosts, so their parts cannot be told apart.

    Raises:
        ShapeError: If the values are not finite numbers, runs by hosts.

    Reference: Owen (2007), "The pigeonhole bootstrap".
    """
    sample = as_table(values)
    n_runs, n_hosts = sample.shape
    generator = np.random.default_rng(seed)
    block = max(1, 1_000_000 // sample.size)
    found: list[Floats] = []
    for first in range(0, N_TABLES, block):
        size = min(block, N_TABLES - first)
        runs = generator.integers(0, n_runs, (size, n_runs, 1))
        hosts = generator.integers(0, n_hosts, (size, 1, n_hosts))
        found.append(_middle_means(sample[runs, hosts].reshape(size, -1)))
    center = interquartile_mean(sample)
    low, high = np.quantile(np.concatenate(found), ENDS) - center
    wider = expansion(n_hosts if n_runs == 1 else min(n_runs, n_hosts))
    return Interval(center, center + wider * float(low), center + wider * float(high), n_hosts)


def probability_of_improvement(values: ArrayLike, others: ArrayLike, *, seed: int = 0) -> Interval:
    """Return how often a value is above the other of the same host, with its interval.

    Ties count half, so 0.5 says that neither is above the other more often.

    Raises:
        ShapeError: If values and others do not pair.
    """
    difference = paired_differences(values, others)
    found = nested_interval((np.sign(difference) + 1.0) / 2.0, seed=seed)
    return Interval(found.mean, max(found.low, 0.0), min(found.high, 1.0), found.n)


def _middle_means(rows: Floats) -> Floats:
    """Return the interquartile mean of each row."""
    n = rows.shape[1]
    cut = n // 4
    ordered = np.partition(rows, [cut, n - cut - 1], axis=1)
    return ordered[:, cut : n - cut].mean(1)


N_ANGLES = 2_000
"""Points that the second of two Student variables is integrated over."""


def p_value(differences: ArrayLike) -> float:
    """Return the two-sided p-value of the mean of differences ``[R, N]`` being zero.

        P(|a * T(R - 1) + b * T(N - 1)| >= |mean|)

    with independent Student variables T of so many degrees of freedom, a the standard error of
    the mean of the runs' means and b that of the hosts' means. One run has no a: it is then the
    paired t-test over hosts, about that run only. One host shows nothing and has 1.

    Resampling cannot give this number: flipping the signs of five runs has only 32 outcomes, so
    no p below 0.06.

    Raises:
        ShapeError: If the differences are not finite numbers, runs by hosts.

    References: Clark (1973), both runs and hosts are random; Fisher (1935), two Student variables.
    """
    sample = as_table(differences)
    n_runs, n_hosts = sample.shape
    mean = abs(float(sample.mean()))
    if n_hosts == 1:
        return 1.0
    over_hosts = _standard_error(sample.mean(0))
    over_runs = _standard_error(sample.mean(1)) if n_runs > 1 else 0.0
    if over_hosts == over_runs == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    if over_runs == 0.0:
        return 2.0 * float(student_tail(mean / over_hosts, n_hosts - 1))
    if over_hosts == 0.0:
        return 2.0 * float(student_tail(mean / over_runs, n_runs - 1))
    # T = sqrt(f) tan(angle) has the density cos(angle) ** (f - 1), up to a factor.
    angles = (np.arange(N_ANGLES) + 0.5) / N_ANGLES * np.pi - np.pi / 2
    weights = np.cos(angles) ** (n_hosts - 2)
    hosts = math.sqrt(n_hosts - 1) * np.tan(angles)
    tails = student_tail((mean - over_hosts * hosts) / over_runs, n_runs - 1)
    return min(1.0, 2.0 * float(weights @ tails / weights.sum()))


def student_tail(t: ArrayLike, freedom: int) -> Floats:
    """Return the probability that a Student variable is above t, for a whole number of degrees.

    Reference: Abramowitz and Stegun (1964), 26.7.3 and 26.7.4.
    """
    angle = np.arctan(np.asarray(t, np.float64) / math.sqrt(freedom))
    sine, square = np.sin(angle), np.cos(angle) ** 2
    is_odd = freedom % 2
    term = np.cos(angle) if is_odd else np.ones_like(angle)
    total = np.zeros_like(angle) if freedom == 1 else term
    for k in range(2 + is_odd, freedom - 1, 2):
        term = term * square * (k - 1) / k
        total = total + term
    inner = (angle + sine * total) * (2 / np.pi) if is_odd else sine * total
    return np.clip((1.0 - inner) / 2.0, 0.0, 1.0)


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for how many there are, in the order given.

    The i-th smallest of m, counted from 0, is multiplied by m - i; none is then below one that
    was smaller, and none above 1. Below 0.05 they can all be claimed: the chance of any false
    claim among them is at most 0.05, however they depend on each other.

    Raises:
        ValueRangeError: If one is not a probability.

    Reference: Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise ValueRangeError(f"a p-value is {p}; probabilities from 0 to 1 are needed.")
    corrected, least = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = least
    return corrected


def _standard_error(means: Floats) -> float:
    return float(means.std(ddof=1)) / math.sqrt(len(means))
