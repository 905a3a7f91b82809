"""Bootstrap intervals, p-values and Holm's correction. Shapes: R = runs, N = hosts, B = resamples.

Results of a method are a table ``[R, N]``: every training run is scored on the same hosts, and both
runs and hosts are samples of what could have been drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from esper.arrays import Floats
from esper.errors import ShapeError, ValueRangeError

N_RESAMPLES = 10_000
N_TABLES = 2_000
"""Resamples of a whole table; fewer than of means, because each one is sorted."""
ENDS = (0.025, 0.975)
"""Quantiles at the ends of an interval."""
MIN_VALUES = 10
"""With fewer values, no interval decides anything."""
MAX_CACHED_VALUES = 600
"""Samples up to this size share cached resamples; larger ones would take too much memory."""
NEGLIGIBLE = 0.0005
"""Smaller differences in score, return or share of FLOPs are displayed and treated as zero."""
N_ANGLES = 2_000
"""Points of the numerical integral in :func:`p_value`."""


@dataclass(frozen=True)
class Interval:
    """A mean with its 95 % confidence interval."""

    mean: float
    low: float
    high: float
    n: int
    """Number of values behind it."""

    def text(self, *, signed: bool = True) -> str:
        """Format the mean and both ends; differences carry a sign."""
        sign = "+" if signed else ""
        return f"{self.mean:{sign}.3f} [{self.low:{sign}.3f}, {self.high:{sign}.3f}]"

    @property
    def is_from_enough(self) -> bool:
        """Whether there are enough values to rely on the interval."""
        return self.n >= MIN_VALUES

    @property
    def excludes_zero(self) -> bool:
        """Whether the whole interval lies on one side of zero, by more than a negligible amount."""
        return self.is_from_enough and (self.low >= NEGLIGIBLE or self.high <= -NEGLIGIBLE)

    @property
    def is_above_zero(self) -> bool:
        """Whether the interval excludes zero and the mean is positive."""
        return self.excludes_zero and self.mean > 0.0

    @property
    def is_below_zero(self) -> bool:
        """Whether the interval excludes zero and the mean is negative."""
        return self.excludes_zero and self.mean < 0.0


def mean_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of values ``[N]`` with its expanded percentile bootstrap interval.

    The middle 95 % of the resampled means are too narrow for small samples, so they are widened
    around the mean by :func:`expansion`.

    Raises:
        ShapeError: If the values are not a list of at least one finite number.

    References: Efron and Tibshirani (1993), chapter 13; Hesterberg (2015), section 3.2.
    """
    sample = np.asarray(values, np.float64)
    if sample.ndim != 1 or not len(sample) or not np.isfinite(sample).all():
        raise ShapeError(
            f"values have shape {sample.shape}; pass a list of at least one finite number."
        )
    low, high = np.quantile(resampled_means(sample, seed=seed), ENDS)
    mean, wider = float(sample.mean()), expansion(len(sample))
    return Interval(
        mean, mean + wider * (float(low) - mean), mean + wider * (float(high) - mean), len(sample)
    )


def expansion(n: int) -> float:
    """Return the factor by which the bootstrap interval of a mean of n values is widened.

        sqrt(n / (n - 1)) * t / z

    with the 97.5 % quantiles t of Student's distribution with n - 1 degrees of freedom and z of the
    normal one. The first factor corrects that resamples vary around the sample's own mean.
    """
    if n < 2:
        return 1.0
    special = _scipy("special")
    t, z = float(special.stdtrit(n - 1, ENDS[1])), float(special.ndtri(ENDS[1]))
    return math.sqrt(n / (n - 1)) * t / z


def _scipy(module: str) -> Any:
    """Import a module of SciPy on first use, because that takes longer than importing NumPy."""
    return import_module(f"scipy.{module}")


