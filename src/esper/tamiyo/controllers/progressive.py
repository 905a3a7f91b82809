"""Growth to a stated size, without learning: a schedule made from a target.

Where a residual block can be copied, the model gets deeper; elsewhere it gets wider. The seeds
germinate at stated fractions of the budget, because a small model learns the easy part at less
cost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Protocol

from esper.config.checks import PositiveInt, UnitInterval, check, require_choice
from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.errors import ConfigError
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo.controllers.controller import rank_blueprints
from esper.tamiyo.controllers.schedule import FixedSchedule, Planting
from esper.tamiyo.policy.observations import ObservationLayout

DEEPEN = "deepen"
"""The blueprint that adds a residual block."""

TARGETS = ("depth", "parameters")

GROWTH_FRACTIONS = (0.4,)
"""Default fractions of the budget at which a model grows."""

MAX_SEEDS = 1000
"""Maximum seeds of a plan."""


class GrowthPreview(Protocol):
    """Tells how large a host would be, without growing it."""

    @property
    def parameters(self) -> int:
        """Parameters of the host with the seeds that were added so far."""
        ...

    def depth(self, slot: str) -> int:
        """Return the residual blocks of a slot that can get more of them."""
        ...

    def price(self, slot: str, blueprint: str) -> int:
        """Return the parameters that a seed would add."""
        ...

    def add(self, slot: str, blueprint: str) -> None:
        """Add a seed."""
        ...


def progressive(
    layout: ObservationLayout,
    *,
    target: Mapping[str, int] | None = None,
    fractions: Sequence[float] = GROWTH_FRACTIONS,
    preview: GrowthPreview | None = None,
    n_epochs: int | None = None,
    name: str = "progressive",
) -> FixedSchedule:
    """Return a schedule that grows a model to a target size.

    Args:
        layout: The layout of the observations.
        target: ``{"depth": 12}`` for 12 residual blocks, ``{"parameters": 100_000}`` for about
            that many parameters, or None to grow once in every slot.
        fractions: Fractions of the budget, from 0 to 1, at which the model grows; the seeds are
            divided evenly among them.
        preview: The host's size as it grows, which a target needs.
        n_epochs: The epochs of the budget, if a target that needs more is to be refused; one seed
            germinates in an epoch.
        name: The controller's name in comparisons.

    Raises:
        ConfigError: If the target is invalid, smaller than the model, or out of reach.
    """
    check("layout", layout, ObservationLayout)
    ordered = sorted(check("fractions", fractions, tuple[UnitInterval, ...]))
    if not ordered:
        raise ConfigError("fractions is empty; give fractions of the budget, such as [0.2, 0.5].")
    config = layout.slot_config
    kind, wanted = _require_target(target)
    if kind == "depth":
        growth = _plan_depth(config, wanted, _require_preview(preview, "depth"))
    elif kind == "parameters":
        growth = _plan_parameters(config, wanted, _require_preview(preview, "number of parameters"))
    else:
        growth = _plan_once(config)
    plantings = [
        Planting(
            slot=slot,
            blueprint=blueprint,
            otherwise=tuple(others),
            fraction=ordered[k * len(ordered) // len(growth)],
        )
        for k, (slot, blueprint, *others) in enumerate(growth)
    ]
    if target is not None and n_epochs is not None:
        _require_time(plantings, n_epochs)
    return FixedSchedule(layout, plantings, name=name)


def _require_time(plantings: Sequence[Planting], n_epochs: int) -> None:
    """Reject a plan whose last seed would germinate in the last epoch or later."""
    epoch = 0
    for planting in plantings:
        epoch = max(epoch, math.ceil((planting.fraction or 0.0) * n_epochs)) + 1
    if plantings and epoch >= n_epochs:
        raise ConfigError(
            f"target needs {len(plantings)} new seeds, one in each epoch from "
            f"{plantings[0].fraction:g} of the budget on, and an epoch after them; the budget is "
            f"{n_epochs}. Give more epochs, smaller fractions or a larger model."
        )


def _require_target(target: object) -> tuple[str, int]:
    """Return what the target is about and its value; an empty name for no target."""
    if target is None:
        return "", 0
    entries = check("target", target, dict[str, PositiveInt])
    if len(entries) != 1:
        example = 'such as {"depth": 12} or {"parameters": 100_000}'
        raise ConfigError(f"target has {len(entries)} entries; it must have one, {example}.")
    ((kind, wanted),) = entries.items()
    return require_choice("target", kind, TARGETS), wanted


def _plan_once(config: SlotConfig) -> list[tuple[str, ...]]:
    """Return every slot that is enabled with its blueprints, of which the first that fits grows.

    Hosts of several designs share a configuration, and not all that it names fits each of them.
    """
    growth: list[tuple[str, ...]] = []
    first = (DEEPEN,) if DEEPEN in config.blueprints else ()
    for slot in config.slot_ids:
        ranked = rank_blueprints(config, slot, (*first, *PREFERRED_BLUEPRINTS))
        ranked = [name for name in ranked if name != "noop"]
        if config.is_enabled(slot) and ranked:
            growth.append((slot, *ranked))
    if not growth:
        raise ConfigError("no blueprint can be grown in any slot of this host; enable a slot.")
    return growth


def _require_preview(preview: GrowthPreview | None, kind: str) -> GrowthPreview:
    if preview is None:
        raise ConfigError(
            f"target is a {kind}, but the host's size is unknown; pass preview=..., or use "
            "esper.grow, which knows it."
        )
    return preview


def _plan_depth(config: SlotConfig, depth: int, preview: GrowthPreview) -> list[tuple[str, ...]]:
    """Return the lists to lengthen, in turn, until they have ``depth`` blocks together."""
    blocks = [
        slot
        for slot in config.slot_ids
        if config.is_enabled(slot) and DEEPEN in config.blueprints and config.does_fit(DEEPEN, slot)
    ]
    if not blocks:
        raise ConfigError(
            "target is a depth, but no slot of this host is a list of residual blocks; give a "
            "target in parameters, or put slots on residual blocks."
        )
    n_blocks = sum(map(preview.depth, blocks))
    missing = depth - n_blocks
    if missing > MAX_SEEDS:
        raise ConfigError(
            f"target depth {depth} needs more than {MAX_SEEDS} new blocks; start with a deeper "
            "model."
        )
    if missing < 0:
        raise ConfigError(
            f"target depth {depth} is smaller than the model, which has {n_blocks} residual "
            f"blocks; it must be at least {n_blocks}."
        )
    return [(blocks[k % len(blocks)], DEEPEN) for k in range(missing)]


def _plan_parameters(
    config: SlotConfig, wanted: int, preview: GrowthPreview
) -> list[tuple[str, ...]]:
    """Return seeds, slot by slot in turn, that bring the model close to ``wanted`` parameters."""
    n_before = preview.parameters
    if wanted < n_before:
        raise ConfigError(
            f"target of {wanted:,} parameters is smaller than the model, which has {n_before:,}; "
            "it must be at least that."
        )
    slots = [slot for slot in config.slot_ids if config.is_enabled(slot)]
    grown = list[tuple[str, ...]]()
    while len(grown) < MAX_SEEDS:
        n_grown = len(grown)
        for slot in slots:
            name = _choose(config, slot, preview, wanted - preview.parameters)
            if name is not None:
                preview.add(slot, name)
                grown.append((slot, name))
        if len(grown) == n_grown:
            return grown
    raise ConfigError(
        f"target of {wanted:,} parameters needs more than {MAX_SEEDS} seeds on a model of "
        f"{n_before:,}; start with a larger model."
    )


_GROWTH = (DEEPEN, "widen_large", "widen_medium", "widen_small")
"""What a model grows by, the first choice first."""


def _choose(config: SlotConfig, slot: str, preview: GrowthPreview, left: int) -> str | None:
    """Return the first choice for a slot that does not exceed what is left.

    If all do, return the smallest if that still brings the model closer to its target.
    """
    usable = {
        name: preview.price(slot, name)
        for name in _GROWTH
        if left > 0 and name in config.blueprints and config.does_fit(name, slot)
    }
    usable = {name: price for name, price in usable.items() if price > 0}
    for name, price in usable.items():
        if price <= left:
            return name
    smallest = min(usable, key=usable.__getitem__, default=None)
    return smallest if smallest is not None and usable[smallest] < 2 * left else None
