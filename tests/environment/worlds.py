"""Small environments and actions that several tests share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.environment import GrowthEnv, GrowthVectorEnv
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.lifecycle.slot_config import SlotConfig

TINY: dict[str, Any] = {"n_epochs": 12, "batches_per_epoch": 2}


def make_envs(num_envs: int = 3, task: str = "spirals", **options: Any) -> GrowthVectorEnv:
    return GrowthVectorEnv(task, num_envs, **{**TINY, **options})


def make_env(task: str = "spirals", **options: Any) -> GrowthEnv:
    return GrowthEnv(task, **{**TINY, **options})


def choose(op: Op, slot: int = 0, blueprint: int = 0, **heads: int) -> NDArray[np.int64]:
    """Return the row of an action."""
    chosen = {"op": int(op), "slot": slot, "blueprint": blueprint, **heads}
    return np.array([chosen.get(name, 0) for name in HEAD_NAMES], np.int64)


def wait(n: int) -> NDArray[np.int64]:
    return np.tile(choose(Op.WAIT), (n, 1))


def module_slot(config: SlotConfig) -> int:
    """Return the number of the first slot beside whose block modules grow."""
    return next(n for n, slot in enumerate(config.slot_ids) if config.does_fit("norm", slot))


def life_of_a_seed(config: SlotConfig, *, commits: bool = True) -> list[Any]:
    """Return the actions that grow a module beside a block at once and, perhaps, commit it."""
    slot = module_slot(config)
    fits = (
        name for name in ("mlp_large", "conv_heavy") if name in config.fits[config.slot_ids[slot]]
    )
    grow = choose(Op.GERMINATE, slot, config.blueprint_index(next(fits)), alpha_target=2)
    go, stay = choose(Op.ADVANCE, slot), choose(Op.WAIT)
    last = choose(Op.FOSSILIZE, slot) if commits else stay
    return [grow, go, go, stay, stay, go, last]


def random_actions(
    envs: GrowthVectorEnv, generator: np.random.Generator, *, with_finish: bool = False
) -> NDArray[np.int64]:
    """Return actions that are often legal: each head by itself within its mask."""
    rows = []
    for env in range(envs.num_envs):
        masks = envs.masks.of_host(env)
        row = []
        for name in HEAD_NAMES:
            legal = np.flatnonzero(masks[name].numpy())
            if name == "op" and not with_finish:
                legal = legal[legal != Op.FINISH]
            row.append(generator.choice(legal))
        rows.append(row)
    return np.array(rows, np.int64)
