"""Slots in which a model's own layers grow: groups of hidden units, and lists of blocks.

New units and copied blocks start without effect. While alpha is below 1, hooks scale what readers
take in of new units, or what ends the residual branches of new blocks; at 1 there is none, and the
model is plain. A seed is known by its number of units or blocks alone: units stand behind the
others of their place, and the slot knows which blocks are copies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from esper.errors import SlotError
from esper.growth.blueprints import find_blueprint
from esper.growth.modules import count_parameters, forget_graphs
from esper.growth.sharding import total_norm
from esper.growth.sites import SlotSite
from esper.growth.slot_states import SlotLife, SlotStates
from esper.growth.surgery.blocks import add_blocks, remove_blocks
from esper.growth.surgery.configuration import SizeChange, find_sizes, has_configuration
from esper.growth.surgery.edits import (
    Edits,
    Insertion,
    Insertions,
    add_units,
    count_change,
    draw_as_built,
    find_insertions,
    place_after,
    remove_units,
    tensor_of,
)
from esper.growth.surgery.layers import Role, unit_axis
from esper.growth.surgery.places import BlockList, Group, Place, follow_blocks, renamed
from esper.lifecycle.stages import Stage


class SurgerySlot(ABC):
    """A slot in which a model's own layers grow."""

    is_off = False
    """Whether the seed is disabled, to measure what it contributes; committed ones never are."""

    unit: ClassVar[str]
    """What is counted: "units" or "blocks"."""

    def __init__(self, site: SlotSite, lives: SlotStates, model: nn.Module) -> None:
        self.site = site
        self.model = model
        self._lives = lives
        self._scales: list[tuple[nn.Module, _Scale]] = []
        """The hooks that blend the seed in, with their layers."""

    @property
    def name(self) -> str:
        """The slot's name."""
        return self.site.name

    @property
    def life(self) -> SlotLife:
        """The life of the slot's seed."""
        return self._lives[self.site.name]

    @property
    def stage(self) -> Stage:
        """The slot's stage."""
        return self.life.stage

    @property
    def alpha(self) -> float:
        """How strongly the seed is blended in, 0 to 1."""
        return self.life.alpha

    @property
    @abstractmethod
    def size(self) -> int:
        """Units of each place, or blocks of the list, now."""

    @property
    @abstractmethod
    def can_blend(self) -> bool:
        """Whether the seed can be scaled by alpha."""

    @abstractmethod
    def find_sizes(self, n_new: int) -> list[SizeChange]:
        """Return the sizes that a configuration gives, before and after so many more or fewer."""

    @property
    def room(self) -> int | None:
        """Units or blocks that may still be added; None for any number."""
        limit = self._lives.growth_config.max_widening
        return None if limit is None else max(0, round(limit * self.site.size) - self.size)

    def is_full(self) -> bool:
        """Return whether nothing may be added any more."""
        return self.room == 0

    @abstractmethod
    def count_wanted(self, blueprint: str) -> int:
        """Return how many units or blocks a blueprint adds, as far as there is room."""

    @abstractmethod
    def grow(self, edits: Edits, n_new: int) -> None:
        """Add units or blocks, drawing weights from torch's default generator."""

    @abstractmethod
    def shrink(self, edits: Edits) -> None:
        """Take the uncommitted seed out of the model."""

    @abstractmethod
    def settle(self) -> None:
        """Make a new commitment of the seed permanent, at its alpha."""

    @abstractmethod
    def draw_as_built(self) -> None:
        """Draw the seed's weights as in a model that was built with it, if that differs."""

    @abstractmethod
    def require_unchanged(self) -> None:
        """Raise if the model was changed by hand where the slot is.

        Raises:
            SlotError: Saying what is different.
        """

    @abstractmethod
    def find_start_problem(self) -> str | None:
        """Return why a new seed would change the model's output, or None if it would not."""

    @abstractmethod
    def count_of(self, n: int) -> int:
        """Return how many parameters the last so many units or blocks have."""

    @abstractmethod
    def count_new(self, blueprint: str) -> int:
        """Return how many parameters a seed of a blueprint would add."""

    @abstractmethod
    def count_next(self) -> int:
        """Return how many parameters one more unit of every place, or one more block, has."""

    @abstractmethod
    def _make_scales(self) -> list[tuple[nn.Module, _Scale]]:
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

    def gradient_norm(self) -> float:
        """Return the norm of the gradients of the seed's own parameters; 0 without any."""
        grads = [p.grad for p in self.seed_parameters() if p.grad is not None]
        return total_norm(grads) if grads else 0.0

    def explain_misfit(self, blueprint: str) -> str:
        """Return why a blueprint does not fit the slot."""
        return find_blueprint(blueprint).why_not(self.site) or "its slots leave it out"

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

    @contextmanager
    def switched_off(self) -> Generator[None]:
        """Disable the seed inside the context."""
        was_off, self.is_off = self.is_off, True
        self.refresh()
        try:
            yield
        finally:
            self.is_off = was_off
            self.refresh()


