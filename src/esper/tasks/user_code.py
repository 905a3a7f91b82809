"""Calling the functions that a user's task is made of, and saying which one failed and how."""

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

from esper.errors import EsperError, SlotError, TaskError, UnknownTaskError, did_you_mean
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


@contextmanager
def module_folder() -> Generator[None]:
    """Let modules be imported from the current folder, as ``python -m`` does."""
    folder = os.getcwd()
    sys.path.insert(0, folder)
    importlib.invalidate_caches()  # A file may be younger than the last look into its folder.
    try:
        yield
    finally:
        with suppress(ValueError):
            sys.path.remove(folder)


def load_own_task(name: str) -> Callable[..., object]:
    """Return the function that ``module:function`` names.

    Raises:
        UnknownTaskError: If there is no such module or function.
        TaskError: If the module cannot be imported, or the name is of something else.
    """
    module_name, _, function_name = name.partition(":")
    words = (*module_name.split("."), *function_name.split("."))
    if not all(word.isidentifier() for word in words):
        raise UnknownTaskError(
            f"task {name!r} is not a name of the form 'module:function'; write for example "
            "'my_module:make_task'."
        )
    found: object = _import(name, module_name)
    for word in function_name.split("."):
        if not hasattr(found, word):
            hint = did_you_mean(word, _functions(found))
            raise UnknownTaskError(
                f"task {name!r}: module {module_name!r} ({_file(module_name)}) has no "
                f"{function_name!r}.{hint}"
            )
        found = getattr(found, word)
    if not callable(found):
        raise TaskError(
            f"task {name!r} is a {type(found).__name__}; it must be a function that returns a task."
        )
    return found


def _import(name: str, module_name: str) -> ModuleType:
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        packages = [module_name.rsplit(".", n)[0] for n in range(module_name.count(".") + 1)]
        if error.name not in packages:
            raise _unimportable(name, module_name, error) from error
        raise UnknownTaskError(
            f"task {name!r}: there is no module {error.name!r}; looked in {os.getcwd()} and where "
            "Python looks. Change to its folder, or install it."
        ) from error
    except FAILURES as error:
        raise _unimportable(name, module_name, error) from error


def _unimportable(name: str, module_name: str, error: BaseException) -> TaskError:
    return TaskError(
        f"task {name!r}: module {module_name!r} cannot be imported, it raised {describe(error)}; "
        "repair it."
    )


def _functions(where: object) -> list[str]:
    return [name for name in dir(where) if callable(getattr(where, name, None)) and name[0] != "_"]


def _file(module_name: str) -> str:
    return getattr(sys.modules[module_name], "__file__", None) or "no file"
