"""The checks that settings share: each names the setting, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import fields
from enum import Enum
from numbers import Integral, Real
from typing import Any, TypeVar

from esper.errors import ConfigError, did_you_mean

Choice = TypeVar("Choice")


def require_int(name: str, value: object, *, least: int) -> None:
    """Refuse anything but a whole number of at least ``least`` (True is not a number here)."""
    if not isinstance(value, Integral) or isinstance(value, bool) or int(value) < least:
        raise ConfigError(f"{name} is {value!r}; it must be a whole number of at least {least}.")


def require_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> None:
    """Refuse anything but a finite number in ``[least, most]`` that is greater than ``above``."""
    if (
        not isinstance(value, Real)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not least <= float(value) <= most
        or float(value) <= above
    ):
        raise ConfigError(f"{name} is {value!r}; it must be {_range(least, most, above)}.")


def require_bool(name: str, value: object) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")


def require_choice(name: str, value: object, allowed: Iterable[Choice]) -> Choice:
    """Return the allowed value that a value equals; refuse anything else.

    Numbers of another kind become the allowed one: 14.0 is 14, but True is not 1.
    """
    choices = tuple(allowed)
    if isinstance(value, (str, Real, Enum)):
        for choice in choices:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
    words = [str(choice) for choice in choices]
    hint = did_you_mean(value, words)
    raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(words)}.{hint}")


def make_numbers_plain(settings: Any) -> None:
    """Turn the numbers of other libraries (numpy's) in frozen settings into Python's own.

    They count and compare in the same way, but cannot be written to every file.
    """
    for field in fields(settings):
        value = getattr(settings, field.name)
        if type(value) in (bool, int, float):
            continue
        if isinstance(value, Integral):
            object.__setattr__(settings, field.name, int(value))
        elif isinstance(value, Real):
            object.__setattr__(settings, field.name, float(value))


def _range(least: float, most: float, above: float) -> str:
    lower = f"greater than {above:g}" if math.isfinite(above) else f"at least {least:g}"
    if math.isfinite(least) and math.isfinite(most):
        return f"a number in [{least:g}, {most:g}]"
    if math.isfinite(most):
        return f"a number {lower} and at most {most:g}"
    return f"a finite number {lower}" if lower != "at least -inf" else "a finite number"
