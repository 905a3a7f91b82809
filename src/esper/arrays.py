"""Type aliases of NumPy arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[np.float32]
"""Observations."""
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
