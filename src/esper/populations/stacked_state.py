"""The full state of a stacked population, stored as rows; it can be copied as a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

import torch
from torch import nn

from esper.config.growth import GrowthConfig, PopulationConfig
from esper.growth.governor import LossWatch
from esper.growth.modules import named_tensors
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_states import SlotStates
from esper.populations.host_data import HostState
from esper.populations.host_models import moment_names, part_name
from esper.populations.rows import Row, RowStore
from esper.populations.stacked_slots import GroupKey, Layer

if TYPE_CHECKING:
    from esper.populations.stacked_design import StackedDesign


@dataclass
class StackedState:
    """The rows of all hosts, seeds and gates, and the lives of all slots."""

    design: StackedDesign
    config: PopulationConfig
    hosts: RowStore
    lives: list[SlotStates]
    n_germinated: list[int]
    watch: LossWatch
    groups: dict[GroupKey, RowStore] = field(default_factory=dict[GroupKey, RowStore])
    """Seeds and fossils that are computed, by layer and blueprint."""
    gates: dict[Layer, RowStore] = field(default_factory=dict[Layer, RowStore])
    """Learned gates of seeds and fossils that are computed, by layer."""
    seed_groups: dict[tuple[int, Layer], GroupKey] = field(
        default_factory=dict[tuple[int, Layer], GroupKey]
    )
    """The group of each computed seed and fossil, by host and layer."""
    pending: dict[tuple[int, str], SeedSlot] = field(
        default_factory=dict[tuple[int, str], SeedSlot]
    )
    """Germinated seeds that are not computed yet, by host and slot."""

    def copied(self, known: Mapping[int, SlotStates] | None = None) -> StackedState:
        """Return a copy that shares no mutable state; ``known`` are copies of hosts' lives."""
        known = known or {}
        return StackedState(
            self.design,
            self.config,
            self.hosts.copied(),
            [known.get(host) or own.copy() for host, own in enumerate(self.lives)],
            list(self.n_germinated),
            self.watch.copied(),
            {key: store.copied() for key, store in self.groups.items()},
            {layer: store.copied() for layer, store in self.gates.items()},
            dict(self.seed_groups),
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

    def top(self, host: int, slot: str) -> Layer:
        """Return the layer in which a host's next seed grows, or its current one if it has one."""
        return Layer(slot, len(self.lives[host][slot].fossils))

    def find_seed(self, host: int, layer: Layer) -> GroupKey | None:
        """Return the group of a host's seed; None if it has no computed seed in the layer."""
        return self.seed_groups.get((host, layer))

    def put_seed(self, host: int, layer: Layer, rows: Mapping[str, Row]) -> None:
        """Add a seed to its group, given the rows ``seed`` and, if it has a gate, ``gate``."""
        life = self.lives[host][layer.slot]
        below = life.fossils[: layer.n_below]
        is_fossil = layer.n_below < len(life.fossils)
        blueprint = life.fossils[layer.n_below].blueprint if is_fossil else life.blueprint
        key = self.design.group_key(layer, blueprint, sum(fossil.units for fossil in below))
        if key not in self.groups:
            template = self.design.seed(key).template
            self.groups[key] = RowStore(template, moment_names(self.config))
        self.groups[key].put({host: rows["seed"]})
        self.seed_groups[host, layer] = key
        if "gate" in rows:
            self.put_gate(host, layer, rows["gate"])

    def drop_seed(self, host: int, slot: str) -> None:
        """Remove the seed that a host grows in a slot, if it has one; its fossils stay."""
        self.pending.pop((host, slot), None)
        self._drop_layer(host, self.top(host, slot))

    def _drop_slot(self, host: int, slot: str) -> None:
        """Remove the seed and the fossils that a host has in a slot."""
        self.drop_seed(host, slot)
        for n_below in range(len(self.lives[host][slot].fossils)):
            self._drop_layer(host, Layer(slot, n_below))

    def _drop_layer(self, host: int, layer: Layer) -> None:
        key = self.seed_groups.pop((host, layer), None)
        if key is not None:
            self.groups[key].drop(host)
            if not len(self.groups[key]):
                del self.groups[key]
        self.drop_gate(host, layer)

    def drop_gate(self, host: int, layer: Layer) -> None:
        """Remove the gate of a host's seed, if it has one."""
        gates = self.gates.get(layer)
        if gates is not None:
            gates.drop(host)
            if not len(gates):
                del self.gates[layer]

    def put_gate(self, host: int, layer: Layer, row: Row) -> None:
        """Add the gate of a host's seed."""
        if layer not in self.gates:
            template = self.design.gate(layer).template
            self.gates[layer] = RowStore(template, moment_names(self.config))
        self.gates[layer].put({host: row})

    def get_host(self, host: int) -> HostState:
        """Return the state of one host, in the format that all populations share."""
        state = HostState({})
        self._write_row(state, "host", self.hosts.get(host))
        for slot, life in self.lives[host].items():
            for number in range(len(life.fossils)):
                for kind, row in self._get_rows(host, Layer(slot, number)).items():
                    self._write_row(state, part_name(kind, slot, number), row)
            for kind, row in self.get_seed(host, slot).items():
                self._write_row(state, part_name(kind, slot, None), row)
        state.facts["lives"] = self.lives[host].to_json()
        state.facts["n_germinated"] = self.n_germinated[host]
        state.facts["losses"] = self.watch.get_state(host)
        return state

    def get_seed(self, host: int, slot: str) -> dict[str, Row]:
        """Return copies of the rows of a host's seed and its gate, if it has them."""
        place = self.pending.get((host, slot))
        if place is None:
            return self._get_rows(host, self.top(host, slot))
        return {part: row.copied() for part, row in rows_of(place).items()}

    def _get_rows(self, host: int, layer: Layer) -> dict[str, Row]:
        key = self.find_seed(host, layer)
        rows = {} if key is None else {"seed": self.groups[key].get(host)}
        gates = self.gates.get(layer)
        if gates is not None and host in gates.rows:
            rows["gate"] = gates.get(host)
        return rows

    def start_host(self, host: int, growth_config: GrowthConfig) -> None:
        """Clear the seeds, lives and loss statistics of a host whose row was replaced."""
        for slot, _ in self.lives[host].items():
            self._drop_slot(host, slot)
        self.lives[host] = SlotStates(self.lives[host].slot_config, growth_config)
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
        """Load the state of one host; ``places`` are new slots with all that grew in them."""
        for slot, _ in self.lives[host].items():
            self._drop_slot(host, slot)
        moments = moment_names(self.config)
        self.hosts.put({host: _read_row(state, "host", moments)})
        self.lives[host].load_json(state.facts["lives"])
        self.n_germinated[host] = state.facts["n_germinated"]
        self.watch.set_state(state.facts["losses"], host)
        for slot, place in places.items():
            for number, held in enumerate([*place.absorbed, place]):
                parts = {"seed": held.seed, "gate": held.gate}
                fossil = None if held is place else number
                rows = {
                    kind: _read_row(state, part_name(kind, slot, fossil), moments)
                    for kind, module in parts.items()
                    if module is not None
                }
                if fossil is not None or self.lives[host][slot].is_computing:
                    self.put_seed(host, Layer(slot, number), rows)
                elif rows:
                    for kind, row in rows.items():
                        for name, tensor in named_tensors(cast(nn.Module, parts[kind])).items():
                            tensor.data.copy_(row.tensors[name])
                    self.pending[host, slot] = place


def rows_of(place: SeedSlot) -> dict[str, Row]:
    """Return the rows of an untrained seed and of its gate, if it has one; they share memory."""
    parts = {"seed": place.seed, "gate": place.gate}
    return {part: Row.of_module(module) for part, module in parts.items() if module is not None}


def _read_row(state: HostState, part: str, moments: Sequence[str]) -> Row:
    found = {moment: state.part(f"moments/{moment}/{part}") for moment in moments}
    steps = state.tensors.get(f"steps/{part}")
    has_learned = float(any(found.values()))
    return Row(state.part(part), found, has_learned if steps is None else float(steps.item()))
