"""Numbers as JSON can hold them."""

from __future__ import annotations

import math
from typing import Any


def finite(value: Any) -> float | None:
    """Return a finite number, or None for NaN, infinity and non-numbers.

    The database stores some NaN values as text, so text is None too.
    """
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None
