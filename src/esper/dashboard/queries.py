"""Reading the numbers and words of a request, which may be anything."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TypeVar

from esper.errors import EsperError

Default = TypeVar("Default", int, None)
Word = TypeVar("Word", bound=str)

LARGEST = 2**53
"""Whole numbers beyond this are not exact in a browser."""


class QueryError(EsperError):
    """A part of a request's query is not what it must be."""


def read_int(
    query: Mapping[str, str], name: str, default: Default, *, least: int = 0, most: int = LARGEST
) -> int | Default:
    """Return a whole number of a query.

    Args:
        query: The query's values by name.
        name: Which one.
        default: What it is if it is not given.
        least: The least that is allowed.
        most: The most that is allowed.

    Raises:
        QueryError: If it is no whole number, or outside of that.
    """
    text = query.get(name)
    if text is None:
        return default
    number = as_int(text)
    if number is None or not least <= number <= most:
        raise QueryError(
            f"{name} is {_short(text)}; it must be a whole number from {least} to {most}."
        )
    return number


def read_word(query: Mapping[str, str], name: str, allowed: Sequence[Word]) -> Word:
    """Return a word of a query, by default the first that is allowed.

    Raises:
        QueryError: If it is another one.
    """
    given = query.get(name, allowed[0])
    for word in allowed:
        if word == given:
            return word
    raise QueryError(f"{name} is {_short(given)}; it must be one of {', '.join(allowed)}.")


def as_int(text: str) -> int | None:
    """Return the number that digits are, with a minus before them or not; None for other text."""
    return int(text) if re.fullmatch(r"-?[0-9]{1,15}", text) else None


def _short(text: str) -> str:
    return repr(text if len(text) <= 40 else f"{text[:40]}...")
