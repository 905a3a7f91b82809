"""A controller matches blueprints by name and never uses unknown ones.

A translated controller is compared with the same controller on hosts that use its own numbers.
"""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.tamiyo import LearnedController
from esper.tamiyo.controllers.learned import with_blueprints
from esper.tamiyo.policy.observations import ObservationLayout
from tests.tamiyo.fresh_controllers import fresh_controller
from tests.tamiyo.random_states import draw_states

NAMES = ("noop", "norm", "mlp_small", "widen_small", "widen_large", "mine")
OP, BLUEPRINT = HEAD_NAMES.index("op"), HEAD_NAMES.index("blueprint")


@st.composite
def pairs(draw: st.DrawFn) -> tuple[SlotConfig, tuple[str, ...]]:
    """Return random slots and a controller's blueprints, at least one of which fits."""
    offered = tuple(draw(st.permutations(NAMES))[: draw(st.integers(1, 6))])
    known = tuple(draw(st.permutations(NAMES))[: draw(st.integers(1, 6))])
    slots = tuple(f"slot {i}" for i in range(draw(st.integers(1, 4))))
    fits = {slot: draw(st.sets(st.sampled_from(offered))) for slot in slots}
    both = sorted({*offered} & {*known}) or [known[0]]
    offered = offered if both[0] in offered else (*offered, both[0])
    fits[slots[0]] = {*fits[slots[0]], both[0]}
    return SlotConfig(slots, blueprints=offered, fits=fits), known


@settings(deadline=None)
@given(pairs(), st.integers(0, 1000))
def test_actions_do_not_depend_on_blueprint_numbers(
    pair: tuple[SlotConfig, tuple[str, ...]], seed: int
) -> None:
    hosts, known = pair
    saved, own = fresh_controller(seed=seed, blueprints=known), with_blueprints(hosts, known)
    translated = saved.make(hosts)
    direct = LearnedController(saved.make_policy(own))
    layouts = ObservationLayout(hosts), ObservationLayout(own)
    rng = np.random.default_rng(seed)
    for controller in (translated, direct):
        controller.start(8, seed=seed)
    for step in range(3):
        seen = rng.uniform(-1, 1, (8, layouts[0].size)).astype(np.float32)
        grown = rng.choice([*hosts.blueprints, ""], (8, hosts.max_slots))
        sights = []
        for layout, names in zip(layouts, (hosts.blueprints, known), strict=True):
            sight = seen.copy()
            numbers = [[names.index(name) if name in names else -1 for name in r] for r in grown]
            layout.slot(sight, "blueprint")[...] = (np.array(numbers) + 1) / len(names)
            sights.append(sight)
        states, starts = draw_states(rng, 8, hosts.max_slots), np.full(8, step == 0)
        given_masks = states.masks(hosts)
        rows = translated.act(sights[0], given_masks, starts)
        expected = direct.act(sights[1], states.masks(own), starts)
        assert given_masks.are_legal(rows).all()
        others = [h for h in range(len(HEAD_NAMES)) if h != BLUEPRINT]
        assert np.array_equal(rows[:, others], expected[:, others])
        for row, wanted in zip(rows, expected, strict=True):
            if wanted[OP] == Op.GERMINATE:
                assert hosts.blueprints[row[BLUEPRINT]] == known[wanted[BLUEPRINT]]


@settings(deadline=None)
@given(pairs(), st.integers(0, 1000))
def test_masks_with_other_blueprints_equal_those_of_the_states(
    pair: tuple[SlotConfig, tuple[str, ...]], seed: int
) -> None:
    hosts, known = pair
    own = with_blueprints(hosts, known)
    states = draw_states(np.random.default_rng(seed), 16, hosts.max_slots)
    narrowed, direct = states.masks(hosts).within(own), states.masks(own)
    assert torch.equal(narrowed.choices, direct.choices)
    assert torch.equal(narrowed.slot_by_op, direct.slot_by_op)