class UnitSlot(SurgerySlot):
    """A slot on a group of places, all of which get more units together."""

    unit = "units"

    def __init__(self, site: SlotSite, lives: SlotStates, model: nn.Module) -> None:
        super().__init__(site, lives, model)
        assert site.group is not None, "the site is a group of places"
        self.places: tuple[Place, ...] = site.group.places
        """The places as they are now."""

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

    def move(self, edits: Edits, counts: Mapping[Place, int]) -> None:
        """Follow a change of units, of this slot's places or of others'."""
        places = tuple(place_after(place, counts) for place in self.places)
        edits.set_attribute(self, "places", places)

    @torch.no_grad()
    def settle(self) -> None:
        """Multiply alpha into what reads the units."""
        alpha = self.life.alpha
        for name, cuts in self._cuts().items() if alpha != 1.0 else ():
            tensor = tensor_of(self.model, name)
            tensor.mul_(torch.where(self._mask(tensor, cuts, Role.READ), alpha, 1.0).to(tensor))

    def draw_as_built(self) -> None:
        """Draw the weights of all layers as in a model that was built this wide."""
        draw_as_built(self.model, self._counts(self.life.live_units))

    def follow_blocks(self, edits: Edits, container: str, sources: Sequence[int]) -> None:
        """Follow a list of blocks that has other entries."""
        edits.set_attribute(self, "places", follow_blocks(self.places, container, sources))

    def require_unchanged(self) -> None:
        """Raise if a tensor has another size than growth has left it with."""
        for name, insertions in find_insertions(self._counts(0)).items():
            try:
                shape = tuple(tensor_of(self.model, name).shape)
            except AttributeError as error:
                raise SlotError(
                    f"slot {self.name!r} cannot grow: {name!r} is gone; the model was changed by "
                    "hand. Add slots to the model as it is now."
                ) from error
            for each in insertions:
                axis = each.entries.axis
                if axis >= len(shape) or shape[axis] < each.position:
                    raise SlotError(
                        f"slot {self.name!r} cannot grow: {name!r} has shape {list(shape)}, which "
                        f"is too small for {self.size} units; the model was changed by hand. Add "
                        "slots to the model as it is now."
                    )

    @torch.no_grad()
    def find_start_problem(self) -> str | None:
        """Return why new units would change the model's output, or None if they would not."""
        for name, cuts in self._cuts().items():
            tensor = tensor_of(self.model, name)
            if tensor.is_floating_point() and not bool(torch.isfinite(tensor).all()):
                return "a weight beside the new units is not finite"
            # New units may read one another.
            rows = self._mask(tensor, cuts, Role.WRITE)
            columns = self._mask(tensor, cuts, Role.READ)
            if bool(tensor[columns & ~rows].any()):
                return "what reads the new units is not zero"
        return None

    def _mask(self, tensor: Tensor, cuts: Sequence[Insertion], role: Role) -> Tensor:
        """Return which entries of a tensor do something with the seed's units."""
        found = torch.zeros_like(tensor, dtype=torch.bool)
        for each in cuts:
            if each.entries.role is role:
                start, stop = each.position + each.count, each.position
                found.movedim(each.entries.axis, 0)[start:stop] = True
        return found

    def _cuts(self) -> Insertions:
        """Return where the seed's units are."""
        return find_insertions(self._counts(-self.life.live_units))

    def count_of(self, n: int) -> int:
        """Return how many parameters the last so many units of every place have."""
        return -count_change(self.model, self._counts(-n)) if n else 0

    def count_new(self, blueprint: str) -> int:
        """Return how many parameters a seed of a blueprint would add."""
        return count_change(self.model, self._counts(self.count_wanted(blueprint)))

    def count_next(self) -> int:
        """Return how many parameters one more unit of every place has."""
        return count_change(self.model, self._counts(1))

    def _make_scales(self) -> list[tuple[nn.Module, _Scale]]:
        found: dict[str, tuple[nn.Module, _Scale]] = {}
        for name, cuts in self._cuts().items():
            path = name.rpartition(".")[0]
            layer = self.model.get_submodule(path)
            for each in cuts:
                if each.entries.role is Role.READ:
                    tensor = tensor_of(self.model, name)
                    if path not in found:
                        size = tensor.shape[each.entries.axis]
                        factors = torch.ones(size, device=tensor.device, dtype=tensor.dtype)
                        found[path] = layer, _InputScale(factors, unit_axis(layer))
                    found[path][1].own[each.position + each.count : each.position] = True
        return list(found.values())


