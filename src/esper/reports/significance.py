"""How surprising differences are, and what is left of that with many arms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from esper.errors import ValueRangeError
from esper.reports.nested import as_table

Floats = NDArray[np.float64]

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
