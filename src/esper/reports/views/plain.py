"""Values as JSON can hold them."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> float | None:
    """Return a number, or None for NaN, for what is infinite and for what is no number.

    It takes what a record holds as well as what the database does, which keeps some NaN as text.
    """
    if isinstance(value, (int, float)) and math.isfinite(value):
        return float(value)
    return None


def names_in(text: str | None) -> list[str]:
    """Return the names in a JSON list."""
    return [] if text is None else [str(name) for name in json.loads(text)]
