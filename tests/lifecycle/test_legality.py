"""Legality follows the design's table, and slot configurations are validated."""

import copy
import dataclasses
import itertools

import pytest

from esper.errors import ConfigError, SlotError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.legality import STATES, SlotMaskState, may_apply, state_code
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage

TWO = SlotConfig(("left", "right"))


def state(
    stage: Stage, age: int = 3, at_rest: bool = True, is_gate_open: bool = True
) -> SlotMaskState:
    return SlotMaskState(stage, age, at_rest, is_gate_open)


def stages_that_allow(
    op: Op, age: int = 3, at_rest: bool = True, is_gate_open: bool = True
) -> set[str]:
    return {
        stage.name.lower()
        for stage in Stage
        if may_apply(op, "left", [state(stage, age, at_rest, is_gate_open), None], TWO)
    }


def test_each_op_is_legal_at_the_stages_of_the_design() -> None:
    assert stages_that_allow(Op.WAIT) == {stage.name.lower() for stage in Stage}
    assert stages_that_allow(Op.FINISH) == {stage.name.lower() for stage in Stage}
    assert stages_that_allow(Op.GERMINATE) == {"dormant"}
    assert stages_that_allow(Op.ADVANCE) == {"germinated", "training", "blending"}
    assert stages_that_allow(Op.SET_ALPHA_TARGET) == {"blending", "holding"}
    assert stages_that_allow(Op.PRUNE) == {"germinated", "training", "blending", "holding"}
    assert stages_that_allow(Op.FOSSILIZE) == {"holding"}


def test_a_seed_whose_alpha_is_moving_cannot_be_pruned_or_retargeted() -> None:
    assert stages_that_allow(Op.PRUNE, at_rest=False) == set()
    assert stages_that_allow(Op.SET_ALPHA_TARGET, at_rest=False) == set()
    assert stages_that_allow(Op.FOSSILIZE, at_rest=False) == {"holding"}


def test_a_closed_gate_or_a_moving_alpha_keeps_a_seed_in_its_stage() -> None:
    assert stages_that_allow(Op.ADVANCE, at_rest=False) == {"germinated", "training"}
    assert stages_that_allow(Op.ADVANCE, is_gate_open=False) == set()
    assert stages_that_allow(Op.FOSSILIZE, is_gate_open=False) == set()
    for op in (Op.WAIT, Op.FINISH, Op.GERMINATE, Op.SET_ALPHA_TARGET, Op.PRUNE):
        assert stages_that_allow(op, is_gate_open=False) == stages_that_allow(op)


def test_a_seed_of_age_zero_cannot_be_pruned() -> None:
    assert stages_that_allow(Op.PRUNE, age=0) == set()
    assert stages_that_allow(Op.PRUNE, age=1) == {"germinated", "training", "blending", "holding"}


@pytest.mark.parametrize("stage", list(Stage))
def test_a_young_or_cooling_seed_blocks_germination_in_the_other_slot(stage: Stage) -> None:
    blocks = {"germinated", "training", "pruned", "embargoed", "resetting"}
    is_legal = may_apply(Op.GERMINATE, "left", [None, state(stage)], TWO)
    assert is_legal == (stage.name.lower() not in blocks)


def test_the_seed_limit_counts_live_seeds_only() -> None:
    config = SlotConfig(("a", "b", "c"), seed_limit=1)
    fossil, held = state(Stage.FOSSILIZED), state(Stage.HOLDING)
    assert may_apply(Op.GERMINATE, "c", [fossil, None, None], config)
    assert not may_apply(Op.GERMINATE, "c", [fossil, held, None], config)
    assert not may_apply(
        Op.GERMINATE, "a", [None, None, None], SlotConfig(("a", "b", "c"), seed_limit=0)
    )


def test_a_configuration_can_disable_slots_and_finishing() -> None:
    config = SlotConfig(
        ("a", "b"), enabled=frozenset({"a"}), fits={"a": ["norm"]}, allow_finish=False
    )
    assert may_apply(Op.GERMINATE, "a", [None, None], config)
    assert not may_apply(Op.GERMINATE, "b", [None, None], config)
    assert not may_apply(Op.FINISH, "a", [None, None], config)
    assert not may_apply(Op.GERMINATE, "a", [None], SlotConfig(("a",), fits={"a": []}))


def test_state_codes_index_the_table_of_states() -> None:
    combinations = itertools.product(Stage, *[(False, True)] * 3)
    assert [state_code(*combination) for combination in combinations] == list(range(len(STATES)))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlotConfig(()), "slot_ids is empty"),
        (lambda: SlotConfig(("a", "b", "a")), "slot_ids .*'a'"),
        (lambda: SlotConfig(("a",), enabled=frozenset({"b"})), "no slot 'b'"),
        (lambda: SlotConfig(("block_1",), fits={"blok_1": []}), "Did you mean 'block_1'"),
        (lambda: SlotConfig(("a",), fits={"a": ["nrom"]}), "Did you mean 'norm'"),
        (lambda: SlotConfig("early"), "slot_ids is 'early'"),  # type: ignore
        (lambda: SlotConfig(("a", 3)), "slot_ids .*3"),  # type: ignore[arg-type]
        (lambda: SlotConfig(("a",), fits={"a": "norm"}), "fits.* is 'norm'"),
        (lambda: SlotMaskState(9, 0, True), "stage is 9"),  # type: ignore[arg-type]
        (lambda: SlotMaskState(Stage.HOLDING, -1, True), "age_epochs is -1"),
        (lambda: may_apply(Op.WAIT, "middle", [None, None], TWO), "no slot 'middle'"),
        (lambda: may_apply(Op.WAIT, "left", [None], TWO), "slot_states has 1 .* 2 slots"),
    ],
)
def test_errors_name_the_wrong_argument_and_its_value(make: object, message: str) -> None:
    with pytest.raises(SlotError, match=message):
        make()  # type: ignore[operator]


def test_settings_of_the_wrong_type_or_range_are_rejected() -> None:
    with pytest.raises(ConfigError, match="seed_limit is -1"):
        SlotConfig(("a",), seed_limit=-1)
    with pytest.raises(ConfigError, match="allow_finish is 1"):
        SlotConfig(("a",), allow_finish=1)  # type: ignore[arg-type]


def test_a_configuration_can_be_copied_and_hashed() -> None:
    config = SlotConfig(["a", "b"], fits={"a": ["norm"]}, seed_limit=1)  # type: ignore[arg-type]
    assert copy.deepcopy(config) == config
    assert hash(copy.deepcopy(config)) == hash(config)
    assert dataclasses.asdict(config)["slot_ids"] == ("a", "b")
