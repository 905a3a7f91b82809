"""The seeds that a schedule grows, and whether hosts can grow them. Shapes: P = plantings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from esper.config.checks import make_numbers_plain, require_choice, require_int
from esper.errors import ConfigError, SlotError
from esper.lifecycle.factored_actions import ALPHA_TARGETS, STYLES, TEMPO_EPOCHS, BlendStyle
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo.controllers.controller import Integers
from esper.tamiyo.controllers.preferences import rank_blueprints


@dataclass(frozen=True, kw_only=True)
class Planting:
    """A seed that a schedule grows."""

    slot: str
    """Where it grows."""

    blueprint: str
    """What it is built from."""

    epoch: int = 0
    """Epochs of training before it germinates."""

    style: BlendStyle = BlendStyle.ADD_LINEAR
    """How it is blended in."""

    tempo_epochs: int = TEMPO_EPOCHS[0]
    """Epochs that alpha takes to its target."""

    alpha_target: float = ALPHA_TARGETS[-1]
    """Where alpha goes."""

    def __post_init__(self) -> None:
        require_int("epoch", self.epoch, least=0)
        require_choice("style", self.style, STYLES)
        require_choice("tempo_epochs", self.tempo_epochs, TEMPO_EPOCHS)
        require_choice("alpha_target", self.alpha_target, ALPHA_TARGETS)
        make_numbers_plain(self)


def require_plantings(plantings: object) -> None:
    """Refuse anything but a sequence of plantings."""
    if not isinstance(plantings, Sequence) or isinstance(plantings, str):
        raise ConfigError(
            f"plantings is {plantings!r}; it must be a list of Planting(slot=..., blueprint=...)."
        )
    for index, planting in enumerate(cast(Sequence[object], plantings)):
        if not isinstance(planting, Planting):
            raise ConfigError(
                f"plantings[{index}] is {planting!r}; it must be a Planting(slot=..., "
                "blueprint=...)."
            )


def read_heads(plantings: Sequence[Planting], slot_config: SlotConfig) -> dict[str, Integers]:
    """Return the choices ``[P]`` of each head that germinating reads."""
    choices = {
        "slot": [slot_config.slot_index(planting.slot) for planting in plantings],
        "blueprint": [slot_config.blueprint_index(planting.blueprint) for planting in plantings],
        "style": [STYLES.index(planting.style) for planting in plantings],
        "tempo": [TEMPO_EPOCHS.index(planting.tempo_epochs) for planting in plantings],
        "alpha_target": [ALPHA_TARGETS.index(planting.alpha_target) for planting in plantings],
    }
    return {head: np.array(column, np.int64) for head, column in choices.items()}


def check_plantings(plantings: Sequence[Planting], slot_config: SlotConfig) -> None:
    """Refuse plantings in slots or of blueprints that do not exist or cannot be used."""
    taken: set[str] = set()
    for planting in plantings:
        slot, blueprint = planting.slot, planting.blueprint
        slot_config.slot_index(slot)
        slot_config.blueprint_index(blueprint)
        if not slot_config.does_fit(blueprint, slot):
            fitting = ", ".join(rank_blueprints(slot_config, slot)) or "none"
            raise SlotError(
                f"blueprint {blueprint!r} does not fit slot {slot!r}; there fit {fitting}."
            )
        if not slot_config.is_enabled(slot):
            raise SlotError(f"slot {slot!r} is not enabled; plant in another, or enable it.")
        if slot in taken:
            raise SlotError(
                f"two plantings are in slot {slot!r}; a committed seed stays, so plant one there."
            )
        taken.add(slot)
