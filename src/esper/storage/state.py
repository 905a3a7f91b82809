"""The state that a checkpoint holds: nested dicts of tensors and plain values.

Dicts, lists and tuples may contain each other, tensors and plain values (None, bool, int, float,
str); keys may be plain values and tuples of them. Mappings of other types come back as dicts.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, cast

import torch
from torch import Tensor

from esper.errors import CheckpointError, type_of
from esper.storage.files import MALFORMED, Pieces, parse_json, plain_reason
from esper.storage.tensors import has_code, pack, unpack

MAX_DEPTH = 200
"""Deepest nesting of plain values, which Python's JSON reader is certain to accept."""

MAX_INT_BITS = 4096
"""Longest integer, below Python's limit for conversion to and from digits."""

State = Mapping[Any, Any]
"""A nested state dict."""

TENSORS_FILE = "state.safetensors"
TREE_FILE = "state.json"


def encode(state: State) -> dict[str, Pieces]:
    """Return the content of each file of a state by file name.

    Raises:
        CheckpointError: If it contains anything else than a state may; the message says where.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(
            f"the state is {type_of(state)}; it must be a mapping such as a state_dict."
        )
    tensors: dict[str, Tensor] = {}
    tree = json.dumps({"state": _to_tree(state, (), tensors)}).encode("ascii")
    return {TENSORS_FILE: pack(tensors), TREE_FILE: [memoryview(tree)]}


def decode(files: Mapping[str, bytes]) -> dict[Any, Any]:
    """Return the state that :func:`encode` was given.

    Raises:
        CheckpointError: If the files were not made by :func:`encode`.
    """
    try:
        tree = cast("dict[str, Any]", parse_json(files[TREE_FILE], allow_nan=True))["state"]
    except (ValueError, KeyError, TypeError) as error:
        reason = plain_reason(error).removeprefix("it ")
        raise CheckpointError(f"{TREE_FILE} {reason}.") from error
    try:
        tensors = unpack(files[TENSORS_FILE])
        state = _from_tree(tree, tensors.pop)
    except MALFORMED as error:
        reason = plain_reason(error)
        raise CheckpointError(f"{TENSORS_FILE} cannot be read ({reason}).") from error
    if tensors or not isinstance(state, dict):
        raise CheckpointError(f"{TREE_FILE} does not name the tensors {sorted(tensors)}.")
    return cast("dict[Any, Any]", state)


def to_bytes(state: State) -> bytes:
    """Return a state as bytes, without a checksum: for other processes, not for files."""
    files = encode(state)
    tree, tensors = (b"".join(files[name]) for name in (TREE_FILE, TENSORS_FILE))
    return len(tree).to_bytes(8, "little") + tree + tensors


def from_bytes(content: bytes) -> dict[Any, Any]:
    """Return the state that :func:`to_bytes` was given."""
    start = 8 + int.from_bytes(content[:8], "little")
    return decode({TREE_FILE: content[8:start], TENSORS_FILE: content[start:]})


def _to_tree(value: object, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON, with its tensors moved to ``tensors`` under their paths."""
    if len(path) > MAX_DEPTH:
        raise CheckpointError(
            f"{_location(path[:4])} is nested more than {MAX_DEPTH} levels deep or contains "
            "itself; make it flatter."
        )
    if _is_plain(value):
        return value

    def inner(key: object, item: object) -> Any:
        return item if _is_plain(item) else _to_tree(item, (*path, str(key)), tensors)

    if isinstance(value, Tensor):
        name = _unused_name(path, tensors)
        _require_savable(value, path)
        tensors[name] = value
        return {"$tensor": name}
    if type(value) in (list, tuple):
        items = cast("tuple[object, ...]", value)
        found = [inner(i, item) for i, item in enumerate(items)]
        return {"$tuple": found} if type(value) is tuple else found
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        if all(type(key) is str and not key.startswith("$") for key in entries):
            return {key: inner(key, item) for key, item in entries.items()}
        if any(isinstance(key, Tensor) for key in entries):
            raise CheckpointError(f"{_location(path)} has a tensor as a key; use plain values.")
        return {"$dict": [[inner(key, key), inner(key, entries[key])] for key in entries]}
    if type(value) is int:
        raise CheckpointError(
            f"{_location(path)} is an integer of more than {MAX_INT_BITS} bits; split it."
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    raise CheckpointError(
        f"{_location(path)} is a {kind}; a checkpoint holds tensors, None, bool, int, float, str, "
        "lists, tuples and dicts. Convert it to one of these."
    )


def _from_tree(tree: Any, take: Callable[[str], Tensor]) -> Any:
    if isinstance(tree, list):
        return [_from_tree(item, take) for item in cast("list[Any]", tree)]
    if not isinstance(tree, dict):
        return tree
    entries = cast("dict[str, Any]", tree)
    if "$tensor" in entries:
        return take(entries["$tensor"])
    if "$tuple" in entries:
        return tuple(_from_tree(item, take) for item in entries["$tuple"])
    if "$dict" in entries:
        return {_from_tree(k, take): _from_tree(v, take) for k, v in entries["$dict"]}
    return {key: _from_tree(item, take) for key, item in entries.items()}


def _unused_name(path: tuple[str, ...], taken: Mapping[str, Tensor]) -> str:
    """Return a readable name for the tensor at a path that is valid and not taken."""
    name = "/".join(path).encode("utf-8", "backslashreplace").decode()
    while name in ("", "__metadata__") or name in taken:
        name += "~"
    return name


def _is_plain(value: object) -> bool:
    """Return whether a single value survives JSON with its exact type.

    Subclasses do not: an IntEnum or a NumPy number would come back as something else.
    """
    if type(value) is int:
        return value.bit_length() <= MAX_INT_BITS
    return type(value) in (type(None), bool, float, str)


def _location(path: tuple[str, ...]) -> str:
    return repr("/".join(path)) if path else "the state"


def _require_savable(tensor: Tensor, path: tuple[str, ...]) -> None:
    if tensor.layout != torch.strided or tensor.is_meta or not has_code(tensor.dtype):
        raise CheckpointError(
            f"tensor {_location(path)} cannot be saved ({tensor.layout}, {tensor.device}, "
            f"{tensor.dtype}); it must be dense and not on the meta device. Convert other complex "
            "dtypes to complex64 or by torch.view_as_real."
        )
