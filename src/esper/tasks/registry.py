"""Tasks by name: the built-in ones, those of other packages, and those in a user's own file.

A task is registered with a function that makes it from options given by name. Other packages name
theirs under the entry point group ``esper.tasks``; they are imported when one is made or described.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from esper.errors import EsperError, TaskError, UnknownTaskError, did_you_mean
from esper.tasks.task import Task
from esper.tasks.user_code import (
    FAILURES,
    call_with_options,
    describe,
    load_own_task,
    module_folder,
)

ENTRY_POINT_GROUP = "esper.tasks"


@dataclass(frozen=True)
class _Entry:
    make: Callable[..., object]
    summary: str


_REGISTRY: dict[str, _Entry] = {}


def register_task(name: str, make: Callable[..., Task], *, summary: str) -> None:
    """Make a task known by its name; a name can be taken once.

    Args:
        name: What users call the task.
        make: Returns the task; its parameters are the task's options, given by name.
        summary: What the task is, in a few words.

    Raises:
        TaskError: If the name is taken, or is not a word without a colon.
    """
    if not isinstance(name, str) or not name or ":" in name:
        raise TaskError(f"a task's name is {name!r}; it must be a word without a colon.")
    if name in _REGISTRY:
        raise TaskError(f"task {name!r} is registered already; choose another name.")
    if not callable(make):
        raise TaskError(f"make of task {name!r} is {make!r}; it must be a function.")
    _REGISTRY[name] = _Entry(make, summary)


def task_names() -> tuple[str, ...]:
    """Return the names of all tasks: the built-in ones first, then other packages'."""
    return (*_REGISTRY, *_offered())


def task_summaries() -> dict[str, str]:
    """Return what each task is; of one that cannot be loaded, why, and what was left out."""
    summaries = {name: entry.summary for name, entry in _REGISTRY.items()}
    for name, offers in _entry_points().items():
        if name in _REGISTRY:
            left_out = ", ".join(repr(offer.value) for offer in offers)
            summaries[name] += f" ({_what(name)}, {left_out}, has this name too and is left out)"
            continue
        try:
            summaries[name] = _load(name, offers).summary
        except EsperError as error:
            summaries[name] = str(error)
    return summaries


def make_task(name: str, **options: Any) -> Task:
    """Return the task of this name, made with these options.

    Args:
        name: A registered name, or ``"my_module:make_task"`` for a function of your own that
            returns a task; the module is also looked for in the current folder.
        options: What the task's function takes.

    Raises:
        UnknownTaskError: If there is no such task.
        TaskError: If the task does not take an option, or making it fails.
    """
    if not isinstance(name, str):
        raise UnknownTaskError(
            f"a task's name is {name!r}; it must be one of {', '.join(task_names())}, or "
            "'module:function'."
        )
    if ":" in name:
        with module_folder():
            return _made(name, load_own_task(name), options)
    if name in _REGISTRY:
        return _made(name, _REGISTRY[name].make, options)
    offered = _offered()
    if name in offered:
        return _made(name, _load(name, offered[name]).make, options)
    names = (*_REGISTRY, *offered)
    raise UnknownTaskError(
        f"there is no task {name!r}; there are {', '.join(names)}, and 'module:function' for one "
        f"of your own.{did_you_mean(name, names)}"
    )


def _made(name: str, make: Callable[..., object], options: dict[str, Any]) -> Task:
    task = call_with_options(name, make, options)
    if not isinstance(task, Task):
        raise TaskError(
            f"task {name!r} returned a {type(task).__name__}; it must return an esper.tasks.Task."
        )
    return task


def _offered() -> dict[str, list[EntryPoint]]:
    """Return what other packages offer under names that are free, without importing it."""
    return {name: offers for name, offers in _entry_points().items() if name not in _REGISTRY}


def _entry_points() -> dict[str, list[EntryPoint]]:
    """Return all that other packages offer, by name; one object is offered once."""
    found: dict[str, dict[str, EntryPoint]] = {}
    for entry in entry_points(group=ENTRY_POINT_GROUP):
        found.setdefault(entry.name, {}).setdefault(entry.value, entry)
    return {name: list(offers.values()) for name, offers in found.items()}


def _load(name: str, offers: list[EntryPoint]) -> _Entry:
    """Return the task that another package offers."""
    if len(offers) > 1:
        values = " and ".join(repr(offer.value) for offer in offers)
        raise TaskError(
            f"{_what(name)} is offered more than once, as {values}; remove all but one."
        )
    (entry,) = offers
    try:
        loaded = entry.load()
    except FAILURES as error:
        raise TaskError(
            f"{_what(name)} cannot be loaded, it raised {describe(error)}; repair or remove "
            f"{entry.value!r}."
        ) from error
    if not callable(loaded):
        raise TaskError(
            f"{_what(name)} is a {type(loaded).__name__}; it must be a function that returns a "
            "task."
        )
    lines = (getattr(loaded, "__doc__", None) or "").strip().splitlines()
    return _Entry(loaded, lines[0] if lines else f"from {entry.value}")


def _what(name: str) -> str:
    return f"entry point {name!r} of group {ENTRY_POINT_GROUP!r}"
