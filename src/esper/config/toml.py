"""Configuration files and presets: strict reading of TOML, and writing with comments."""

from __future__ import annotations

import re
import textwrap
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import NoneType
from typing import Any, TypeVar, cast, get_args

from esper.config.checks import check, require_choice, types_of
from esper.config.growth import Budget
from esper.config.learning import PPOConfig
from esper.config.run import TASKS_BUDGET, RunConfig
from esper.config.schema import (
    NONE,
    first_sentence,
    is_section,
    is_table,
    key_text,
    settings_of,
    value_text,
    written_docs_of,
)
from esper.errors import ConfigError, did_you_mean, escape_controls, shown

Section = TypeVar("Section")
_WIDTH = 98
_MAX_CHARACTERS = 1_000_000


_DEEP_KEY = re.compile(
    r"""(?:^|[\[{,])[ \t]*+(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){64}""",
    re.ASCII | re.MULTILINE,
)
"""A dotted key of more than 64 parts; reading one takes the square of its length."""


def parse_toml(text: str) -> dict[str, Any]:
    """Return the values of a TOML text.

    Raises:
        ValueError: If it is not valid TOML, or too large or nested too deeply to be settings.
    """
    if len(text) > _MAX_CHARACTERS:
        raise ValueError(f"it has {len(text):,} characters; at most {_MAX_CHARACTERS:,} are read")
    if _DEEP_KEY.search(text):
        raise ValueError("it is nested too deeply")
    try:
        return tomllib.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


@dataclass(frozen=True, kw_only=True)
class SourcedConfig:
    """Settings, and where each comes from.

    The command line takes precedence, then a file, then the budget of the task, then the
    preset. The budget of a preset is meant for the task of that preset.
    """

    config: RunConfig
    base: str = "default"
    """Where settings come from that nothing else gave."""
    base_task: str | None = None
    """The task that the budget of the base is meant for; None if it is meant for none."""
    given: Mapping[str, str] = field(default_factory=dict[str, str])
    """Where other settings come from, by path."""

    def change(self, changes: Mapping[str, object], source: str) -> SourcedConfig:
        """Return the settings with some of them from another source, as :func:`override` does."""
        config = override(self.config, changes)
        sources = {
            f"ppo.{name}": source
            for name in ("batch_size", "n_minibatches")
            if getattr(config.ppo, name) != getattr(self.config.ppo, name)
        }
        sources |= _sources(changes, source)
        return replace(self, config=config, given={**self.given, **sources})

    def with_budget_of_task(self, budget: Budget) -> SourcedConfig:
        """Return the settings with the task's budget where no file or user gave another."""
        if not self.needs_task:
            return self
        paths = {f"budget.{name}": getattr(budget, name) for name in types_of(Budget)}
        missing = {path: value for path, value in paths.items() if path not in self.given}
        return self.change(missing, f"task {self.config.task}")

    @property
    def needs_task(self) -> bool:
        """Whether some of the budget is the task's own."""
        if self.base_task == self.config.task:
            return False
        return any(f"budget.{name}" not in self.given for name in types_of(Budget))

    def source_of(self, path: str) -> str:
        """Return where a setting comes from."""
        while path and path not in self.given:
            path = path.rpartition(".")[0]
        return self.given.get(path, self.base)


def _sources(changes: Mapping[str, object], source: str) -> dict[str, str]:
    """Return the source of each changed setting, by path; a section as a whole gives all of it."""
    found: dict[str, str] = {}
    for path, value in changes.items():
        if is_section(type(value)):
            found |= {f"{path}.{name}": source for name in types_of(type(value))}
        elif isinstance(value, Mapping):
            names = cast("Mapping[str, object]", value)
            found |= {f"{path}.{name}": source for name in names}
        else:
            found[path] = source
    return found


def source_config(config: RunConfig) -> SourcedConfig:
    """Return settings that a program gave; their own budget is taken as given."""
    sourced = SourcedConfig(config=config, base="RunConfig")
    if config.budget is TASKS_BUDGET:
        return sourced
    return sourced.change({"budget": config.budget}, sourced.base)


def read_toml(text: str, *, source: str) -> RunConfig:
    """Return settings from TOML; missing ones have their defaults."""
    return read_sourced(text, source=source).config


def read_sourced(text: str, *, source: str) -> SourcedConfig:
    """Return settings from TOML with their sources; missing ones have their defaults.

    Args:
        text: TOML text.
        source: Where the text is from, for messages.

    Raises:
        ConfigError: If the text is not TOML, or a setting is unknown or has an invalid value.
    """
    try:
        values = parse_toml(text)
    except ValueError as error:
        raise ConfigError(f"{source} is not valid TOML: {_reason(error, text)}.") from error
    try:
        return SourcedConfig(config=RunConfig()).change(values, source)
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def write_toml(config: RunConfig | SourcedConfig) -> str:
    """Return all settings as TOML with comments; it reads back as an equal configuration.

    The comments say where each setting comes from if that is known. A record of the user's own
    training or of PPO has only the settings that matter for it.
    """
    sourced = config if isinstance(config, SourcedConfig) else None
    config = config.config if isinstance(config, SourcedConfig) else config
    names = _OWN_TRAINING if config.is_own_training else None
    names = _PPO_TRAINING if config.is_ppo_training else names
    return "\n".join(_section_lines(config, "", names, sourced)).lstrip("\n") + "\n"


