"""Calling the functions that a user's task is made of, and saying which one failed and how."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import nn

from esper.errors import EsperError, SlotError, TaskError
from esper.growth.host_slots import slots
from esper.growth.hosts import HostMaker

FAILURES = (Exception, SystemExit)
"""What foreign code may raise in place of doing its work."""


def describe(error: BaseException) -> str:
    """Return what was raised and why, on one line."""
    return f"{type(error).__name__} ({' '.join(str(error).split()) or 'no message'})"


def shown(value: object) -> str:
    """Return a value as a message shows it: briefly, on one line."""
    text = repr(value)
    return text if len(text) <= 60 and "\n" not in text else f"a {type(value).__name__}"


def require_function_of_seed(what: str, function: object) -> None:
    """Refuse what cannot be called with a seed alone.

    Raises:
        TaskError: If it cannot; the message starts with ``what``.
    """
    if not callable(function):
        raise TaskError(f"{what} is {function!r}; it must be a function of a seed.")
    if isinstance(function, HostMaker):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # A callable that does not tell what it takes.
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise TaskError(
            f"{what} takes {signature}, so it cannot be called with a seed ({error}); it must be "
            "a function of a seed, given by position."
        ) from error


def call_with_seed(what: str, function: Callable[[int], Any], seed: int) -> Any:
    """Return what a function gives for a seed.

    Raises:
        TaskError: If it raises something that is no :class:`EsperError`, which says itself what is
            wrong.
    """
    try:
        return function(seed)
    except EsperError:
        raise
    except FAILURES as error:
        raise TaskError(f"{what} raised {describe(error)} for seed {seed}; correct it.") from error


@dataclass(frozen=True)
class CheckedHostMaker:
    """Makes hosts by a user's function, and refuses what is no host."""

    what: str
    """What the function is called in messages."""
    function: Callable[[int], Any]

    def __call__(self, seed: int) -> nn.Module:
        """Return the host of a seed.

        Raises:
            TaskError: If the function fails, or returns something else than a model with slots.
        """
        made = call_with_seed(self.what, self.function, seed)
        if not isinstance(made, nn.Module):
            raise TaskError(
                f"{self.what} returned {shown(made)}; it must return a model with slots."
            )
        try:
            slots(made)
        except SlotError as error:
            raise TaskError(f"{self.what} returned a model that cannot grow: {error}") from error
        return made

    def __getattr__(self, name: str) -> Any:
        # Populations look for it; whoever has it can be given other weights in place.
        if name == "redraw":
            return getattr(self.function, name)
        raise AttributeError(name)


def checked_host_maker(what: str, function: Callable[[int], nn.Module]) -> Callable[[int], Any]:
    """Return a function that makes the same hosts and says what is wrong with those that are none.

    Makers that come with Esper are returned as they are.
    """
    if isinstance(function, (HostMaker, CheckedHostMaker)):
        return function
    require_function_of_seed(what, function)
    return CheckedHostMaker(what, function)
