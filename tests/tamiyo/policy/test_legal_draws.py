"""The policy never samples an illegal action.

Shapes: B = hosts, S = slots.
"""

from __future__ import annotations

import numpy as np
import torch

from esper.config.learning import NetworkConfig
from esper.lifecycle.factored_actions import HEAD_NAMES, Op, growth_action_spec
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy import RecurrentPolicy
from tests.tamiyo.random_states import (
    BLUEPRINTS,
    States,
    draw_config,
    draw_states,
    may_apply_one,
)

N_BATCHES, BATCH = 100, 1000


def is_legal(actions: np.ndarray, states: States, config: SlotConfig) -> np.ndarray:
    """Return which actions are legal, by an independent implementation of the rules."""
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
        "advance": (stage == 1) | (stage == 2) | ((stage == 3) & at_rest),
        "finish": np.full(len(host), config.allow_finish),
    }
    table = np.stack([answers[op.name.lower()] for op in Op])
    return table[chosen["op"], host]


def test_100_000_samples_contain_no_illegal_action() -> None:
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    counts = np.zeros(len(Op), np.int64)
    for _ in range(N_BATCHES):
        config = draw_config(rng)
        states = draw_states(rng, BATCH, config.max_slots)
        policy = RecurrentPolicy(
            growth_action_spec(config),
            6,
            NetworkConfig(feature_size=8, lstm_size=8),
            generator=generator,
        )
        # Sure of itself, so that it is the masks that keep choices away.
        torch.nn.init.normal_(policy.outputs.weight, std=3.0, generator=generator)
        with torch.no_grad():
            decision = policy.act(
                torch.randn(BATCH, 6, generator=generator),
                states.masks(config),
                torch.randn(BATCH, 16, generator=generator),
                generator,
            )
        rows = decision.actions.numpy()
        assert is_legal(rows, states, config).all()
        for host in rng.integers(0, BATCH, 10):
            assert may_apply_one(rows[host], states, int(host), config)
        counts += np.bincount(rows[:, HEAD_NAMES.index("op")], minlength=len(Op))
    assert counts.sum() == 100_000
    assert counts.min() > 1000


def test_both_implementations_of_legality_agree() -> None:
    rng = np.random.default_rng(1)
    n_legal = 0
    for _ in range(20):
        config = draw_config(rng)
        states = draw_states(rng, BATCH, config.max_slots)
        sizes = growth_action_spec(config).sizes
        rows = rng.integers(0, sizes, (BATCH, len(sizes)))
        judged = is_legal(rows, states, config)
        n_legal += int(judged.sum())
        for host in range(100):
            assert judged[host] == may_apply_one(rows[host], states, host, config)
    assert 0.1 < n_legal / (20 * BATCH) < 0.9
