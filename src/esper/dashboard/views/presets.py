"""How the settings of a run differ from a preset, and the command that trains with them."""

from __future__ import annotations

import json
import tomllib
from functools import lru_cache
from typing import Any

from esper.config.toml import preset_names, preset_text, read_toml
from esper.dashboard.views.values import Row
from esper.invocation import training_command


def nearest_preset(text: str) -> Row:
    """Return the preset with the fewest differences from settings, if possible of the same task.

    It has its ``name``, the ``command`` that trains with the same settings and, where it
    ``differs``, its own value as in a file; None if it has no such setting. Runs do not record
    which preset they started from: a configuration file holds every setting.

    Args:
        text: The settings of a run, as TOML.
    """
    name, differs, command = _nearest(text)
    return {"name": name, "differs": dict(differs), "command": command}


@lru_cache(maxsize=64)
def _nearest(text: str) -> tuple[str, tuple[tuple[str, str | None], ...], str]:
    """Return the preset's name, its value of each setting that differs, and the command."""
    own = _flat(tomllib.loads(text))
    presets = {name: _flat(tomllib.loads(preset_text(name))) for name in preset_names()}
    differing = {
        name: {key for key in own.keys() | preset.keys() if own.get(key) != preset.get(key)}
        for name, preset in presets.items()
    }
    name = min(differing, key=lambda one: ("task" in differing[one], len(differing[one]), one))
    preset = presets[name]
    order = [*own, *(key for key in preset if key not in own)]
    differs = [key for key in order if key in differing[name]]
    values = ((key, json.dumps(preset[key]) if key in preset else None) for key in differs)
    return name, tuple(values), training_command(read_toml(text, source="the run's record"))


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their whole names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = value
    return found
