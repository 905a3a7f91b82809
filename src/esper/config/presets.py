"""Presets: complete configurations that come with Esper, each a file in the folder beside this."""

from __future__ import annotations

from pathlib import Path

from esper.config.run import RunConfig
from esper.config.toml import read_toml
from esper.errors import ConfigError, did_you_mean

_FOLDER = Path(__file__).with_name("presets")

DEFAULT_PRESET = "quick"
"""What a run starts from that names neither a preset nor a file."""


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, in the order of the alphabet."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def preset_text(name: str) -> str:
    """Return the file of a preset: what it is for in comments, a blank line, every setting.

    Raises:
        ConfigError: If there is no such preset.
    """
    names = preset_names()
    if name not in names:
        hint = did_you_mean(name, names)
        raise ConfigError(f"there is no preset {name!r}; there are {', '.join(names)}.{hint}")
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def preset_summary(name: str) -> str:
    """Return what a preset is for: the first line of its file."""
    return preset_text(name).partition("\n")[0].lstrip("# ")


def load_preset(name: str) -> RunConfig:
    """Return the settings of a preset.

    Raises:
        ConfigError: If there is no such preset.
    """
    return read_toml(preset_text(name), source=f"preset {name}")