class BlockSlot(SurgerySlot):
    """A slot on a list of residual blocks, which gets copies of them."""

    unit = "blocks"

    def __init__(self, site: SlotSite, lives: SlotStates, model: nn.Module) -> None:
        super().__init__(site, lives, model)
        assert site.blocks is not None, "the site is a list of blocks"
        self.blocks: BlockList = site.blocks
        """The list as it is now."""
        self.origins: tuple[int, ...] = tuple(range(self.blocks.length))
        """The index, in the list as it was found, of each block or of what it is a copy of."""
        self.live: tuple[int, ...] = ()
        """The indices of the copies that were made last."""

    @property
    def size(self) -> int:
        """Blocks of the list, now."""
        return self.blocks.length

    @property
    def copies(self) -> tuple[int, ...]:
        """The indices of all copies."""
        return tuple(k for k, origin in enumerate(self.origins) if origin in self.origins[:k])

    @property
    def can_blend(self) -> bool:
        """Whether copies can be scaled by alpha: not if they end in a norm."""
        identities = [each for each in self.blocks.identities if each is not None]
        return all(each.is_scalable and not each.norms for each in identities)

    def layer_names(self) -> list[str]:
        """Return the name of an entry of the list."""
        return [self.blocks.block(0)]

    def find_sizes(self, n_new: int) -> list[SizeChange]:
        """Return the length of the list before and after."""
        sources = self._longer(n_new) if n_new > 0 else self._shorter()
        return [SizeChange(self.size, len(sources), sources)]

    def count_wanted(self, blueprint: str) -> int:
        """Return how many blocks a blueprint adds: one, as far as there is room."""
        return 1 if self.room is None else min(1, self.room)

    def _longer(self, n_new: int) -> tuple[int, ...]:
        """Return the index that each block of a longer list is, or is a copy of.

        The blocks with the fewest copies get one first; a copy stands behind all others of its
        block.
        """
        sources, origins = list(range(self.size)), list(self.origins)
        able = [o for o, each in zip(origins, self.blocks.identities, strict=True) if each]
        for _ in range(n_new):
            origin = min(able, key=lambda each: (origins.count(each), each))
            position = len(origins) - origins[::-1].index(origin)
            sources.insert(position, self.origins.index(origin))
            origins.insert(position, origin)
        return tuple(sources)

    def _shorter(self) -> tuple[int, ...]:
        """Return the indices of the blocks without those of the seed."""
        return tuple(k for k in range(self.size) if k not in self.live)

    def grow(self, edits: Edits, n_new: int) -> None:
        """Put copies behind blocks of the list."""
        sources = self._longer(n_new)
        fresh = self._lives.growth_config.deepen_start == "fresh"
        add_blocks(
            edits,
            self.blocks,
            sources,
            start="fresh" if fresh else "zero",
            has_own_config=not has_configuration(self.model),
        )
        new = tuple(k for k, index in enumerate(sources) if index in sources[:k])
        self._set(edits, sources, new)

    def shrink(self, edits: Edits) -> None:
        """Take the seed's copies out of the list."""
        remove_blocks(edits, self.blocks, self.live)
        self._set(edits, self._shorter(), ())

    def _set(self, edits: Edits, sources: tuple[int, ...], live: tuple[int, ...]) -> None:
        origins = tuple(self.origins[index] for index in sources)
        blocks = self.blocks.with_blocks(sources)
        for attribute, value in (("blocks", blocks), ("origins", origins), ("live", live)):
            edits.set_attribute(self, attribute, value)
        edits.moves.append((self.blocks.container, sources))

    def follow_blocks(self, edits: Edits, container: str, sources: Sequence[int]) -> None:
        """Follow a list around this one that has other entries."""
        moved = renamed(self.blocks.container, container, sources)
        edits.set_attribute(self, "blocks", replace(self.blocks, container=moved))

    def _entries(self, indices: Sequence[int]) -> list[nn.Module]:
        return [self.model.get_submodule(self.blocks.block(index)) for index in indices]

    @torch.no_grad()
    def settle(self) -> None:
        """Multiply alpha into the layers that end the copies' residual branches."""
        alpha = self.life.alpha
        for layer in self._ending_layers() if alpha != 1.0 else ():
            for parameter in layer.parameters(recurse=False):
                parameter.mul_(alpha)

    def draw_as_built(self) -> None:
        """Do nothing: a copy is the identity at first in any model."""

    def require_unchanged(self) -> None:
        """Raise if the list has another length than growth has left it with."""
        try:
            n_now = len(list(self.model.get_submodule(self.blocks.container).children()))
        except AttributeError:
            n_now = 0
        if n_now != self.size:
            raise SlotError(
                f"slot {self.name!r} cannot grow: {self.blocks.container or 'the model'!r} has "
                f"{n_now} blocks instead of {self.size}; the model was changed by hand. Add slots "
                "to the model as it is now."
            )

    def find_start_problem(self) -> str | None:
        """Return why new copies would change the model's output, or None if they would not."""
        for layer in self._ending_layers():
            if any(bool(p.any()) for p in layer.parameters(recurse=False)):
                return "a layer that ends a residual branch of a copy is not zero"
        tensors = [t for block in self._entries(self.live) for t in block.parameters()]
        if not all(bool(torch.isfinite(t).all()) for t in tensors if t.is_floating_point()):
            return "a weight of a copied block is not finite"
        return None

    def _ending_layers(self) -> list[nn.Module]:
        found: list[nn.Module] = []
        for index, block in zip(self.live, self._entries(self.live), strict=True):
            identity = self.blocks.identities[index]
            assert identity is not None, "only blocks with an identity are copied"
            found += [block.get_submodule(name) for name in identity.zeroed]
        return found

    def seed_parameters(self) -> list[nn.Parameter]:
        """Return the parameters of the uncommitted copies."""
        if not self.life.is_growing:
            return []
        return [p for block in self._entries(self.live) for p in block.parameters()]

    def count_of(self, n: int) -> int:
        """Return how many parameters so many copies have, the live ones first."""
        live = self.live if self.life.has_seed else ()
        others = [index for index in self.copies if index not in live]
        return sum(map(count_parameters, self._entries([*live, *others][:n])))

    def count_new(self, blueprint: str) -> int:
        """Return how many parameters the copies would have."""
        sources = self._longer(self.count_wanted(blueprint))
        new = [index for k, index in enumerate(sources) if index in sources[:k]]
        return sum(map(count_parameters, self._entries(new)))

    def count_next(self) -> int:
        """Return how many parameters one more block has."""
        able = [k for k, identity in enumerate(self.blocks.identities) if identity is not None]
        return sum(map(count_parameters, self._entries(able[:1])))

    def _make_scales(self) -> list[tuple[nn.Module, _Scale]]:
        found: list[tuple[nn.Module, _Scale]] = []
        for layer in self._ending_layers():
            like = next(layer.parameters(recurse=False))
            factors = torch.ones((), device=like.device, dtype=like.dtype)
            found.append((layer, _OutputScale(factors)))
        return found


