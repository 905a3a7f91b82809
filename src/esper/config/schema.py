"""What settings there are: their paths, types, defaults and explanations, from the dataclasses.

A path names a setting from the top: ``rounds``, or ``ppo.learning_rate`` in the section ``ppo``.
"""

from __future__ import annotations

import ast
import inspect
import math
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from types import NoneType, UnionType
from typing import Any, Literal, Union, cast, get_args, get_origin, get_type_hints

from esper.config.run import RunConfig
from esper.errors import ConfigError, did_you_mean

NONE = "none"
"""How None is written, for TOML has no word for it."""

_WORDS = {bool: "true or false", int: "a whole number", float: "a finite number", str: "a text"}
_MOST_SHOWN = 60
_MISFIT = object()


def checked_value(path: str, value: object, hint: Any) -> Any:
    """Return a value as a setting of this type has it.

    Args:
        path: Where the setting is, for the message.
        value: What a file or a user gives.
        hint: The setting's type: a plain one, a Literal, a tuple or a dict of these, or a union.

    Raises:
        ConfigError: If the value is not of that type. True is no number and 1.0 no whole number;
            a whole number is also a number, and a number is finite.
    """
    for member in _members(hint):
        if get_origin(member) is tuple and isinstance(value, (list, tuple)):
            items = cast("Sequence[object]", value)
            kind = get_args(member)[0]
            return tuple(checked_value(f"{path}[{i}]", item, kind) for i, item in enumerate(items))
        if get_origin(member) is dict and isinstance(value, Mapping):
            return _checked_table(path, cast("Mapping[object, object]", value), member)
        fitting = _fitting(value, member)
        if fitting is not _MISFIT:
            return fitting
    words = [word for member in _members(hint) for word in _choices(member)]
    near = did_you_mean(value, words) if isinstance(value, str) else ""
    raise ConfigError(f"{path} is {shown(value)}; it must be {allowed_words(hint)}.{near}")


def allowed_words(hint: Any) -> str:
    """Return in words what a setting of this type may be."""
    members = _members(hint)
    if NoneType in members:
        others = [member for member in members if member is not NoneType]
        return f'{" or ".join(allowed_words(member) for member in others)}, or "{NONE}"'
    if len(members) > 1:
        return " or ".join(allowed_words(member) for member in members)
    if get_origin(hint) is Literal:
        return f"one of {', '.join(value_text(choice) for choice in get_args(hint))}"
    if get_origin(hint) is tuple:
        return f"a list, each {allowed_words(get_args(hint)[0])}"
    if get_origin(hint) is dict:
        return f"a table, each {allowed_words(get_args(hint)[1])}"
    return _WORDS[hint]


def value_text(value: object) -> str:
    """Return a value as it is written in TOML, so that it reads back exactly."""
    if value is None:
        return f'"{NONE}"'
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(int(value))
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, str):
        return string_text(value)
    if isinstance(value, tuple):
        items = cast("tuple[object, ...]", value)
        return f"[{', '.join(value_text(item) for item in items)}]"
    assert isinstance(value, Mapping), f"{value!r} is not the value of a setting"
    pairs = cast("Mapping[str, object]", value).items()
    return "{" + ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in pairs) + "}"


def string_text(text: str) -> str:
    """Return a text in quotes, with everything escaped that TOML does not take as it is.

    Raises:
        ConfigError: If a file cannot hold the text.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"the text {shown(text)} holds half of a character; no file can hold it."
        ) from error
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda m: f"\\u{ord(m[0]):04X}", escaped) + '"'


def key_text(key: str) -> str:
    """Return a name as it is written in TOML: bare if it can be, else in quotes."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else string_text(key)


