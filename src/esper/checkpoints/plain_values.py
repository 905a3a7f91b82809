"""The plain values that a checkpoint holds, and what is said of others."""

from __future__ import annotations

from typing import Any, cast

from esper.errors import CheckpointError

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
