"""The full state of a stacked population, stored as rows; it can be copied as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from torch import nn

from esper.config.growth import GrowthConfig, PopulationConfig
from esper.growth.governor import LossWatch
from esper.growth.modules import named_tensors
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_lives import SlotLives
from esper.populations.host_data import HostState
from esper.populations.host_models import moment_names
from esper.populations.rows import Row, RowStore
from esper.populations.stacked_slots import GroupKey

if TYPE_CHECKING:
    from esper.populations.stacked_design import StackedDesign


@dataclass
class StackedState:
    """The rows of all hosts, seeds and gates, and the lives of all slots."""

    design: StackedDesign
    config: PopulationConfig
    hosts: RowStore
    lives: list[SlotLives]
    n_germinated: list[int]
    watch: LossWatch
    groups: dict[GroupKey, RowStore] = field(default_factory=dict[GroupKey, RowStore])
    """Seeds that are computed, by slot and blueprint family."""
    gates: dict[str, RowStore] = field(default_factory=dict[str, RowStore])
    """Learned gates of seeds that are computed, by slot."""
    pending: dict[tuple[int, str], SeedSlot] = field(
        default_factory=dict[tuple[int, str], SeedSlot]
    )
    """Germinated seeds that are not computed yet, by host and slot."""

    def copied(self, known: Mapping[int, SlotLives] | None = None) -> StackedState:
        """Return a copy that shares no mutable state.

        Args:
            known: Existing copies of hosts' lives to reuse, by host.
        """
        known = known or {}
        return StackedState(
            self.design,
            self.config,
            self.hosts.copied(),
            [known.get(host) or own.copy() for host, own in enumerate(self.lives)],
            list(self.n_germinated),
            self.watch.copied(),
            {key: store.copied() for key, store in self.groups.items()},
            {slot: store.copied() for slot, store in self.gates.items()},
            dict(self.pending),
        )

    def stores(self) -> list[RowStore]:
        """Return every store."""
        return [self.hosts, *self.groups.values(), *self.gates.values()]

    def sort(self, order: Sequence[int]) -> None:
        """Sort the rows of every store by this order of hosts."""
        ranks = {host: rank for rank, host in enumerate(order)}
        for store in self.stores():
            store.reorder(sorted(store.hosts, key=ranks.__getitem__))

    def find_seed(self, host: int, slot: str) -> GroupKey | None:
        """Return the group of a host's seed; None if it has no computed seed in the slot."""
        for key, store in self.groups.items():
            if key.slot == slot and host in store.hosts:
                return key
        return None

    def put_seed(self, host: int, slot: str, blueprint: str, rows: Mapping[str, Row]) -> None:
        """Add a seed to its group, given the rows ``seed`` and, if it has a gate, ``gate``."""
        key = self.design.group_key(slot, blueprint)
        if key not in self.groups:
            template = self.design.seed(key).template
            self.groups[key] = RowStore(template, moment_names(self.config))
        self.groups[key].put({host: rows["seed"]})
        if "gate" in rows:
            self.put_gate(host, slot, rows["gate"])

    def drop_seed(self, host: int, slot: str) -> None:
        """Remove a host's seed, if it has one."""
        self.pending.pop((host, slot), None)
        key = self.find_seed(host, slot)
        if key is not None:
            self.groups[key].drop(host)
            if not len(self.groups[key]):
                del self.groups[key]
        self.drop_gate(host, slot)

    def drop_gate(self, host: int, slot: str) -> None:
        """Remove the gate of a host's seed, if it has one."""
        gates = self.gates.get(slot)
        if gates is not None:
            gates.drop(host)
            if not len(gates):
                del self.gates[slot]

    def put_gate(self, host: int, slot: str, row: Row) -> None:
        """Add the gate of a host's seed."""
        if slot not in self.gates:
            template = self.design.gate(slot).template
            self.gates[slot] = RowStore(template, moment_names(self.config))
        self.gates[slot].put({host: row})

    def get_host(self, host: int) -> HostState:
        """Return the state of one host, in the format that all populations share."""
        state = HostState({})
        self._write_row(state, "host", self.hosts.get(host))
        for slot, _ in self.lives[host].items():
            for part, row in self.get_seed(host, slot).items():
                self._write_row(state, f"{part}/{slot}", row)
        state.facts["lives"] = self.lives[host].to_json()
        state.facts["n_germinated"] = self.n_germinated[host]
        state.facts["losses"] = self.watch.get_state(host)
        return state

    def get_seed(self, host: int, slot: str) -> dict[str, Row]:
        """Return copies of the rows of a host's seed and its gate, if it has them."""
        place, key = self.pending.get((host, slot)), self.find_seed(host, slot)
        if place is not None:
            return rows_of(place)
        rows = {} if key is None else {"seed": self.groups[key].get(host)}
        gates = self.gates.get(slot)
        if gates is not None and host in gates.hosts:
            rows["gate"] = gates.get(host)
        return rows

    def start_host(self, host: int, growth_config: GrowthConfig) -> None:
        """Clear the seeds, lives and loss statistics of a host whose row was replaced."""
        for slot, _ in self.lives[host].items():
            self.drop_seed(host, slot)
        self.lives[host] = SlotLives(self.lives[host].slot_config, growth_config)
        self.n_germinated[host] = 0
        self.watch.forget(host)

    def _write_row(self, state: HostState, part: str, row: Row) -> None:
        for name, tensor in row.tensors.items():
            state.tensors[f"{part}/{name}"] = tensor
        if row.steps == 0:
            return
        if self.config.optimizer != "sgd":  # SGD has no step count
            state.tensors[f"steps/{part}"] = torch.tensor(row.steps, dtype=torch.float32)
        for moment, tensors in row.moments.items():
            for name, tensor in tensors.items():
                state.tensors[f"moments/{moment}/{part}/{name}"] = tensor

    def set_host(self, host: int, state: HostState, places: Mapping[str, SeedSlot]) -> None:
        """Load the state of one host; ``places`` are new slots with the seeds that it has."""
        for slot, _ in self.lives[host].items():
            self.drop_seed(host, slot)
        moments = moment_names(self.config)
        self.hosts.put({host: _read_row(state, "host", moments)})
        self.lives[host].load_json(state.facts["lives"])
        self.n_germinated[host] = state.facts["n_germinated"]
        self.watch.set_state(state.facts["losses"], host)
        for slot, place in places.items():
            parts = {"seed": place.seed, "gate": place.gate}
            rows = {
                part: _read_row(state, f"{part}/{slot}", moments)
                for part, module in parts.items()
                if module is not None
            }
            life = self.lives[host][slot]
            if life.is_computing:
                self.put_seed(host, slot, life.blueprint, rows)
            else:
                load_modules(parts, rows)
                self.pending[host, slot] = place


def rows_of(place: SeedSlot) -> dict[str, Row]:
    """Return the rows of an untrained seed and of its gate, if it has one."""
    parts = {"seed": place.seed, "gate": place.gate}
    return {part: Row.of_module(module) for part, module in parts.items() if module is not None}


def load_modules(parts: Mapping[str, nn.Module | None], rows: Mapping[str, Row]) -> None:
    """Copy rows into their modules."""
    for part, row in rows.items():
        module = parts[part]
        assert module is not None
        for name, tensor in named_tensors(module).items():
            tensor.data.copy_(row.tensors[name])


def _read_row(state: HostState, part: str, moments: Sequence[str]) -> Row:
    found = {moment: state.part(f"moments/{moment}/{part}") for moment in moments}
    steps = state.tensors.get(f"steps/{part}")
    has_learned = float(any(found.values()))
    return Row(state.part(part), found, has_learned if steps is None else float(steps.item()))
