"""The state of the slots of many hosts, as arrays.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.slot_state import SlotState, name_state
from esper.lifecycle.stages import Stage

NO_BLUEPRINT = -1

SIZES = ("kind", "first_hidden", "unit_parameters")
"""Columns that describe slots before anything grows there."""


@dataclass(frozen=True, eq=False)
class SlotArrays:
    """The state of all slots, ``[N, S]`` each: what masks, observations, rewards and records read.

    A population updates an entry when a slot changes, so that reading is free. Whoever trains and
    validates the hosts adds what is measured: the columns from ``contribution`` on.
    """

    stage: Integers
    age_epochs: Integers
    stage_epochs: Integers
    alpha: Floats
    alpha_target: Floats
    """Target of the current ramp, or of the first one if it has not started."""
    alpha_at_rest: Flags
    is_gate_open: Flags
    """False where a seed has spent too few epochs in its stage to leave it."""
    ramp_epochs_left: Integers
    """Epochs until alpha reaches its target."""
    blueprint: Integers
    """The blueprint head's choice; -1 without a seed."""
    style: Integers
    curve: Integers
    n_fossils: Integers
    """Number of seeds that have become part of the block."""
    fossil_units: Integers
    """Hidden units that they added to the block's own."""
    fossil_parameters: Integers
    contribution: Floats
    """Score with the seed minus score without it, as last measured; NaN if never measured."""
    is_measured: Flags
    """Whether it was measured in the last epoch."""
    gradient_norm: Floats
    parameters: Integers
    """Parameters of the seed, 0 without one."""
    kind: Integers
    """Number of the tensor kind that passes through the slot; -1 if the host lacks the slot."""
    first_hidden: Integers
    """Hidden units of the block without fossils; 0 if unknown."""
    unit_parameters: Integers
    """Parameters of one hidden unit; 0 if unknown."""

    @property
    def is_blended(self) -> Flags:
        """Slots whose seed affects the output and is not committed."""
        return (self.blueprint >= 0) & (self.alpha > 0.0) & (self.stage != Stage.FOSSILIZED)

    @property
    def grown_parameters(self) -> Integers:
        """Parameters of the seed and the fossils."""
        return self.parameters + self.fossil_parameters

    @property
    def hidden(self) -> Integers:
        """Hidden units of the block, with those of fossils; 0 if unknown."""
        return np.where(self.first_hidden > 0, self.first_hidden + self.fossil_units, 0)

    @classmethod
    def blank(cls, n_hosts: int, n_slots: int) -> SlotArrays:
        """Return the arrays of hosts with dormant slots."""
        kinds = {"Integers": np.int64, "Floats": np.float64, "Flags": np.bool_}
        arrays: dict[str, Any] = {
            field.name: np.empty((n_hosts, n_slots), kinds[str(field.type)])
            for field in fields(cls)
        }
        blank = cls(**arrays)
        blank.clear()
        return blank

    def columns(self) -> dict[str, NDArray[Any]]:
        """Return all arrays by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    def copy(self) -> SlotArrays:
        """Return a copy."""
        return SlotArrays(**{name: values.copy() for name, values in self.columns().items()})

    def assign(self, at: Any, other: SlotArrays) -> None:
        """Copy the slots of some hosts from other arrays of this shape."""
        theirs = other.columns()
        for name, values in self.columns().items():
            values[at] = theirs[name][at]

    def clear(self) -> None:
        """Make all slots dormant."""
        for name, values in self.columns().items():
            values[...] = _DORMANT.get(name, 0)

    def clear_lives(self, host: int) -> None:
        """Make the slots of a host dormant; their sizes stay."""
        for name, values in self.columns().items():
            if name not in SIZES:
                values[host] = _DORMANT.get(name, 0)

    def clear_measured(self, host: int) -> None:
        """Forget what was measured of a host's slots."""
        for name in MEASURED:
            getattr(self, name)[host] = _DORMANT.get(name, 0)

    def as_text(self) -> list[str]:
        """Return the slots of each host as telemetry stores them, for ``read_slots``."""
        contributions = self.contribution.round(6).astype(object)
        contributions[np.isnan(self.contribution)] = None  # JSON has no NaN
        columns = self.columns() | {"alpha": self.alpha.round(6), "contribution": contributions}
        values: list[list[Any]] = [columns[name].ravel().tolist() for name in _STORED]
        rows = zip(*[zip(*values, strict=True)] * self.stage.shape[1], strict=True)
        # Encoded at once and cut apart, which is faster than host by host.
        text = json.dumps(list(rows), separators=(",", ":"))
        return [f"[[{part}]]" for part in text[3:-3].split("]],[[")]

    @classmethod
    def from_text(cls, text: str) -> SlotArrays:
        """Return the slots of one host that :meth:`as_text` wrote; the other columns are blank."""
        rows: list[list[Any]] = json.loads(text)
        arrays = cls.blank(1, len(rows))
        for name, values in zip(_STORED, zip(*rows, strict=True), strict=True):
            getattr(arrays, name)[0] = [np.nan if value is None else value for value in values]
        return arrays

    def states(self, host: int, slot_config: SlotConfig) -> dict[str, SlotState]:
        """Return the slots of a host by name, without those in which nothing has ever grown."""
        rows = zip(*(getattr(self, name)[host].tolist() for name in _STORED), strict=True)
        states = (name_state(row, slot_config.blueprints) for row in rows)
        found = zip(slot_config.slot_ids, states, strict=True)
        return {slot: one for slot, one in found if not one.is_dormant or one.n_fossils}


_DORMANT: dict[str, Any] = {
    "blueprint": NO_BLUEPRINT,
    "alpha_at_rest": True,
    "is_gate_open": True,
    "contribution": np.nan,
}
"""The columns of a dormant slot that are not 0."""

_NAMES = [field.name for field in fields(SlotArrays)]
MEASURED = tuple(_NAMES[_NAMES.index("contribution") :])
"""The columns that are measured, or known of the host, and not of its seeds' lives."""

_STORED = SlotState._fields
