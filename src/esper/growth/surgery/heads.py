"""Recognizing attention heads by where a query, a key or a value arrives.

With heads of ``size`` entries, one entry of a query reaches all entries of its head in what the
output layer reads, one of a key those of all heads that share it, and one of a value one entry of
each of these. The rows of queries, keys and values may be in layers of their own, one after another
in one layer, or head by head in one layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, cast

from torch import nn

from esper.growth.surgery.layers import Entries, Role, reads, writes
from esper.growth.surgery.places import Heads, Place, common_module

Sizes = tuple[tuple[str, str, int], ...]
"""Attributes that count heads: module, path to the attribute, and how much each unit has."""

Reach = Callable[[str, int], frozenset[int]]
"""Returns where a row of a layer arrives in what the output layer reads."""


@dataclass(frozen=True)
class HeadLayout:
    """Where the heads of an attention layer are in the layers that write them."""

    heads: Heads
    units: int
    """Number of key-value heads."""
    starts: Mapping[str, tuple[tuple[int, int], ...]]
    """For each layer, where rows of the first unit start, and how many there are of each."""


def find_head_layout(n_read: int, sizes: Mapping[str, int], reach: Reach) -> HeadLayout | None:
    """Return the layout of heads, or None if the layers do not write any.

    Args:
        n_read: Entries that the output layer reads.
        sizes: Rows of each layer that writes to it.
        reach: Where rows arrive.
    """
    first = {name: reach(name, 0) for name in sizes}
    blocks = [len(found) for found in first.values() if _is_block(found) and len(found) > 1]
    if not blocks:
        return None
    size = min(blocks)
    if n_read % size or any(rows % size for rows in sizes.values()):
        return None
    layout = _fused(n_read, sizes, size, reach) if len(sizes) == 1 else _apart(n_read, sizes, size)
    if layout is None:
        return None
    # The last row belongs to the last unit.
    width = layout.heads.per_unit * size
    last = set(range(n_read - width, n_read))
    for name, rows in sizes.items():
        found = reach(name, rows - 1)
        if not found or not found <= last:
            return None
    return layout


def _apart(n_read: int, sizes: Mapping[str, int], size: int) -> HeadLayout | None:
    """Return the layout of queries, keys and values that have layers of their own."""
    n_heads, units = n_read // size, min(sizes.values()) // size
    if len(sizes) != 3 or n_heads % units or any(rows % units for rows in sizes.values()):
        return None
    starts = {name: ((0, rows // units),) for name, rows in sizes.items()}
    return HeadLayout(Heads(n_heads // units, size), units, starts)


def _fused(n_read: int, sizes: Mapping[str, int], size: int, reach: Reach) -> HeadLayout | None:
    """Return the layout of queries, keys and values in one layer."""
    ((name, rows),) = sizes.items()
    n_heads, n_all = n_read // size, rows // size
    units = (n_all - n_heads) // 2
    if units < 1 or n_heads + 2 * units != n_all or n_heads % units:
        return None
    heads = Heads(n_heads // units, size)
    # Head by head, the keys of the first unit follow its queries; else the next unit's queries do.
    n_queries = heads.per_unit * size
    if units > 1 and reach(name, n_queries) <= set(range(n_queries)):
        return HeadLayout(heads, units, {name: ((0, n_queries + 2 * size),)})
    starts = (
        (0, n_queries),
        (n_heads * size, size),
        ((n_heads + units) * size, size),
    )
    return HeadLayout(heads, units, {name: starts})


def _is_block(found: frozenset[int]) -> bool:
    return sorted(found) == list(range(len(found)))


def possible_places(
    model: nn.Module, reader: str, layout: HeadLayout
) -> Iterator[tuple[Place, Place]]:
    """Yield the places that heads may have, with their own sizes and with those in configurations.

    Parameters and attributes of the attention layer may count heads, or only have such a size.
    """
    plain = _plain_place(model, reader, layout)
    around = _modules_around(plain)
    own = _own_entries(model, plain, around)
    sizes, shared = _own_sizes(model, plain, around), _shared_sizes(model, plain, around)
    for entries in (plain.entries, (*plain.entries, *own)) if own else (plain.entries,):
        for counted in (sizes, ()):
            place = replace(plain, entries=entries, sizes=counted)
            yield place, replace(place, sizes=(*counted, *shared))


def _plain_place(model: nn.Module, reader: str, layout: HeadLayout) -> Place:
    entries: list[Entries] = []
    for name, starts in layout.starts.items():
        for each in writes(model.get_submodule(name)):
            tensor = f"{name}.{each.tensor}"
            entries += [replace(each, tensor=tensor, start=s, size=n) for s, n in starts]
    per_unit = layout.heads.per_unit * layout.heads.size
    for each in reads(model.get_submodule(reader)):
        entries.append(replace(each, tensor=f"{reader}.{each.tensor}", size=per_unit))
    writers = tuple(layout.starts)
    return Place(layout.units, tuple(entries), writers, (reader,), heads=layout.heads)


def _modules_around(place: Place) -> list[str]:
    """Return the names of the modules that are right around the layers of a place."""
    parents = {name.rpartition(".")[0] for name in (*place.writers, *place.readers)}
    return sorted({*parents, common_module(place.layers)})


def _own_entries(model: nn.Module, place: Place, around: list[str]) -> list[Entries]:
    """Return parameters of the attention layer itself that have an entry for each head."""
    n = _heads_of(place).per_unit
    return [
        Entries(f"{name}.{own}", 0, Role.KEEP, size=n)
        for name in around
        for own, tensor in model.get_submodule(name).named_parameters(recurse=False)
        if tensor.shape[:1] == (place.units * n,)
    ]


def _own_sizes(model: nn.Module, place: Place, around: list[str]) -> Sizes:
    """Return the attributes of the attention layer that have the value of a count."""
    n, size = _heads_of(place).per_unit, _heads_of(place).size
    counts = {place.units * size: size, place.units * n * size: n * size}
    heads = {place.units: 1, place.units * n: n}
    found: list[tuple[str, str, int]] = []
    for name in around:
        for attribute, value in vars(model.get_submodule(name)).items():
            is_count = "dim" in attribute or "size" in attribute
            meant = counts if is_count else {**counts, **heads}
            if type(value) is int and value in meant:
                found.append((name, attribute, meant[value]))
    return tuple(found)


def _shared_sizes(model: nn.Module, place: Place, around: list[str]) -> Sizes:
    """Return the fields of the layer's configuration, which others may share, that count heads."""
    n = _heads_of(place).per_unit
    heads = {place.units * n: n, place.units: 1}
    found: list[tuple[str, str, int]] = []
    for name in around:
        config: object = getattr(model.get_submodule(name), "config", None)
        for key, value in cast("dict[str, Any]", getattr(config, "__dict__", {})).items():
            if type(value) is int and "heads" in key and value in heads:
                found.append((name, f"config.{key}", heads[value]))
    return tuple(found)


def _heads_of(place: Place) -> Heads:
    assert place.heads is not None, "the place is that of heads"
    return place.heads
