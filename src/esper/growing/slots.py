"""Adding slots to a copy of a user's model."""

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
"""Most slots that are chosen automatically: as many as controllers are trained with."""


def copy_with_slots(model: nn.Module, at: Sequence[str] | None, sample: Tensor) -> nn.Module:
    """Return a copy of a model with empty slots.

    Args:
        model: Any module, which is not changed.
        at: The blocks to put slots around; None for the model's own slots or, if it has none,
            for those of :func:`choose_slots`.
        sample: A few inputs.

    Raises:
        SlotError: If the model has no place for a slot, or a slot is in use.
        UnsupportedHostError: If it cannot be copied, or a seed in a slot could not be exported.
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
                "axes. Name one with at=[...] to see why it cannot; wrap a model of one layer as "
                "nn.Sequential(model)."
            )
        add_slots(twin, choose_slots(found), sample)
    for slot in slots(twin).values():
        if slot.site.pair is None:  # units of a pair are always merged
            require_composable(slot)
    return twin


def _is_exportable(model: nn.Module, proposal: SlotProposal) -> bool:
    """Return whether a seed at the proposed place could be exported."""
    if proposal.site.pair is not None:
        return True
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
            f"this {type(model).__name__} cannot be copied ({reason}); copy.deepcopy(model) must "
            "work, because a copy is grown."
        ) from error
    for parameter in twin.parameters():
        parameter.grad = None
    return twin


def choose_slots(proposals: SlotProposals, most: int = MOST_SLOTS) -> list[str]:
    """Return the proposed places that get a slot, in the model's order.

    Inner blocks are preferred to the blocks around them, because seeds there are smaller and
    closer to the layers they extend. If there are too many, blocks that can be widened by merging
    come first; of the kind that exceeds the limit, evenly spaced ones are kept.
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
    """Return at most ``most`` of the names, evenly spaced, the first and the last included."""
    if len(names) <= most:
        return names
    if most < 2:
        return names[:most]
    return [names[round(k * (len(names) - 1) / (most - 1))] for k in range(most)]


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
