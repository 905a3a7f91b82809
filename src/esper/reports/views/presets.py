"""How the settings of a run differ from a preset."""

from __future__ import annotations

import json
import tomllib
from functools import lru_cache
from typing import Any, TypedDict

from esper.config.toml import preset_names, preset_text


class PresetView(TypedDict):
    """The preset that a run's settings are nearest to, and where they differ from it."""

    name: str
    differs: dict[str, str | None]
    """The preset's value of each setting that differs, as in a file; None if it has no such
    setting."""


def nearest_preset(text: str) -> PresetView:
    """Return the preset with the fewest differences from settings, if possible of the same task.

    Runs do not record which preset they started from: a configuration file holds every setting.

    Args:
        text: The settings of a run, as TOML.
    """
    name, differs = _nearest(text)
    return {"name": name, "differs": dict(differs)}


@lru_cache(maxsize=64)
def _nearest(text: str) -> tuple[str, tuple[tuple[str, str | None], ...]]:
    """Return the preset's name, and its value of each setting that differs."""
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
    return name, tuple((key, json.dumps(preset[key]) if key in preset else None) for key in differs)


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by their whole names."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, dict):
            found |= _flat(value, f"{prefix}{key}.")  # pyright: ignore[reportUnknownArgumentType]
        else:
            found[f"{prefix}{key}"] = value
    return found
