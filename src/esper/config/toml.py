"""Configuration files: settings of a run read from TOML, strictly, and written with comments."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar, cast

from esper.config.run import RunConfig
from esper.config.schema import (
    checked_value,
    docs_of,
    first_sentence,
    hints_of,
    is_section,
    is_table,
    key_text,
    settings_of,
    shown,
    value_text,
)
from esper.errors import ConfigError, did_you_mean

Section = TypeVar("Section")
_WIDTH = 98


def read_toml(text: str, *, source: str) -> RunConfig:
    """Return the settings that a text gives; those that it leaves out have their defaults.

    Args:
        text: TOML.
        source: Where the text is from, for messages.

    Raises:
        ConfigError: If the text is not TOML, or names something that is not a setting, or gives
            one a value that is not allowed.
    """
    try:
        values = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {_reason(error, text)}.") from error
    except RecursionError as error:
        raise ConfigError(f"{source} is not valid TOML: it is nested too deeply.") from error
    try:
        return _changed(RunConfig(), values, "")
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def read_toml_file(path: str | PathLike[str]) -> RunConfig:
    """Return the settings in a file.

    Raises:
        ConfigError: If the file cannot be read, or what it says cannot be used.
    """
    place = Path(path)
    try:
        text = place.read_bytes().decode("utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"there is no configuration file {str(place)!r}.") from error
    except IsADirectoryError as error:
        raise ConfigError(f"{str(place)!r} is a folder; a configuration is a file.") from error
    except UnicodeDecodeError as error:
        line = place.read_bytes()[: error.start].count(b"\n") + 1
        raise ConfigError(
            f"{place} is not text in UTF-8 (line {line}); save it with that encoding."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(f"{str(place)!r} cannot be read: {error}.") from error
    return read_toml(text, source=str(place))


def write_toml(config: RunConfig) -> str:
    """Return every setting as TOML, each below what it means; it reads back as an equal one."""
    return "\n".join(_section_lines(config, "")).lstrip("\n") + "\n"


def override(config: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """Return settings with some changed, checked as strictly as a file is.

    Args:
        config: The settings to start from.
        changes: Values by path, such as ``"ppo.learning_rate"`` or ``"task_options.n_epochs"``.
            Names of whole sections and tables replace these; tables are then complete.

    Raises:
        ConfigError: If a path is not a setting's, or a value is not allowed.
    """
    nested: dict[str, Any] = {}
    for path, value in changes.items():
        if not isinstance(path, str):
            raise ConfigError(f"a setting's path is {shown(path)}; it must be a text.")
        first, _, rest = path.partition(".")
        if not rest:
            nested[first] = value
            continue
        if is_table(hints_of(RunConfig).get(first)):
            nested.setdefault(first, dict(getattr(config, first)))
        inner = nested.setdefault(first, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{first} and {path} are both changed; change one of them.")
        inner[rest] = value
    return _changed(config, nested, "")


def _changed(config: Section, values: Mapping[str, object], prefix: str) -> Section:
    """Return a section with these values in place of its own."""
    hints = hints_of(type(config))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if key not in hints:
            raise ConfigError(_unknown(prefix, key, value, list(hints)))
        path = prefix + key
        if not is_section(hints[key]):
            changes[key] = checked_value(path, value, hints[key])
        elif isinstance(value, hints[key]):
            changes[key] = value
        elif isinstance(value, Mapping):
            section = cast("Mapping[str, object]", value)
            changes[key] = _changed(getattr(config, key), section, f"{path}.")
        else:
            raise ConfigError(
                f"{path} is {shown(value)}; it is a section: write [{path}] and its settings below."
            )
    try:
        return replace(cast("Any", config), **changes)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _unknown(prefix: str, key: str, value: object, names: list[str]) -> str:
    """Return what is wrong with a name that is not a setting, and which was meant."""
    what = "section" if isinstance(value, Mapping) else "setting"
    elsewhere = [setting.path for setting in settings_of() if setting.name == key]
    if elsewhere:
        near = " Did you mean " + " or ".join(repr(path) for path in elsewhere) + "?"
    else:
        near = did_you_mean(key, names) or f" There are {', '.join(names)}."
    return f"{prefix}{key_text(key)} is not a {what}.{near}"


def _section_lines(config: object, prefix: str) -> list[str]:
    """Return the lines of a section: its own settings, then the sections in it."""
    docs, hints = docs_of(type(config)), hints_of(type(config))
    lines: list[str] = []
    for name, hint in hints.items():
        if not is_section(hint) and not is_table(hint):
            lines += ["", *_comment(docs[name]), f"{name} = {value_text(getattr(config, name))}"]
    for name, hint in hints.items():
        value = getattr(config, name)
        if is_section(hint) or is_table(hint):
            lines += ["", *_comment(docs[name]), f"[{prefix}{name}]"]
        if is_table(hint):
            lines += [f"{key_text(key)} = {value_text(item)}" for key, item in value.items()]
        elif is_section(hint):
            lines += _section_lines(value, f"{prefix}{name}.")
    return lines


def _comment(doc: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(first_sentence(doc), _WIDTH - 2)]


def _reason(error: ValueError, text: str) -> str:
    """Return what a parser says against a text, with the line that it is about."""
    reason = str(error).rstrip(".").replace("Cannot overwrite a value", "a setting is given twice")
    found = re.fullmatch(
        r"(.*) \(at (?:line (\d+), column \d+|end of document)\)", reason, re.DOTALL
    )
    if found is None:
        return reason
    lines = text.rstrip("\r\n").split("\n")
    number = min(int(found[2] or len(lines)), len(lines))
    return f"line {number}, {shown(lines[number - 1])}: {found[1]}"


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