def resampled_means(sample: Floats, *, seed: int) -> Floats:
    """Return the means ``[B]`` of resamples of ``[N]``; equal seeds give equal resamples."""
    n = len(sample)
    if n <= MAX_CACHED_VALUES:
        return _resample_weights(N_RESAMPLES, n, seed) @ sample
    generator = np.random.default_rng(seed)
    block = max(1, 1_000_000 // n)
    means: list[Floats] = []
    for first in range(0, N_RESAMPLES, block):
        shape = (min(block, N_RESAMPLES - first), n)
        means.append(sample[generator.integers(0, n, shape)].mean(1))
    return np.concatenate(means)


@lru_cache(maxsize=2)
def _resample_weights(n_resamples: int, n: int, seed: int) -> Floats:
    """Return the share of each of n values in each resample, ``[B, N]``."""
    drawn = np.random.default_rng(seed).integers(0, n, (n_resamples, n))
    drawn += n * np.arange(n_resamples)[:, None]
    return np.bincount(drawn.ravel(), minlength=n_resamples * n).reshape(-1, n) / n


def nested_interval(values: ArrayLike, *, seed: int = 0) -> Interval:
    """Return the mean of values ``[R, N]`` with its 95 % interval over runs and hosts.

        mean* = mean + expansion(R) * (run part*) + expansion(N) * (host part*)

    Runs and hosts are resampled independently, with replacement. The run part is the deviation of a
    resampled mean of the runs' means, the host part that of the hosts' means; each is widened by
    its own :func:`expansion`. The interval is the middle 95 % of mean*. Widening both parts by what
    the runs need would make an interval of five runs half as wide again even where runs hardly
    differ.

    The interaction of run and host is part of both, so it is counted twice and the interval is
    conservative. With five runs or more it covers the mean at least 93 times in 100, whichever of
    the three varies most.

    A single run gets :func:`mean_interval` over its hosts, which only describes that run.

    Raises:
        ShapeError: If the values are not a table of finite numbers.

    Reference: Owen (2007), "The pigeonhole bootstrap"; these are its two main effects.
    """
    sample = _as_table(values)
    if sample.shape[0] == 1:
        return mean_interval(sample[0], seed=seed)
    mean, spread = float(sample.mean()), np.zeros(())
    for number, means in enumerate((sample.mean(0), sample.mean(1))):
        # Separate streams, so that equal numbers of runs and hosts are not resampled alike.
        part = resampled_means(means, seed=2 * seed + number) - mean
        spread = spread + expansion(len(means)) * part
    low, high = np.quantile(spread, ENDS)
    return Interval(mean, mean + float(low), mean + float(high), sample.shape[1])


def paired_differences(values: ArrayLike, others: ArrayLike) -> Floats:
    """Return ``values - others``, ``[R, N]``, host by host; a single run is paired with every run.

    Raises:
        ShapeError: If the numbers of hosts differ, or the numbers of runs cannot be paired.
    """
    first, second = _as_table(values), _as_table(others)
    runs = {first.shape[0], second.shape[0]}
    if first.shape[1] != second.shape[1] or len(runs - {1}) > 1:
        raise ShapeError(
            f"values have shape {first.shape} and others {second.shape}; "
            "pairs need the same hosts in the same order, and as many runs or a single one."
        )
    return first - second


def paired_interval(values: ArrayLike, others: ArrayLike) -> Interval:
    """Return the mean of ``values - others``, host by host, with its 95 % interval.

    Both are ``[R, N]`` as for :func:`paired_differences`, or ``[N]`` of one run.
    """
    return nested_interval(paired_differences(np.atleast_2d(values), np.atleast_2d(others)))


def ratio_interval(values: ArrayLike, others: ArrayLike) -> Interval:
    """Return mean(values) / mean(others), paired host by host, with its interval.

    To first order a host moves the ratio by ``(value - ratio * other) / mean(others)``; the
    interval is that of these influences around the ratio.

    Raises:
        ShapeError: If they cannot be paired, or the others' mean is not above zero.

    Reference: Efron and Tibshirani (1993), chapter 22, the infinitesimal jackknife.
    """
    first, second = _as_table(values), _as_table(others)
    mean = float(second.mean())
    if mean <= 0.0:
        raise ShapeError(f"others have the mean {mean:g}; a ratio needs one above zero.")
    ratio = float(first.mean()) / mean
    influence = nested_interval(paired_differences(first, ratio * second) / mean)
    return Interval(ratio, ratio + influence.low, ratio + influence.high, influence.n)


def _as_table(values: ArrayLike) -> Floats:
    sample = np.asarray(values, np.float64)
    if sample.ndim != 2 or not sample.size or not np.isfinite(sample).all():
        raise ShapeError(f"values have shape {sample.shape}; pass finite numbers, runs by hosts.")
    return sample


def interquartile_mean(values: ArrayLike) -> float:
    """Return the mean of the middle half of all values, whatever their shape.

    A quarter of the values, rounded down, is left out at each end, so outliers do not dominate.

    Reference: Agarwal et al. (2021), "Deep reinforcement learning at the edge of the statistical
    precipice", section 4.3.
    """
    return float(_scipy("stats").trim_mean(np.asarray(values, np.float64), 0.25, axis=None))


def interquartile_interval(values: ArrayLike) -> Interval:
    """Return the interquartile mean of ``[R, N]`` with its interval over runs and hosts.

    Runs and hosts are resampled independently, and the whole table is taken each time. The middle
    95 % are widened by the :func:`expansion` of the smaller of the two numbers (of hosts if there
    is one run): sorting mixes runs and hosts, so their parts cannot be separated.

    Raises:
        ShapeError: If the values are not a table of finite numbers.

    Reference: Owen (2007), "The pigeonhole bootstrap".
    """
    sample = _as_table(values)
    n_runs, n_hosts = sample.shape
    generator = np.random.default_rng(0)
    block = max(1, 1_000_000 // sample.size)
    means: list[Floats] = []
    for first in range(0, N_TABLES, block):
        size = min(block, N_TABLES - first)
        runs = generator.integers(0, n_runs, (size, n_runs, 1))
        hosts = generator.integers(0, n_hosts, (size, 1, n_hosts))
        tables = sample[runs, hosts].reshape(size, -1)
        means.append(_scipy("stats").trim_mean(tables, 0.25, axis=1))
    center = interquartile_mean(sample)
    low, high = np.quantile(np.concatenate(means), ENDS) - center
    wider = expansion(n_hosts if n_runs == 1 else min(n_runs, n_hosts))
    return Interval(center, center + wider * float(low), center + wider * float(high), n_hosts)


def probability_of_improvement(values: ArrayLike, others: ArrayLike) -> Interval:
    """Return how often a value is above the other of the same host, with its interval.

    Ties count half, so 0.5 means that neither is ahead more often.

    Raises:
        ShapeError: If values and others cannot be paired.
    """
    difference = paired_differences(values, others)
    found = nested_interval((np.sign(difference) + 1.0) / 2.0)
    return Interval(found.mean, max(found.low, 0.0), min(found.high, 1.0), found.n)


def p_value(differences: ArrayLike) -> float:
    """Return the two-sided p-value of differences ``[R, N]`` having mean zero.

        P(|a * T(R - 1) + b * T(N - 1)| >= |mean|)

    with independent Student variables T of so many degrees of freedom, a the standard error of the
    mean of the runs' means and b that of the hosts' means. With one run, a is zero: the paired
    t-test over hosts, which only describes that run. One host gives 1.

    Resampling cannot give this number: flipping the signs of five runs has only 32 outcomes, so no
    p below 0.06.

    Raises:
        ShapeError: If the differences are not a table of finite numbers.

    References: Clark (1973), both runs and hosts are random; Fisher (1935), two Student variables.
    """
    sample = _as_table(differences)
    n_runs, n_hosts = sample.shape
    mean = abs(float(sample.mean()))
    if n_hosts == 1:
        return 1.0
    over_hosts = _standard_error(sample.mean(0))
    over_runs = _standard_error(sample.mean(1)) if n_runs > 1 else 0.0
    if over_hosts == over_runs == 0.0:
        return 1.0 if mean == 0.0 else 0.0
    if over_runs == 0.0:
        return 2.0 * float(_student_tail(mean / over_hosts, n_hosts - 1))
    if over_hosts == 0.0:
        return 2.0 * float(_student_tail(mean / over_runs, n_runs - 1))
    # T = sqrt(f) tan(angle) has the density cos(angle) ** (f - 1), up to a factor.
    angles = (np.arange(N_ANGLES) + 0.5) / N_ANGLES * np.pi - np.pi / 2
    weights = np.cos(angles) ** (n_hosts - 2)
    hosts = math.sqrt(n_hosts - 1) * np.tan(angles)
    tails = _student_tail((mean - over_hosts * hosts) / over_runs, n_runs - 1)
    return min(1.0, 2.0 * float(weights @ tails / weights.sum()))


def _student_tail(t: ArrayLike, freedom: int) -> Floats:
    """Return the probability that a Student variable is above t."""
    return _scipy("special").stdtr(freedom, -np.asarray(t, np.float64))


def _standard_error(means: Floats) -> float:
    return float(means.std(ddof=1)) / math.sqrt(len(means))


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values corrected for how many there are, in the order given.

    The i-th smallest of m, counted from 0, is multiplied by m - i, then raised to at least its
    predecessor and capped at 1. Claiming all that are below 0.05 keeps the chance of any false
    claim at 0.05 or less, however they depend on each other.

    Raises:
        ValueRangeError: If one is not a probability.

    Reference: Holm (1979), "A simple sequentially rejective multiple test procedure".
    """
    for p in p_values:
        if not 0.0 <= p <= 1.0:
            raise ValueRangeError(f"a p-value is {p}; pass probabilities from 0 to 1.")
    corrected, minimum = [0.0] * len(p_values), 0.0
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    for rank, index in enumerate(order):
        minimum = max(minimum, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = minimum
    return corrected
