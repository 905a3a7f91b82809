"""Untrained controllers that tend to grow."""

from __future__ import annotations

import torch

from esper.config import PolicyConfig
from esper.config.growth import Budget, GrowthConfig
from esper.lifecycle.factored_actions import Op
from esper.lifecycle.slot_config import BUILTIN_BLUEPRINTS, SlotConfig
from esper.tamiyo import SavedController
from esper.tamiyo.policy.slot_network import SlotPolicy

SIZES = PolicyConfig(feature_size=12, lstm_size=8, slot_size=6)
WISHES = {
    Op.WAIT: 0.0,
    Op.GERMINATE: 3.0,
    Op.FOSSILIZE: 5.0,
    Op.ADVANCE: 3.0,
    Op.PRUNE: -3.0,
    Op.SET_ALPHA_TARGET: -3.0,
    Op.FINISH: -6.0,
}


def fresh_controller(
    *,
    seed: int = 0,
    blueprints: tuple[str, ...] = BUILTIN_BLUEPRINTS,
    deterministic: bool = False,
    n_epochs: int = 16,
    growth: GrowthConfig | None = None,
) -> SavedController:
    """Return an untrained controller that prefers to grow."""
    generator = torch.Generator().manual_seed(seed)
    policy = SlotPolicy(SlotConfig(("slot",), blueprints=blueprints), SIZES, generator=generator)
    torch.nn.init.normal_(policy.outputs.weight, std=0.5, generator=generator)
    for op, wish in WISHES.items():
        policy.logit_bias("op")[op] = wish
    return SavedController(
        name="fresh",
        weights=policy.state_dict(),
        policy=SIZES,
        blueprints=blueprints,
        deterministic=deterministic,
        budget=Budget(n_epochs=n_epochs),
        growth=growth,
        origin={"task": "spirals", "seed": seed},
    )
