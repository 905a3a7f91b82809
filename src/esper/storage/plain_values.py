"""The plain values that a checkpoint holds, and what is said of others."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, cast

import numpy as np

from esper.errors import CheckpointError, EvidenceError, did_you_mean

MAX_DEPTH = 200
"""How deep values may be nested: what Python's JSON reader takes for certain."""

MAX_INT_BITS = 4096
"""How long a whole number may be: below what Python turns into digits and back."""

_PLAIN = (type(None), bool, float, str)


def is_plain(value: object) -> bool:
    """Tell whether JSON gives a single value back as it is, type included.

    Subclasses are not plain: an IntEnum or a number of numpy would come back as something else.
    """
    if type(value) is int:
        return value.bit_length() <= MAX_INT_BITS
    return type(value) in _PLAIN


def require_plain(value: Any, path: tuple[str, ...] = ()) -> None:
    """Refuse whatever JSON would not give back as it is; the message says where it is."""
    if len(path) > MAX_DEPTH:
        raise CheckpointError(refusal(path, value))
    if type(value) is list:
        for i, item in enumerate(cast("list[object]", value)):
            if not is_plain(item):
                require_plain(item, (*path, str(i)))
    elif type(value) is dict:
        for key, item in cast("dict[object, object]", value).items():
            if type(key) is not str:
                raise CheckpointError(
                    f"{place(path)} has the key {key!r}, a {type(key).__name__}; facts have "
                    "strings as keys, from_nested takes others."
                )
            if not is_plain(item):
                require_plain(item, (*path, key))
    elif not is_plain(value):
        raise CheckpointError(refusal(path, value))


def refusal(path: tuple[str, ...], value: object) -> str:
    """Return why a value cannot be saved: what and where it is, and what is allowed."""
    if len(path) > MAX_DEPTH:
        return (
            f"{place(path[:4])} is nested more than {MAX_DEPTH} levels deep, or holds itself; "
            "make it flatter."
        )
    if type(value) is int:
        return f"{place(path)} is a whole number of more than {MAX_INT_BITS} bits; split it."
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return (
        f"{place(path)} is a {kind}; a checkpoint holds tensors, None, bool, int, float, str, "
        "lists and dicts (and tuples, by from_nested). Turn it into one of these."
    )


def place(path: tuple[str, ...]) -> str:
    """Return in words where in a state something is."""
    return repr("/".join(path)) if path else "the state"


_TYPES: dict[str, tuple[type[Any], ...]] = {
    "str": (str,),
    "Kind": (str,),
    "int": (int,),
    "int | None": (int, type(None)),
    "float": (int, float),
    "float | None": (int, float, type(None)),
    "Floats": (list,),
    "tuple": (list,),
    "Mapping": (dict,),
}
"""Types in JSON of a field, by the first word of its annotation."""


def plain_values(one: Any) -> dict[str, Any]:
    """Return the fields of a dataclass with arrays and tuples as lists, mappings as dicts."""
    return {field.name: _plain(getattr(one, field.name)) for field in fields(one)}


def checked_values(kind: type[Any], values: object, what: str) -> dict[str, Any]:
    """Return arguments for a dataclass from what :func:`plain_values` gave.

    Args:
        kind: The dataclass; all of its fields must be there, and no others.
        values: As read from a file.
        what: The thing, for error messages.

    Raises:
        EvidenceError: If a field is missing, unknown or of another type.
    """
    if not isinstance(values, dict):
        raise EvidenceError(f"{what} is {_short(values)}; a JSON object is needed.")
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
            raise EvidenceError(f"{what} has no {name}; read a file that was written whole.")
    return {name: _checked(read[name], known[name], f"{name} of {what}") for name in known}


def _checked(value: Any, annotation: str, what: str) -> Any:
    word = annotation.split("[", maxsplit=1)[0]
    if type(value) not in _TYPES[word]:
        allowed = " or ".join(kind.__name__ for kind in _TYPES[word]).replace("NoneType", "null")
        raise EvidenceError(f"{what} is {_short(value)}; {allowed} is needed.")
    if value is None:
        return None
    if word.startswith("float") and not math.isfinite(value):
        raise EvidenceError(f"{what} is {value}; a finite number is needed.")
    if word == "Floats":
        return _numbers(value, what)
    if annotation == "tuple[str, ...]" and not all(isinstance(one, str) for one in value):
        raise EvidenceError(f"{what} is {_short(value)}; a list of names is needed.")
    return tuple(value) if annotation == "tuple[str, ...]" else value


def _numbers(value: list[Any], what: str) -> np.ndarray[Any, np.dtype[np.float64]]:
    try:
        array = np.asarray(value)
    except ValueError:
        array = np.asarray(["ragged"])
    if array.dtype.kind not in "if":
        raise EvidenceError(f"{what} is {_short(value)}; numbers are needed, as many for each run.")
    return array.astype(np.float64)


def _plain(value: Any) -> Any:
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
