"""Turning a grown model into a plain one: the same function, made of torch's modules only."""

from __future__ import annotations

import copy

from torch import nn

from esper.growth.blueprints.noop import NoopSeed
from esper.growth.export.composing import compose
from esper.growth.export.merging import ADD_STYLES, Ties, merge_seed, scale_last_layer
from esper.growth.export.plain import require_plain, to_plain
from esper.growth.host_slots import ATTRIBUTE
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.stages import Stage


def export(model: nn.Module, *, committed_only: bool = False) -> nn.Module:
    """Return a plain copy of a model, with no class, hook or slot of Esper in it.

    The copy computes what the model computes now in evaluation mode: seeds that are blended in are
    kept at their present alpha, those that are still learning in isolation are left out. A seed is
    merged into the weights of its block where the mathematics allows it, and otherwise stands
    beside the block as ordinary torch modules. The model itself stays as it is.

    Classes that are not Esper's stay what they are, so the copy needs whatever defines them.

    Args:
        model: Any module, with slots or without.
        committed_only: Keep only seeds that are fossilized.

    Raises:
        UnsupportedHostError: If part of the model cannot be written without Esper; the message
            names the part.
    """
    twin = copy.deepcopy(model)
    for module in twin.modules():
        module.__dict__.pop(ATTRIBUTE, None)
    plain = _Exporter(Ties(twin), committed_only=committed_only).convert(twin, "")
    require_plain(plain)
    return plain


class _Exporter:
    """Converts the modules of one copied model, the innermost first."""

    def __init__(self, ties: Ties, *, committed_only: bool) -> None:
        self._ties = ties
        self._committed_only = committed_only
        self._done: dict[nn.Module, nn.Module] = {}

    def convert(self, module: nn.Module, name: str) -> nn.Module:
        """Return the plain form of a module; a module that occurs twice gets one form."""
        if module not in self._done:
            self._done[module] = self._convert_anew(module, name)
        return self._done[module]

    def _convert_anew(self, module: nn.Module, name: str) -> nn.Module:
        if isinstance(module, SeedSlot):
            module.block = self.convert(module.block, name)
            return self._grow(module) if self._is_kept(module) else module.block
        children: dict[str, nn.Module | None] = module.__dict__.get("_modules", {})
        for child_name, child in list(children.items()):
            if child is None:
                continue
            plain = self.convert(child, f"{name}.{child_name}" if name else child_name)
            if plain is not child:
                setattr(module, child_name, plain)
        return to_plain(module, name)

    def _is_kept(self, slot: SeedSlot) -> bool:
        """Return whether the exported model shows the seed of a slot."""
        # A seed that is germinated or learns in isolation has an alpha of zero.
        if slot.seed is None or slot.is_off or slot.alpha == 0.0:
            return False
        return slot.stage == Stage.FOSSILIZED or not self._committed_only

    def _grow(self, slot: SeedSlot) -> nn.Module:
        """Return a block with what its seed adds to it; the block is plain already."""
        assert slot.seed is not None
        # All it ever adds is zero, whatever the style.
        if type(slot.seed) is NoopSeed:
            return slot.block
        if merge_seed(slot, self._ties):
            return slot.block
        seed = self.convert(slot.seed, f"{slot.name}.seed")
        gate = None if slot.gate is None else self.convert(slot.gate, f"{slot.name}.gate")
        alpha = slot.alpha
        if slot.life.style in ADD_STYLES and scale_last_layer(seed, alpha, self._ties):
            alpha = 1.0
        return compose(slot, seed, gate, alpha)
