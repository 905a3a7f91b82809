"""The state of one slot, as records, timelines and the dashboard show it; without NumPy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from esper.lifecycle.stages import Stage


class SlotState(NamedTuple):
    """One slot of one host after a step."""

    stage: str
    blueprint: str | None
    """What the seed was made from; None without a seed."""
    alpha: float
    contribution: float | None
    """Score with the seed minus score without it, as last measured; None if never measured."""
    parameters: int = 0
    """Parameters of the seed, 0 without one."""
    n_fossils: int = 0
    """Number of seeds that have become part of the block."""
    fossil_parameters: int = 0

    @property
    def is_dormant(self) -> bool:
        """Whether nothing grows in the slot."""
        return self.stage == "dormant"

    @property
    def grown_parameters(self) -> int:
        """Parameters of the seed and the fossils."""
        return self.parameters + self.fossil_parameters

    def without_seed(self) -> SlotState:
        """Return the slot with its fossils only."""
        return self._replace(stage="dormant", blueprint=None, alpha=0.0, parameters=0)


_STAGES = [stage.name.lower() for stage in Stage]


def read_slots(text: str, blueprints: Sequence[str]) -> list[SlotState]:
    """Return the slots of a host, given what ``SlotArrays.as_text`` wrote.

    Args:
        text: A JSON list of [stage, blueprint or -1, alpha, contribution or null, parameters of
            the seed, number of fossils, parameters of the fossils].
        blueprints: The names of the blueprints; one that has none is shown by its number.
    """
    return [name_state(row, blueprints) for row in json.loads(text)]


def name_state(row: Sequence[Any], blueprints: Sequence[str]) -> SlotState:
    """Return a slot with names instead of numbers, and None instead of NaN."""
    stage, _, alpha, contribution, *counts = row
    number = int(row[1])
    blueprint: str | None = None if number < 0 else str(number)
    if 0 <= number < len(blueprints):
        blueprint = blueprints[number]
    is_measured = contribution is not None and not math.isnan(contribution)
    return SlotState(
        _STAGES[stage], blueprint, alpha, contribution if is_measured else None, *counts
    )
