"""The checks that settings share: each names the setting, its value and what is allowed."""

from __future__ import annotations

import math
from collections.abc import Sequence

from esper.errors import ConfigError, did_you_mean


def require_int(name: str, value: object, *, least: int) -> None:
    """Refuse anything but a whole number of at least ``least`` (True is not a number here)."""
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
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
        not isinstance(value, (int, float))
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not least <= value <= most
        or value <= above
    ):
        raise ConfigError(f"{name} is {value!r}; it must be {_range(least, most, above)}.")


def require_bool(name: str, value: object) -> None:
    """Refuse anything but True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")


def require_choice(name: str, value: object, allowed: Sequence[str]) -> None:
    """Refuse anything but one of the allowed words."""
    if value not in allowed:
        hint = did_you_mean(value, allowed)
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(allowed)}.{hint}")


def _range(least: float, most: float, above: float) -> str:
    lower = f"greater than {above:g}" if math.isfinite(above) else f"at least {least:g}"
    if math.isfinite(least) and math.isfinite(most):
        return f"a number in [{least:g}, {most:g}]"
    if math.isfinite(most):
        return f"a number {lower} and at most {most:g}"
    return f"a finite number {lower}" if lower != "at least -inf" else "a finite number"
