"""Everything that a stacked population's next step depends on, as rows; it can be copied whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.config.growth import GrowthConfig, PopulationConfig
from esper.growth.governor import LossWatch
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_lives import SlotLives
from esper.populations.host_data import HostState
from esper.populations.host_models import moment_names, tensors_of
from esper.populations.rows import Row, RowStore
from esper.populations.stacked_slots import GroupKey

if TYPE_CHECKING:
    from esper.populations.stacked_design import StackedDesign


@dataclass
class StackedState:
    """The rows of all hosts and seeds, and where each seed is in its life."""

    design: StackedDesign
    config: PopulationConfig
    hosts: RowStore
    lives: list[SlotLives]
    n_germinated: list[int]
    watch: LossWatch
    groups: dict[GroupKey, RowStore] = field(default_factory=dict[GroupKey, RowStore])
    """Seeds that compute, by slot and family of blueprints."""
    gates: dict[str, RowStore] = field(default_factory=dict[str, RowStore])
    """Learned gates of seeds that compute, by slot."""
    pending: dict[tuple[int, str], SeedSlot] = field(
        default_factory=dict[tuple[int, str], SeedSlot]
    )
    """Seeds that have germinated and do nothing yet, by host and slot."""

    def copied(self, known: Mapping[int, SlotLives] | None = None) -> StackedState:
        """Return a copy that shares nothing that changes.

        Args:
            known: Copies of hosts' lives that are made already.
        """
        known = known or {}
        watch = LossWatch(len(self.lives), self.watch.config)
        watch.count, watch.mean = self.watch.count.copy(), self.watch.mean.copy()
        watch.variance = self.watch.variance.copy()
        return StackedState(
            self.design,
            self.config,
            self.hosts.copied(),
            [known.get(host) or own.copy() for host, own in enumerate(self.lives)],
            list(self.n_germinated),
            watch,
            {key: store.copied() for key, store in self.groups.items()},
            {slot: store.copied() for slot, store in self.gates.items()},
            dict(self.pending),
        )

    def stores(self) -> list[RowStore]:
        """Return every store."""
        return [self.hosts, *self.groups.values(), *self.gates.values()]

    def sort(self, order: Sequence[int]) -> None:
        """Bring the rows of every store into one order of hosts."""
        ranks = {host: rank for rank, host in enumerate(order)}
        for store in self.stores():
            store.reorder(sorted(store.hosts, key=ranks.__getitem__))

    def find_seed(self, host: int, slot: str) -> GroupKey | None:
        """Return the group that a host's seed computes in; None if it has none there."""
        for key, store in self.groups.items():
            if key.slot == slot and host in store.hosts:
                return key
        return None

    def put_seed(self, host: int, slot: str, blueprint: str, rows: Mapping[str, Row]) -> None:
        """Let a seed compute, with the rows of its parts (``seed``, and ``gate`` if it has one)."""
        key, moments = self.design.group_key(slot, blueprint), moment_names(self.config)
        if key not in self.groups:
            self.groups[key] = RowStore(self.design.seed(key).template, moments)
        self.groups[key].put({host: rows["seed"]})
        if "gate" in rows:
            if slot not in self.gates:
                self.gates[slot] = RowStore(self.design.gate(slot).template, moments)
            self.gates[slot].put({host: rows["gate"]})

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
        """Remove the gate of a host's seed that computes, if it has one."""
        gates = self.gates.get(slot)
        if gates is not None:
            gates.drop(host)
            if not len(gates):
                del self.gates[slot]

    def put_gate(self, host: int, slot: str, gate: nn.Module) -> None:
        """Give a seed that computes a gate that has learned nothing."""
        if slot not in self.gates:
            self.gates[slot] = RowStore(gate, moment_names(self.config))
        self.gates[slot].put({host: Row.of_module(gate)})

    def get_host(self, host: int) -> HostState:
        """Return the state of one host, in the form that all populations share."""
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
        """Return copies of the rows of a host's seed and of its gate, if it has them."""
        place, key = self.pending.get((host, slot)), self.find_seed(host, slot)
        if place is not None:
            return rows_of(place)
        rows = {} if key is None else {"seed": self.groups[key].get(host)}
        gates = self.gates.get(slot)
        if gates is not None and host in gates.hosts:
            rows["gate"] = gates.get(host)
        return rows

    def start_host(self, host: int, growth_config: GrowthConfig) -> None:
        """Forget what was grown and seen in a host's place, where the row of a new one is now."""
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
        if self.config.optimizer != "sgd":  # which counts no steps
            state.tensors[f"steps/{part}"] = torch.tensor(row.steps, dtype=torch.float32)
        for moment, tensors in row.moments.items():
            for name, tensor in tensors.items():
                state.tensors[f"moments/{moment}/{part}/{name}"] = tensor

    def set_host(self, host: int, state: HostState, places: Mapping[str, SeedSlot]) -> None:
        """Put one host into a state; ``places`` are fresh slots with the seeds that it has."""
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
    """Return the rows of a seed that has not learned, and of its gate if it has one."""
    parts = {"seed": place.seed, "gate": place.gate}
    return {part: Row.of_module(module) for part, module in parts.items() if module is not None}


