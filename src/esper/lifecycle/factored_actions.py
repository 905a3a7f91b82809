"""The eight heads of a growth action, their choices, and which heads each op reads."""

from __future__ import annotations

from enum import Enum, IntEnum
from functools import lru_cache

from esper.lifecycle.action_spec import ActionSpec
from esper.lifecycle.slot_config import SlotConfig


class Op(IntEnum):
    """What an action does to the host."""

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5
    FINISH = 6


class BlendStyle(Enum):
    """How a seed's output is blended into the host's."""

    ADD_LINEAR = "add, linear"
    MULTIPLY_LINEAR = "multiply, linear"
    ADD_SIGMOID = "add, sigmoid"
    LEARNED_GATE = "learned gate"


class AlphaCurve(Enum):
    """The path that alpha takes from one value to the next."""

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid, gentle"
    SIGMOID = "sigmoid"
    SIGMOID_SHARP = "sigmoid, sharp"


STYLES: tuple[BlendStyle, ...] = tuple(BlendStyle)
"""What each choice of the style head means."""

TEMPO_EPOCHS: tuple[int, ...] = (3, 5, 8)
"""Epochs that the first ramp of alpha takes, for each choice of the tempo head."""

ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
"""Where alpha goes, for each choice of the alpha_target head."""

ALPHA_SPEED_EPOCHS: tuple[int, ...] = (0, 3, 5, 8)
"""Epochs that a change of alpha takes (0: at once), for each choice of the alpha_speed head."""

ALPHA_CURVES: tuple[AlphaCurve, ...] = tuple(AlphaCurve)
"""What each choice of the alpha_curve head means."""

HEAD_NAMES: tuple[str, ...] = (
    "slot",
    "blueprint",
    "style",
    "tempo",
    "alpha_target",
    "alpha_speed",
    "alpha_curve",
    "op",
)
"""The heads, in the order of an action's columns."""

HEADS_READ_BY: dict[Op, frozenset[str]] = {
    Op.WAIT: frozenset({"op"}),
    Op.GERMINATE: frozenset({"op", "slot", "blueprint", "style", "tempo", "alpha_target"}),
    Op.SET_ALPHA_TARGET: frozenset(
        {"op", "slot", "style", "alpha_target", "alpha_speed", "alpha_curve"}
    ),
    Op.PRUNE: frozenset({"op", "slot", "alpha_speed", "alpha_curve"}),
    Op.FOSSILIZE: frozenset({"op", "slot"}),
    Op.ADVANCE: frozenset({"op", "slot"}),
    Op.FINISH: frozenset({"op"}),
}
"""The causal relevance table: the heads that matter when an op is taken."""


def choice_names(slot_config: SlotConfig) -> dict[str, tuple[str, ...]]:
    """Return what the choices of each head are called, by head, for hosts with these slots."""
    names = {
        "slot": slot_config.slot_ids,
        "blueprint": slot_config.blueprints,
        "style": (style.value for style in STYLES),
        "tempo": (f"{epochs} epochs" for epochs in TEMPO_EPOCHS),
        "alpha_target": map(str, ALPHA_TARGETS),
        "alpha_speed": (f"{n} epochs" if n else "at once" for n in ALPHA_SPEED_EPOCHS),
        "alpha_curve": (curve.value for curve in ALPHA_CURVES),
        "op": (op.name.lower() for op in Op),
    }
    return {head: tuple(names[head]) for head in HEAD_NAMES}


@lru_cache(maxsize=64)
def growth_action_spec(slot_config: SlotConfig) -> ActionSpec:
    """Return the specification of growth actions for hosts with these slots."""
    sizes = {
        "slot": slot_config.max_slots,
        "blueprint": len(slot_config.blueprints),
        "style": len(STYLES),
        "tempo": len(TEMPO_EPOCHS),
        "alpha_target": len(ALPHA_TARGETS),
        "alpha_speed": len(ALPHA_SPEED_EPOCHS),
        "alpha_curve": len(ALPHA_CURVES),
        "op": len(Op),
    }
    return ActionSpec(
        names=HEAD_NAMES,
        sizes=tuple(sizes[name] for name in HEAD_NAMES),
        op_head="op",
        relevance=tuple(tuple(name in HEADS_READ_BY[op] for name in HEAD_NAMES) for op in Op),
    )
