"""A fixed schedule grows its seeds as early as the rules allow."""

from __future__ import annotations

import numpy as np
import pytest

from esper.config.controllers import PREFERRED_BLUEPRINTS
from esper.errors import ConfigError, SlotError, UnknownSlotError
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo import FixedSchedule, Planting, grow_everywhere, grow_once
from esper.tamiyo.policy.observations import ObservationLayout
from tests.tamiyo.controllers.simulated_hosts import SimulatedHosts

SLOTS = SlotConfig(("a", "b"), blueprints=("norm", "widen_small", "widen_large"))
LAYOUT = ObservationLayout(SLOTS)


def test_a_seed_is_committed_at_the_earliest_epoch() -> None:
    hosts = SimulatedHosts(SLOTS)
    schedule = FixedSchedule(LAYOUT, [Planting(slot="b", blueprint="widen_small")])
    schedule.start(1)
    alphas = []
    for epoch in range(7):
        hosts.step(schedule.act(hosts.observe(), hosts.masks(), np.array([epoch == 0])))
        alphas.append(hosts.lives[0]["b"].alpha)
    # Alpha is a third in epoch 2, two thirds in epoch 3 and 1 from epoch 4 on, in which it is held.
    assert hosts.log[0] == [
        "germinate b",
        "advance b",
        "advance b",
        "wait",
        "advance b",
        "fossilize b",
        "wait",
    ]
    assert alphas == pytest.approx([0.0, 0.0, 2 / 3, 1.0, 1.0, 1.0, 0.0])
    assert hosts.stages() == [Stage.DORMANT, Stage.DORMANT]
    assert [fossil.blueprint for fossil in hosts.lives[0]["b"].fossils] == ["widen_small"]


def test_a_planting_determines_how_its_seed_is_blended() -> None:
    planting = Planting(
        slot="a",
        blueprint="norm",
        epoch=2,
        style=BlendStyle.LEARNED_GATE,
        tempo_epochs=5,
        alpha_target=0.7,
    )
    hosts = SimulatedHosts(SLOTS)
    log = hosts.run(FixedSchedule(LAYOUT, [planting]), 10)
    assert log.index("germinate a") == 2
    assert log.index("fossilize a") == 2 + 3 + 4
    life = hosts.lives[0]["a"]
    assert (life.style, life.tempo_epochs, life.alpha) == (BlendStyle.LEARNED_GATE, 5, 0.7)


def test_the_oldest_seed_comes_first() -> None:
    plantings = [Planting(slot=slot, blueprint="norm") for slot in ("b", "a")]
    log = SimulatedHosts(SLOTS).run(FixedSchedule(LAYOUT, plantings), 11)
    # While b trains nothing may germinate; in epoch 4 both could go on, and b is older.
    assert log == [
        "germinate b",
        "advance b",
        "advance b",
        "germinate a",
        "advance b",
        "fossilize b",
        "advance a",
        "advance a",
        "wait",
        "advance a",
        "fossilize a",
    ]


def test_a_refused_seed_is_tried_again_and_a_held_one_delays_no_other() -> None:
    hosts = SimulatedHosts(SLOTS)
    hosts.keeper.n_refusals = 2
    log = hosts.run(grow_once(LAYOUT), 5)
    assert log == ["germinate a", "advance a?", "advance a?", "advance a", "advance a"]

    held = SimulatedHosts(SLOTS, min_holding_epochs=4)
    plantings = [
        Planting(slot="a", blueprint="norm"),
        Planting(slot="b", blueprint="norm", epoch=6),
    ]
    log = held.run(FixedSchedule(LAYOUT, plantings), 18)
    assert log[4:9] == [
        "advance a",
        "wait",
        "germinate b",
        "advance b",
        "fossilize a",
    ]
    assert [len(life.committed) for _, life in held.lives[0].items()] == [1, 1]


def test_several_plantings_in_one_slot_grow_in_turn() -> None:
    hosts = SimulatedHosts(SLOTS)
    plantings = [
        Planting(slot="a", blueprint="norm"),
        Planting(slot="a", blueprint="widen_small", alpha_target=0.5),
        Planting(slot="b", blueprint="norm", epoch=2),
        Planting(slot="a", blueprint="widen_large", epoch=30),
    ]
    log = hosts.run(FixedSchedule(LAYOUT, plantings), 40)
    germinated = [(epoch, op) for epoch, op in enumerate(log) if op.startswith("germinate")]
    assert log[5:9] == ["fossilize a", "advance b", "advance b", "germinate a"]
    assert germinated == [
        (0, "germinate a"),
        (3, "germinate b"),
        (8, "germinate a"),
        (30, "germinate a"),
    ]
    fossils = hosts.lives[0]["a"].fossils
    assert [fossil.blueprint for fossil in fossils] == ["norm", "widen_small", "widen_large"]
    assert [fossil.alpha for fossil in fossils] == [1.0, 0.5, 1.0]
    assert log.count("fossilize a") == 3


