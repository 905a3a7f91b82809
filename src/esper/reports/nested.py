"""Intervals over training runs and hosts at once. Shapes: R = runs, N = hosts, B = resamples.

Every run is evaluated on the same hosts, so a value varies with its run, with its host and with
both together. An interval over hosts alone is about the runs at hand; these are about runs that
were not made as well.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.errors import ShapeError
from esper.reports.statistics import ENDS, Interval, expansion, mean_interval, resampled_means

Floats = NDArray[np.float64]


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
