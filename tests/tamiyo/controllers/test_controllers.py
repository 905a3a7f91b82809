"""Every controller acts legally on any observation and resets between episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from esper.config.learning import NetworkConfig
from esper.errors import ConfigError, ShapeError, SlotError
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy import RecurrentPolicy
from esper.tamiyo import (
    Controller,
    FixedSchedule,
    Heuristic,
    HeuristicConfig,
    LearnedController,
    NoGrowth,
    Planting,
    RandomController,
    controller_names,
    grow_everywhere,
    grow_once,
    make_controller,
)
from esper.tamiyo.policy.observations import ObservationLayout
from tests.tamiyo.controllers.simulated_hosts import SimulatedHosts
from tests.tamiyo.random_states import draw_config, draw_states, may_apply_one

SLOTS = SlotConfig(("a", "b"), blueprints=("norm", "widen_large"))
LAYOUT = ObservationLayout(SLOTS)
EAGER = HeuristicConfig(warmup_epochs=0, plateau_rise=1e9, profit_epochs=0, max_prunes=99)
OP = HEAD_NAMES.index("op")


def make_all(layout: ObservationLayout, rng: np.random.Generator) -> list[Controller]:
    """Return one controller of each kind; the schedule grows in every possible slot."""
    config = layout.slot_config
    plantings = [
        Planting(slot=slot, blueprint=rng.choice(fitting))
        for slot in config.slot_ids
        if config.is_enabled(slot)
        and (fitting := [name for name in config.blueprints if config.does_fit(name, slot)])
    ]
    sizes = NetworkConfig(feature_size=8, lstm_size=8)
    spec = growth_action_spec(config)
    return [
        NoGrowth(),
        NoGrowth(finish_after=0),
        RandomController(),
        FixedSchedule(layout, plantings),
        FixedSchedule(layout, plantings, finish_after=3),
        Heuristic(layout),
        Heuristic(layout, EAGER),
        LearnedController(RecurrentPolicy(spec, layout.size, sizes)),
    ]


def draw_observations(
    rng: np.random.Generator, layout: ObservationLayout, n_hosts: int
) -> np.ndarray:
    """Return random observations with half of the features at their limits."""
    low = layout.low
    seen = low + (1.0 - low) * rng.random((n_hosts, layout.size))
    ends = np.where(rng.random(seen.shape) < 0.5, low, 1.0)
    return np.where(rng.random(seen.shape) < 0.5, ends, seen).astype(np.float32)


def test_controllers_act_legally_in_every_state() -> None:
    rng, n_hosts = np.random.default_rng(0), 30
    did = {index: np.zeros(len(Op), np.int64) for index in range(8)}
    for _ in range(25):
        config = draw_config(rng)
        layout = ObservationLayout(config)
        for index, controller in enumerate(make_all(layout, rng)):
            controller.start(n_hosts, seed=int(rng.integers(100)))
            for _ in range(4):
                states = draw_states(rng, n_hosts, config.max_slots)
                seen = draw_observations(rng, layout, n_hosts)
                # Stages as they are, half of the time, so that rules about stages apply.
                if rng.random() < 0.5:
                    show_stages(seen, layout, states.stage)
                masks = states.masks(config)
                rows = controller.act(seen, masks, rng.random(n_hosts) < 0.2)
                assert rows.shape == (n_hosts, len(HEAD_NAMES))
                assert rows.dtype == np.int64
                for host in range(n_hosts):
                    assert may_apply_one(rows[host], states, host, config)
                alone = [masks[head].numpy() for head in HEAD_NAMES]
                for column, legal in enumerate(alone):
                    assert legal[np.arange(n_hosts), rows[:, column]].all()
                did[index] += np.bincount(rows[:, OP], minlength=len(Op))
    assert did[0].tolist() == [3000, 0, 0, 0, 0, 0, 0]
    assert did[2].min() > 0
    for index in (3, 6):
        assert min(did[index][[Op.GERMINATE, Op.FOSSILIZE, Op.ADVANCE]]) > 10
    assert did[6][Op.PRUNE] > 10


def show_stages(seen: np.ndarray, layout: ObservationLayout, stages: np.ndarray) -> None:
    """Write the stages of slots into observations."""
    names = list(layout.names)
    for column, slot in enumerate(layout.slot_config.slot_ids):
        first = names.index(f"{slot}/is_dormant")
        seen[:, first : first + 9] = stages[:, [column]] == np.arange(9)


# All but the random controller, whose streams go on.
@pytest.mark.parametrize("index", [0, 1, 3, 4, 5, 6, 7])
def test_every_episode_starts_like_the_first(index: int) -> None:
    def steer(n_before: int) -> list[np.ndarray]:
        rng = np.random.default_rng(3)
        controller = make_all(LAYOUT, rng)[index]
        if isinstance(controller, LearnedController):
            controller.deterministic = True
        controller.start(2)
        before = SimulatedHosts(SLOTS, 2)
        before.host_facts["older_score"] = 0.3
        for epoch in range(n_before):
            starts = np.array([epoch == 0] * 2)
            before.step(controller.act(before.observe(), before.masks(), starts))
        hosts, rows = SimulatedHosts(SLOTS, 2), []
        for epoch in range(14):
            starts = np.array([epoch == 0] * 2)
            rows.append(controller.act(hosts.observe(), hosts.masks(), starts))
            hosts.step(rows[-1])
        return rows

    assert np.array_equal(steer(0), steer(9))


@pytest.mark.parametrize("index", range(8))
def test_the_number_of_hosts_must_be_the_one_it_was_started_for(index: int) -> None:
    controller = make_all(LAYOUT, np.random.default_rng(0))[index]
    hosts, starts = SimulatedHosts(SLOTS, 3), np.ones(3, np.bool_)
    with pytest.raises(ShapeError, match=r"3 observations .* 0 hosts"):
        controller.act(hosts.observe(), hosts.masks(), starts)
    controller.start(2)
    with pytest.raises(ShapeError, match=r"2 hosts; .* start\(3\)"):
        controller.act(hosts.observe(), hosts.masks(), starts)
    for wrong in (0, "a", 2.0):
        with pytest.raises(ConfigError, match=f"n_hosts is {wrong!r}"):
            controller.start(wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["no-growth", "fixed", "heuristic"])
def test_masks_must_have_a_batch_dimension(name: str) -> None:
    controller, hosts = make_controller(name, LAYOUT), SimulatedHosts(SLOTS, 1)
    controller.start(1)
    with pytest.raises(ShapeError, match="batch of 1 hosts"):
        controller.act(hosts.observe(), hosts.masks().of_host(0), np.ones(1, np.bool_))


def test_the_wait_controller_can_finish_early() -> None:
    assert SimulatedHosts(SLOTS).run(NoGrowth(), 3) == ["wait"] * 3
    assert SimulatedHosts(SLOTS).run(NoGrowth(finish_after=2), 3) == ["wait"] * 2 + ["finish"]
    forbidden = SlotConfig(("a",), allow_finish=False)
    assert SimulatedHosts(forbidden).run(NoGrowth(finish_after=1), 3) == ["wait"] * 3
    with pytest.raises(ConfigError, match="finish_after is -1"):
        NoGrowth(finish_after=-1)


def test_controllers_are_created_by_name() -> None:
    kinds = [type(make_controller(name, LAYOUT)) for name in controller_names()]
    assert kinds == [NoGrowth, RandomController, FixedSchedule, Heuristic, FixedSchedule]
    assert [
        make_controller(name, LAYOUT).name for name in ("no-growth", "random", "heuristic")
    ] == [
        "no-growth",
        "random",
        "heuristic",
    ]
    plantings = [Planting(slot="b", blueprint="norm", epoch=3)]
    assert make_controller("fixed", LAYOUT, plantings=plantings).plantings == tuple(plantings)
    assert [planting.epoch for planting in make_controller("fixed", LAYOUT, every=5).plantings] == [
        0,
        5,
    ]
    assert make_controller("heuristic", LAYOUT, max_prunes=7).config.max_prunes == 7
    assert make_controller("heuristic", LAYOUT, config=EAGER).config is EAGER


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("no-growth", {}),
        ("random", {}),
        ("fixed", {}),
        ("fixed", {"plantings": ()}),
        ("heuristic", {"max_prunes": 7}),
        ("heuristic", {"config": EAGER}),
    ],
)
def test_every_controller_can_be_given_a_name(kind: str, options: dict[str, Any]) -> None:
    controller = make_controller(kind, LAYOUT, name="mine", **options)
    assert controller.name == "mine"
    if kind == "heuristic":
        assert controller.config.max_prunes == (7 if options.get("max_prunes") else 99)


@pytest.mark.parametrize("wrong", [None, 5, SLOTS, "layout"])
def test_an_invalid_layout_is_rejected(wrong: Any) -> None:
    for name in controller_names():
        with pytest.raises(ConfigError, match=r"^layout is"):
            make_controller(name, wrong)
    for make in (grow_once, grow_everywhere, Heuristic, lambda it: FixedSchedule(it, [])):
        with pytest.raises(ConfigError, match=r"^layout is"):
            make(wrong)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("heuristics", {}, r"'heuristics'; .* 'heuristic'\?"),
        ("no-growth", {"finish": 3}, r"'no-growth' .* 'finish'.* 'finish_after'\?"),
        ("random", {"op_weight": {}}, r"'op_weight'.* op_weights, name\."),
        ("fixed", {"plantings": [], "every": 3}, "'fixed' .* 'every'"),
        ("heuristic", {"config": 5}, "config is 5"),
        ("heuristic", {"config": EAGER, "max_prunes": 3}, "'max_prunes'.* config"),
        ("heuristic", {"blueprints": 5}, "blueprints is 5"),
        ("heuristic", {"blueprints": [["norm"]]}, r"blueprints\[0\] is \['norm'\]"),
        ("fixed", {"plantings": 5}, "plantings is 5"),
        ("fixed", {"plantings": [1]}, r"plantings\[0\] is 1"),
        ("fixed", {"plantings": "a"}, "plantings is 'a'"),
        ("random", {"op_weights": 5}, "op_weights is 5"),
        ("heuristic", {"plateau": 1.0}, r"'plateau'.* 'plateau_rise'\?"),
    ],
)
def test_invalid_options_are_rejected(name: str, options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make_controller(name, LAYOUT, **options)


def test_a_host_without_usable_slots_has_no_default_schedule() -> None:
    closed = ObservationLayout(SlotConfig(("a",), enabled=frozenset()))
    with pytest.raises(SlotError, match="none of the slots a"):
        make_controller("fixed", closed)
