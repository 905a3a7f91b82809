"""Slots on lists of residual blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import nn

from esper.errors import SlotError
from esper.growth.modules import count_parameters
from esper.growth.scales import OutputScale, Scale
from esper.growth.sites import SlotSite
from esper.growth.slot_states import SlotStates
from esper.growth.surgery.blocks import add_blocks, remove_blocks
from esper.growth.surgery.configuration import SizeChange
from esper.growth.surgery.edits import Edits
from esper.growth.surgery.places import BlockList, renamed
from esper.growth.surgery_slots import SurgerySlot


class BlockSlot(SurgerySlot):
    """A slot on a list of residual blocks, which gets copies of them."""

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
        is_fresh = self._lives.growth_config.deepen_start == "fresh"
        add_blocks(edits, self.blocks, sources, start="fresh" if is_fresh else "zero")
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

    def _make_scales(self) -> list[tuple[nn.Module, Scale]]:
        found: list[tuple[nn.Module, Scale]] = []
        for layer in self._ending_layers():
            like = next(layer.parameters(recurse=False))
            factors = torch.ones((), device=like.device, dtype=like.dtype)
            found.append((layer, OutputScale(factors)))
        return found
