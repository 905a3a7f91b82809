"""Calling a function that makes a task, with options that a user wrote."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from inspect import Parameter
from typing import Any

from esper.errors import EsperError, TaskError, did_you_mean
from esper.tasks.own_functions import FAILURES, describe


def call_with_options(task: str, make: Callable[..., object], options: Mapping[str, Any]) -> object:
    """Return what a task's function gives for these options.

    Raises:
        TaskError: If the function does not take an option, needs one that is not given, or raises
            something that is no :class:`EsperError`, which says itself what is wrong.
    """
    _check_options(task, make, options)
    try:
        return make(**options)
    except EsperError:
        raise
    except FAILURES as error:
        where = f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', repr(make))}"
        raise TaskError(
            f"task {task!r}: {where} raised {describe(error)}; correct it, or the options it was "
            "given."
        ) from error


def _check_options(task: str, make: Callable[..., object], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # A callable that does not tell what it takes.
        return
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    takes = [each.name for each in parameters if each.kind in named]
    takes_any = any(each.kind == Parameter.VAR_KEYWORD for each in parameters)
    allowed = f"its options are {', '.join(takes)}" if takes else "it takes none"
    for name in options:
        if name not in takes and not takes_any:
            hint = did_you_mean(name, takes)
            raise TaskError(f"task {task!r} has no option {name!r}; {allowed}.{hint}")
    for each in parameters:
        if each.kind in named and each.default is Parameter.empty and each.name not in options:
            raise TaskError(f"task {task!r} needs option {each.name!r}; {allowed}.")
