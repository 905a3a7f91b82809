"""What settings there are: their paths, types, defaults and explanations, from the dataclasses.

A path names a setting from the top: ``rounds``, or ``ppo.learning_rate`` in the section ``ppo``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, is_dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, get_origin, get_type_hints

from esper.config.run import RunConfig
from esper.config.values import allowed_words, value_text


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
