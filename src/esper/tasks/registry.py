"""The registry of tasks, and tasks of the user's own modules by ``module:function``.

A task is registered with a function that creates it from keyword options.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from esper.errors import (
    TaskError,
    UnknownTaskError,
    did_you_mean,
    type_of,
)
from esper.tasks.task import Task
from esper.tasks.user_code import call_with_options, load_own_task, module_folder


@dataclass(frozen=True)
class _Entry:
    make: Callable[..., object]
    summary: str


_REGISTRY: dict[str, _Entry] = {}


def register_task(name: str, make: Callable[..., Task], *, summary: str) -> None:
    """Register a task under a name.

    Args:
        name: The name of the task.
        make: Returns the task; its parameters are the task's options.
        summary: A short description of the task.

    Raises:
        TaskError: If the name is taken or invalid.

    Examples:
        >>> def make_mine():
        ...     return esper.make_task("spirals")
        >>> esper.register_task("my-spirals", make_mine, summary="Spirals of mine.")
        >>> "my-spirals" in esper.task_names()
        True
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise TaskError(f"a task's name is {name!r}; it must be a string without a colon.")
    if name in _REGISTRY:
        raise TaskError(f"task {name!r} is registered already; choose another name.")
    if not callable(make):
        raise TaskError(f"make of task {name!r} is {make!r}; it must be a function.")
    _REGISTRY[name] = _Entry(make, summary)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks, the built-in ones first.

    Examples:
        >>> "digits" in esper.task_names()
        True
    """
    return tuple(_REGISTRY)


def task_summaries() -> dict[str, str]:
    """Return the summary of each task."""
    return {name: entry.summary for name, entry in _REGISTRY.items()}


def make_task(name: str, **options: Any) -> Task:
    """Create a task by its name.

    Args:
        name: A registered name, or ``"my_module:make_task"`` for a function of your own that
            returns a task. The module may be in the current folder.
        options: Options of the task.

    Raises:
        UnknownTaskError: If there is no such task.
        TaskError: If the task has no such option, or creating it fails.

    Examples:
        >>> task = esper.make_task("spirals")
        >>> task.name
        'spirals'
    """
    return create_task(name, options)


def create_task(name: str, options: Mapping[str, Any]) -> Task:
    """Create a task by its name and options, any of which may be called ``name``."""
    if not isinstance(name, str):
        raise UnknownTaskError(
            f"a task's name is {name!r}; it must be one of {', '.join(task_names())}, or "
            "'module:function'."
        )
    if ":" in name:
        with module_folder():
            return _create(name, load_own_task(name), options)
    if name in _REGISTRY:
        return _create(name, _REGISTRY[name].make, options)
    raise UnknownTaskError(
        f"there is no task {name!r}; the tasks are {', '.join(_REGISTRY)}, or 'module:function' "
        f"for your own.{did_you_mean(name, _REGISTRY)}"
    )


def _create(name: str, make: Callable[..., object], options: Mapping[str, Any]) -> Task:
    task = call_with_options(name, make, options)
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r} returned {type_of(task)}; it must return an esper.tasks.Task."
        )
    return task
