"""Names for the types of NumPy arrays that many modules share."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Features = NDArray[np.float32]
"""Observations as a policy reads them."""
Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
