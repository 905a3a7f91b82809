"""How the command ``esper`` is called here, so that a command we print can be pasted."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any, cast

from esper.config.run import RunConfig
from esper.config.schema import NONE, Setting, key_text, settings_of, value_text
from esper.config.toml import load_preset, preset_names

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


_LEFT_OUT = ("checkpoints", "telemetry")
"""Sections that change nothing of what is learned."""


def training_command(config: RunConfig) -> str:
    """Return the words of a shell that train with these settings, from the nearest preset."""
    settings = {setting.path: setting for setting in settings_of(config)}
    by_preset = {name: _changes(settings, load_preset(name)) for name in preset_names()}
    preset = min(by_preset, key=lambda name: len(by_preset[name]))
    words = [word for setting in by_preset[preset] for word in _words(setting)]
    return shlex.join(["esper", "train", "--preset", preset, *words])


def _changes(settings: dict[str, Setting], start: RunConfig) -> list[Setting]:
    """Return the settings that are not as in a preset and decide what is learned."""
    before = {setting.path: setting.default for setting in settings_of(start)}
    return [
        setting
        for path, setting in settings.items()
        if setting.section not in _LEFT_OUT and before[path] != setting.default
    ]


def _words(setting: Setting) -> list[str]:
    """Return the flag of a setting and its value, as the command takes them."""
    value: Any = setting.default
    section = f"{setting.section}." if setting.section else ""
    name = setting.name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{section}{name}" if value else f"--{section}no-{name}"]
    flag = f"--{section}{name}"
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        return [flag, *(f"{key_text(key)}={value_text(item)}" for key, item in table.items())]
    return [flag, NONE if value is None else str(value)]
