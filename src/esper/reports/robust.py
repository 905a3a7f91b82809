"""Interquartile means and probabilities of improvement. Shapes: R = runs, N = hosts."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.reports.nested import as_table, nested_interval, paired_differences
from esper.reports.statistics import ENDS, Interval, expansion

Floats = NDArray[np.float64]

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
