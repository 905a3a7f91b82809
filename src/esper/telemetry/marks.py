"""How a field of a record is marked as one that depends on the clock or the process."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

_MARK = "clock"


def clock_field() -> Any:
    """Return a field whose value differs from one process to the next; no digest contains it."""
    return field(metadata={_MARK: True})


def is_clock_field(one: Field[Any]) -> bool:
    """Return whether a field was made by :func:`clock_field`."""
    return bool(one.metadata.get(_MARK))
