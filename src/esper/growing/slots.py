"""Slots in a user's model: those that it has, those that are named, or a choice of what fits."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from esper.errors import SlotError, UnsupportedHostError
from esper.growth.export.composition import require_composable
from esper.growth.host_slots import ATTRIBUTE, slot_config_for, slots, unwrapped
from esper.growth.placement import SlotProposal, SlotProposals, add_slots, find_slots
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_lives import SlotLives
from esper.lifecycle.stages import Stage

MOST_SLOTS = 12
"""Slots that a model gets where none are named: as many as controllers are trained to handle."""


def copy_with_slots(model: nn.Module, at: Sequence[str] | None, sample: Tensor) -> nn.Module:
    """Return a copy of a model that has slots, none of them in use.

    Args:
        model: Any module; it stays as it is.
        at: The blocks to put slots around; None for the model's own slots or, without any, for what
            :func:`choose_slots` chooses.
        sample: A few inputs.

    Raises:
        SlotError: If the model has no place for a slot, or a seed lives in one already.
        UnsupportedHostError: If it cannot be copied, or a seed in one of the slots could not be
            exported.
    """
    twin = copy_model(model)
    if ATTRIBUTE in twin.__dict__:
        _require_empty(twin, at)
    elif at is not None:
        add_slots(twin, at, sample)
    else:
        proposals = find_slots(twin, sample)
        found = SlotProposals(each for each in proposals if _is_exportable(twin, each))
        if not found:
            raise SlotError(
                f"no block of this {type(twin).__name__} can have a slot; a block is a submodule "
                "with parameters that is called once and returns a floating-point tensor of 2 to 4 "
                "axes. Name one with at=[...] to be told why it cannot; a model of one layer can "
                "grow as nn.Sequential(model)."
            )
        add_slots(twin, choose_slots(found), sample)
    for slot in slots(twin).values():
        require_composable(slot)
    return twin


def _is_exportable(model: nn.Module, proposal: SlotProposal) -> bool:
    """Return whether a seed that grows at a place can be written beside its block."""
    block = model.get_submodule(proposal.name)
    slot = SeedSlot(proposal.site, block, SlotLives(slot_config_for([proposal.site], None)))
    try:
        require_composable(slot)
    except UnsupportedHostError:
        return False
    return True


def copy_model(model: nn.Module) -> nn.Module:
    """Return a copy of a model, without gradients.

    Raises:
        UnsupportedHostError: If it cannot be copied.
    """
    try:
        twin = copy.deepcopy(unwrapped(model))
    # A user's model may raise anything.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise UnsupportedHostError(
            f"this {type(model).__name__} cannot be copied ({reason}); a copy is what grows, so "
            "copy.deepcopy(model) must work."
        ) from error
    for parameter in twin.parameters():
        parameter.grad = None
    return twin


def choose_slots(proposals: SlotProposals, most: int = MOST_SLOTS) -> list[str]:
    """Return which of the proposed places get a slot, in the model's order.

    A place inside another is preferred to it: what grows there is smaller, and closer to the layers
    that it adds to. If there are too many, those come first whose widening merges into the block,
    then the others; of the kind that there are too many of, some are left out at even distances.
    """
    names = proposals.names
    innermost = [
        proposal
        for proposal in proposals
        if not any(other.startswith(f"{proposal.name}.") for other in names)
    ]
    merging = _spread([each.name for each in innermost if each.can_widen], most)
    others = [each.name for each in innermost if not each.can_widen]
    chosen = {*merging, *_spread(others, most - len(merging))}
    return [name for name in names if name in chosen]


def _spread(names: list[str], most: int) -> list[str]:
    """Return at most so many of the names, at even distances, the first and the last among them."""
    if len(names) <= most:
        return names
    if most < 2:
        return names[:most]
    places = [round(k * (len(names) - 1) / (most - 1)) for k in range(most)]
    return [names[place] for place in places]


def _require_empty(model: nn.Module, at: Any) -> None:
    """Refuse slots that are named twice, or in which something grows already."""
    names = ", ".join(slots(model))
    if at is not None:
        raise SlotError(
            f"at is {at!r}, and the model has slots already ({names}); leave out at, or give a "
            "model without slots."
        )
    used = [name for name, life in slots(model).lives.items() if life.stage != Stage.DORMANT]
    if used:
        raise SlotError(
            f"the slot {used[0]!r} is in use already; give the model as it is now: "
            "esper.grow(esper.export(model), ...)."
        )
