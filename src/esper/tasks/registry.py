"""The registry of tasks: built-in ones, those of other packages, and those of the user's modules.

A task is registered with a function that creates it from keyword options. Other packages register
theirs in the entry point group ``esper.tasks``; they are imported when first needed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from esper.config.catalogue import TASK_GROUP
from esper.errors import (
    EsperError,
    TaskError,
    UnknownTaskError,
    did_you_mean,
    summarize_error,
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
    """Return the names of all tasks: the built-in ones first, then other packages'.

    Examples:
        >>> "digits" in esper.task_names()
        True
    """
    return (*_REGISTRY, *_unregistered())


def task_summaries() -> dict[str, str]:
    """Return the summary of each task, or the reason why it cannot be loaded."""
    summaries = {name: entry.summary for name, entry in _REGISTRY.items()}
    for name, entries in _entry_points().items():
        if name in _REGISTRY:
            ignored = ", ".join(repr(entry.value) for entry in entries)
            summaries[name] += f" ({_what(name)}, {ignored}, has the same name and is ignored)"
            continue
        try:
            summaries[name] = _load(name, entries).summary
        except EsperError as error:
            summaries[name] = str(error)
    return summaries


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
    others = _unregistered()
    if name in others:
        return _create(name, _load(name, others[name]).make, options)
    names = (*_REGISTRY, *others)
    raise UnknownTaskError(
        f"there is no task {name!r}; the tasks are {', '.join(names)}, or 'module:function' for "
        f"your own.{did_you_mean(name, names)}"
    )


def _create(name: str, make: Callable[..., object], options: dict[str, Any]) -> Task:
    task = call_with_options(name, make, options)
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r} returned {type_of(task)}; it must return an esper.tasks.Task."
        )
    return task


def _unregistered() -> dict[str, list[EntryPoint]]:
    """Return the tasks of other packages whose names are free, without importing them."""
    return {name: entries for name, entries in _entry_points().items() if name not in _REGISTRY}


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return the distinct entry points of other packages by name."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=TASK_GROUP):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: list(entries.values()) for name, entries in found.items()}


def _load(name: str, entries: list[EntryPoint]) -> _Entry:
    """Import a task of another package."""
    if len(entries) > 1:
        values = " and ".join(repr(entry.value) for entry in entries)
        raise TaskError(
            f"{_what(name)} is defined more than once, as {values}; uninstall all but one."
        )
    (entry,) = entries
    try:
        loaded = entry.load()
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise TaskError(
            f"{_what(name)} cannot be loaded: {entry.value!r} raised {summarize_error(error)}; "
            "fix or uninstall it."
        ) from error
    if not callable(loaded):
        raise TaskError(
            f"{_what(name)} is {type_of(loaded)}; it must be a function that returns a task."
        )
    lines = (getattr(loaded, "__doc__", None) or "").strip().splitlines()
    return _Entry(loaded, lines[0] if lines else f"from {entry.value}")


def _what(name: str) -> str:
    return f"entry point {name!r} of group {TASK_GROUP!r}"
