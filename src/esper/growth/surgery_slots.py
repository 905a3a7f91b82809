"""Slots in which a model's own layers grow: groups of hidden units, and lists of blocks.

New units and copied blocks start without effect. While alpha is below 1, hooks scale what readers
take in of new units, or what ends the residual branches of new blocks; at 1 there is none, and the
model is plain. A seed is known by its number of units or blocks alone: units stand behind the
others of their place, and the slot knows which blocks are copies.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import torch
from torch import Tensor, nn

from esper.errors import SlotError
from esper.growth.blueprints import find_blueprint
from esper.growth.modules import forget_graphs
from esper.growth.scales import InputScale, Scale
from esper.growth.sharding import total_norm
from esper.growth.sites import SlotSite
from esper.growth.slot import SlotBase
from esper.growth.slot_states import SlotStates
from esper.growth.surgery.configuration import SizeChange, find_sizes
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.layers import Role, unit_axis
from esper.growth.surgery.places import Group, Place, follow_blocks
from esper.growth.surgery.runs import (
    Insertion,
    Insertions,
    find_insertions,
    find_runs,
    place_after,
)
from esper.growth.surgery.units import (
    add_units,
    count_new_parameters,
    remove_units,
    tensor_of,
)


class SurgerySlot(SlotBase, ABC):
    """A slot in which a model's own layers grow."""

    starts_blended = True

    def __init__(self, site: SlotSite, lives: SlotStates, model: nn.Module) -> None:
        self.site = site
        self.model = model
        self.is_off = False
        self._lives = lives
        self._scales: list[tuple[nn.Module, Scale]] = []
        """The hooks that blend the seed in, with their layers."""

    @property
    @abstractmethod
    def size(self) -> int:
        """Units of each place, or blocks of the list, now."""

    @property
    def room(self) -> int | None:
        """Units or blocks that may still be added; None for any number."""
        limit = self._lives.growth_config.max_widening
        return None if limit is None else max(0, round(limit * self.site.size) - self.size)

    def is_full(self) -> bool:
        """Return whether nothing may be added any more."""
        return self.room == 0

    @abstractmethod
    def count_of(self, n: int) -> int:
        """Return how many parameters the last so many units or blocks have."""

    @abstractmethod
    def _make_scales(self) -> list[tuple[nn.Module, Scale]]:
        """Return the hooks that blend the seed in, with the layers that they belong to."""

    def count_live(self) -> int:
        """Return how many parameters the seed has; those between it and others count, too."""
        return self.count_of(self.life.live_units) if self.life.has_seed else 0

    def count_fossils(self) -> int:
        """Return how many parameters the fossils have."""
        n_live = self.life.live_units if self.life.has_seed else 0
        return self.count_of(self.life.units + n_live) - self.count_of(n_live)

    def seed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that are the uncommitted seed's alone."""
        return []

    def refresh(self) -> None:
        """Scale what the seed contributes by its alpha."""
        life = self.life
        factor = 1.0
        if life.is_growing:
            factor = 0.0 if self.is_off else life.alpha
        if factor == 1.0:
            self.remove_scales()
            return
        if not self._scales:
            self._scales = self._make_scales()
            for layer, scale in self._scales:
                scale.attach(layer)
            self._forget_graphs()
        for _, scale in self._scales:
            scale.set(factor)

    @property
    def is_scaled(self) -> bool:
        """Whether hooks scale what the seed contributes."""
        return bool(self._scales)

    def remove_scales(self) -> None:
        """Remove the hooks of the slot."""
        for layer, scale in self._scales:
            scale.detach(layer)
        if self._scales:
            self._forget_graphs()
        self._scales = []

    def _forget_graphs(self) -> None:
        """Drop what was compiled with other hooks, which torch does not look for."""
        for place in self.layer_names():
            forget_graphs(self.model, place)

    @abstractmethod
    def layer_names(self) -> list[str]:
        """Return the names that the slot's layers or its list of blocks have now."""


