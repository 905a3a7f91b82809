"""What the controller sees of a host: named features, all finite and between -1 and 1.

Shapes: N = hosts, S = slots, D = features of an observation.

An observation is the host's features, then each slot's, slot by slot. The tables of
:mod:`observation_facts` say what each feature means; :meth:`ObservationLayout.table` prints them
with their columns.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from esper.errors import UnknownFeatureError, did_you_mean
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.tamiyo.policy.observation_columns import host_columns, slot_columns
from esper.tamiyo.policy.observation_facts import (
    HOST_FEATURES,
    SCORE_STEP,
    SLOT_FEATURES,
    TENSOR_KINDS,
    HostFacts,
    Integers,
    SlotFacts,
)

__all__ = [
    "HOST_FEATURES",
    "SCORE_STEP",
    "SLOT_FEATURES",
    "TENSOR_KINDS",
    "HostFacts",
    "ObservationLayout",
    "SlotFacts",
]


class ObservationLayout:
    """Which column of an observation means what, for hosts of one design."""

    def __init__(self, slot_config: SlotConfig) -> None:
        self.slot_config = slot_config
        self.n_slots = slot_config.max_slots
        self.n_blueprints = len(slot_config.blueprints)
        self._host = {name: column for column, name in enumerate(HOST_FEATURES)}
        self._slot = {name: column for column, name in enumerate(SLOT_FEATURES)}

    @property
    def size(self) -> int:
        """Features of an observation."""
        return len(self._host) + self.n_slots * len(self._slot)

    @property
    def names(self) -> tuple[str, ...]:
        """The name of each column: ``progress``, ..., ``blocks.0/alpha``, ..."""
        slots = self.slot_config.slot_ids
        return (*self._host, *(f"{slot}/{name}" for slot in slots for name in self._slot))

    @property
    def low(self) -> NDArray[np.float32]:
        """``[D]`` the least value of each column; the greatest is 1 everywhere."""
        host = [low for low, _ in HOST_FEATURES.values()]
        slot = [low for low, _ in SLOT_FEATURES.values()]
        return np.array([*host, *slot * self.n_slots], np.float32)

    @property
    def categories(self) -> dict[int, int]:
        """Columns that hold a category, with how many there are beside none: ``k / n`` is k."""
        first, width = len(self._host) + self._slot["blueprint"], len(self._slot)
        return {first + slot * width: self.n_blueprints for slot in range(self.n_slots)}

    def host(self, observations: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of hosts, ``[N]``, from observations ``[N, D]``."""
        return observations[:, _find(name, self._host)]

    def slot(self, observations: NDArray[np.float32], name: str) -> NDArray[np.float32]:
        """Return a feature of all slots, ``[N, S]``, from observations ``[N, D]``."""
        return self._by_slot(observations)[:, :, _find(name, self._slot)]

    def stages(self, observations: NDArray[np.float32]) -> Integers:
        """Return the stage of each slot, ``[N, S]``, from observations ``[N, D]``."""
        return self._by_slot(observations)[:, :, : len(Stage)].argmax(2)

    def blueprints(self, observations: NDArray[np.float32]) -> Integers:
        """Return the blueprint in each slot, ``[N, S]``, -1 for none, from ``[N, D]``."""
        shares = self.slot(observations, "blueprint")
        return np.rint(shares * self.n_blueprints).astype(np.int64) - 1

    def encode(self, hosts: HostFacts, slots: SlotFacts) -> NDArray[np.float32]:
        """Return the observations ``[N, D]``."""
        # What is divided by zero or not there is brought to the scale like everything else.
        with np.errstate(all="ignore"):
            host = host_columns(hosts, slots)
            slot = slot_columns(hosts, slots, self.n_blueprints)
        observations = np.empty((host.shape[1], self.size), np.float32)
        observations[:, : len(host)] = host.T
        self._by_slot(observations)[...] = slot.transpose(1, 2, 0)
        return observations

    def table(self) -> str:
        """Return the layout as a table in Markdown."""
        rows = ["| columns | feature | range | meaning |", "|---|---|---|---|"]
        for column, (name, (low, meaning)) in enumerate(HOST_FEATURES.items()):
            rows.append(f"| {column} | `{name}` | {low:g} to 1 | {meaning} |")
        width, first = len(self._slot), len(self._host)
        for column, (name, (low, meaning)) in enumerate(SLOT_FEATURES.items()):
            at = f"{first + column} + {width} i"
            rows.append(f"| {at} | `slot/{name}` | {low:g} to 1 | {meaning} |")
        return "\n".join(rows)

    def _by_slot(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        return observations[:, len(self._host) :].reshape(len(observations), self.n_slots, -1)


def _find(name: str, columns: dict[str, int]) -> int:
    if name not in columns:
        hint = did_you_mean(name, columns)
        raise UnknownFeatureError(
            f"there is no feature {name!r}; see ObservationLayout.table().{hint}"
        )
    return columns[name]
