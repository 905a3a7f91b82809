"""The command that trains with given settings again."""

from __future__ import annotations

import shlex
from typing import Any, cast

from esper.config.presets import load_preset, preset_names
from esper.config.run import RunConfig
from esper.config.schema import Setting, settings_of
from esper.config.values import NONE, key_text, value_text

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
