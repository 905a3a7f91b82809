"""The eight heads of a growth action, their choices, and which heads each op reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from functools import lru_cache
from typing import Annotated

from esper.config.checks import Bounds, NonNegativeInt, Settings
from esper.errors import ActionSpecError
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.action_spec import ActionSpec


class Op(IntEnum):
    """What an action does to the host.

    Examples:
        >>> [op.name for op in esper.Op]
        ['WAIT', 'GERMINATE', 'SET_ALPHA_TARGET', 'PRUNE', 'FOSSILIZE', 'ADVANCE', 'FINISH']
    """

    WAIT = 0
    GERMINATE = 1
    SET_ALPHA_TARGET = 2
    PRUNE = 3
    FOSSILIZE = 4
    ADVANCE = 5
    FINISH = 6


class BlendStyle(Enum):
    """How a seed's output is blended into the host's.

    Examples:
        >>> [style.name for style in esper.BlendStyle]
        ['ADD_LINEAR', 'MULTIPLY_LINEAR', 'ADD_SIGMOID', 'LEARNED_GATE']
    """

    ADD_LINEAR = "add, linear"
    MULTIPLY_LINEAR = "multiply, linear"
    ADD_SIGMOID = "add, sigmoid"
    LEARNED_GATE = "learned gate"


class AlphaCurve(Enum):
    """The shape of an alpha ramp.

    Examples:
        >>> [curve.name for curve in esper.AlphaCurve]
        ['LINEAR', 'COSINE', 'SIGMOID_GENTLE', 'SIGMOID', 'SIGMOID_SHARP']
    """

    LINEAR = "linear"
    COSINE = "cosine"
    SIGMOID_GENTLE = "sigmoid, gentle"
    SIGMOID = "sigmoid"
    SIGMOID_SHARP = "sigmoid, sharp"


STYLES: tuple[BlendStyle, ...] = tuple(BlendStyle)
"""The blend style of each style head choice."""

TEMPO_EPOCHS: tuple[int, ...] = (3, 5, 8)
"""Length in epochs of the first alpha ramp, for each tempo head choice."""

ALPHA_TARGETS: tuple[float, ...] = (0.5, 0.7, 1.0)
"""Target of alpha, for each alpha_target head choice."""

ALPHA_SPEED_EPOCHS: tuple[int, ...] = (0, 3, 5, 8)
"""Length in epochs of a later alpha ramp (0: immediate), for each alpha_speed head choice."""

ALPHA_CURVES: tuple[AlphaCurve, ...] = tuple(AlphaCurve)
"""The curve of each alpha_curve head choice."""

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
"""The heads, in column order."""

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
"""The causal relevance table: the heads that each op reads."""


def choice_names(slot_config: SlotConfig) -> dict[str, tuple[str, ...]]:
    """Return the display names of each head's choices, for hosts with these slots."""
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
    """Return the action specification for hosts with these slots."""
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


@dataclass(frozen=True, kw_only=True)
class GrowthAction(Settings):
    """One decoded action. Fields that the op does not read are ignored.

    Examples:
        >>> action = esper.GrowthAction(op=esper.Op.GERMINATE, slot="0>2", blueprint="widen_small")
        >>> action.op.name
        'GERMINATE'
    """

    op: Op = Op.WAIT
    slot: str = ""
    blueprint: str = ""
    style: BlendStyle = BlendStyle.ADD_LINEAR
    tempo_epochs: NonNegativeInt = TEMPO_EPOCHS[0]
    alpha_target: Annotated[float, Bounds(above=0.0, maximum=1.0)] = ALPHA_TARGETS[-1]
    alpha_speed_epochs: NonNegativeInt = ALPHA_SPEED_EPOCHS[0]
    alpha_curve: AlphaCurve = AlphaCurve.LINEAR


WAIT = GrowthAction()
"""The action that changes nothing."""


def decode_action(row: Sequence[int], slot_config: SlotConfig) -> GrowthAction:
    """Return the action that a row of choices encodes, one per head in ``HEAD_NAMES`` order.

    Raises:
        ActionSpecError: If the row has the wrong length, or a choice is out of range.
    """
    return _decode(tuple(map(int, row)), slot_config)


@lru_cache(maxsize=4096)
def _decode(choices: tuple[int, ...], slot_config: SlotConfig) -> GrowthAction:
    spec = growth_action_spec(slot_config)
    if len(choices) != len(HEAD_NAMES):
        raise ActionSpecError(
            f"the action has {len(choices)} choices; expected {len(HEAD_NAMES)}, "
            f"one for each of {', '.join(HEAD_NAMES)}."
        )
    for name, size, choice in zip(HEAD_NAMES, spec.sizes, choices, strict=True):
        if not 0 <= choice < size:
            raise ActionSpecError(
                f"choice {choice} of head {name!r} is out of range; it must be 0 to {size - 1}."
            )
    chosen = dict(zip(HEAD_NAMES, choices, strict=True))
    return GrowthAction(
        op=Op(chosen["op"]),
        slot=slot_config.slot_ids[chosen["slot"]],
        blueprint=slot_config.blueprints[chosen["blueprint"]],
        style=STYLES[chosen["style"]],
        tempo_epochs=TEMPO_EPOCHS[chosen["tempo"]],
        alpha_target=ALPHA_TARGETS[chosen["alpha_target"]],
        alpha_speed_epochs=ALPHA_SPEED_EPOCHS[chosen["alpha_speed"]],
        alpha_curve=ALPHA_CURVES[chosen["alpha_curve"]],
    )
