"""Dataclasses as JSON values, with every field checked when they are read back."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np

from esper.errors import EvidenceError, did_you_mean

_TYPES: dict[str, tuple[type[Any], ...]] = {
    "str": (str,),
    "Kind": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Floats": (list,),
    "tuple": (list,),
    "list": (list,),
    "BestHost | None": (dict, type(None)),
    "Mapping": (dict,),
}
"""JSON types of a field by the first word of its annotation."""


def to_json_values(one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass as JSON values, arrays and tuples as lists."""
    return {field.name: _json_value(getattr(one, field.name)) for field in fields(one)}


def read_json_values(kind: type[Any], values: object, what: str) -> dict[str, Any]:
    """Return the arguments of a dataclass from the result of :func:`to_json_values`.

    Args:
        kind: The dataclass; exactly its fields must be present.
        values: As read from a file.
        what: A name for error messages.

    Raises:
        EvidenceError: If a field is missing, unknown or of another type.
    """
    if not isinstance(values, dict):
        raise EvidenceError(f"{what} is {_short(values)}; it must be a JSON object.")
    read = cast("dict[str, Any]", values)
    known = {field.name: str(field.type) for field in fields(kind)}
    for name in read:
        if name not in known:
            raise EvidenceError(
                f"{what} has a field {name!r}; fields are {', '.join(known)}."
                f"{did_you_mean(name, known)}"
            )
    for name in known:
        if name not in read:
            raise EvidenceError(f"{what} has no field {name!r}; the file is incomplete.")
    return {name: _checked(read[name], known[name], f"{name} of {what}") for name in known}


def _checked(value: Any, annotation: str, what: str) -> Any:
    word = annotation.split("[", maxsplit=1)[0]
    if type(value) not in _TYPES[word]:
        allowed = " or ".join(kind.__name__ for kind in _TYPES[word]).replace("NoneType", "null")
        raise EvidenceError(f"{what} is {_short(value)}; it must be {allowed}.")
    if value is None:
        return None
    if word.startswith("float") and not math.isfinite(value):
        raise EvidenceError(f"{what} is {value}; it must be finite.")
    if word == "Floats":
        return _numbers(value, what)
    if annotation == "tuple[str, ...]" and not all(isinstance(one, str) for one in value):
        raise EvidenceError(f"{what} is {_short(value)}; it must be a list of strings.")
    return tuple(value) if annotation == "tuple[str, ...]" else value


def _numbers(value: list[Any], what: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(["ragged"])
    if array.dtype.kind not in "if":
        raise EvidenceError(f"{what} is {_short(value)}; it must be an array of numbers.")
    return array.astype(np.float64)


def _json_value(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return cast("Any", value).tolist()
    if isinstance(value, tuple):
        return list(cast("tuple[Any, ...]", value))
    if isinstance(value, Mapping):
        return dict(cast("Mapping[str, Any]", value))
    return value


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