def test_a_seed_pruned_by_the_governor_is_not_planted_again() -> None:
    hosts, schedule = SimulatedHosts(SLOTS), grow_once(LAYOUT)
    schedule.start(1)
    for epoch in range(12):
        if epoch == 3:
            hosts.lives[0].abandon("a", hosts.keeper)
        hosts.step(schedule.act(hosts.observe(), hosts.masks(), np.array([epoch == 0])))
    assert hosts.log[0] == ["germinate a", "advance a", "advance a", *["wait"] * 9]
    assert hosts.stages()[0] == Stage.DORMANT


def test_a_seed_limit_delays_a_planting() -> None:
    limited = SlotConfig(("a", "b"), seed_limit=1)
    schedule = grow_everywhere(ObservationLayout(limited), blueprint="norm", every=1)
    log = SimulatedHosts(limited).run(schedule, 8)
    assert [log.index("germinate a"), log.index("fossilize a"), log.index("germinate b")] == [
        0,
        5,
        6,
    ]


def test_hosts_start_episodes_independently() -> None:
    hosts = SimulatedHosts(SLOTS, 2)
    schedule = grow_once(LAYOUT, epoch=2)
    schedule.start(2)
    for epoch in range(5):
        starts = np.array([epoch == 0, epoch in (0, 2)])
        hosts.step(schedule.act(hosts.observe(), hosts.masks(), starts))
    assert [log.index("germinate a") for log in hosts.log] == [2, 4]


def test_a_schedule_can_finish_a_host() -> None:
    schedule = FixedSchedule(LAYOUT, [Planting(slot="a", blueprint="norm")], finish_after=2)
    assert SimulatedHosts(SLOTS).run(schedule, 3) == ["germinate a", "advance a", "finish"]


def test_the_first_preferred_blueprint_that_fits_is_used() -> None:
    layout = ObservationLayout(SlotConfig(("a", "b", "c"), fits={"a": [], "b": ["norm", "noop"]}))
    once = grow_once(layout)
    assert [(p.slot, p.blueprint, p.epoch) for p in once.plantings] == [("b", "noop", 0)]
    everywhere = grow_everywhere(layout, every=3)
    planted = [(p.slot, p.blueprint, p.epoch) for p in everywhere.plantings]
    assert planted == [("b", "noop", 0), ("c", "widen_large", 3)]
    some = grow_everywhere(layout, blueprint="conv_small")
    assert [(p.slot, p.blueprint) for p in some.plantings] == [("c", "conv_small")]
    assert set(PREFERRED_BLUEPRINTS) <= set(BUILTIN_BLUEPRINTS)


def test_invalid_plantings_are_rejected() -> None:
    picky = ObservationLayout(
        SlotConfig(("a", "b"), fits={"a": ["norm"]}, enabled=frozenset({"a"}))
    )

    def plant(*plantings: Planting) -> None:
        FixedSchedule(picky, plantings)

    with pytest.raises(UnknownSlotError, match="slot 'c'"):
        plant(Planting(slot="c", blueprint="norm"))
    with pytest.raises(UnknownSlotError, match=r"'norms'.* 'norm'\?"):
        plant(Planting(slot="a", blueprint="norms"))
    with pytest.raises(SlotError, match=r"'noop' does not fit slot 'a'; .* norm"):
        plant(Planting(slot="a", blueprint="noop"))
    with pytest.raises(SlotError, match="slot 'b' is not enabled"):
        plant(Planting(slot="b", blueprint="norm"))
    with pytest.raises(UnknownSlotError, match="slot 'z'"):
        grow_once(picky, slot="z")
    with pytest.raises(SlotError, match=r"'noop' .* none of the slots a, b"):
        grow_everywhere(picky, blueprint="noop")
    with pytest.raises(ConfigError, match="every is -1"):
        grow_everywhere(picky, every=-1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"epoch": -1}, "epoch is -1"),
        ({"tempo_epochs": 4}, "tempo_epochs is 4"),
        ({"alpha_target": 0.9}, r"alpha_target is 0\.9"),
        ({"style": "add"}, "style is 'add'"),
    ],
)
def test_invalid_settings_of_a_planting_are_rejected(
    settings: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        Planting(slot="a", blueprint="norm", **settings)  # type: ignore[arg-type]
