"""Slots as arrays, as the text that telemetry stores, and as rows with names."""

from __future__ import annotations

import json

import numpy as np

from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.slot_state import SlotState, read_slots
from esper.lifecycle.stages import Stage

CONFIG = SlotConfig(("first", "second", "third"))


def example() -> SlotArrays:
    """Return two hosts; in the second one a seed blends on two fossils."""
    slots, at = SlotArrays.blank(2, 3), (1, 1)
    slots.stage[at], slots.blueprint[at], slots.alpha[at] = Stage.BLENDING, 0, 0.25
    slots.contribution[at], slots.parameters[at] = 0.125, 40
    slots.n_fossils[at], slots.fossil_parameters[at] = 2, 60
    slots.n_fossils[1, 2] = 1
    return slots


def test_a_contribution_that_was_never_measured_is_null() -> None:
    first, second = map(json.loads, example().as_text())
    assert first == [[0, -1, 0.0, None, 0, 0, 0]] * 3
    assert second[1] == [Stage.BLENDING, 0, 0.25, 0.125, 40, 2, 60]


def test_the_stored_text_reads_as_the_states_of_the_arrays() -> None:
    slots = example()
    _, text = slots.as_text()
    named = dict(zip(CONFIG.slot_ids, read_slots(text, CONFIG.blueprints), strict=True))
    blending = SlotState("blending", CONFIG.blueprints[0], 0.25, 0.125, 40, 2, 60)
    assert named["second"] == blending
    assert blending.grown_parameters == 100
    states = slots.states(1, CONFIG)
    assert states == {name: named[name] for name in ("second", "third")}
    assert states["third"].is_dormant
    assert slots.states(0, CONFIG) == {}


def test_a_blueprint_without_a_name_is_shown_by_its_number() -> None:
    assert [slot.blueprint for slot in read_slots(example().as_text()[1], [])] == [None, "0", None]


def test_arrays_read_from_text_are_as_they_were() -> None:
    text = example().as_text()[1]
    assert SlotArrays.from_text(text).as_text() == [text]


def test_a_copy_has_its_own_memory() -> None:
    slots = example()
    copied = slots.copy()
    slots.alpha[1, :2] = 0.5
    assert slots.alpha.tolist() == [[0.0] * 3, [0.5, 0.5, 0.0]]
    assert copied.alpha[1].tolist() == [0.0, 0.25, 0.0]
    copied.assign([1], slots)
    assert copied.alpha[1].tolist() == [0.5, 0.5, 0.0]


def test_forgetting_measurements_leaves_the_lives_of_seeds() -> None:
    slots = example()
    slots.clear_measured(1)
    assert np.isnan(slots.contribution[1]).all()
    assert (slots.parameters[1] == 0).all()
    assert slots.stage[1, 1] == Stage.BLENDING
