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


def names_in(text: str) -> list[str]:
    """Return the names in a JSON list."""
    return [str(name) for name in json.loads(text)]


def lists_in(text: str | None) -> dict[str, list[str]]:
    """Return the lists of names in a JSON object; none in what was not recorded."""
    read: dict[str, list[str]] = {} if text is None else json.loads(text)
    return {name: [str(one) for one in names] for name, names in read.items()}
