"""Dataclasses as JSON values, with every field checked when they are read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, TypeVar, cast, get_args

import numpy as np

from esper.arrays import Floats
from esper.config.checks import check, types_of
from esper.errors import ConfigError, EvidenceError, did_you_mean, shown

T = TypeVar("T")


def to_json_values(value: Any) -> Any:
    """Return a dataclass, and what it holds, as JSON values: arrays and tuples as lists."""
    if is_dataclass(value):
        return {field.name: to_json_values(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, np.ndarray):
        return cast("Any", value).tolist()
    if isinstance(value, tuple):
        return [to_json_values(one) for one in cast("tuple[Any, ...]", value)]
    return dict(cast("Mapping[str, Any]", value)) if isinstance(value, Mapping) else value


def read_json_values(kind: type[T], values: object) -> T:
    """Return the dataclass that :func:`to_json_values` was given.

    Raises:
        EvidenceError: If a field is missing, unknown or of another type.
    """
    what = kind.__name__
    if not isinstance(values, dict):
        raise EvidenceError(f"{what} is {shown(values)}; it must be a JSON object.")
    read, known = cast("dict[str, Any]", values), types_of(kind)
    for name in read:
        if name not in known:
            raise EvidenceError(
                f"{what} has a field {name!r}; fields are {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
    for name in known:
        if name not in read:
            raise EvidenceError(f"{what} has no field {name!r}; the file is incomplete.")
    try:
        return kind(**{name: _read(f"{what}.{name}", read[name], known[name]) for name in known})
    except ConfigError as error:
        raise EvidenceError(str(error)) from error


def _read(name: str, value: Any, kind: Any) -> Any:
    if kind == Floats:
        return _numbers(name, value)
    for inner in (kind, *get_args(kind)):
        if is_dataclass(inner) and isinstance(inner, type):
            if isinstance(value, list):
                return tuple(read_json_values(inner, one) for one in cast("list[Any]", value))
            is_none = value is None and NoneType in get_args(kind)
            return None if is_none else read_json_values(inner, value)
    return check(name, value, kind)


def _numbers(name: str, value: object) -> Floats:
    try:
        array = np.asarray(cast("Any", value) if isinstance(value, list) else "")
    except ValueError:  # ragged
        array = np.asarray("")
    if array.dtype.kind not in "if":
        raise EvidenceError(
            f"{name} is {shown(cast(object, value))}; it must be an array of numbers."
        )
    return array.astype(np.float64)
