"""Nested state dicts as states, and back: tensors go to one side, all else to the other.

The tree is kept under the fact ``nested``. What JSON cannot say is an object with one key:

    {"$tensor": name}             the tensor of that name
    {"$tuple": [...]}             a tuple
    {"$dict": [[key, value], ...]}  a dict with keys that are no strings, or that begin with ``$``
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor

from esper.checkpoints.plain_values import MAX_DEPTH, is_plain, place, refusal
from esper.checkpoints.state import State
from esper.errors import CheckpointError

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