def override(config: RunConfig, changes: Mapping[str, object]) -> RunConfig:
    """Return settings with some changed, validated as strictly as a file.

    Args:
        config: The settings to start from.
        changes: Values by path, such as ``"ppo.learning_rate"`` or ``"task_options.n_epochs"``.
            The name of a section or table replaces all of it.

    Raises:
        ConfigError: If a path is unknown or a value is invalid.
    """
    nested: dict[str, Any] = {}
    for path, value in changes.items():
        if not isinstance(path, str):
            raise ConfigError(f"a setting's path is {shown(path)}; it must be a string.")
        first, _, rest = path.partition(".")
        if not rest:
            nested[first] = value
            continue
        if is_table(types_of(RunConfig).get(first)):
            nested.setdefault(first, dict(getattr(config, first)))
        inner = nested.setdefault(first, {})
        if not isinstance(inner, dict):
            raise ConfigError(f"{first} and {path} are both changed; change only one.")
        inner[rest] = value
    changed = _changed(config, nested, "")
    if {"ppo.batch_size", "ppo.n_minibatches"} <= changes.keys():
        changed.ppo.require_agreement(changed.envs, changed.n_steps, "ppo.")
    return changed


def _changed(config: Section, values: Mapping[str, object], prefix: str) -> Section:
    """Return a section with some values replaced."""
    hints = types_of(type(config))
    changes: dict[str, Any] = {}
    for key, value in values.items():
        if not isinstance(key, str):
            raise ConfigError(f"a name in {prefix[:-1]} is {shown(key)}; it must be a string.")
        if key not in hints:
            raise ConfigError(_unknown(prefix, key, value, list(hints)))
        path = prefix + key
        if not is_section(hints[key]):
            # Files spell None as "none".
            is_none = isinstance(value, str) and value == NONE and NoneType in get_args(hints[key])
            changes[key] = check(
                path, None if is_none else value, hints[key], none=value_text(None)
            )
        elif isinstance(value, hints[key]):
            changes[key] = value
        elif isinstance(value, Mapping):
            section = cast("Mapping[str, object]", value)
            changes[key] = _changed(getattr(config, key), section, f"{path}.")
        else:
            raise ConfigError(
                f"{path} is {shown(value)}; it must be a section [{path}] with its settings below."
            )
    if isinstance(config, PPOConfig):  # one says how large minibatches are, and unsets the other
        if "batch_size" in changes:
            changes.setdefault("n_minibatches", None)
        elif changes.get("n_minibatches") is not None:
            changes["batch_size"] = PPOConfig.batch_size
    try:
        return replace(cast("Any", config), **changes)
    except ConfigError as error:
        raise ConfigError(f"{prefix}{error}") from error


def _unknown(prefix: str, key: str, value: object, names: list[str]) -> str:
    """Return the message about an unknown name, with a suggestion."""
    what = "section" if isinstance(value, Mapping) else "setting"
    elsewhere = [setting.path for setting in settings_of() if setting.name == key]
    if elsewhere:
        near = " Did you mean " + " or ".join(repr(path) for path in elsewhere) + "?"
    else:
        near = did_you_mean(key, names) or f" Choose one of {', '.join(names)}."
    return f"{prefix}{key_text(key)} is not a {what}.{near}"


_OWN_TRAINING = ("task", "task_options", "rounds", "envs", "n_steps", "seed", "threads", "budget")
_PPO_TRAINING = ("task", "task_options", "rounds", "envs", "n_steps", "seed", "threads", "ppo")


def _section_lines(
    config: object,
    prefix: str,
    names: tuple[str, ...] | None = None,
    sourced: SourcedConfig | None = None,
) -> list[str]:
    """Return the lines of a section, or of some of its names: settings, then subsections."""
    docs, hints = written_docs_of(type(config)), types_of(type(config))
    hints = hints if names is None else {name: hints[name] for name in names}

    def line(name: str, value: object, path: str) -> str:
        source = "" if sourced is None else f"  # {escape_controls(sourced.source_of(path))}"
        return f"{name} = {value_text(value)}{source}"

    lines: list[str] = []
    for name, hint in hints.items():
        if not is_section(hint) and not is_table(hint):
            value = getattr(config, name)
            lines += ["", *_comment(docs[name]), line(name, value, f"{prefix}{name}")]
    for name, hint in hints.items():
        value = getattr(config, name)
        if is_section(hint) or is_table(hint):
            lines += ["", *_comment(docs[name]), f"[{prefix}{name}]"]
        if is_table(hint):
            items = value.items()
            lines += [line(key_text(key), item, f"{prefix}{name}.{key}") for key, item in items]
        elif is_section(hint):
            lines += _section_lines(value, f"{prefix}{name}.", sourced=sourced)
    return lines


def _comment(doc: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(first_sentence(doc), _WIDTH - 2)]


def _reason(error: ValueError, text: str) -> str:
    """Return the message of a TOML error, with its line."""
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
"""The preset used if neither a preset nor a file is given."""


def preset_names() -> tuple[str, ...]:
    """Return the names of all presets, sorted."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*.toml")))


def preset_text(name: str) -> str:
    """Return the file of a preset: a comment on its purpose, then all settings.

    Raises:
        ConfigError: If the preset is unknown.
    """
    require_choice("preset", name, preset_names())
    return (_FOLDER / f"{name}.toml").read_text(encoding="utf-8")


def load_preset(name: str) -> RunConfig:
    """Return the settings of a preset.

    Raises:
        ConfigError: If the preset is unknown.
    """
    return read_toml(preset_text(name), source=f"preset {name}")


def load_sourced_preset(name: str) -> SourcedConfig:
    """Return the settings of a preset, with that source.

    Raises:
        ConfigError: If the preset is unknown.
    """
    config = load_preset(name)
    return SourcedConfig(config=config, base=f"preset {name}", base_task=config.task)
