"""Random numbers for draws of tasks."""

from __future__ import annotations

import math

import numpy as np


def log_uniform(rng: np.random.Generator, minimum: float, maximum: float) -> float:
    """Return a number in [minimum, maximum] whose logarithm is uniform."""
    drawn = math.exp(rng.uniform(math.log(minimum), math.log(maximum)))
    return min(max(drawn, minimum), maximum)  # exp(log(x)) can be off by one rounding.
