"""Rule-based controllers act legally in hosts of several designs, with what fits each of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from esper.config.controllers import HeuristicConfig
from esper.errors import ConfigError, UnknownSlotError
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo import Controller, FixedSchedule, Heuristic, Planting
from esper.tamiyo.controllers.controller import COLUMNS
from esper.tamiyo.controllers.progressive import progressive
from esper.tamiyo.policy.action_masks import ActionMasks, JointMasks
from esper.tamiyo.policy.observations import ObservationLayout
from tests.tamiyo.controllers.simulated_hosts import SimulatedHosts

BLUEPRINTS = ("norm", "widen_small", "widen_large", "deepen")
JOINT = SlotConfig(("slot.0", "slot.1"), blueprints=BLUEPRINTS)
LAYOUT = ObservationLayout(JOINT)
DESIGNS = [
    SlotConfig(("a", "b"), blueprints=BLUEPRINTS, fits={"a": BLUEPRINTS, "b": BLUEPRINTS}),
    SlotConfig(("a", "b"), blueprints=BLUEPRINTS, fits={"a": BLUEPRINTS[:3], "b": ["norm"]}),
    SlotConfig(("a", "b"), blueprints=BLUEPRINTS, fits={"a": ["widen_small"], "b": []}),
]
"""All fits; nothing deepens; a host with one slot."""


def joint_masks() -> ActionMasks:
    masks = JointMasks(JOINT, len(DESIGNS))
    for host, config in enumerate(DESIGNS):
        masks.set_slots(slice(host, host + 1), config)
    stage, flags = torch.zeros(len(DESIGNS), 2).long(), torch.ones(len(DESIGNS), 2).bool()
    return masks.compute(stage, stage, flags, flags)


def first_actions(controller: Controller, **facts: float) -> list[str]:
    """Return what the controller does in dormant hosts, all of it legal."""
    hosts, masks = SimulatedHosts(JOINT, len(DESIGNS)), joint_masks()
    hosts.host_facts |= facts
    controller.start(len(DESIGNS))
    rows = controller.act(hosts.observe(), masks, np.ones(len(DESIGNS), np.bool_))
    assert masks.are_legal(rows).all()
    return [
        f"{BLUEPRINTS[row[COLUMNS['blueprint']]]} in {JOINT.slot_ids[row[COLUMNS['slot']]]}"
        if row[COLUMNS["op"]] == Op.GERMINATE
        else Op(row[COLUMNS["op"]]).name.lower()
        for row in rows
    ]


def test_a_schedule_skips_plantings_that_a_host_has_no_place_for() -> None:
    plantings = [
        Planting(slot="slot.1", blueprint="deepen"),
        Planting(slot="slot.0", blueprint="widen_large"),
    ]
    found = first_actions(FixedSchedule(LAYOUT, plantings))
    assert found == ["deepen in slot.1", "widen_large in slot.0", "wait"]


def test_a_planting_falls_back_to_the_first_alternative_that_fits() -> None:
    planting = Planting(
        slot="slot.0", blueprint="deepen", otherwise=("widen_large", "widen_small", "norm")
    )
    found = first_actions(FixedSchedule(LAYOUT, [planting]))
    assert found == [f"{name} in slot.0" for name in ("deepen", "widen_large", "widen_small")]


def test_progressive_growth_widens_hosts_that_cannot_get_deeper() -> None:
    found = first_actions(progressive(LAYOUT, fractions=(0.0,)))
    assert found == [f"{name} in slot.0" for name in ("deepen", "widen_large", "widen_small")]


@pytest.mark.parametrize(
    ("n_lost", "wanted"),
    [
        (0, ("deepen", "widen_large", "widen_small")),
        (1, ("widen_large", "norm", "widen_small")),
        (3, ("widen_small", "widen_small", "widen_small")),
    ],
)
def test_the_heuristic_counts_only_what_fits_each_host(
    n_lost: int, wanted: tuple[str, ...]
) -> None:
    config = HeuristicConfig(
        warmup_epochs=0,
        plateau_rise=1.0,
        max_prunes=9,
        blueprints=("deepen", "widen_large", "norm", "widen_small"),
    )
    heuristic = Heuristic(LAYOUT, config)
    heuristic.start(len(DESIGNS))
    hosts, masks = SimulatedHosts(JOINT, len(DESIGNS)), joint_masks()
    heuristic.act(hosts.observe(), masks, np.ones(len(DESIGNS), np.bool_))
    heuristic._n_lost[:] = n_lost
    heuristic._grows[:] = False
    rows = heuristic.act(hosts.observe(), masks, np.zeros(len(DESIGNS), np.bool_))
    assert masks.are_legal(rows).all()
    assert tuple(BLUEPRINTS[row[COLUMNS["blueprint"]]] for row in rows) == wanted


def test_alternatives_are_names_of_blueprints() -> None:
    with pytest.raises(ConfigError, match=r"otherwise.*'norm'"):
        Planting(slot="slot.0", blueprint="deepen", otherwise="norm")  # type: ignore[arg-type]
    planting = Planting(slot="slot.0", blueprint="deepen", otherwise=("wide",))
    with pytest.raises(UnknownSlotError, match="'wide'"):
        FixedSchedule(LAYOUT, [planting])
