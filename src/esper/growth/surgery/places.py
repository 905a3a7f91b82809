"""Places of a model that can be widened, and groups of places that repeat.

The name of a place is that of the module that holds it alone, such as ``layers.0.mlp``, or else
those of its layers, ``conv1>conv2``. Places of the same kind in blocks that repeat form a group,
named like them with a star: ``layers.*.mlp``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from torch import nn

from esper.growth.modules import named_modules
from esper.growth.surgery.layers import Entries

STAR = "*"

MAX_WRITERS, MAX_READERS = 2, 3
"""Layers that the name of a place lists; one with more has the name of its first writer."""


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer. A unit is a key-value head with its query heads."""

    per_unit: int
    """Query heads that share the keys and values of one unit."""
    size: int
    """Entries of each head."""


@dataclass(frozen=True)
class Place:
    """Hidden units of a model, with all tensors that have entries for them."""

    units: int
    entries: tuple[Entries, ...]
    """The entries, with names of tensors in the model."""
    writers: tuple[str, ...]
    """Names of the layers that compute the units, in the order of modules."""
    readers: tuple[str, ...]
    """Names of the layers that read them."""
    name: str = ""
    heads: Heads | None = None
    """How the units are heads of an attention layer; None if they are plain units."""
    sizes: tuple[tuple[str, str, int], ...] = ()
    """Attributes that count what units have: module, path to the attribute, how much each has."""

    @property
    def layers(self) -> tuple[str, ...]:
        """Names of all layers that hold entries, in order."""
        return tuple(dict.fromkeys(entry.tensor.rpartition(".")[0] for entry in self.entries))


@dataclass(frozen=True)
class Group:
    """Places of the same kind, which grow together."""

    name: str
    places: tuple[Place, ...]

    @property
    def units(self) -> int:
        """Hidden units of each place."""
        return self.places[0].units

    @property
    def heads(self) -> Heads | None:
        """How the units are heads of attention layers; None if they are plain units."""
        return self.places[0].heads


def common_module(names: Sequence[str]) -> str:
    """Return the name of the innermost module around some modules."""
    paths = [name.split(".") for name in names]
    shared: list[str] = []
    for parts in zip(*paths, strict=False):
        if len(set(parts)) > 1:
            break
        shared.append(parts[0])
    if all(len(path) == len(shared) for path in paths):
        shared.pop()
    return ".".join(shared)


def repeated_entries(model: nn.Module) -> set[str]:
    """Return the names of the blocks in lists of blocks of one class, two or more of them."""
    found: set[str] = set()
    for name, module in named_modules(model).items():
        if not isinstance(module, (nn.ModuleList, nn.Sequential)):
            continue
        blocks = [(key, child) for key, child in module.named_children() if any(child.children())]
        kinds = [type(child) for _, child in blocks]
        for key, child in blocks:
            if kinds.count(type(child)) > 1:
                found.add(f"{name}.{key}" if name else key)
    return found


def outer_block(name: str, blocks: set[str]) -> str:
    """Return the outermost block that repeats around a module; empty if there is none."""
    parts = name.split(".")
    around = [".".join(parts[: depth + 1]) for depth in range(len(parts))]
    return next((each for each in around if each in blocks), "")


def star(name: str, entries: set[str]) -> str:
    """Return a module's name with a star for each index of a block that repeats."""
    parts = name.split(".")
    shown = [
        STAR if ".".join(parts[: depth + 1]) in entries else part
        for depth, part in enumerate(parts)
    ]
    return ".".join(shown)


def group_places(model: nn.Module, places: Iterable[Place]) -> list[Group]:
    """Return places by group, in order; a place that does not repeat is a group of its own."""
    entries = repeated_entries(model)
    found: dict[object, list[Place]] = {}
    for place in places:
        around = common_module(place.layers)
        # Places that reach from one block into another are not part of either.
        is_inside = star(around, entries) != around
        shown = tuple(star(layer, entries) for layer in place.layers) if is_inside else place.layers
        key = shown, place.units, place.heads, tuple(_relative(place))
        found.setdefault(key, []).append(place)
    return [Group(_group_name([p.name for p in same]), tuple(same)) for same in found.values()]


def name_places(model: nn.Module, places: Sequence[Place]) -> list[str]:
    """Return a name for each place: the module that holds it alone, or else its layers."""
    entries = repeated_entries(model)
    around = [common_module(place.layers) for place in places]
    names: list[str] = []
    for place, module in zip(places, around, strict=True):
        inside = [other for other in around if f"{other}.".startswith(f"{module}.")]
        alone = place.layers[0] if len(place.layers) == 1 else module
        if alone and alone not in entries and (len(inside) == 1 or alone != module):
            names.append(alone)
        else:
            writers, readers = "+".join(place.writers), "+".join(place.readers)
            is_short = len(place.writers) <= MAX_WRITERS and len(place.readers) <= MAX_READERS
            names.append(f"{writers}>{readers}" if is_short else place.writers[0])
    return names


def matches(name: str, wanted: str) -> bool:
    """Return whether a place or group is the one that is wanted, or inside it; stars match."""
    if name == wanted or name.startswith((f"{wanted}.", f"{wanted}>")):
        return True
    return STAR in wanted and fnmatchcase(name, re.sub(r"([\[\]?])", r"[\1]", wanted))


def _relative(place: Place) -> Iterable[tuple[object, ...]]:
    for each in place.entries:
        yield each.tensor.rpartition(".")[2], each.axis, each.role, each.start, each.size


def _group_name(names: Sequence[str]) -> str:
    """Return the common form of names: a star for each index that differs."""
    if len(names) == 1:
        return names[0]
    split = [re.split(r"(\d+)", name) for name in names]
    if len({len(parts) for parts in split}) > 1:
        return names[0]
    columns = zip(*split, strict=True)
    return "".join(parts[0] if len(set(parts)) == 1 else STAR for parts in columns)
