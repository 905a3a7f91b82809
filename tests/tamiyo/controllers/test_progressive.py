"""The progressive controller: what it plans for a target, and what it refuses."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from esper.errors import ConfigError
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo import FixedSchedule
from esper.tamiyo.controllers.progressive import progressive
from esper.tamiyo.policy.observations import ObservationLayout

WIDTHS = ("widen_small", "widen_medium", "widen_large")
SLOTS = SlotConfig(
    ("a", "b", "c"),
    blueprints=("noop", *WIDTHS, "deepen"),
    fits={"a": ("noop", "deepen", *WIDTHS), "b": ("deepen", *WIDTHS), "c": WIDTHS},
)
LAYOUT = ObservationLayout(SLOTS)
WIDE_ONLY = ObservationLayout(SlotConfig(("a", "b"), blueprints=("noop", *WIDTHS)))
SHARES = {"widen_small": 0.25, "widen_medium": 0.5, "widen_large": 1.0}


class Preview:
    """A host of 1,000 parameters whose seeds cost 400 for each doubling of a slot's units."""

    def __init__(self, parameters: int = 1000, deepen: int = 0) -> None:
        self.parameters, self.deepen = parameters, deepen
        self.units = {"a": 1.0, "b": 1.0}

    def depth(self, slot: str) -> int:
        return {"a": 2, "b": 1}[slot]

    def price(self, slot: str, blueprint: str) -> int:
        if blueprint == "deepen":
            return self.deepen
        return 0 if self.deepen else int(400 * SHARES[blueprint] * self.units.get(slot, 0.0))

    def add(self, slot: str, blueprint: str) -> None:
        self.parameters += self.price(slot, blueprint)
        self.units[slot] *= 1.0 + SHARES.get(blueprint, 0.0)


def planned(schedule: FixedSchedule) -> list[tuple[str, str, float | None]]:
    return [(one.slot, one.blueprint, one.fraction) for one in schedule.plantings]


def test_without_a_target_every_slot_grows_once_deeper_where_it_can() -> None:
    assert planned(progressive(LAYOUT, fractions=[0.3])) == [
        ("a", "deepen", 0.3),
        ("b", "deepen", 0.3),
        ("c", "widen_large", 0.3),
    ]


def test_a_depth_is_reached_by_copying_blocks_in_turn() -> None:
    """There are three blocks, two of them in one slot."""
    given: dict[str, Any] = {"preview": Preview()}
    schedule = progressive(LAYOUT, target={"depth": 8}, fractions=(0.5, 0.2), **given)
    assert planned(schedule) == [
        ("a", "deepen", 0.2),
        ("b", "deepen", 0.2),
        ("a", "deepen", 0.2),
        ("b", "deepen", 0.5),
        ("a", "deepen", 0.5),
    ]
    assert progressive(LAYOUT, target={"depth": 3}, **given).plantings == ()


@given(st.integers(1000, 10_000_000))
def test_a_target_in_parameters_is_reached_to_within_half_a_small_seed(wanted: int) -> None:
    """Each seed's parameters are counted again here, with the units that are there by then."""
    grown = Preview()
    target = {"parameters": wanted}
    for slot, blueprint, _ in planned(progressive(WIDE_ONLY, target=target, preview=Preview())):
        grown.add(slot, blueprint)
    assert abs(grown.parameters - wanted) <= 100.0 * max(grown.units.values()) / 2 + 1


def test_slots_take_turns_when_growing_to_a_number_of_parameters() -> None:
    schedule = progressive(WIDE_ONLY, target={"parameters": 3400}, preview=Preview())
    assert Counter(one.slot for one in schedule.plantings) == {"a": 2, "b": 2}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"target": {"depth": 1}, "preview": Preview()}, "depth 1 .* has 3"),
        ({"target": {"depth": 5000}, "preview": Preview()}, "depth 5000"),
        ({"target": {"depth": 4}}, "preview"),
        ({"target": {"depth": 2.5}}, r"target\.depth is 2\.5"),
        ({"target": {"dept": 4}}, "target is 'dept'"),
        ({"target": {}}, "0 entries"),
        ({"target": {"depth": 3, "parameters": 9}}, "2 entries"),
        ({"target": 12}, "target is 12"),
        ({"target": {"parameters": 2000}}, "preview"),
        ({"target": {"parameters": 999}, "preview": Preview()}, "999 parameters.*1,000"),
        ({"fractions": []}, "fractions is empty"),
        ({"fractions": 0.4}, r"fractions is 0.4"),
        ({"fractions": [1.5]}, r"1.5"),
    ],
)
def test_what_cannot_be_planned_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        progressive(LAYOUT, **options)


def test_a_depth_needs_residual_blocks() -> None:
    with pytest.raises(ConfigError, match="residual block"):
        progressive(WIDE_ONLY, target={"depth": 4}, preview=Preview())


def test_a_target_out_of_reach_is_refused() -> None:
    preview = Preview(parameters=10, deepen=1)
    with pytest.raises(ConfigError, match="more than 1000 seeds"):
        progressive(LAYOUT, target={"parameters": 100_000}, preview=preview)
