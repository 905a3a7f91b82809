"""Rates that change over training: learning rate, clip range, entropy bonus."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from esper.config.checks import NonNegativeFloat, Settings, check
from esper.errors import ConfigError

Rate = float | Callable[[float], float]
"""A constant, or a function of the share of training that is left, from 1 to 0."""

Shape = Literal["constant", "linear", "cosine"]


def interpolate(shape: str, start: float, end: float, progress: float) -> float:
    """Return a rate on its way from ``start`` to ``end``.

        constant  start
        linear    from start to end in equal steps
        cosine    the same ends, slowly at both of them

    Args:
        shape: ``"constant"``, ``"linear"`` or ``"cosine"``.
        start: The first rate.
        end: The last rate.
        progress: 0 at the start, 1 at the end.
    """
    if shape == "constant":
        return start
    way = progress if shape == "linear" else 0.5 * (1.0 - math.cos(math.pi * progress))
    return start + (end - start) * way


@dataclass(frozen=True)
class Schedule(Settings):
    """A rate that changes from ``start`` to ``end`` over training, and is saved with a model."""

    start: NonNegativeFloat
    end: NonNegativeFloat = 0.0
    shape: Shape = "linear"

    def __call__(self, remaining: float) -> float:
        """Return the rate when a share of training from 1 to 0 is left."""
        return interpolate(self.shape, self.start, self.end, 1.0 - remaining)


def linear(start: float, end: float = 0.0) -> Schedule:
    """Return a rate that changes linearly from ``start`` to ``end`` over training."""
    return Schedule(start, end, "linear")


def cosine(start: float, end: float = 0.0) -> Schedule:
    """Return a rate that changes along half a cosine from ``start`` to ``end``."""
    return Schedule(start, end, "cosine")


def rate_at(name: str, rate: Rate, remaining: float) -> float:
    """Return a rate when a share of training from 1 to 0 is left.

    Raises:
        ConfigError: If it is a function that does not return a number.
    """
    if not callable(rate):
        return float(rate)
    if not takes_arguments(rate, 1):
        raise ConfigError(
            f"{name} is a function that does not take one argument; it gets the share of training "
            "that is left, from 1 to 0."
        )
    return check(f"{name}({remaining:g})", rate(remaining), NonNegativeFloat)


def takes_arguments(function: Callable[..., Any], n: int) -> bool:
    """Return whether a function can be called with n arguments, as far as Python can tell."""
    try:
        signature = inspect.signature(function)
    except ValueError:  # some built-in functions do not tell
        return True
    try:
        signature.bind(*[None] * n)
    except TypeError:
        return False
    return True