class _Scale:
    """A hook that multiplies by alpha, which is a tensor so that compiled graphs stay valid."""

    attribute: ClassVar[str]

    def __init__(self, factors: Tensor) -> None:
        self.factors = factors
        self.own = torch.zeros_like(factors, dtype=torch.bool)

    def set(self, alpha: float) -> None:
        """Change alpha."""
        self.factors[self.own] = alpha

    @abstractmethod
    def attach(self, layer: nn.Module) -> None:
        """Start scaling."""

    def detach(self, layer: nn.Module) -> None:
        """Stop scaling. The hook is found by identity, also in a copy of the model."""
        hooks: dict[int, Any] = layer.__dict__[self.attribute]
        for key in [key for key, hook in hooks.items() if hook is self]:
            del hooks[key]
            for flags in ("_with_kwargs", "_always_called"):
                layer.__dict__.get(self.attribute + flags, {}).pop(key, None)


class _InputScale(_Scale):
    """Scales some entries of what a layer reads."""

    attribute = "_forward_pre_hooks"

    def __init__(self, factors: Tensor, axis: int) -> None:
        super().__init__(factors)
        self._n_behind = -1 - axis

    def attach(self, layer: nn.Module) -> None:
        """Scale the layer's input."""
        layer.register_forward_pre_hook(self, with_kwargs=True)

    def __call__(self, _: nn.Module, args: Any, kwargs: Any) -> tuple[Any, Any]:
        """Return the layer's arguments with its input scaled."""
        factors = self.factors.view(-1, *(1,) * self._n_behind)
        if args:
            return (args[0] * factors.to(args[0].dtype), *args[1:]), kwargs
        name = next(iter(kwargs))
        return args, {**kwargs, name: kwargs[name] * factors.to(kwargs[name].dtype)}


class _OutputScale(_Scale):
    """Scales what a layer returns."""

    attribute = "_forward_hooks"

    def __init__(self, factors: Tensor) -> None:
        super().__init__(factors)
        self.own.fill_(True)

    def attach(self, layer: nn.Module) -> None:
        """Scale the layer's output."""
        layer.register_forward_hook(self)

    def __call__(self, _: nn.Module, __: Any, output: Tensor) -> Tensor:
        """Return the layer's output, scaled."""
        return output * self.factors.to(output.dtype)
