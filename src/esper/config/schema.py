"""Paths, types, defaults and descriptions of all settings, read from the dataclasses.

A path names a setting from the top: ``rounds``, or ``ppo.learning_rate`` in the section ``ppo``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, cast, get_origin

from esper.config.checks import allowed_words, types_of
from esper.config.run import RunConfig
from esper.errors import ConfigError, escape_for_data, shown

NONE = "none"
"""The spelling of None, which TOML lacks."""


def value_text(value: object) -> str:
    """Return a value as TOML that reads back exactly."""
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
    assert isinstance(value, Mapping), f"a setting cannot be {value!r}"
    pairs = cast("Mapping[str, object]", value).items()
    return "{" + ", ".join(f"{key_text(key)} = {value_text(item)}" for key, item in pairs) + "}"


def string_text(text: str) -> str:
    """Return a string as a quoted and escaped TOML string.

    Raises:
        ConfigError: If it contains a lone surrogate, which no file can hold.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(f"{shown(text)} is not valid Unicode.") from error
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    escaped = re.sub(r"[\t\n]", lambda found: f"\\u{ord(found[0]):04X}", escaped)
    return f'"{escape_for_data(escaped)}"'


def key_text(key: str) -> str:
    """Return a TOML key: bare if possible, otherwise quoted."""
    return key if re.fullmatch(r"[A-Za-z0-9_-]+", key) else string_text(key)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One setting of a run."""

    path: str
    """Dotted path from the top."""

    hint: Any
    """Type annotation."""

    default: object
    """Default value."""

    doc: str
    """Description in one line."""

    @property
    def section(self) -> str:
        """The name of its section; empty at the top."""
        return self.path.rpartition(".")[0]

    @property
    def name(self) -> str:
        """Its name within its section."""
        return self.path.rpartition(".")[2]


def is_section(hint: Any) -> bool:
    """Return whether a type is a section, which is a dataclass of settings."""
    return isinstance(hint, type) and is_dataclass(hint)


def is_table(hint: Any) -> bool:
    """Return whether a type is a table with user-defined keys."""
    return get_origin(hint) is dict


@lru_cache
def docs_of(cls: type[Any]) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields, each in one line.

    They are under ``Args:`` in the docstring of the class, where ``help`` shows them, or below the
    fields.
    """
    _, _, listed = inspect.cleandoc(cls.__doc__ or "").partition("\nArgs:\n")
    if listed:
        entries = re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, re.MULTILINE)
        return {name: " ".join(text.split()) for name, text in entries}
    body = _class_bodies(cls.__module__)[cls.__name__]
    docs: dict[str, str] = {}
    for line, below in pairwise(body):
        if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
            text = below.value if isinstance(below, ast.Expr) else None
            if isinstance(text, ast.Constant) and isinstance(text.value, str):
                docs[line.target.id] = " ".join(text.value.split())
    return docs


def written_docs_of(cls: type[Any]) -> dict[str, str]:
    """Return the descriptions of a dataclass's fields with None as files and options spell it."""
    return {name: re.sub(r"\bNone\b", NONE, doc) for name, doc in docs_of(cls).items()}


@lru_cache
def _class_bodies(module: str) -> dict[str, list[ast.stmt]]:
    """Return the statements of each class in a module."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each.body for each in tree.body if isinstance(each, ast.ClassDef)}


def first_sentence(doc: str) -> str:
    """Return the first sentence of a docstring."""
    return re.split(r"(?<=\.)\s", doc, maxsplit=1)[0]


def settings_of(config: RunConfig | None = None) -> list[Setting]:
    """Return all settings in order, with the values of ``config`` as defaults."""
    return list(_walk(RunConfig() if config is None else config, ""))


def configuration_tables() -> str:
    """Return the Markdown tables of the configuration reference, one for each section."""
    sections: dict[str, list[Setting]] = {"": []}
    for setting in settings_of():
        sections.setdefault(setting.section, []).append(setting)
    about = written_docs_of(RunConfig)
    lines: list[str] = []
    for section, settings in sections.items():
        heading = f"`[{section}]`" if section else "At the top"
        lines += [f"## {heading}", ""]
        lines += [about[section], ""] if section else []
        lines += ["| setting | type | default | meaning |", "|---|---|---|---|"]
        for setting in settings:
            words = (
                allowed_words(setting.hint, value_text(None)),
                f"`{value_text(setting.default)}`",
                setting.doc,
            )
            cells = " | ".join(word.replace("|", r"\|") for word in words)
            lines.append(f"| `{setting.name}` | {cells} |")
        lines.append("")
    return "\n".join(lines)


def _walk(config: object, prefix: str) -> Iterator[Setting]:
    docs = written_docs_of(type(config))
    for name, hint in types_of(type(config)).items():
        value = getattr(config, name)
        if is_section(hint):
            yield from _walk(value, f"{prefix}{name}.")
        else:
            yield Setting(path=prefix + name, hint=hint, default=value, doc=docs[name])
