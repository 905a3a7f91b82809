"""The state that a checkpoint holds: named tensors and plain values."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from esper.errors import CheckpointError, type_of
from esper.storage.files import Pieces, parse_json, plain_reason
from esper.storage.tensors import has_code, pack, unpack

MAX_DEPTH = 200
"""Deepest nesting of plain values, which Python's JSON reader is certain to accept."""

MAX_INT_BITS = 4096
"""Longest integer, below Python's limit for conversion to and from digits."""


@dataclass(frozen=True, eq=False)
class State:
    """Tensors and plain values that an object can be restored from."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tensors by name; ``/`` separates the parts of a name."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """JSON values: None, bool, int, float (NaN and infinity too), str, lists and dicts."""


def merge(parts: Mapping[str, State]) -> State:
    """Combine the states of several parts into one; :func:`split` undoes it.

    The name of each tensor is prefixed with the name of its part and a ``/``.

    Raises:
        CheckpointError: If the name of a part is not a string, is empty, or contains a ``/``.
    """
    merged = State()
    for part, state in parts.items():
        if not isinstance(part, str) or not part or "/" in part:
            raise CheckpointError(
                f"a part of a state is named {part!r}; a name must be a non-empty string "
                "without '/'."
            )
        merged.facts[part] = state.facts
        merged.tensors.update({f"{part}/{name}": t for name, t in state.tensors.items()})
    return merged


def split(state: State) -> dict[str, State]:
    """Return the parts of a merged state by name.

    Raises:
        CheckpointError: If the state was not made by :func:`merge`.
    """
    parts: dict[str, State] = {}
    for part, facts in state.facts.items():
        if not isinstance(facts, dict):
            raise CheckpointError(
                f"the fact {part!r} of the state is {type_of(facts)}, not a part; only "
                "states made by merge can be split."
            )
        parts[part] = State({}, facts)  # pyright: ignore[reportUnknownArgumentType]
    for name, tensor in state.tensors.items():
        part, slash, rest = name.partition("/")
        if not slash or part not in parts:
            raise CheckpointError(
                f"tensor {name!r} belongs to none of the parts {', '.join(parts) or '(none)'}; "
                "only states made by merge can be split."
            )
        parts[part].tensors[rest] = tensor
    return parts


_NESTED = "nested"


def from_nested(mapping: Mapping[Any, Any]) -> State:
    """Return a state that holds a nested state dict; :func:`to_nested` returns the dict.

    Dicts, lists and tuples may contain each other, tensors and plain values; keys may be plain
    values and tuples of them. Nothing is copied. Mappings of other types come back as dicts.

    Raises:
        CheckpointError: If it contains anything else; the message says where.
    """
    if not isinstance(mapping, Mapping):
        raise CheckpointError(
            f"the nested state is {type_of(mapping)}; it must be a mapping such as a state_dict."
        )
    tensors: dict[str, Tensor] = {}
    return State(tensors, {_NESTED: _to_tree(mapping, (), tensors)})


def to_nested(state: State) -> dict[Any, Any]:
    """Return the nested state dict that :func:`from_nested` was given.

    Raises:
        CheckpointError: If the state was not made by :func:`from_nested`.
    """
    if set(state.facts) != {_NESTED}:
        raise CheckpointError(
            f"the facts of the state are {sorted(state.facts)}; a state made by from_nested has "
            f"only {_NESTED!r}."
        )
    unused = dict(state.tensors)
    try:
        nested = _from_tree(state.facts[_NESTED], unused.pop)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the nested state is damaged: {plain_reason(error)}") from error
    if unused or not isinstance(nested, dict):
        raise CheckpointError(
            f"the nested state does not use the tensors {sorted(unused)}; it was not made by "
            "from_nested."
        )
    return cast("dict[Any, Any]", nested)


def _to_tree(value: object, path: tuple[str, ...], tensors: dict[str, Tensor] | None) -> Any:
    """Return a value as JSON, with its tensors moved to ``tensors``.

    If ``tensors`` is None, only JSON values are allowed, and are returned as they are.
    """
    if len(path) > MAX_DEPTH:
        raise _not_savable(path, value)
    if _is_plain(value):
        return value

    def inner(key: object, item: object) -> Any:
        return item if _is_plain(item) else _to_tree(item, (*path, str(key)), tensors)

    if type(value) is list:
        return [inner(i, item) for i, item in enumerate(cast("list[object]", value))]
    if type(value) is dict if tensors is None else isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        keys = [key for key in entries if type(key) is str]
        if len(keys) == len(entries) and (
            tensors is None or not any(key.startswith("$") for key in keys)
        ):
            return {key: inner(key, entries[key]) for key in keys}
    if tensors is None:
        raise _not_savable(path, value)
    if isinstance(value, Tensor):
        name = _unused_name(path, tensors)
        tensors[name] = value
        return {"$tensor": name}
    if type(value) is tuple:
        items = cast("tuple[object, ...]", value)
        return {"$tuple": [inner(i, item) for i, item in enumerate(items)]}
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        if any(isinstance(key, Tensor) for key in entries):
            raise CheckpointError(f"{_location(path)} has a tensor as a key; use plain values.")
        return {"$dict": [[inner(key, key), inner(key, entries[key])] for key in entries]}
    raise _not_savable(path, value)


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


TENSORS_FILE = "state.safetensors"
FACTS_FILE = "state.json"


def encode(state: State) -> dict[str, Pieces]:
    """Return the content of each file of a state by file name.

    Raises:
        CheckpointError: If a fact or a tensor cannot be saved; the message names it.
    """
    _to_tree(state.facts, (), None)
    for name, tensor in state.tensors.items():
        _require_savable(name, tensor)
    # The safetensors file sorts tensors by element size; this list keeps their order.
    plain = {"facts": state.facts, "tensors": list(state.tensors)}
    facts = json.dumps(plain).encode("ascii")
    return {TENSORS_FILE: pack(state.tensors), FACTS_FILE: [memoryview(facts)]}


def decode(files: dict[str, bytes]) -> State:
    """Return the state that :func:`encode` was given.

    Raises:
        CheckpointError: If the files were not made by :func:`encode`.
    """
    try:
        plain = cast("dict[str, Any]", parse_json(files[FACTS_FILE], allow_nan=True))
        facts, names = cast("dict[str, Any]", plain["facts"]), cast("list[str]", plain["tensors"])
    except (ValueError, KeyError, TypeError) as error:
        reason = plain_reason(error).removeprefix("it ")
        raise CheckpointError(f"{FACTS_FILE} {reason}.") from error
    try:
        tensors = unpack(files[TENSORS_FILE])
        ordered = {name: tensors.pop(name) for name in names}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        reason = plain_reason(error)
        raise CheckpointError(f"{TENSORS_FILE} cannot be read ({reason}).") from error
    if tensors:
        raise CheckpointError(f"{FACTS_FILE} does not name the tensors {sorted(tensors)}.")
    return State(ordered, facts)


def to_bytes(state: State) -> bytes:
    """Return a state as bytes, without a checksum: for other processes, not for files."""
    files = encode(state)
    facts, tensors = (b"".join(files[name]) for name in (FACTS_FILE, TENSORS_FILE))
    return len(facts).to_bytes(8, "little") + facts + tensors


def from_bytes(content: bytes) -> State:
    """Return the state that :func:`to_bytes` was given."""
    start = 8 + int.from_bytes(content[:8], "little")
    return decode({FACTS_FILE: content[8:start], TENSORS_FILE: content[start:]})


def _is_plain(value: object) -> bool:
    """Return whether a single value survives JSON with its exact type.

    Subclasses do not: an IntEnum or a NumPy number would come back as something else.
    """
    if type(value) is int:
        return value.bit_length() <= MAX_INT_BITS
    return type(value) in (type(None), bool, float, str)


def _not_savable(path: tuple[str, ...], value: object) -> CheckpointError:
    """Return the error for a value that cannot be saved: where and what it is."""
    if len(path) > MAX_DEPTH:
        return CheckpointError(
            f"{_location(path[:4])} is nested more than {MAX_DEPTH} levels deep or contains "
            "itself; make it flatter."
        )
    if type(value) is int:
        return CheckpointError(
            f"{_location(path)} is an integer of more than {MAX_INT_BITS} bits; split it."
        )
    if type(value) is dict:
        key = next(key for key in cast("dict[object, object]", value) if type(key) is not str)
        return CheckpointError(
            f"{_location(path)} has the key {key!r}, {type_of(key)}; keys of facts must be "
            "strings. from_nested takes others."
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    return CheckpointError(
        f"{_location(path)} is a {kind}; a checkpoint holds tensors, None, bool, int, float, str, "
        "lists and dicts (and tuples, by from_nested). Convert it to one of these."
    )


def _location(path: tuple[str, ...]) -> str:
    return repr("/".join(path)) if path else "the state"


def _require_savable(name: object, tensor: object) -> None:
    is_unicode = isinstance(name, str) and name.encode("utf-8", "ignore").decode() == name
    if not is_unicode or name in ("", "__metadata__"):
        raise CheckpointError(
            f"a tensor is named {name!r}; a name must be a string that UTF-8 can encode, neither "
            "empty nor '__metadata__'."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name!r} is {type_of(tensor)}, not a tensor; plain values belong in facts."
        )
    if tensor.layout != torch.strided or tensor.is_meta or not has_code(tensor.dtype):
        raise CheckpointError(
            f"tensor {name!r} cannot be saved ({tensor.layout}, {tensor.device}, {tensor.dtype}); "
            "it must be dense and not on the meta device. Convert other complex dtypes to "
            "complex64 or by torch.view_as_real."
        )