def shown(value: object) -> str:
    """Return what a value is for a message, cut short if it is long."""
    text = repr(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _fitting(value: object, kind: Any) -> Any:
    """Return a value as one plain type has it, or that it does not fit."""
    if kind is NoneType:
        return None if value is None or value == NONE else _MISFIT
    if get_origin(kind) is Literal:
        return value if isinstance(value, str) and value in get_args(kind) else _MISFIT
    if kind is bool or isinstance(value, bool):
        return value if kind is bool and isinstance(value, bool) else _MISFIT
    if kind is float:
        return _finite(value)
    return value if isinstance(kind, type) and isinstance(value, kind) else _MISFIT


def _finite(value: object) -> Any:
    if not isinstance(value, (int, float)):
        return _MISFIT
    try:
        number = float(value)
    except OverflowError:
        return _MISFIT
    return number if math.isfinite(number) else _MISFIT


def _checked_table(path: str, table: Mapping[object, object], hint: Any) -> dict[str, Any]:
    kind = get_args(hint)[1]
    checked: dict[str, Any] = {}
    for key, value in table.items():
        if not isinstance(key, str):
            raise ConfigError(f"a name in {path} is {shown(key)}; it must be a text.")
        checked[key] = checked_value(f"{path}.{key_text(key)}", value, kind)
    return checked


def _members(hint: Any) -> tuple[Any, ...]:
    return get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)


def _choices(hint: Any) -> list[str]:
    return [str(choice) for choice in get_args(hint)] if get_origin(hint) is Literal else []


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a run."""

    path: str
    """Where it is, from the top, with dots."""

    hint: Any
    """Its type, as the dataclass writes it."""

    default: object
    """What it is if nobody says otherwise."""

    doc: str
    """What it means, in one line."""

    @property
    def section(self) -> str:
        """The section that it is in; empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name in its section."""
        return self.path.rpartition(".")[2]


def is_section(hint: Any) -> bool:
    """Whether a type is a section: settings of their own, in a dataclass."""
    return isinstance(hint, type) and is_dataclass(hint)


def is_table(hint: Any) -> bool:
    """Whether a type is a table of names that the user chooses."""
    return get_origin(hint) is dict


@lru_cache
def hints_of(cls: type[Any]) -> dict[str, Any]:
    """Return the type of each field of a dataclass, in order."""
    hints = get_type_hints(cls)
    return {field.name: hints[field.name] for field in fields(cls)}


@lru_cache
def docs_of(cls: type[Any]) -> dict[str, str]:
    """Return what is written under each field of a dataclass, in one line each."""
    body = _class_bodies(cls.__module__)[cls.__name__]
    docs: dict[str, str] = {}
    for line, below in pairwise(body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[line.target.id] = " ".join(text.value.split())
    return docs


@lru_cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class of a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}


def first_sentence(doc: str) -> str:
    """Return what a docstring says first, up to its first full stop."""
    return re.split(r"(?<=\.)\s", doc, maxsplit=1)[0]


def settings_of(config: RunConfig | None = None) -> list[Setting]:
    """Return every setting, in the order of the dataclasses, with what it is in ``config``."""
    return list(_walk(RunConfig() if config is None else config, ""))


def configuration_tables() -> str:
    """Return the tables of the page on configuration, in Markdown, one for each section."""
    sections: dict[str, list[Setting]] = {"": []}
    for setting in settings_of():
        sections.setdefault(setting.section, []).append(setting)
    about = docs_of(RunConfig)
    lines: list[str] = []
    for section, settings in sections.items():
        heading = f"`[{section}]`" if section else "At the top"
        lines += [f"## {heading}", ""]
        lines += [about[section], ""] if section else []
        lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for setting in settings:
            words = (allowed_words(setting.hint), f"`{value_text(setting.default)}`", setting.doc)
            cells = " | ".join(word.replace("|", r"\|") for word in words)
            lines.append(f"| `{setting.name}` | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _walk(config: object, prefix: str) -> Iterator[Setting]:
    docs = docs_of(type(config))
    for name, hint in hints_of(type(config)).items():
        value = getattr(config, name)
        if is_section(hint):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield Setting(path=prefix + name, hint=hint, default=value, doc=docs[name])
