"""A row of choices decodes to the growth action in the design's tables."""

import dataclasses
from typing import Any

import pytest

from esper.errors import ActionSpecError, ConfigError
from esper.lifecycle.factored_actions import (
    WAIT,
    AlphaCurve,
    BlendStyle,
    GrowthAction,
    Op,
    decode_action,
)
from esper.lifecycle.slot_config import SlotConfig

CONFIG = SlotConfig(("stem", "body"), blueprints=("noop", "norm", "mine"))
#      slot blueprint style tempo target speed curve op
FIRST = [0, 0, 0, 0, 0, 0, 0, 0]
LAST = [1, 2, 3, 2, 2, 3, 4, 6]
FIELDS = (
    "slot",
    "blueprint",
    "style",
    "tempo_epochs",
    "alpha_target",
    "alpha_speed_epochs",
    "alpha_curve",
    "op",
)


def test_the_first_choices_worked_by_hand() -> None:
    assert decode_action(FIRST, CONFIG) == GrowthAction(
        op=Op.WAIT,
        slot="stem",
        blueprint="noop",
        style=BlendStyle.ADD_LINEAR,
        tempo_epochs=3,
        alpha_target=0.5,
        alpha_speed_epochs=0,
        alpha_curve=AlphaCurve.LINEAR,
    )


def test_the_last_choices_worked_by_hand() -> None:
    assert decode_action(LAST, CONFIG) == GrowthAction(
        op=Op.FINISH,
        slot="body",
        blueprint="mine",
        style=BlendStyle.LEARNED_GATE,
        tempo_epochs=8,
        alpha_target=1.0,
        alpha_speed_epochs=8,
        alpha_curve=AlphaCurve.SIGMOID_SHARP,
    )


@pytest.mark.parametrize("column", range(8))
def test_each_head_sets_exactly_one_field(column: int) -> None:
    row = list(FIRST)
    row[column] = 1
    first, other = decode_action(FIRST, CONFIG), decode_action(row, CONFIG)
    differing = {
        each.name
        for each in dataclasses.fields(GrowthAction)
        if getattr(first, each.name) != getattr(other, each.name)
    }
    assert differing == {FIELDS[column]}


@pytest.mark.parametrize("column", range(8))
@pytest.mark.parametrize("is_below", [True, False])
def test_a_choice_out_of_range_is_rejected_with_its_head(column: int, is_below: bool) -> None:
    row = list(LAST)
    row[column] = -1 if is_below else LAST[column] + 1
    head = FIELDS[column].removesuffix("_epochs")
    message = f"choice {row[column]} of head '{head}' .* 0 to {LAST[column]}"
    with pytest.raises(ActionSpecError, match=message):
        decode_action(row, CONFIG)


@pytest.mark.parametrize("length", [0, 7, 9])
def test_a_row_of_the_wrong_length_is_rejected(length: int) -> None:
    with pytest.raises(ActionSpecError, match=rf"{length} choices.*\b8\b"):
        decode_action([0] * length, CONFIG)


def test_the_default_action_waits() -> None:
    assert GrowthAction() == WAIT
    assert WAIT.op == Op.WAIT


@pytest.mark.parametrize(
    ("field", "value"),
    [("alpha_target", 0.0), ("alpha_target", 5.0), ("tempo_epochs", -1), ("tempo_epochs", True)],
)
def test_invalid_ramp_settings_are_rejected(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} is {value}"):
        GrowthAction(**{field: value})


@pytest.mark.parametrize(
    ("field", "value"), [("style", "multiply"), ("alpha_curve", "cosine"), ("op", "germinate")]
)
def test_strings_instead_of_enum_members_are_rejected(field: str, value: Any) -> None:
    with pytest.raises(ConfigError, match=f"{field} is '{value}'"):
        GrowthAction(**{field: value})
