"""Masks of hosts of several designs side by side.

Shapes: ``B`` hosts, ``S`` slots, ``H`` heads.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.errors import ConfigError, ShapeError
from esper.lifecycle.slot_config import SlotConfig
from esper.simic.policy.masks import ChoiceMasks, Condition
from esper.tamiyo.policy.action_masks import ActionMasks


class JointActionMasks(ActionMasks):
    """The masks of several designs' hosts as those of one batch, part after part.

    Which blueprint fits which slot is another matter in every part.
    """

    __slots__ = ("_ends", "parts")

    def __init__(self, parts: Sequence[ActionMasks]) -> None:
        """Join the masks of batches whose heads have the same sizes."""
        sizes = [part.head_sizes for part in parts]
        if any(own != sizes[0] for own in sizes):
            raise ShapeError(
                f"the parts have heads of sizes {sizes}; hosts that are steered together need as "
                "many slots and blueprints as each other."
            )
        super().__init__(
            torch.cat([part.choices for part in parts]),
            torch.cat([part.slot_by_op for part in parts]),
            parts[0]._tables,
        )
        self.parts = tuple(parts)
        self._ends: list[int] = np.cumsum([len(part.choices) for part in parts]).tolist()

    @property
    def blueprint_fits(self) -> Tensor:
        """Which blueprints fit which slot of each host, ``[B, S, blueprints]`` bool."""
        return torch.cat(
            [part.blueprint_fits.expand(len(part.choices), -1, -1) for part in self.parts]
        )

    def are_legal(self, actions: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return whether each combination of choices ``[B, H]`` is legal, ``[B]``."""
        rows = np.split(actions, self._ends[:-1])
        found = [part.are_legal(own) for part, own in zip(self.parts, rows, strict=True)]
        return np.concatenate(found)

    def of_host(self, host: int) -> ActionMasks:
        """Return the masks of one host."""
        host = range(self._ends[-1])[host]
        number = next(number for number, end in enumerate(self._ends) if host < end)
        return self.parts[number].of_host(host - self._ends[number])

    def of_hosts(self, first: int, end: int) -> ActionMasks:
        """Return the masks of the hosts from one to before another."""
        found = list[ActionMasks]()
        for part, last in zip(self.parts, self._ends, strict=True):
            start = last - len(part.choices)
            if max(first, start) < min(end, last):
                found.append(part.of_hosts(max(first - start, 0), min(end, last) - start))
        return found[0] if len(found) == 1 else JointActionMasks(found)

    def within(self, slot_config: SlotConfig) -> ActionMasks:
        """Refuse: the slots of one design are not those of the others."""
        raise ConfigError(
            "these hosts are of several designs, and other blueprints are asked for by the slots "
            f"{', '.join(slot_config.slot_ids)} of one; steer the hosts of each design by "
            "themselves."
        )

    def for_policy(self) -> ChoiceMasks:
        """Return the masks in the form a policy draws from: op, then slot, then the rest."""
        spec = self._tables.spec
        slot, blueprint = spec.index("slot"), spec.index("blueprint")
        by_op = Condition(slot, spec.op_index, self.slot_by_op)
        by_slot = Condition(blueprint, slot, self.blueprint_fits)
        return ChoiceMasks(self.choices, (by_op, by_slot))
