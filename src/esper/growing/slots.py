"""Adding slots to a copy of a user's model."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from esper.config.growth import GrowthConfig
from esper.errors import ConfigError, EsperError, SlotError, UnsupportedHostError, summarize_error
from esper.growth.host_slots import own_slots, slots, unwrapped
from esper.growth.placement import (
    SlotProposal,
    SlotProposals,
    add_slots,
    attach_slots,
    find_slots,
    overlap,
)
from esper.growth.ranks import Call, Ranks
from esper.growth.saved_models import describe_slots, restore_slots
from esper.growth.surgery.configuration import has_configuration
from esper.lifecycle.stages import Stage

MAX_SLOTS = 12
"""Most slots that are chosen automatically: as many as controllers are trained with."""


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

    They are at the places ``at``; if that is None, where :func:`choose_slots` says, unless the
    model has its own. ``for_depth`` chooses lists of blocks only.

    Raises:
        SlotError: If the model has no place for a slot, or a slot is in use.
    """
    options: dict[str, Any] = {"growth_config": growth_config, "seed": seed}
    if own_slots(model) is not None:
        _require_empty(model, at)
    elif at is not None:
        add_slots(model, at, sample, **options)
    else:
        found = find_slots(model, sample)
        if not found:
            raise SlotError(
                f"nothing of this {type(model).__name__} can grow: it has no layer whose units "
                "another layer reads, no list of residual blocks, and no submodule with parameters "
                "that is called once and returns a floating-point tensor of 2 to 4 axes. Name one "
                "with at=[...] to see why it cannot; wrap a model of one layer as "
                "nn.Sequential(model)."
            )
        if for_depth:
            found = SlotProposals(each for each in found if each.site.what == "blocks")
            if not found:
                raise SlotError(
                    f"no block of this {type(model).__name__} is residual and in a list, so it "
                    "cannot get deeper; give a target in parameters, or name a list with at=[...] "
                    "to see why it cannot."
                )
        if has_configuration(model):  # which says how wide heads are only by the model's width
            found = SlotProposals(each for each in found if not _widens_heads(each))
        sites = {each.name: each.site for each in found}
        attach_slots(model, [sites[name] for name in choose_slots(found)], **options)


def place_same_slots(
    model: nn.Module,
    at: Sequence[str] | None,
    sample: Any,
    ranks: Ranks,
    growth_config: GrowthConfig | None,
    *,
    seed: int,
) -> None:
    """Add the slots that rank 0 chooses, whose sample differs from those of the others."""
    values: dict[str, Any] = {}
    if ranks.number == 0:
        try:
            with torch.random.fork_rng(devices=[]):
                place_slots(model, at, sample, growth_config=growth_config, seed=seed)
            values = describe_slots(slots(model))
        except EsperError as error:
            ranks.text_from_first(Call.START, json.dumps({"error": str(error)}))
            raise
    values = json.loads(ranks.text_from_first(Call.START, json.dumps(values)))
    if "error" in values:
        raise SlotError(f"rank 0: {values['error']}")
    if ranks.number > 0:
        restore_slots(model, values)


def _widens_heads(proposal: SlotProposal) -> bool:
    return proposal.site.group is not None and proposal.site.group.heads is not None


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


def choose_slots(proposals: SlotProposals, maximum: int = MAX_SLOTS) -> list[str]:
    """Return the proposed places that get a slot, in the given order.

    Where the model's own layers can grow, these are all of them but residual streams: lists of
    blocks first, then groups of units, the largest first. Modules grow beside blocks only in a
    model that cannot grow itself; the outermost blocks get a slot then, the largest first.
    """
    own = [each for each in proposals if each.site.what != "module" and not each.is_stream]
    names = [each.name for each in proposals]
    outer = [
        each for each in proposals if not any(each.name.startswith(f"{name}.") for name in names)
    ]
    ranked = sorted(own or outer, key=lambda each: (each.site.what != "blocks", -each.parameters))
    chosen: list[SlotProposal] = []
    for proposal in ranked:
        if len(chosen) < maximum and not any(overlap(proposal.site, c.site) for c in chosen):
            chosen.append(proposal)
    return [each.name for each in proposals if each in chosen]


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
