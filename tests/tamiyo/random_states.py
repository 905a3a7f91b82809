"""Hosts in random states, and the legality of one action.

Shapes: B = hosts, S = slots.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.legality import SlotMaskState, may_apply
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks

BLUEPRINTS = ("noop", "norm", "widen_small", "widen_large")


@dataclass
class States:
    """The slots of a batch of hosts, ``[B, S]``."""

    stage: np.ndarray
    age: np.ndarray
    at_rest: np.ndarray

    def masks(self, config: SlotConfig) -> ActionMasks:
        arrays = (self.stage, self.age, self.at_rest)
        return compute_array_masks(*map(torch.from_numpy, arrays), config)


def draw_config(rng: np.random.Generator) -> SlotConfig:
    """Return a random slot configuration with limits and blueprints that do not fit."""
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


def draw_states(rng: np.random.Generator, n_hosts: int, n_slots: int) -> States:
    """Return random states, a third of which allow germinate by their stages."""
    shape = (n_hosts, n_slots)
    stage = rng.integers(0, len(Stage), shape)
    free = rng.choice([Stage.DORMANT, Stage.BLENDING, Stage.HOLDING, Stage.FOSSILIZED], shape)
    stage = np.where(rng.random((n_hosts, 1)) < 0.33, free, stage)
    return States(stage, rng.integers(0, 3, shape), rng.random(shape) < 0.5)


def may_apply_one(row: np.ndarray, states: States, host: int, config: SlotConfig) -> bool:
    """Return whether Esper's rules allow an action."""
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
