"""Adding an entry to a list of a model's blocks, with all that counts or numbers its entries.

A model may keep the number of its blocks in a configuration, and each block its own index. Such
fields are known by their name and by their value, which has to be the number or the index.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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


@dataclass(frozen=True)
class ListPlace:
    """An entry of a list of modules."""

    owners: tuple[nn.Module, ...]
    """The modules around the list, outermost first."""
    path: tuple[str, ...]
    """The parts of the list's name."""
    container: nn.Module
    index: int


def entries_of(container: nn.Module) -> dict[str, nn.Module]:
    """Return the dictionary that holds a module's children; changing it changes the module."""
    return container.__dict__["_modules"]


def is_list(module: nn.Module) -> bool:
    """Return whether a module is a list or sequence of modules, numbered from 0."""
    names = list(entries_of(module))
    kinds = (nn.ModuleList, nn.Sequential)
    return isinstance(module, kinds) and names == [str(k) for k in range(len(names))]


def find_list(model: nn.Module, name: str) -> ListPlace | None:
    """Return the place of a block in a list of modules; None if no list holds it."""
    parent, _, key = name.rpartition(".")
    path = tuple(parent.split(".")) if parent else ()
    around = [model.get_submodule(".".join(path[:k])) for k in range(len(path) + 1)]
    if not is_list(around[-1]):
        return None
    return ListPlace(tuple(around[:-1]), path, around[-1], int(key))


@contextmanager
def inserted_entry(place: ListPlace, entry: nn.Module) -> Generator[None]:
    """Add a copy of the block at a place after it, inside the context."""
    undo: list[Callable[[], None]] = []
    try:
        insert_entry(place, entry, entry, undo)
        yield
    finally:
        for step in reversed(undo):
            step()


def insert_entry(
    place: ListPlace,
    entry: nn.Module,
    copied: nn.Module,
    undo: list[Callable[[], None]] | None = None,
) -> None:
    """Add an entry, which is or contains a copy of the block at a place, after that place.

    Later entries are renumbered, and the counts of blocks in the configurations and attributes of
    the modules around the list follow. ``undo`` gets functions that revert each change.
    """
    undo = [] if undo is None else undo
    container, index = place.container, place.index
    entries = list(entries_of(container).values())
    n_before = len(entries)
    undo.append(lambda: _set_entries(container, entries))
    for number in range(n_before - 1, index, -1):
        _renumber(entries[number], number, number + 1, undo)
    _number_like(copied, entries[index], index, undo)
    _set_entries(container, [*entries[: index + 1], entry, *entries[index + 1 :]])
    configs = {id(o.__dict__.get("config")): o.__dict__.get("config") for o in place.owners}
    for config in configs.values():
        if config is not None:
            _count_one_more(config, place, n_before, undo)
    for owner in place.owners[-1:]:
        for name in COUNTS:
            if owner.__dict__.get(name) == n_before:
                _set(owner, name, n_before + 1, undo)


def set_entries(
    place: ListPlace,
    entries: Sequence[tuple[nn.Module, int]],
    undo: list[Callable[[], None]],
    *,
    has_own_config: bool,
) -> None:
    """Give a list other entries, with all that counts or numbers them.

    Args:
        place: An entry of the list.
        entries: The new entries, each with the index that it, or what it is a copy of, has now.
        undo: Gets functions that revert each change.
        has_own_config: Whether the counts in configurations around the list are to follow.
    """
    container = place.container
    before = list(entries_of(container).values())
    undo.append(lambda: _set_entries(container, before))
    for number, (entry, old) in enumerate(entries):
        _renumber(entry, old, number, undo)
    _set_entries(container, [entry for entry, _ in entries])
    for n_now in range(len(before), len(entries)):
        configs = {id(o.__dict__.get("config")): o.__dict__.get("config") for o in place.owners}
        for config in configs.values() if has_own_config else ():
            if config is not None:
                _count_one_more(config, place, n_now, undo)
        for owner in place.owners[-1:]:
            for name in COUNTS:
                if owner.__dict__.get(name) == n_now:
                    _set(owner, name, n_now + 1, undo)


def _set_entries(container: nn.Module, entries: list[nn.Module]) -> None:
    modules = entries_of(container)
    modules.clear()
    modules.update({str(number): entry for number, entry in enumerate(entries)})


def _renumber(entry: nn.Module, old: int, new: int, undo: list[Callable[[], None]]) -> None:
    for part in entry.modules():
        for name in INDICES:
            value = part.__dict__.get(name)
            if type(value) is int and value == old:
                _set(part, name, new, undo)


def _number_like(
    copied: nn.Module, block: nn.Module, index: int, undo: list[Callable[[], None]]
) -> None:
    """Number a copy of a block as the entry after it."""
    others = dict(cast(Any, block.named_modules()))
    for name, part in cast(Any, copied.named_modules()):
        other = others.get(name)
        for key in INDICES:
            if other is not None and other.__dict__.get(key) == index and key in part.__dict__:
                _set(part, key, index + 1, undo)


def _count_one_more(
    config: Any, place: ListPlace, n_before: int, undo: list[Callable[[], None]]
) -> None:
    sides = [side for side in _SIDES if any(side in part for part in place.path)]
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
            _set(config, name, n_before + 1, undo)
    for name, value in list(cast("dict[str, Any]", vars(config)).items()):
        if isinstance(value, list) and "layer" in name and len(cast(list[Any], value)) == n_before:
            items = cast(list[Any], value)
            _set(config, name, [*items[: place.index + 1], *items[place.index :]], undo)
    depths: Any = getattr(config, LIST_OF_COUNTS, None)
    for stage in [int(part) for part in place.path if part.isdigit()]:
        if isinstance(depths, list) and stage < len(cast(list[Any], depths)):
            counts = list(cast(list[Any], depths))
            if counts[stage] == n_before:
                counts[stage] += 1
                _set(config, LIST_OF_COUNTS, counts, undo)


def _set(owner: Any, name: str, value: Any, undo: list[Callable[[], None]]) -> None:
    before = getattr(owner, name)
    undo.append(lambda: setattr(owner, name, before))
    setattr(owner, name, value)
