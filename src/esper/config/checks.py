"""Validation of settings; every error names the setting, its value and what is allowed."""

from __future__ import annotations

import functools
import inspect
import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from enum import Enum
from numbers import Integral, Real
from typing import Any, ParamSpec, TypeVar

from esper.errors import ConfigError, TaskError, did_you_mean, type_of

Choice = TypeVar("Choice")
P = ParamSpec("P")
R = TypeVar("R")


MOST_INT = 2**63 - 1
"""The largest integer that files and tensors can hold."""

MOST_SEED = 2**64 - 1
"""The largest seed of a torch generator."""


def require_int(name: str, value: object, *, least: int, most: int = MOST_INT) -> None:
    """Require an integer in ``[least, most]``; bool is not accepted."""
    if (
        not isinstance(value, Integral)
        or isinstance(value, bool)
        or not least <= int(value) <= most
    ):
        limit = f" and at most {most}" if isinstance(value, Integral) and int(value) > most else ""
        raise ConfigError(
            f"{name} is {value!r}; it must be a whole number of at least {least}{limit}."
        )


def as_number(name: str, value: Any) -> float:
    """Return a number that may be a tensor or an array of one.

    Raises:
        ConfigError: If it is something else.
    """
    if not isinstance(value, (str, bytes)):
        try:
            return float(value)
        except (TypeError, ValueError, RuntimeError):
            pass
    raise ConfigError(f"{name} is {type_of(value)}; it must be a number.")


def require_seed(value: object, name: str = "seed") -> None:
    """Require a seed that torch and numpy accept."""
    require_int(name, value, least=0, most=MOST_SEED)


def require_number(
    name: str,
    value: object,
    *,
    least: float = -math.inf,
    most: float = math.inf,
    above: float = -math.inf,
) -> None:
    """Require a finite number in ``[least, most]`` that is greater than ``above``."""
    if (
        not isinstance(value, Real)
        or isinstance(value, bool)
        or not math.isfinite(value)
        or not least <= float(value) <= most
        or float(value) <= above
    ):
        raise ConfigError(f"{name} is {value!r}; it must be {_range(least, most, above)}.")


def require_bool(name: str, value: object) -> None:
    """Require True or False."""
    if not isinstance(value, bool):
        raise ConfigError(f"{name} is {value!r}; it must be True or False.")


def require_choice(name: str, value: object, allowed: Iterable[Choice]) -> Choice:
    """Return the allowed value that equals the given one, or raise ConfigError.

    Numbers of other types are converted: 14.0 becomes 14. True is not 1.
    """
    choices = tuple(allowed)
    if isinstance(value, (str, Real, Enum)):
        for choice in choices:
            if value == choice and isinstance(value, bool) == isinstance(choice, bool):
                return choice
    words = [str(choice) for choice in choices]
    hint = did_you_mean(value, words)
    raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(words)}.{hint}")


def reject_unknown(
    function: str, given: Iterable[str], allowed: Iterable[str], hints: Mapping[str, str]
) -> None:
    """Raise ConfigError for the first given argument that a function does not have.

    Args:
        function: Its name.
        given: Arguments by name.
        allowed: Those that it has.
        hints: What to do instead, for names that users bring from other libraries.
    """
    names = list(allowed)
    for name in given:
        if name in hints:
            raise ConfigError(f"{function} has no argument {name!r}; {hints[name]}.")
        if name not in names:
            raise ConfigError(
                f"{function} has no argument {name!r}.{did_you_mean(name, names)} It has "
                f"{', '.join(names)}."
            )


def rejects_unknown(function: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Let a function raise ConfigError with a hint for an argument that it does not have.

    Args:
        function: The name that users know it by.
    """

    def decorate(run: Callable[P, R]) -> Callable[P, R]:
        names = [name for name in inspect.signature(run).parameters if name != "self"]

        @functools.wraps(run)
        def checked(*args: P.args, **kwargs: P.kwargs) -> R:
            reject_unknown(function, kwargs, names, {})
            return run(*args, **kwargs)

        return checked

    return decorate


def make_numbers_plain(settings: Any) -> None:
    """Convert NumPy numbers in frozen settings to Python numbers, which every file can hold."""
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


class CodeWarning(UserWarning):
    """Code that a file names is about to run, because the user allowed it."""


def names_code(task: str) -> bool:
    """Return whether a task's name is ``module:function``, not that of a registered task."""
    return ":" in task


def require_trusted_task(
    task: str, options: Mapping[str, object], *, source: object, allow_code: bool
) -> None:
    """Reject a task that a file names by ``module:function``, unless the user allows its code.

    Emits a :class:`CodeWarning` that shows the call if it is allowed.

    Args:
        task: The name of the task, as read from a file.
        options: Its options.
        source: The file or folder, for messages.
        allow_code: Whether the user allows the code.

    Raises:
        TaskError: If the name is that of code and code is not allowed.
    """
    if not names_code(task):
        return
    call = f"{task}({', '.join(f'{name}={value!r}' for name, value in options.items())})"
    if not allow_code:
        raise TaskError(
            f"{source} names code to run, {call}; files may only name registered tasks. If you "
            "trust it, pass --allow-code (allow_code=True in Python)."
        )
    warnings.warn(f"running code that {source} names: {call}", CodeWarning, stacklevel=3)
