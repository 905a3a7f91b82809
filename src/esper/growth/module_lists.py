"""Giving a list of a model's blocks other entries, with all that counts or numbers them.

A model may keep the number of its blocks in a configuration, and each block its own index. Such
fields are known by their name and by their value, which has to be the number or the index.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

from torch import nn

COUNTS = (
    "num_hidden_layers",
    "n_layer",
    "n_layers",
    "num_layers",
    "encoder_layers",
    "decoder_layers",
    "num_encoder_layers",
    "num_decoder_layers",
    "num_blocks",
    "n_blocks",
    "depth",
)
"""Names of fields that hold the number of blocks."""

INDICES = ("layer_idx", "layer_id", "layer_index", "layer_number", "block_idx", "block_index")
"""Names of attributes that hold the index of a block."""

LIST_OF_COUNTS = "depths"
"""Name of a field that holds the number of blocks of each stage."""

_SIDES = ("encoder", "decoder")


def entries_of(container: nn.Module) -> dict[str, nn.Module]:
    """Return the dictionary that holds a module's children; changing it changes the module."""
    return container.__dict__["_modules"]


def is_list(module: nn.Module) -> bool:
    """Return whether a module is a list or sequence of modules, numbered from 0."""
    names = list(entries_of(module))
    kinds = (nn.ModuleList, nn.Sequential)
    return isinstance(module, kinds) and names == [str(k) for k in range(len(names))]


def set_entries(
    model: nn.Module,
    name: str,
    entries: Sequence[tuple[nn.Module, int]],
    undo: list[Callable[[], Any]],
    has_own_config: bool = True,
) -> None:
    """Give a list of a model other entries, with all that counts or numbers them.

    Args:
        model: The model.
        name: The name of the list.
        entries: The new entries, each with the index that it, or what it is a copy of, has now.
        undo: Gets functions that revert each change.
        has_own_config: Whether the counts in configurations around the list are to follow.
    """
    path = tuple(name.split(".")) if name else ()
    owners = [model.get_submodule(".".join(path[:k])) for k in range(len(path))]
    container = model.get_submodule(name)
    before = list(entries_of(container).values())
    undo.append(lambda: _set_entries(container, before))
    for number, (entry, old) in enumerate(entries):
        _renumber(entry, old, number, undo)
    _set_entries(container, [entry for entry, _ in entries])
    sources = [index for _, index in entries]
    configs = {id(o.__dict__.get("config")): o.__dict__.get("config") for o in owners}
    for config in configs.values() if has_own_config else ():
        if config is not None:
            _count_in(config, path, len(before), sources, undo)
    for owner in owners[-1:]:
        for field in COUNTS:
            if owner.__dict__.get(field) == len(before):
                _set(owner, field, len(entries), undo)


def _set_entries(container: nn.Module, entries: list[nn.Module]) -> None:
    modules = entries_of(container)
    modules.clear()
    modules.update({str(number): entry for number, entry in enumerate(entries)})


def _renumber(entry: nn.Module, old: int, new: int, undo: list[Callable[[], Any]]) -> None:
    for part in entry.modules():
        for name in INDICES:
            value = part.__dict__.get(name)
            if type(value) is int and value == old:
                _set(part, name, new, undo)


def _count_in(
    config: Any,
    path: tuple[str, ...],
    n_before: int,
    sources: Sequence[int],
    undo: list[Callable[[], Any]],
) -> None:
    """Set the fields of a configuration that count or list the entries of a list."""
    sides = [side for side in _SIDES if any(side in part for part in path)]
    others = [side for side in _SIDES if side not in sides]
    names = [
        name
        for name in COUNTS
        if any(side in name for side in sides) or not any(side in name for side in others)
    ]
    has_side = any(side in name for name in names for side in sides if hasattr(config, name))
    for name in names:
        is_own = not has_side or any(side in name for side in sides)
        value = getattr(config, name, None)
        # One field may be another name of a field that was changed already.
        if is_own and type(value) is int and value == n_before:
            _set(config, name, len(sources), undo)
    for name, value in list(cast("dict[str, Any]", vars(config)).items()):
        if isinstance(value, list) and "layer" in name and len(cast(list[Any], value)) == n_before:
            _set(config, name, [value[index] for index in sources], undo)
    depths: Any = getattr(config, LIST_OF_COUNTS, None)
    for stage in [int(part) for part in path if part.isdigit()]:
        if isinstance(depths, list) and stage < len(cast(list[Any], depths)):
            counts = list(cast(list[Any], depths))
            if counts[stage] == n_before:
                counts[stage] = len(sources)
                _set(config, LIST_OF_COUNTS, counts, undo)


def _set(owner: Any, name: str, value: Any, undo: list[Callable[[], Any]]) -> None:
    before = getattr(owner, name)
    undo.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)
