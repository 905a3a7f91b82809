"""Finding the function that ``module:function`` names in a user's own code."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import ModuleType

from esper.errors import TaskError, UnknownTaskError, did_you_mean
from esper.tasks.own_functions import FAILURES, describe


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
