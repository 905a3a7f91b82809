"""How fields of records are marked: those of the clock or the process, and those added later."""

from __future__ import annotations

from dataclasses import Field, field
from typing import Any

_MARK = "clock"
_SINCE = "since"


def clock_field() -> Any:
    """Return a field whose value differs from one process to the next; no digest contains it."""
    return field(metadata={_MARK: True})


def is_clock_field(one: Field[Any]) -> bool:
    """Return whether a field was made by :func:`clock_field`."""
    return bool(one.metadata.get(_MARK))


def added_field(*, since: int) -> Any:
    """Return a field that databases before a schema version lack; it reads as None from them."""
    return field(metadata={_SINCE: since})


def version_of(one: Field[Any]) -> int:
    """Return the schema version from which on a field is stored."""
    return int(one.metadata.get(_SINCE, 1))
