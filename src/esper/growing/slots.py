"""Adding slots to a copy of a user's model."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from esper.config.growth import GrowthConfig
from esper.errors import ConfigError, SlotError, UnsupportedHostError, summarize_error
from esper.growth.export.composition import require_composable
from esper.growth.host_slots import own_slots, remove_slots, slot_config_for, slots, unwrapped
from esper.growth.placement import (
    ProposalKind,
    SlotProposal,
    SlotProposals,
    add_slots,
    attach_slots,
    find_slots,
    overlap,
)
from esper.growth.seed_slot import SeedSlot
from esper.growth.sites import SlotSite
from esper.growth.slot_states import SlotStates
from esper.lifecycle.stages import Stage

MAX_SLOTS = 12
"""Most slots that are chosen automatically: as many as controllers are trained with."""


DEPTH_SHARE = 3
"""If there are too many places, one in so many of the chosen ones is a residual block."""


def place_slots(
    model: nn.Module,
    at: Sequence[str] | None,
    sample: Any,
    *,
    for_depth: bool = False,
    growth_config: GrowthConfig | None = None,
    seed: int = 0,
) -> None:
    """Add empty slots to a model, in place, given a few inputs.

    They are around the blocks ``at``; if that is None, where :func:`choose_slots` says, unless the
    model has its own. ``for_depth`` chooses residual blocks only.

    Raises:
        SlotError: If the model has no place for a slot, or a slot is in use.
        UnsupportedHostError: If a seed in a slot could not be exported.
    """
    options: dict[str, Any] = {"growth_config": growth_config, "seed": seed}
    if own_slots(model) is not None:
        _require_empty(model, at)
    elif at is not None:
        add_slots(model, at, sample, **options)
    else:
        proposals = find_slots(model, sample)
        found = SlotProposals(each for each in proposals if _is_exportable(model, each))
        if not found:
            raise SlotError(
                f"no block of this {type(model).__name__} can have a slot; a block is a submodule "
                "with parameters that is called once and returns a floating-point tensor of 2 to 4 "
                "axes. Name one with at=[...] to see why it cannot; wrap a model of one layer as "
                "nn.Sequential(model)."
            )
        if for_depth:
            found = SlotProposals(
                each
                for each in found
                if each.site.identity is not None and each.place != ProposalKind.STACK
            )
            if not found:
                raise SlotError(
                    f"no block of this {type(model).__name__} is residual, so it cannot get "
                    "deeper; give a target in parameters, or name a block with at=[...] to see "
                    "why it is not."
                )
        add_slots(model, choose_slots(found, for_depth=for_depth), sample, **options)
        _reserve_for_depth(model, **options)
    for slot in slots(model).values():
        if slot.site.pair is None:  # units of a pair are always merged
            require_composable(slot)


def _reserve_for_depth(model: nn.Module, **options: Any) -> None:
    """Let residual blocks around slots that widen their layers grow by copies of the block alone.

    Units beside such a block would do what the inner slots do, but without the block's norm, and
    controllers would have to learn which of the two to take.
    """
    sites = [slot.site for slot in slots(model).values()]
    widened = [site.name for site in sites if site.can_widen]

    def is_for_depth(site: SlotSite) -> bool:
        is_around = any(name.startswith(f"{site.name}.") for name in widened)
        return site.identity is not None and not site.can_widen and is_around

    sites = [replace(site, is_for_depth=is_for_depth(site)) for site in sites]
    if any(site.is_for_depth for site in sites):
        remove_slots(model)
        attach_slots(model, sites, **options)


def _is_exportable(model: nn.Module, proposal: SlotProposal) -> bool:
    """Return whether a seed at the proposed place could be exported."""
    if proposal.site.pair is not None:
        return True
    block = model.get_submodule(proposal.name)
    slot = SeedSlot(proposal.site, block, SlotStates(slot_config_for([proposal.site], None)))
    try:
        require_composable(slot)
    except UnsupportedHostError:
        return False
    return True


def copy_model(model: nn.Module, memo: dict[int, Any] | None = None) -> nn.Module:
    """Return a copy of a model, without gradients; ``memo`` as in ``copy.deepcopy``.

    Raises:
        UnsupportedHostError: If it cannot be copied.
    """
    try:
        twin = copy.deepcopy(unwrapped(model), memo)
    # A user's model may raise anything.
    except Exception as error:
        raise UnsupportedHostError(
            f"this {type(model).__name__} cannot be copied: {summarize_error(error)}; "
            "copy.deepcopy(model) must work, because a copy is grown."
        ) from error
    for parameter in twin.parameters():
        parameter.grad = None
    return twin


def require_trainable(model: nn.Module) -> None:
    """Reject a model in which nothing learns.

    Raises:
        ConfigError: If no parameter requires gradients.
    """
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ConfigError(
            f"this {type(model).__name__} has no trainable parameter; at least one must have "
            "requires_grad."
        )


def choose_slots(
    proposals: SlotProposals, maximum: int = MAX_SLOTS, *, for_depth: bool = False
) -> list[str]:
    """Return the proposed places that get a slot, in the model's order.

    The best ranked are taken first: those where width can grow, then blocks that seeds grow beside,
    each by their share of the model's parameters, FLOPs and gradient. A place is left out if

    - it would widen the same units as another: a pair and the block around it;
    - new units of a chosen pair would change the size of what it reads or returns;
    - it is inside a chosen block of the second kind, or is a stack of proposed blocks.

    If there are more places than slots, a third of the slots is for residual blocks, so that the
    model can also get deeper.

    Args:
        proposals: The places, of :func:`esper.find_slots`.
        maximum: The largest number of slots.
        for_depth: Whether all proposals are residual blocks. All outer ones are taken, however
            many, because a depth counts every block.
    """
    if for_depth:
        names = proposals.names
        return [name for name in names if not any(name.startswith(f"{each}.") for each in names)]
    blocks = [each for each in proposals if each.site.pair is None]
    pairs = [each for each in proposals if each.site.pair is not None]
    # A block fits more blueprints than a pair, but it keeps pairs across its border from growing.
    taken = {
        units
        for block in blocks
        if (units := _units_of(block)) and not any(overlap(block.site, pair.site) for pair in pairs)
    }
    inner = {_units_of(block): block for block in blocks}  # the last one with the same units
    blocks = [
        block
        for block in blocks
        if not (units := _units_of(block)) or (units in taken and inner[units] is block)
    ]
    pairs = [pair for pair in pairs if _units_of(pair) not in taken]
    places = [each for each in (*blocks, *pairs) if each.place != ProposalKind.STACK]
    ranked = sorted(places or blocks, key=lambda each: each.rank)
    chosen = _take([], ranked, len(ranked))
    if len(chosen) > maximum:
        residual = [each for each in ranked if each.site.identity is not None]
        chosen = _take(_take([], residual, maximum // DEPTH_SHARE), ranked, maximum)
    names = {each.name for each in chosen}
    return [name for name in proposals.names if name in names]


def _take(
    chosen: list[SlotProposal], ranked: list[SlotProposal], maximum: int
) -> list[SlotProposal]:
    """Return the chosen places and the best ranked others that they do not exclude."""
    chosen = list(chosen)
    for proposal in ranked:
        is_free = not any(proposal is other or _exclude(proposal, other) for other in chosen)
        if is_free and len(chosen) < maximum:
            chosen.append(proposal)
    return chosen


def _units_of(proposal: SlotProposal) -> str:
    """Return the layer whose units widening adds to; empty if they are not the model's own."""
    site = proposal.site
    if site.pair is not None:
        return site.pair.producer.name
    return f"{site.name}.{site.path.first}" if site.path is not None else ""


def _exclude(proposal: SlotProposal, chosen: SlotProposal) -> bool:
    """Return whether a place gets no slot because of another that has one."""
    is_inside = proposal.name.startswith(f"{chosen.name}.")
    beside = proposal.place == chosen.place == ProposalKind.BLOCK
    return overlap(proposal.site, chosen.site) or (is_inside and beside)


def _require_empty(model: nn.Module, at: Any) -> None:
    """Reject slots that are in use, and ``at`` for a model that has slots."""
    names = ", ".join(slots(model))
    if at is not None:
        raise SlotError(
            f"at is {at!r}, but the model already has slots ({names}); omit at, or give a model "
            "without slots."
        )
    used = [name for name, life in slots(model).lives.items() if life.stage != Stage.DORMANT]
    if used:
        raise SlotError(
            f"slot {used[0]!r} is in use; export the model first: "
            "esper.grow(esper.export(model), ...)."
        )
