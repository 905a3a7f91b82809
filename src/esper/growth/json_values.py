"""Sites and lives of slots as JSON values, and back by the declared types of their fields."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from itertools import repeat
from types import NoneType, UnionType
from typing import Any, cast, get_args, get_origin

from esper.config.checks import types_of
from esper.growth.sites import TensorKind
from esper.lifecycle.stages import Stage

_NAMED = (Stage, TensorKind)
"""Enums whose members are written by name; others are written by value."""


def to_json(value: Any) -> Any:
    """Return a dataclass, and whatever is in it, as JSON values."""
    if is_dataclass(value):
        return {field.name: to_json(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_json(each) for each in cast(Sequence[Any], value)]
    if isinstance(value, _NAMED):
        return value.name.lower()
    return value.value if isinstance(value, Enum) else value


def from_json(kind: Any, value: Any) -> Any:
    """Return the value of a declared type that :func:`to_json` wrote.

    Raises:
        ValueError: If a field of a dataclass is missing or unknown.
    """
    members = [each for each in get_args(kind) if each is not NoneType]
    if get_origin(kind) is UnionType:
        return value if value is None or len(members) > 1 else from_json(members[0], value)
    if get_origin(kind) is tuple:
        kinds = repeat(members[0], len(value)) if members[-1] is Ellipsis else members
        return tuple(from_json(*pair) for pair in zip(kinds, value, strict=True))
    if is_dataclass(kind):
        hints = types_of(cast(type[Any], kind))
        if hints.keys() != value.keys():
            raise ValueError(f"{min(hints.keys() ^ value.keys())} is missing or unknown")
        found = {name: from_json(hint, value[name]) for name, hint in hints.items()}
        return cast(Any, kind)(**found)
    if kind in _NAMED:
        return kind[value.upper()]
    if isinstance(kind, type) and issubclass(kind, Enum):
        return kind(value)
    return tuple(cast(list[Any], value)) if isinstance(value, list) else value