class UnitSlot(SurgerySlot):
    """A slot on a group of places, all of which get more units together."""

    def __init__(self, site: SlotSite, lives: SlotStates, model: nn.Module) -> None:
        super().__init__(site, lives, model)
        assert site.group is not None, "the site is a group of places"
        self.places: tuple[Place, ...] = site.group.places
        """The places as they are now."""
        self.shapes = self._read_shapes(self.places)
        """The shapes that growth has given their tensors."""

    def _read_shapes(self, places: Sequence[Place]) -> dict[str, tuple[int, ...]]:
        """Return the shapes of the tensors of places.

        Raises:
            SlotError: If one is too small for its units.
        """
        found: dict[str, tuple[int, ...]] = {}
        for place in places:
            for each in place.entries:
                shape = found[each.tensor] = tuple(tensor_of(self.model, each.tensor).shape)
                if shape[each.axis] < each.start + place.units * each.size:
                    raise SlotError(
                        f"slot {self.name!r} has {place.units} units, but {each.tensor!r} of shape "
                        f"{list(shape)} has fewer; the slot belongs to another model."
                    )
        return found

    @property
    def group(self) -> Group:
        """The group as it is now."""
        return Group(self.name, self.places)

    @property
    def size(self) -> int:
        """Units of each place, now."""
        return self.places[0].units

    @property
    def can_blend(self) -> bool:
        """Whether the seed can be scaled by alpha; units that read themselves cannot."""
        return not any(place.reads_itself for place in self.places)

    def layer_names(self) -> list[str]:
        """Return the names that the layers of all places have now."""
        return [name for place in self.places for name in place.layers]

    def find_sizes(self, n_new: int) -> list[SizeChange]:
        """Return the units or heads of each place before and after."""
        return find_sizes(self.group, n_new)

    def count_wanted(self, blueprint: str) -> int:
        """Return how many units a blueprint adds: its share, as far as there is room."""
        wanted = max(1, round(find_blueprint(blueprint).share * self.size))
        return wanted if self.room is None else min(wanted, self.room)

    def _counts(self, n: int) -> dict[Place, int]:
        return dict.fromkeys(self.places, n)

    def grow(self, edits: Edits, n_new: int) -> None:
        """Add units to every place."""
        counts = self._counts(n_new)
        add_units(edits, counts)
        edits.counts.append(counts)

    def shrink(self, edits: Edits) -> None:
        """Cut the seed's units out of every place."""
        n_live = self.life.live_units
        remove_units(edits, self._counts(n_live))
        edits.counts.append(self._counts(-n_live))

    def move(self, edits: Edits, counts: Mapping[Place, int], insertions: Insertions) -> None:
        """Follow a change of units, of this slot's places or of others'."""
        if self.shapes.keys().isdisjoint(insertions):
            return
        places = tuple(place_after(each, counts.get(each, 0), insertions) for each in self.places)
        edits.set_attribute(self, "places", places)
        edits.set_attribute(self, "shapes", self._read_shapes(places))

    @torch.no_grad()
    def settle(self) -> None:
        """Multiply alpha into what reads the units."""
        alpha = self.life.alpha
        for name, cuts in self._cuts().items() if alpha != 1.0 else ():
            tensor = tensor_of(self.model, name)
            for each in cuts:
                if each.entries.role is Role.READ:
                    tensor.narrow(each.entries.axis, *each.removed).mul_(alpha)

    def follow_blocks(self, edits: Edits, container: str, sources: Sequence[int]) -> None:
        """Follow a list of blocks that has other entries."""
        places = follow_blocks(self.places, container, sources)
        edits.set_attribute(self, "places", places)
        edits.set_attribute(self, "shapes", self._read_shapes(places))

    def require_unchanged(self) -> None:
        """Raise if a tensor has another size than growth has left it with."""
        for name, shape in self.shapes.items():
            try:
                now = tuple(tensor_of(self.model, name).shape)
            except AttributeError:
                now = None
            if now != shape:
                what = "is gone" if now is None else f"has shape {list(now)}, not {list(shape)}"
                raise SlotError(
                    f"slot {self.name!r} cannot grow: {name!r} {what}; the model was changed by "
                    "hand. Add slots to the model as it is now."
                )

    @torch.no_grad()
    def find_start_problem(self) -> str | None:
        """Return why new units would change the model's output, or None if they would not."""
        tensors: list[Tensor] = []
        read: list[Tensor] = []
        for name, cuts in self._cuts().items():
            tensor = tensor_of(self.model, name)
            if tensor.is_floating_point():
                tensors.append(tensor)
            read += _read_values(tensor, cuts)
        # A norm may overflow although all values are finite.
        is_finite = math.isfinite(total_norm(tensors)) or all(
            bool(torch.isfinite(tensor).all()) for tensor in tensors
        )
        if not is_finite:
            return "a weight beside the new units is not finite"
        return "what reads the new units is not zero" if read and total_norm(read) else None

    def _cuts(self) -> Insertions:
        """Return where the seed's units are."""
        return find_insertions(self._counts(-self.life.live_units))

    def count_of(self, n: int) -> int:
        """Return how many parameters the last so many units of every place have."""
        return -count_new_parameters(self.model, self._counts(-n)) if n else 0

    def count_new(self, blueprint: str) -> int:
        """Return how many parameters a seed of a blueprint would add."""
        return count_new_parameters(self.model, self._counts(self.count_wanted(blueprint)))

    def count_next(self) -> int:
        """Return how many parameters one more unit of every place has."""
        return count_new_parameters(self.model, self._counts(1))

    def _make_scales(self) -> list[tuple[nn.Module, Scale]]:
        found: dict[str, tuple[nn.Module, Scale]] = {}
        for name, cuts in self._cuts().items():
            path = name.rpartition(".")[0]
            layer = self.model.get_submodule(path)
            for each in cuts:
                if each.entries.role is Role.READ:
                    tensor = tensor_of(self.model, name)
                    if path not in found:
                        size = tensor.shape[each.entries.axis]
                        factors = torch.ones(size, device=tensor.device, dtype=tensor.dtype)
                        found[path] = layer, InputScale(factors, unit_axis(layer))
                    found[path][1].own[each.position + each.count : each.position] = True
        return list(found.values())


def _read_values(tensor: Tensor, cuts: Sequence[Insertion]) -> Iterator[Tensor]:
    """Yield the entries of a tensor that read a seed's units; new units may read one another."""
    for each in cuts:
        if each.entries.role is not Role.READ:
            continue
        axis = each.entries.axis
        others = [
            other
            for other in cuts
            if other.entries.role is Role.WRITE and other.entries.axis != axis
        ]
        old = find_runs(tensor.shape, others)
        for chosen in product(*old.values()):
            part = tensor.narrow(axis, *each.removed)
            for own, (start, _, length) in zip(old, chosen, strict=True):
                part = part.narrow(own, start, length)
            yield part
