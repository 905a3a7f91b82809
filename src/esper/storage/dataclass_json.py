"""Dataclasses as JSON values, with every field checked when they are read back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast, get_args, get_origin

import numpy as np

from esper.arrays import Floats
from esper.config.checks import check, types_of
from esper.errors import ConfigError, EvidenceError, did_you_mean, shown


def to_json_values(one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, arrays and tuples as lists."""
    return {field.name: _json_value(getattr(one, field.name)) for field in fields(one)}


def read_json_values(kind: type[Any], values: object, what: str) -> dict[str, Any]:
    """Return the arguments of a dataclass from the result of :func:`to_json_values`.

    Fields that hold dataclasses themselves are returned as they were read.

    Args:
        kind: The dataclass; exactly its fields must be present.
        values: As read from a file.
        what: A name for error messages.

    Raises:
        EvidenceError: If a field is missing, unknown or of another type.
    """
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
        return {name: _checked(f"{name} of {what}", read[name], known[name]) for name in known}
    except ConfigError as error:
        raise EvidenceError(str(error)) from error


def _checked(name: str, value: Any, kind: Any) -> Any:
    if kind == Floats:
        return _numbers(name, value)
    if any(map(is_dataclass, get_args(kind))):
        kind = list if get_origin(kind) is tuple else Mapping[str, Any] | None
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


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Any", value).tolist()
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return value
