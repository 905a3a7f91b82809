"""The state of all slots of a population as arrays. Shapes: N = hosts, S = slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.growth.slot_lives import SlotLife
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES
from esper.lifecycle.slot_config import SlotConfig

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

NO_BLUEPRINT = -1

_STYLE_NUMBERS = {style: number for number, style in enumerate(STYLES)}
_CURVE_NUMBERS = {curve: number for number, curve in enumerate(ALPHA_CURVES)}


@dataclass(frozen=True, eq=False)
class SlotArrays:
    """What action masks and observations read of all slots, ``[N, S]`` each.

    A population writes an entry when a slot changes, so that reading them costs nothing.
    """

    stage: Integers
    age_epochs: Integers
    stage_epochs: Integers
    alpha: Floats
    alpha_target: Floats
    """Where alpha is going, or will go on its first ramp."""
    alpha_at_rest: NDArray[np.bool_]
    ramp_epochs_left: Integers
    """Epochs until alpha is at rest."""
    blueprint: Integers
    """The blueprint head's choice, -1 without a seed."""
    style: Integers
    curve: Integers

    @classmethod
    def blank(cls, n_hosts: int, n_slots: int) -> SlotArrays:
        """Return the arrays of hosts whose slots are dormant."""
        shape = (n_hosts, n_slots)
        return cls(
            stage=np.zeros(shape, np.int64),
            age_epochs=np.zeros(shape, np.int64),
            stage_epochs=np.zeros(shape, np.int64),
            alpha=np.zeros(shape),
            alpha_target=np.zeros(shape),
            alpha_at_rest=np.ones(shape, np.bool_),
            ramp_epochs_left=np.zeros(shape, np.int64),
            blueprint=np.full(shape, NO_BLUEPRINT, np.int64),
            style=np.zeros(shape, np.int64),
            curve=np.zeros(shape, np.int64),
        )

    def write(self, host: int, slot: str, life: SlotLife, slot_config: SlotConfig) -> None:
        """Take over the state of one slot of one host."""
        at = host, slot_config.slot_index(slot)
        schedule = life.schedule
        has_ramped = life.counts or not schedule.is_at_rest
        self.stage[at] = life.stage
        self.age_epochs[at] = life.age_epochs
        self.stage_epochs[at] = life.stage_epochs
        self.alpha[at] = life.alpha
        self.alpha_target[at] = schedule.target if has_ramped else life.alpha_target
        self.alpha_at_rest[at] = schedule.is_at_rest
        self.ramp_epochs_left[at] = max(0, schedule.n_epochs - schedule.epoch)
        self.blueprint[at] = (
            slot_config.blueprint_index(life.blueprint) if life.has_seed else NO_BLUEPRINT
        )
        self.style[at] = _STYLE_NUMBERS[life.style]
        self.curve[at] = _CURVE_NUMBERS[schedule.curve]
