"""Everything that a stacked population's next step depends on, as rows; it can be copied whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from esper.growth.loss_watch import LossWatch
from esper.growth.populations.host_models import MOMENTS, tensors_of
from esper.growth.populations.host_state import HostState
from esper.growth.populations.rows import Row, RowStore
from esper.growth.populations.stacked_slots import GROUP_STYLE, GroupKey
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_lives import SlotLife, SlotLives
from esper.lifecycle.factored_actions import BlendStyle


@dataclass
class GroupStores:
    """The rows of a group's seeds, and of their gates if the style has them."""

    seed: RowStore
    gate: RowStore | None

    def copied(self) -> GroupStores:
        """Return a copy that shares nothing."""
        return GroupStores(self.seed.copied(), None if self.gate is None else self.gate.copied())


@dataclass
class StackedState:
    """The rows of all hosts and seeds, and where each seed is in its life."""

    optimizer: str
    hosts: RowStore
    lives: list[SlotLives]
    n_germinated: list[int]
    watch: LossWatch
    groups: dict[GroupKey, GroupStores] = field(default_factory=dict[GroupKey, GroupStores])
    """Seeds that compute, by slot, blueprint and style."""
    pending: dict[tuple[int, str], SeedSlot] = field(
        default_factory=dict[tuple[int, str], SeedSlot]
    )
    """Seeds that have germinated and do nothing yet, by host and slot."""

    def copied(self) -> StackedState:
        """Return a copy that shares nothing that changes."""
        watch = LossWatch(len(self.lives), self.watch.config)
        watch.count, watch.mean = self.watch.count.copy(), self.watch.mean.copy()
        watch.variance = self.watch.variance.copy()
        return StackedState(
            self.optimizer,
            self.hosts.copied(),
            [_copied_lives(lives) for lives in self.lives],
            list(self.n_germinated),
            watch,
            {key: stores.copied() for key, stores in self.groups.items() if len(stores.seed)},
            dict(self.pending),
        )

    def stores(self) -> list[RowStore]:
        """Return every store."""
        seeds = [store for group in self.groups.values() for store in (group.seed, group.gate)]
        return [self.hosts, *(store for store in seeds if store is not None)]

    def sort(self, order: Sequence[int]) -> None:
        """Bring the rows of every store into one order of hosts."""
        for store in self.stores():
            members = set(store.hosts)
            store.reorder([host for host in order if host in members])

    def find_group(self, host: int, slot: str) -> tuple[GroupKey, GroupStores] | None:
        """Return the group that a host's seed computes in; None if it has none there."""
        for key, stores in self.groups.items():
            if key.slot == slot and host in stores.seed.hosts:
                return key, stores
        return None

    def put_seed(self, host: int, place: SeedSlot, rows: dict[str, Row], life: SlotLife) -> None:
        """Let a seed compute, with the rows of its parts (``seed``, and ``gate`` if it has one)."""
        assert place.seed is not None
        key = GroupKey(place.name, life.blueprint, GROUP_STYLE[life.style])
        if key not in self.groups:
            moments = MOMENTS[self.optimizer]
            gate = None if place.gate is None else RowStore(place.gate, moments)
            self.groups[key] = GroupStores(RowStore(place.seed, moments), gate)
        stores = self.groups[key]
        stores.seed.put({host: rows["seed"]})
        if stores.gate is not None:
            stores.gate.put({host: rows["gate"]})

    def take_seed(self, host: int, slot: str) -> dict[str, Row]:
        """Remove a host's seed and return its rows; nothing if it had not computed yet."""
        self.pending.pop((host, slot), None)
        found = self.find_group(host, slot)
        if found is None:
            return {}
        key, stores = found
        rows = {"seed": stores.seed.take(host)}
        if stores.gate is not None:
            rows["gate"] = stores.gate.take(host)
        if not len(stores.seed):
            del self.groups[key]
        return rows

    def get_host(self, host: int) -> HostState:
        """Return the state of one host, in the form that all populations share."""
        state = HostState({})
        self._write_row(state, "host", self.hosts.get(host))
        for slot, _ in self.lives[host].items():
            place = self.pending.get((host, slot))
            found = self.find_group(host, slot)
            if place is not None:
                for part, module in (("seed", place.seed), ("gate", place.gate)):
                    if module is not None:
                        self._write_row(state, f"{part}/{slot}", Row.of_module(module))
            elif found is not None:
                self._write_row(state, f"seed/{slot}", found[1].seed.get(host))
                if found[1].gate is not None:
                    self._write_row(state, f"gate/{slot}", found[1].gate.get(host))
        state.facts["lives"] = self.lives[host].to_json()
        state.facts["n_germinated"] = self.n_germinated[host]
        state.facts["losses"] = self.watch.get_state(host)
        return state

    def _write_row(self, state: HostState, part: str, row: Row) -> None:
        for name, tensor in row.tensors.items():
            state.tensors[f"{part}/{name}"] = tensor
        if row.steps == 0:
            return
        if self.optimizer != "sgd":  # which counts no steps
            state.tensors[f"steps/{part}"] = torch.tensor(row.steps, dtype=torch.float32)
        for moment, tensors in row.moments.items():
            for name, tensor in tensors.items():
                state.tensors[f"moments/{moment}/{part}/{name}"] = tensor

    def set_host(self, host: int, state: HostState, places: Mapping[str, SeedSlot]) -> None:
        """Put one host into a state; ``places`` are fresh slots with the seeds that it has."""
        for slot, _ in self.lives[host].items():
            self.take_seed(host, slot)
        moments = MOMENTS[self.optimizer]
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
                self.put_seed(host, place, rows, life)
            else:
                load_modules(parts, rows)
                self.pending[host, slot] = place

    def restyle(self, host: int, place: SeedSlot, life: SlotLife, style: BlendStyle) -> None:
        """Move a computing seed to the group of another style; a gate it lacks starts at zero."""
        rows = self.take_seed(host, place.name)
        if place.gate is not None and "gate" not in rows:
            rows["gate"] = Row.of_module(place.gate)
        self.put_seed(host, place, rows, replace(life, style=style))


def load_modules(parts: Mapping[str, nn.Module | None], rows: Mapping[str, Row]) -> None:
    """Copy rows into the modules that they belong to."""
    for part, row in rows.items():
        module = parts[part]
        assert module is not None
        tensors: dict[str, Tensor] = tensors_of(module)
        for name, tensor in tensors.items():
            tensor.data.copy_(row.tensors[name])


def _copied_lives(lives: SlotLives) -> SlotLives:
    twin = SlotLives(lives.slot_config, lives.growth_config)
    for slot, life in lives.copied().items():
        twin.set_life(slot, life)
    return twin


def _read_row(state: HostState, part: str, moments: Sequence[str]) -> Row:
    found = {moment: state.part(f"moments/{moment}/{part}") for moment in moments}
    steps = state.tensors.get(f"steps/{part}")
    has_learned = float(any(found.values()))
    return Row(state.part(part), found, has_learned if steps is None else float(steps.item()))
