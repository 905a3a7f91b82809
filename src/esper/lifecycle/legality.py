"""Which ops are legal for a slot in a given state.

Action masks and the slots that execute actions both use these rules. What a slot's own state allows
is a pure function of (stage, gate open, at least one epoch old, alpha at rest), tabulated once over
all such states. Germinating also depends on the host's other slots.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from numbers import Integral
from typing import Any

import numpy as np

from esper.errors import SlotError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import COOLING_STAGES, LIVE_STAGES, Stage

ADVANCEABLE_STAGES = frozenset({Stage.GERMINATED, Stage.TRAINING, Stage.BLENDING})
RETARGETABLE_STAGES = frozenset({Stage.BLENDING, Stage.HOLDING})
BLOCKING_STAGES = frozenset({Stage.GERMINATED, Stage.TRAINING}) | COOLING_STAGES
"""Stages of a slot that block germination everywhere in the same host."""


@dataclass(frozen=True, slots=True)
class SlotMaskState:
    """The state of a slot in use, as far as legality depends on it."""

    stage: Stage
    age_epochs: int
    alpha_at_rest: bool
    is_gate_open: bool = True
    """False if the seed is known to have spent too few epochs in its stage to leave it."""
    code: int = field(init=False, repr=False, compare=False)
    """Index of the state in :data:`STATES`."""

    def __post_init__(self) -> None:
        stage, age, at_rest = self.stage, self.age_epochs, self.alpha_at_rest
        if not isinstance(stage, Integral) or not 0 <= stage < len(Stage):
            stages = ", ".join(f"{stage.value} {stage.name.lower()}" for stage in Stage)
            raise SlotError(f"stage is {self.stage!r}; it must be one of {stages}.")
        if not isinstance(age, Integral) or age < 0:
            raise SlotError(f"age_epochs is {age!r}; it must be a whole number of at least 0.")
        for name, flag in (("alpha_at_rest", at_rest), ("is_gate_open", self.is_gate_open)):
            if not isinstance(flag, (bool, np.bool_)):
                raise SlotError(f"{name} is {flag!r}; it must be True or False.")
        code = state_code(stage, self.is_gate_open, age >= 1, at_rest)
        object.__setattr__(self, "code", code)


def state_code(stage: Any, is_gate_open: Any, is_aged: Any, alpha_at_rest: Any) -> Any:
    """Return the code of a slot state, its position in :data:`STATES`, or those of tensors."""
    return 8 * stage + 4 * is_gate_open + 2 * is_aged + alpha_at_rest


STATES: tuple[tuple[Stage, bool, bool, bool], ...] = tuple(
    (stage, is_gate_open, is_aged, at_rest)
    for stage in Stage
    for is_gate_open in (False, True)
    for is_aged in (False, True)
    for at_rest in (False, True)
)
"""Every (stage, gate open, at least one epoch old, alpha at rest), ordered by code."""

DORMANT_CODE = state_code(Stage.DORMANT, True, False, True)
"""The code of an empty slot."""


def does_state_allow(
    op: Op, stage: Stage, *, is_gate_open: bool = True, is_aged: bool, alpha_at_rest: bool
) -> bool:
    """Return whether a slot's own state allows an op, regardless of the other slots.

    Advancing and fossilizing pass a gate. Whether a new seed's output is finite turns out when it
    is tried; what is known before, too few epochs in a stage or an alpha that is still moving, is
    illegal here.
    """
    match op:
        case Op.WAIT | Op.FINISH:
            return True
        case Op.GERMINATE:
            return stage == Stage.DORMANT
        case Op.ADVANCE:
            is_still = alpha_at_rest or stage != Stage.BLENDING
            return stage in ADVANCEABLE_STAGES and is_gate_open and is_still
        case Op.SET_ALPHA_TARGET:
            return stage in RETARGETABLE_STAGES and alpha_at_rest
        case Op.PRUNE:
            return stage in LIVE_STAGES and is_aged and alpha_at_rest
        case Op.FOSSILIZE:
            return stage == Stage.HOLDING and is_gate_open


def may_host_germinate(stages: Sequence[Stage], seed_limit: int | None) -> bool:
    """Return whether a host whose slots are in these stages may germinate another seed."""
    n_live = sum(stage in LIVE_STAGES for stage in stages)
    has_room = seed_limit is None or n_live < seed_limit
    return has_room and not any(stage in BLOCKING_STAGES for stage in stages)


def may_apply(
    op: Op, slot: str, slot_states: Sequence[SlotMaskState | None], slot_config: SlotConfig
) -> bool:
    """Return whether ``op`` may be applied to ``slot`` of a host in this state.

    Args:
        op: The operation.
        slot: The slot's name. Wait and finish give the same answer for every slot.
        slot_states: The state of each slot, in the order of ``slot_config``; None if dormant.
        slot_config: The host's slots.

    Raises:
        SlotError: If the slot is unknown, or the number of states is not the number of slots.
    """
    index = slot_config.slot_index(slot)
    if len(slot_states) != slot_config.max_slots:
        raise SlotError(
            f"slot_states has {len(slot_states)} entries; the host has {slot_config.max_slots} "
            "slots."
        )
    codes = [DORMANT_CODE if state is None else state.code for state in slot_states]
    stage, is_gate_open, is_aged, at_rest = STATES[codes[index]]
    if not does_state_allow(
        op, stage, is_gate_open=is_gate_open, is_aged=is_aged, alpha_at_rest=at_rest
    ):
        return False
    if op == Op.FINISH:
        return slot_config.allow_finish
    if op == Op.GERMINATE:
        stages = [STATES[code][0] for code in codes]
        is_open = may_host_germinate(stages, slot_config.seed_limit)
        return is_open and slot_config.is_enabled(slot)
    return True
