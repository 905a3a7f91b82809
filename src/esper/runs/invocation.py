"""How the command ``esper`` is called here, so that a command we print can be pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path

NAME = "esper"


def program() -> str:
    """Return the words that call the command as this process was called.

    That is ``esper`` where a shell finds this very script under that name, or where this process
    is not the command; else the path of the script, or ``python -m esper``.
    """
    called = Path(sys.argv[0] if sys.argv else "")
    if called.name == "__main__.py" and called.parent.name == NAME:
        return f"{_callable_path(Path(sys.executable))} -m {NAME}"
    if called.name != NAME or not called.is_file():
        return NAME
    return _callable_path(called)


def _callable_path(path: Path) -> str:
    """Return a program's name if a shell finds it there, else its path, short if it is below."""
    found = shutil.which(path.name)
    # Not resolved: the python of an environment is a link to one that lacks its packages.
    if found is not None and os.path.abspath(found) == os.path.abspath(path):
        return path.name
    here = Path.cwd()
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    text = str(path)
    return shlex.quote(text if os.sep in text else f".{os.sep}{text}")
