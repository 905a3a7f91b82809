"""What a checkpoint holds: tensors by name, and plain values beside them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor

from esper.errors import CheckpointError
from esper.storage.plain_values import MAX_DEPTH, is_plain, place, refusal, require_plain
from esper.storage.tensors import has_code, pack, unpack


@dataclass(frozen=True, eq=False)
class State:
    """Tensors and plain values from which something goes on where it was."""

    tensors: dict[str, Tensor] = field(default_factory=dict[str, Tensor])
    """Tensors by name; parts of a name are separated by ``/``."""

    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """What JSON can say: None, bool, int, float (also NaN, infinite), str, lists and dicts."""


def merge(parts: Mapping[str, State]) -> State:
    """Return the states of several parts as one; :func:`split` takes it apart again.

    Names of tensors get the name of their part and a ``/`` in front.

    Raises:
        CheckpointError: If the name of a part is empty, holds a ``/`` or is no string.
    """
    merged = State()
    for part, state in parts.items():
        if not isinstance(part, str) or not part or "/" in part:
            raise CheckpointError(
                f"a part of a state is named {part!r}; a name is a string that is not empty and "
                "has no '/' in it."
            )
        merged.facts[part] = state.facts
        merged.tensors.update({f"{part}/{name}": t for name, t in state.tensors.items()})
    return merged


def split(state: State) -> dict[str, State]:
    """Return the parts, by name, that :func:`merge` made a state of.

    Raises:
        CheckpointError: If the state is not one that :func:`merge` made.
    """
    parts: dict[str, State] = {}
    for part, facts in state.facts.items():
        if not isinstance(facts, dict):
            raise CheckpointError(
                f"the state has no parts: its fact {part!r} is a {type(facts).__name__}; only "
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


_FACT = "nested"


def from_nested(mapping: Mapping[Any, Any]) -> State:
    """Return a state that holds a nested state dict; :func:`to_nested` gives the dict back.

    Dicts, lists and tuples may hold each other, tensors and plain values; keys may be plain
    values and tuples of them. Nothing is copied. Mappings of other types come back as dicts.

    Raises:
        CheckpointError: If something else is in it; the message says where.
    """
    if not isinstance(mapping, Mapping):
        raise CheckpointError(
            f"a {type(mapping).__name__} is no nested state; a mapping such as a state_dict is."
        )
    tensors: dict[str, Tensor] = {}
    return State(tensors, {_FACT: _to_tree(mapping, (), tensors)})


def to_nested(state: State) -> dict[Any, Any]:
    """Return the nested state dict of which :func:`from_nested` made a state.

    Raises:
        CheckpointError: If the state is not one that :func:`from_nested` made.
    """
    if set(state.facts) != {_FACT}:
        raise CheckpointError(
            f"the state holds the facts {sorted(state.facts)}; only states made by from_nested, "
            f"which hold {_FACT!r} alone, can become nested dicts."
        )
    unused = dict(state.tensors)
    try:
        nested = _from_tree(state.facts[_FACT], unused.pop)
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"the nested state is damaged: {error!r}") from error
    if unused or not isinstance(nested, dict):
        raise CheckpointError(
            f"the nested state has tensors that are nowhere in it: {sorted(unused)}; only states "
            "made by from_nested can become nested dicts."
        )
    return cast("dict[Any, Any]", nested)


def _to_tree(value: object, path: tuple[str, ...], tensors: dict[str, Tensor]) -> Any:
    """Return a value as JSON can say it, and put its tensors into ``tensors``."""
    if len(path) > MAX_DEPTH:
        raise CheckpointError(refusal(path, value))
    if isinstance(value, Tensor):
        name = _unused_name(path, tensors)
        tensors[name] = value
        return {"$tensor": name}
    if is_plain(value):
        return value
    if type(value) in (list, tuple):
        items = cast("list[object] | tuple[object, ...]", value)
        tree = [_to_tree(item, (*path, str(i)), tensors) for i, item in enumerate(items)]
        return tree if type(value) is list else {"$tuple": tree}
    if isinstance(value, Mapping):
        entries = cast("Mapping[object, object]", value)
        if all(type(key) is str and not key.startswith("$") for key in entries):
            return {
                key: _to_tree(item, (*path, str(key)), tensors) for key, item in entries.items()
            }
        return {"$dict": [_to_pair(key, entries[key], path, tensors) for key in entries]}
    raise CheckpointError(refusal(path, value))


def _to_pair(
    key: object, value: object, path: tuple[str, ...], tensors: dict[str, Tensor]
) -> list[Any]:
    inner = (*path, str(key))
    if isinstance(key, Tensor):
        raise CheckpointError(f"{place(path)} has a tensor as a key; keys are plain values.")
    return [_to_tree(key, inner, tensors), _to_tree(value, inner, tensors)]


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
    """Return a readable name for the tensor at a path that a file can hold and none has yet."""
    name = "/".join(path).encode("utf-8", "backslashreplace").decode()
    while name in ("", "__metadata__") or name in taken:
        name += "~"
    return name


TENSORS_FILE = "state.safetensors"
FACTS_FILE = "state.json"

Pieces = list[memoryview]
"""What a file holds, in pieces that are written one after the other."""


def encode(state: State) -> dict[str, Pieces]:
    """Return what the files of a state hold, by file name.

    Raises:
        CheckpointError: If a fact or a tensor cannot be saved; the message names it.
    """
    require_plain(state.facts)
    for name, tensor in state.tensors.items():
        _require_savable(name, tensor)
    # The file of tensors has an order of its own; that of the state is kept beside it.
    plain = {"facts": state.facts, "tensors": list(state.tensors)}
    facts = json.dumps(plain).encode("ascii")
    return {TENSORS_FILE: pack(state.tensors), FACTS_FILE: [memoryview(facts)]}


def decode(files: dict[str, bytes]) -> State:
    """Return the state of which :func:`encode` made these files.

    Raises:
        CheckpointError: If they are not such files.
    """
    try:
        plain: dict[str, Any] = json.loads(files[FACTS_FILE])
        tensors = unpack(files[TENSORS_FILE])
        facts, names = cast("dict[str, Any]", plain["facts"]), cast("list[str]", plain["tensors"])
        ordered = {name: tensors.pop(name) for name in names}
    except (ValueError, KeyError, TypeError, RuntimeError) as error:
        raise CheckpointError(f"the files of a state cannot be understood: {error!r}") from error
    if tensors:
        raise CheckpointError(f"{FACTS_FILE} does not name the tensors {sorted(tensors)}.")
    return State(ordered, facts)


def _require_savable(name: object, tensor: object) -> None:
    if not isinstance(name, str) or name in ("", "__metadata__") or not _is_unicode(name):
        raise CheckpointError(
            f"a tensor is named {name!r}; a name is a string of Unicode characters, neither empty "
            "nor '__metadata__'."
        )
    if not isinstance(tensor, Tensor):
        raise CheckpointError(
            f"{name!r} is a {type(tensor).__name__} among the tensors; plain values are facts."
        )
    if tensor.layout != torch.strided or tensor.is_meta or not has_code(tensor.dtype):
        raise CheckpointError(
            f"{name!r} is not an ordinary tensor ({tensor.layout}, {tensor.device}, "
            f"{tensor.dtype}); only dense tensors with values can be saved, and complex ones "
            "as complex64 or by torch.view_as_real."
        )


def _is_unicode(name: str) -> bool:
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
