"""How many parameters the seeds of many hosts have. Shapes: N = hosts, S = slots."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esper.growth.populations import SlotArrays
from esper.growth.populations.costs import CostTable
from esper.lifecycle.factored_actions import STYLES, BlendStyle
from esper.lifecycle.slot_config import SlotConfig

_GATE = STYLES.index(BlendStyle.LEARNED_GATE)


class SeedSizes:
    """A table of seeds' sizes that is filled as blueprints occur."""

    def __init__(self, costs: CostTable, slot_config: SlotConfig) -> None:
        self.costs = costs
        self.slot_config = slot_config
        shape = (slot_config.max_slots, len(slot_config.blueprints), 2)
        self._sizes = np.full(shape, -1)
        """Parameters by slot, blueprint and whether there is a gate; -1 if not counted yet."""

    def count(self, arrays: SlotArrays) -> NDArray[np.int64]:
        """Return the parameters of each slot's seed, gate included, ``[N, S]``; 0 without one."""
        counts = np.zeros(arrays.stage.shape, np.int64)
        hosts, slots = np.nonzero(arrays.blueprint >= 0)
        if len(hosts):
            blueprints = arrays.blueprint[hosts, slots]
            is_gated = (arrays.style[hosts, slots] == _GATE).astype(np.int64)
            found = self._sizes[slots, blueprints, is_gated]
            for index in np.flatnonzero(found < 0).tolist():
                key = int(slots[index]), int(blueprints[index]), int(is_gated[index])
                found[index] = self._sizes[key] = self._count(*key)
            counts[hosts, slots] = found
        return counts

    def _count(self, slot: int, blueprint: int, is_gated: int) -> int:
        config = self.slot_config
        return self.costs.seed_parameters(
            config.slot_ids[slot], config.blueprints[blueprint], bool(is_gated)
        )
