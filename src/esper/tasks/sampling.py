"""Random numbers for draws of tasks."""

from __future__ import annotations

import math

import numpy as np


def log_uniform(rng: np.random.Generator, least: float, most: float) -> float:
    """Return a number in [least, most] whose logarithm is uniform."""
    drawn = math.exp(rng.uniform(math.log(least), math.log(most)))
    return min(max(drawn, least), most)  # exp(log(x)) can be off by one rounding.