def load_modules(parts: Mapping[str, nn.Module | None], rows: Mapping[str, Row]) -> None:
    """Copy rows into the modules that they belong to."""
    for part, row in rows.items():
        module = parts[part]
        assert module is not None
        tensors: dict[str, Tensor] = tensors_of(module)
        for name, tensor in tensors.items():
            tensor.data.copy_(row.tensors[name])


def _read_row(state: HostState, part: str, moments: Sequence[str]) -> Row:
    found = {moment: state.part(f"moments/{moment}/{part}") for moment in moments}
    steps = state.tensors.get(f"steps/{part}")
    has_learned = float(any(found.values()))
    return Row(state.part(part), found, has_learned if steps is None else float(steps.item()))


class EpochTally:
    """What an epoch's steps add up to, for each host. Shapes: N = hosts, S = slots."""

    def __init__(self, n_hosts: int, n_slots: int) -> None:
        self.losses = np.zeros(n_hosts)
        self.norms = np.zeros(n_hosts)
        self.seed_norms = np.zeros((n_hosts, n_slots))
        """``[N, S]`` of the seed in each slot."""
        self.flops = np.zeros(n_hosts)
        self.counts = np.zeros(n_hosts)
        self.is_alive = np.ones(n_hosts, dtype=np.bool_)
        self.failures: dict[int, str] = {}

    def settle(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        losses: NDArray[Any],
        norms: NDArray[Any],
        seed_norms: NDArray[Any],
        flops: NDArray[Any],
    ) -> None:
        """Judge one step of some hosts and note it; a host that fails counts no more.

        Args:
            watch: What is known of the losses so far; good ones are added.
            hosts: ``[K]`` their numbers.
            losses: ``[K]`` in this step.
            norms: ``[K]`` of the whole gradient.
            seed_norms: ``[K, S]`` of the gradient of each seed.
            flops: ``[K]`` of a step.
        """
        is_alive = self.is_alive[hosts]
        self.flops[hosts] += flops * is_alive
        is_well = is_alive & (losses <= watch.limits(hosts)) & np.isfinite(losses)
        is_well &= np.isfinite(norms)
        if not is_well.all():
            for index in np.flatnonzero(is_alive & ~is_well).tolist():
                host = int(hosts[index])
                self.fail(host, _describe_failure(watch, host, losses[index]))
            hosts, losses = hosts[is_well], losses[is_well]
            norms, seed_norms = norms[is_well], seed_norms[is_well]
        watch.add(losses, hosts)
        self.add(hosts, losses, norms, seed_norms)

    def add(
        self,
        hosts: NDArray[Any],
        losses: NDArray[Any],
        norms: NDArray[Any],
        seed_norms: NDArray[Any],
    ) -> None:
        """Count one good step of some hosts."""
        self.losses[hosts] += losses
        self.norms[hosts] += norms
        self.seed_norms[hosts] += seed_norms
        self.counts[hosts] += 1.0

    def fail(self, host: int, reason: str) -> None:
        """Count nothing more of a host."""
        if self.is_alive[host]:
            self.is_alive[host] = False
            self.failures[host] = reason

    def mean(self, sums: NDArray[Any], is_active: NDArray[np.bool_]) -> NDArray[Any]:
        """Return sums by good step: NaN for a host without one, 0 for one that did not train."""
        means = np.divide(sums, self.counts, out=np.full_like(sums, np.nan), where=self.counts > 0)
        return np.where(is_active, means, 0.0)


def _describe_failure(watch: LossWatch, host: int, loss: float) -> str:
    if not np.isfinite(loss):
        return f"the loss is {loss}"
    if loss > watch.limits(host):
        return watch.describe(loss, host)
    return "the gradient is not finite"
