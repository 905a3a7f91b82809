"""Places of a model that can be widened, groups of places that repeat, and lists of blocks.

The name of a place is that of the module that holds it alone, such as ``layers.0.mlp``, or else
those of its layers, ``conv1>conv2``. Places of the same kind in blocks that repeat form a group,
named like them with a star: ``layers.*.mlp``. Everything here is plain data.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial

from torch import nn

from esper.growth.modules import named_modules
from esper.growth.surgery.layers import Entries, Role

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

    def renamed(self, rename: Callable[[str], str]) -> Place:
        """Return the place with other names of modules."""
        return replace(
            self,
            entries=tuple(replace(each, tensor=rename(each.tensor)) for each in self.entries),
            writers=tuple(map(rename, self.writers)),
            readers=tuple(map(rename, self.readers)),
            sizes=tuple((rename(name), attribute, n) for name, attribute, n in self.sizes),
        )

    @property
    def reads_itself(self) -> bool:
        """Whether a layer that computes the units also reads them, as a recurrent one does."""
        return any(
            each.role is Role.READ and each.tensor.rpartition(".")[0] in self.writers
            for each in self.entries
        )


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


@dataclass(frozen=True, kw_only=True)
class BlockIdentity:
    """How a residual block becomes the identity, so that a copy of it can start unnoticed.

    With the parameters of some layers set to zero, the block computes ``x``. A block that ends in
    a norm, ``norm(x + f(x))``, computes ``x`` if ``x`` is normalized and all norms of its residual
    stream have weight 1 and bias 0.
    """

    zeroed: tuple[str, ...]
    """Names, inside the block, of the layers whose own parameters are zeroed."""
    norms: tuple[str, ...] = ()
    """Names of the norms of the residual stream of a block that ends in one; that one is last."""
    is_scalable: bool = False
    """Whether each of the zeroed layers is called once, so that what it returns can be scaled."""


@dataclass(frozen=True)
class BlockList:
    """A list of blocks of which some can be followed by a copy."""

    name: str
    """The name of the list with a star for the index: ``model.layers.*``."""
    container: str
    identities: tuple[BlockIdentity | None, ...]
    """How the copy of each block becomes the identity; None for blocks that have no copies."""
    is_stack: bool
    """Whether all blocks are residual, as in a stack of encoder blocks; stages are not."""
    n_layers: int = 0
    """Entries that are not blocks, such as single layers of an ``nn.Sequential``."""

    @property
    def length(self) -> int:
        """The number of blocks."""
        return len(self.identities)

    @property
    def n_residual(self) -> int:
        """The number of blocks that can be copied; others, such as a head, may be in the list."""
        return sum(identity is not None for identity in self.identities)

    def block(self, index: int) -> str:
        """Return the name of a block."""
        return f"{self.container}.{index}" if self.container else str(index)

    def spread(self, n_new: int, period: int = 1) -> tuple[int, ...]:
        """Return the index that each block of the longer list is, or is a copy of.

        Copies stand behind their originals, spread over the list. With a period, as many blocks in
        a row are copied together, for models whose blocks take turns by their index; the list stays
        as it is if that cannot be.
        """
        runs = [
            tuple(range(first, first + period))
            for first in range(0, self.length - period + 1, period)
            if all(self.identities[first + k] is not None for k in range(period))
        ]
        counts: dict[int, int] = {}
        is_possible = bool(runs) and n_new % period == 0
        for number in range(n_new // period if is_possible else 0):
            run = runs[-(-(number + 1) * len(runs) // (n_new // period)) - 1]
            counts[run[-1]] = counts.get(run[-1], 0) + 1
        order: list[int] = []
        for index in range(self.length):
            order.append(index)
            order += [*range(index - period + 1, index + 1)] * counts.get(index, 0)
        return tuple(order)

    def with_blocks(self, sources: Sequence[int]) -> BlockList:
        """Return the list with other blocks, each of which is one of before or a copy of it."""
        return replace(self, identities=tuple(self.identities[index] for index in sources))


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
    """Return the outermost block that repeats around a module, or an empty name."""
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
        elif len(place.writers) <= MAX_WRITERS and len(place.readers) <= MAX_READERS:
            names.append(layers_name(place, module if outer_block(module, entries) else ""))
        else:
            names.append(place.writers[0])
    return names


def layers_name(place: Place, around: str = "") -> str:
    """Return a name made of a place's layers, which are all in the module ``around``."""
    prefix = f"{around}." if around else ""
    writers, readers = (
        "+".join(name.removeprefix(prefix) for name in names)
        for names in (place.writers, place.readers)
    )
    return f"{prefix}{writers}>{readers}"


def matches(name: str, wanted: str) -> bool:
    """Return whether a place or group is the wanted one, or inside it; stars match."""
    if name == wanted or name.startswith((f"{wanted}.", f"{wanted}>")):
        return True
    return STAR in wanted and fnmatchcase(name, re.sub(r"([\[\]?])", r"[\1]", wanted))


def renamed(name: str, container: str, sources: Sequence[int], copy: int = 0) -> str:
    """Return the name of a module after a list of blocks got other entries.

    Args:
        name: The name before.
        container: The name of the list.
        sources: The former index of each present entry, or that of the original of a copy.
        copy: Which of the entries with this source is meant; 0 for the block itself.
    """
    index = _index_in(name, container)
    if index is None:
        return name
    prefix = f"{container}." if container else ""
    rest = name[len(prefix) + len(str(index)) :]
    return f"{prefix}{[k for k, source in enumerate(sources) if source == index][copy]}{rest}"


def follow_blocks(
    places: Iterable[Place], container: str, sources: Sequence[int]
) -> tuple[Place, ...]:
    """Return places after a list of blocks got other entries.

    A place inside a block has copies in the copies of the block; one that reaches over blocks gets
    the entries of copies.
    """
    found: list[Place] = []
    for place in places:
        indices = {_index_in(each.tensor, container) for each in place.entries}
        if len(indices) == 1:
            (index,) = indices
            count = 1 if index is None else sources.count(index)
            for copy in range(count):
                move = partial(renamed, container=container, sources=sources, copy=copy)
                found.append(replace(place.renamed(move), name=move(place.name)))
            continue

        def spread(names: Iterable[str]) -> list[str]:
            return [
                renamed(name, container, sources, copy)
                for name in names
                for copy in range(_count_copies(name, container, sources))
            ]

        entries = [
            replace(each, tensor=name) for each in place.entries for name in spread([each.tensor])
        ]
        writers, readers = spread(place.writers), spread(place.readers)
        sizes = [(n, a, count) for name, a, count in place.sizes for n in spread([name])]
        found.append(
            replace(
                place,
                entries=tuple(entries),
                writers=tuple(writers),
                readers=tuple(readers),
                sizes=tuple(sizes),
            )
        )
    return tuple(found)


def _count_copies(name: str, container: str, sources: Sequence[int]) -> int:
    index = _index_in(name, container)
    return 1 if index is None else sources.count(index)


def _index_in(name: str, container: str) -> int | None:
    """Return the index of the entry of a list that a module is in; None outside of it."""
    prefix = f"{container}." if container else ""
    if not name.startswith(prefix):
        return None
    index = name[len(prefix) :].partition(".")[0]
    return int(index) if index.isdigit() else None


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
