"""One growth action in words, and the row of eight numbers that a policy chooses for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

from esper.config.checks import require_int, require_number
from esper.errors import ActionSpecError
from esper.lifecycle.factored_actions import (
    ALPHA_CURVES,
    ALPHA_SPEED_EPOCHS,
    ALPHA_TARGETS,
    HEAD_NAMES,
    STYLES,
    TEMPO_EPOCHS,
    AlphaCurve,
    BlendStyle,
    Op,
    growth_action_spec,
)
from esper.lifecycle.slot_config import SlotConfig


@dataclass(frozen=True, kw_only=True)
class GrowthAction:
    """What to do with which slot; fields that the op does not read are ignored."""

    op: Op = Op.WAIT
    slot: str = ""
    blueprint: str = ""
    style: BlendStyle = BlendStyle.ADD_LINEAR
    tempo_epochs: int = TEMPO_EPOCHS[0]
    alpha_target: float = ALPHA_TARGETS[-1]
    alpha_speed_epochs: int = ALPHA_SPEED_EPOCHS[0]
    alpha_curve: AlphaCurve = AlphaCurve.LINEAR

    def __post_init__(self) -> None:
        _require_member("op", self.op, Op)
        _require_member("style", self.style, BlendStyle)
        _require_member("alpha_curve", self.alpha_curve, AlphaCurve)
        require_int("tempo_epochs", self.tempo_epochs, least=0)
        require_int("alpha_speed_epochs", self.alpha_speed_epochs, least=0)
        require_number("alpha_target", self.alpha_target, above=0.0, most=1.0)


def _require_member(name: str, value: object, kind: type[Enum]) -> None:
    if not isinstance(value, kind):
        members = ", ".join(f"{kind.__name__}.{member.name}" for member in kind)
        raise ActionSpecError(f"{name} is {value!r}; it must be one of {members}.")


WAIT = GrowthAction()
"""The action that changes nothing."""


def decode_action(row: Sequence[int], slot_config: SlotConfig) -> GrowthAction:
    """Return what a row of choices means, one choice for each head in the order of ``HEAD_NAMES``.

    Raises:
        ActionSpecError: If the row is not one choice for each head, or a choice does not exist.
    """
    spec = growth_action_spec(slot_config)
    choices = [int(choice) for choice in row]
    if len(choices) != len(HEAD_NAMES):
        raise ActionSpecError(
            f"the action has {len(choices)} choices; it needs {len(HEAD_NAMES)}, "
            f"one for each of {', '.join(HEAD_NAMES)}."
        )
    for name, size, choice in zip(HEAD_NAMES, spec.sizes, choices, strict=True):
        if not 0 <= choice < size:
            raise ActionSpecError(
                f"choice {choice} of head {name!r} does not exist; it has 0 to {size - 1}."
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
