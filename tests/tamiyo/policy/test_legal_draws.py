"""The policy draws no illegal combination, whatever state the hosts are in.

Shapes: B = hosts, S = slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from esper.config import PolicyConfig
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.legality import SlotMaskState, may_apply
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy import RecurrentPolicy
from esper.tamiyo.policy.action_masks import compute_array_masks

BLUEPRINTS = ("noop", "norm", "widen_small", "widen_large")
N_BATCHES, BATCH = 100, 1000


@dataclass
class States:
    """The slots of a batch of hosts, ``[B, S]``."""

    stage: np.ndarray
    age: np.ndarray
    at_rest: np.ndarray


def draw_config(rng: np.random.Generator) -> SlotConfig:
    """Return any slot configuration: few slots or many, limits, blueprints that do not fit."""
    slots = tuple(f"slot {index}" for index in range(rng.integers(1, 6)))
    enabled = frozenset(slot for slot in slots if rng.random() < 0.7)
    fits = {
        slot: [name for name in BLUEPRINTS if rng.random() < 0.5]
        for slot in slots
        if rng.random() < 0.6
    }
    return SlotConfig(
        slots,
        blueprints=BLUEPRINTS,
        enabled=enabled if rng.random() < 0.5 else None,
        seed_limit=int(rng.integers(0, 4)) if rng.random() < 0.5 else None,
        fits=fits if rng.random() < 0.7 else {},
        allow_finish=bool(rng.random() < 0.7),
    )


def draw_states(rng: np.random.Generator, n_slots: int) -> States:
    """Return states of which a third allow germinating, as far as stages go."""
    shape = (BATCH, n_slots)
    stage = rng.integers(0, len(Stage), shape)
    free = rng.choice([Stage.DORMANT, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED], shape)
    stage = np.where(rng.random((BATCH, 1)) < 0.33, free, stage)
    return States(stage, rng.integers(0, 3, shape), rng.random(shape) < 0.5)


def is_legal(actions: np.ndarray, states: States, config: SlotConfig) -> np.ndarray:
    """Return which actions are legal by the table of the design, written out once more."""
    chosen = dict(zip(HEAD_NAMES, actions.T, strict=True))
    host = np.arange(len(actions))
    slot = chosen["slot"]
    stage, age, at_rest = (
        array[host, slot] for array in (states.stage, states.age, states.at_rest)
    )
    # Stages by number: 1 germinated, 2 training, 3 blending, 4 holding, 6 to 8 cooling down.
    n_live = ((states.stage >= 1) & (states.stage <= 4)).sum(1)
    is_quiet = ~np.isin(states.stage, [1, 2, 6, 7, 8]).any(1)
    has_room = n_live < (10**6 if config.seed_limit is None else config.seed_limit)
    names = config.slot_ids
    is_enabled = np.array([config.enabled is None or name in config.enabled for name in names])
    fits = np.array(
        [[name in config.fits.get(slot, BLUEPRINTS) for name in BLUEPRINTS] for slot in names]
    )
    germinate = (stage == 0) & is_quiet & has_room & is_enabled[slot]
    answers = {
        "wait": np.ones(len(host), bool),
        "germinate": germinate & fits[slot, chosen["blueprint"]],
        "set_alpha_target": ((stage == 3) | (stage == 4)) & at_rest,
        "prune": (stage >= 1) & (stage <= 4) & (age >= 1) & at_rest,
        "fossilize": stage == 4,
        "advance": (stage >= 1) & (stage <= 3),
        "finish": np.full(len(host), config.allow_finish),
    }
    table = np.stack([answers[op.name.lower()] for op in Op])
    return table[chosen["op"], host]


def may_apply_one(row: np.ndarray, states: States, host: int, config: SlotConfig) -> bool:
    """Return what the rules of the package say to one action."""
    chosen = dict(zip(HEAD_NAMES, row.tolist(), strict=True))
    op, slot = Op(chosen["op"]), config.slot_ids[chosen["slot"]]
    slot_states = [
        SlotMaskState(Stage(stage), int(age), bool(rest))
        for stage, age, rest in zip(
            states.stage[host], states.age[host], states.at_rest[host], strict=True
        )
    ]
    fits = op != Op.GERMINATE or config.does_fit(BLUEPRINTS[chosen["blueprint"]], slot)
    return may_apply(op, slot, slot_states, config) and fits


def test_no_illegal_combination_in_100_000_draws() -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    counts = np.zeros(len(Op), np.int64)
    for _ in range(N_BATCHES):
        config = draw_config(rng)
        states = draw_states(rng, config.max_slots)
        policy = RecurrentPolicy(
            growth_action_spec(config),
            6,
            PolicyConfig(feature_size=8, lstm_size=8),
            generator=generator,
        )
        # Sure of itself, so that it is the masks that keep choices away.
        torch.nn.init.normal_(policy.outputs.weight, std=3.0, generator=generator)
        masks = compute_array_masks(
            *map(torch.from_numpy, (states.stage, states.age, states.at_rest)), config
        )
        with torch.no_grad():
            actions, *_ = policy.act(
                torch.randn(BATCH, 6, generator=generator),
                masks,
                torch.randn(BATCH, 16, generator=generator),
                generator,
            )
        rows = actions.numpy()
        assert is_legal(rows, states, config).all()
        for host in rng.integers(0, BATCH, 10):
            assert may_apply_one(rows[host], states, int(host), config)
        counts += np.bincount(rows[:, HEAD_NAMES.index("op")], minlength=len(Op))
    assert counts.sum() == 100_000
    assert counts.min() > 1000


def test_the_two_judges_agree_on_actions_of_any_kind() -> None:
    rng = np.random.default_rng(1)
    n_legal = 0
    for _ in range(20):
        config = draw_config(rng)
        states = draw_states(rng, config.max_slots)
        sizes = growth_action_spec(config).sizes
        rows = rng.integers(0, sizes, (BATCH, len(sizes)))
        judged = is_legal(rows, states, config)
        n_legal += int(judged.sum())
        for host in range(100):
            assert judged[host] == may_apply_one(rows[host], states, host, config)
    assert 0.1 < n_legal / (20 * BATCH) < 0.9
