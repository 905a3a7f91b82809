"""Calling the functions of a user's task, with errors that name the failing function."""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from inspect import Parameter
from types import ModuleType
from typing import Any

from torch import nn

from esper.errors import (
    EsperError,
    SlotError,
    TaskError,
    UnknownTaskError,
    did_you_mean,
    shown,
    summarize_error,
    type_of,
)
from esper.growth.host_slots import slots
from esper.growth.hosts import HostMaker


def require_function_of_seed(what: str, function: object) -> None:
    """Reject anything that cannot be called with one seed.

    Raises:
        TaskError: The message starts with ``what``.
    """
    if not callable(function):
        raise TaskError(f"{what} is {function!r}; it must be a function of a seed.")
    if isinstance(function, HostMaker):
        return
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # A callable without a signature.
        return
    try:
        signature.bind(0)
    except TypeError as error:
        raise TaskError(
            f"{what} takes {signature}, so it cannot be called with a seed ({error}); it must take "
            "one positional argument."
        ) from error


def call_with_seed(what: str, function: Callable[[int], Any], seed: int) -> Any:
    """Call a function with a seed.

    Raises:
        TaskError: If it raises anything but an :class:`EsperError`, which passes unchanged.
    """
    try:
        return function(seed)
    except (EsperError, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise TaskError(f"{what} raised {summarize_error(error)} for seed {seed}.") from error


@dataclass(frozen=True)
class CheckedHostMaker:
    """Calls a user's host factory and checks its result."""

    what: str
    """The name of the function in messages."""
    function: Callable[[int], Any]

    def __call__(self, seed: int) -> nn.Module:
        """Return the host of a seed.

        Raises:
            TaskError: If the function fails or does not return a new model with slots.
        """
        made = call_with_seed(self.what, self.function, seed)
        if not isinstance(made, nn.Module):
            raise TaskError(
                f"{self.what} returned {shown(made)}; it must return a model with slots."
            )
        try:
            is_in_use = bool(slots(made).listeners)
        except SlotError as error:
            raise TaskError(f"{self.what} returned a model without slots: {error}") from error
        if is_in_use:
            raise TaskError(
                f"{self.what} returned the model of another host; it must return a new one each "
                "time, such as copy.deepcopy(model)."
            )
        return made


def checked_host_maker(what: str, function: Callable[[int], nn.Module]) -> Callable[[int], Any]:
    """Return a host factory whose results are checked; Esper's own are returned unchanged."""
    if isinstance(function, (HostMaker, CheckedHostMaker)):
        return function
    require_function_of_seed(what, function)
    return CheckedHostMaker(what, function)


def call_with_options(task: str, make: Callable[..., object], options: Mapping[str, Any]) -> object:
    """Call a task's function with options.

    Raises:
        TaskError: If an option is unknown or missing, or the function raises anything but an
            :class:`EsperError`, which passes unchanged.
    """
    _check_options(task, make, options)
    try:
        return make(**options)
    except (EsperError, KeyboardInterrupt):
        raise
    except BaseException as error:
        where = f"{getattr(make, '__module__', '?')}.{getattr(make, '__qualname__', repr(make))}"
        raise TaskError(
            f"task {task!r}: {where} raised {summarize_error(error)}; fix it or its options."
        ) from error


def _check_options(task: str, make: Callable[..., object], options: Mapping[str, Any]) -> None:
    try:
        parameters = inspect.signature(make).parameters.values()
    except (TypeError, ValueError):  # A callable without a signature.
        return
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    takes = [each.name for each in parameters if each.kind in named]
    takes_any = any(each.kind == Parameter.VAR_KEYWORD for each in parameters)
    shown = [f"{name} (budget.n_epochs in a run)" if name == "n_epochs" else name for name in takes]
    allowed = f"its options are {', '.join(shown)}" if takes else "it takes none"
    for name in options:
        if name not in takes and not takes_any:
            hint = did_you_mean(name, takes)
            raise TaskError(f"task {task!r} has no option {name!r}; {allowed}.{hint}")
    for each in parameters:
        if each.kind in named and each.default is Parameter.empty and each.name not in options:
            raise TaskError(f"task {task!r} needs option {each.name!r}; {allowed}.")


@contextmanager
def module_folder() -> Generator[None]:
    """Allow imports from the current folder, as ``python -m`` does."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # The file may be newer than the cached folder listing.
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def load_own_task(name: str) -> Callable[..., object]:
    """Import the function of a name like ``module:function``.

    Raises:
        UnknownTaskError: If there is no such module or function.
        TaskError: If the module cannot be imported, or the name is not of a function.
    """
    module_name, _, function_name = name.partition(":")
    words = (*module_name.split("."), *function_name.split("."))
    if not all(word.isidentifier() for word in words):
        raise UnknownTaskError(
            f"task {name!r} does not have the form 'module:function'; an example is "
            "'my_module:make_task'."
        )
    found: object = _import(name, module_name)
    for word in function_name.split("."):
        if not hasattr(found, word):
            functions = [n for n in dir(found) if callable(getattr(found, n, None)) and n[0] != "_"]
            file = getattr(sys.modules[module_name], "__file__", None) or "no file"
            raise UnknownTaskError(
                f"task {name!r}: module {module_name!r} ({file}) has no {function_name!r}."
                f"{did_you_mean(word, functions)}"
            )
        found = getattr(found, word)
    if not callable(found):
        raise TaskError(
            f"task {name!r} is {type_of(found)}; it must be a function that returns a task."
        )
    return found


def _import(name: str, module_name: str) -> ModuleType:
    packages = [module_name.rsplit(".", n)[0] for n in range(module_name.count(".") + 1)]
    try:
        return importlib.import_module(module_name)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name in packages:
            raise UnknownTaskError(
                f"task {name!r}: there is no module {error.name!r} in {os.getcwd()} or on Python's "
                "path; change to its folder or install it."
            ) from error
        raise TaskError(
            f"task {name!r}: importing module {module_name!r} raised {summarize_error(error)}; fix "
            "it."
        ) from error
