"""How this process was invoked, so that printed commands can be pasted into a shell."""

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
    """Return the shell command that runs Esper the way this process was run.

    That is ``esper`` if the shell finds this script under that name, or if this process is not the
    command line; otherwise the path of the script, or ``python -m esper``.
    """
    called = Path(sys.argv[0] if sys.argv else "")
    if called.name == "__main__.py" and called.parent.name == NAME:
        return f"{_callable_path(Path(sys.executable))} -m {NAME}"
    if called.name != NAME or not called.is_file():
        return NAME
    return _callable_path(called)


def _callable_path(path: Path) -> str:
    """Return a program's name if the shell finds it, otherwise its path, relative if possible."""
    found = shutil.which(path.name)
    # Not resolved, because the Python of an environment links to one without its packages.
    if found is not None and os.path.abspath(found) == os.path.abspath(path):
        return path.name
    here = Path.cwd()
    if path.is_absolute() and path.is_relative_to(here):
        path = path.relative_to(here)
    text = str(path)
    return shlex.quote(text if os.sep in text else f".{os.sep}{text}")


_IRRELEVANT = ("checkpoints", "telemetry")
"""Sections that don't affect what is learned."""


def training_command(config: RunConfig) -> str:
    """Return the shell command that trains with these settings, based on the nearest preset."""
    preset, differs = nearest_preset(config)
    # Another task than the preset's has a budget of its own, unless one is given.
    whole = ["budget"] if "task" in differs else []
    changed = [
        setting
        for setting in settings_of(config)
        if setting.section not in _IRRELEVANT
        and (
            setting.section in whole
            or any(f"{path}.".startswith(f"{setting.path}.") for path in differs)
        )
    ]
    args = [arg for setting in changed for arg in _arguments(setting)]
    return shlex.join(["esper", "train", "--preset", preset, *args])


def nearest_preset(config: RunConfig) -> tuple[str, dict[str, str | None]]:
    """Return the preset with the fewest differences from settings, if possible of the same task.

    With it come its own values of the settings that differ, by path and as in a file; None if it
    has no such option of the task. Runs do not record which preset they started from.
    """
    own = _texts_of(config)
    found: dict[str, dict[str, str | None]] = {}
    for name in preset_names():
        preset = _texts_of(load_preset(name))
        paths = [path for path in own | preset if own.get(path) != preset.get(path)]
        found[name] = {path: preset.get(path) for path in paths}
    nearest = min(found, key=lambda name: ("task" in found[name], len(found[name])))
    return nearest, found[nearest]


def settings_of_method(config: RunConfig) -> dict[str, str]:
    """Return the settings that seeds of one method share, as in a file, by path."""
    own = _texts_of(config).items()
    return {
        path: text
        for path, text in own
        if path not in ("seed", "threads") and path.partition(".")[0] not in _IRRELEVANT
    }


def _texts_of(config: RunConfig) -> dict[str, str]:
    """Return all settings as in a file, by path; those of a table one by one."""
    texts: dict[str, str] = {}
    for setting in settings_of(config):
        value = setting.default
        if isinstance(value, dict):
            table = cast(dict[str, Any], value)
            texts |= {f"{setting.path}.{key}": value_text(item) for key, item in table.items()}
        else:
            texts[setting.path] = value_text(value)
    return texts


def _arguments(setting: Setting) -> list[str]:
    """Return a setting as command-line arguments."""
    value: Any = setting.default
    section = f"{setting.section}." if setting.section else ""
    name = setting.name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{section}{name}" if value else f"--{section}no-{name}"]
    flag = f"--{section}{name}"
    if isinstance(value, dict):
        table = cast(dict[str, Any], value)
        return [flag, *(f"{key_text(key)}={value_text(item)}" for key, item in table.items())]
    if isinstance(value, tuple):
        return [flag, *map(str, cast("tuple[object, ...]", value))]
    return [flag, NONE if value is None else str(value)]
