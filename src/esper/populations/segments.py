"""Training and evaluating some hosts of a stacked population together.

Shapes: N = hosts, K = hosts of a segment, S = slots, B = samples of a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.growth.governor import LossWatch
from esper.growth.slot_states import Fossil, SlotLife
from esper.populations.flat_optimizer import FlatOptimizer
from esper.populations.host_data import NO_ABLATION, Ablation
from esper.populations.rows import ActiveRows, RowStore
from esper.populations.stacked_slots import Layer, LayerGroups, Member, StackedSeed

if TYPE_CHECKING:
    from esper.populations.stacked import StackedPopulation


class EpochTally:
    """Accumulates the losses, gradient norms and FLOPs of an epoch, for each host."""

    def __init__(self, n_hosts: int, n_slots: int) -> None:
        self.losses = np.zeros(n_hosts)
        self.norms = np.zeros(n_hosts)
        self.norm_squares = np.zeros(n_hosts)
        self.seed_norms = np.zeros((n_hosts, n_slots))
        """``[N, S]`` gradient norms of the seed in each slot."""
        self.flops = np.zeros(n_hosts)
        self.counts = np.zeros(n_hosts)
        self.is_alive = np.ones(n_hosts, dtype=np.bool_)
        self.failures: dict[int, str] = {}

    def record_step(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        losses: NDArray[Any],
        norms: NDArray[Any],
        seed_norms: NDArray[Any],
        flops: NDArray[Any],
    ) -> None:
        """Check and record one step of some hosts; a host that fails is ignored from then on.

        Args:
            watch: Loss statistics; good losses are added.
            hosts: ``[K]`` host indices.
            losses: ``[K]`` losses of this step.
            norms: ``[K]`` gradient norms.
            seed_norms: ``[K, S]`` gradient norms of each seed.
            flops: ``[K]`` FLOPs of this step.
        """
        self.flops[hosts] += flops * self.is_alive[hosts]
        is_well = self.check_losses(watch, hosts, losses, norms)
        if not is_well.all():
            hosts, losses = hosts[is_well], losses[is_well]
            norms, seed_norms = norms[is_well], seed_norms[is_well]
        watch.add(losses, hosts)
        self.losses[hosts] += losses
        self.norms[hosts] += norms
        self.norm_squares[hosts] += norms * norms
        self.seed_norms[hosts] += seed_norms
        self.counts[hosts] += 1.0

    def check_losses(
        self,
        watch: LossWatch,
        hosts: NDArray[np.int64],
        losses: NDArray[Any],
        norms: NDArray[Any] | None = None,
    ) -> NDArray[np.bool_]:
        """Return which hosts are well, ``[K]``; those that are no longer so have failed."""
        is_good = np.isfinite(losses) & (losses <= watch.limits(hosts))
        if norms is not None:
            is_good &= np.isfinite(norms)
        is_alive = self.is_alive[hosts]
        is_well = is_alive & is_good
        if not is_well.all():
            for index in np.flatnonzero(is_alive & ~is_good).tolist():
                host = int(hosts[index])
                reason = watch.judge(float(losses[index]), host)
                self.fail(host, reason or "the gradient is not finite")
        return is_well

    def fail(self, host: int, reason: str) -> None:
        """Ignore a host from now on; only the first reason is kept."""
        if self.is_alive[host]:
            self.is_alive[host] = False
            self.failures[host] = reason

    def mean(self, sums: NDArray[Any], is_active: NDArray[np.bool_]) -> NDArray[Any]:
        """Return means over good steps: NaN for hosts without one, 0 for inactive hosts."""
        means = np.divide(sums, self.counts, out=np.full_like(sums, np.nan), where=self.counts > 0)
        return np.where(is_active, means, 0.0)

    def gradient_noise(self, is_active: NDArray[np.bool_]) -> NDArray[Any]:
        """Return the standard deviation of gradient norms relative to their mean, as ``mean``."""
        means = self.mean(self.norms, is_active)
        spread = np.maximum(self.mean(self.norm_squares, is_active) - means * means, 0.0)
        return np.divide(np.sqrt(spread), means, out=np.zeros_like(means), where=means != 0.0)


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one store: those of hosts, of a group's seeds or of a layer's gates."""

    store: RowStore
    rows: list[int]
    active: ActiveRows
    positions: list[int]
    """Position in the segment of each row's host."""
    columns: list[int]
    """Column of each row's gradient norm: 0 for hosts and fossils, 1 + index of the slot for
    seeds."""


class Segment:
    """Some hosts that are computed together, given by their rows in ascending order."""

    def __init__(
        self,
        population: StackedPopulation,
        rows: list[int],
        *,
        is_training: bool,
        ablation: Ablation = NO_ABLATION,
    ) -> None:
        self.population = population
        self.state, self.design = population.state, population.design
        self.is_training = is_training
        self.ablation = ablation
        hosts = [self.state.hosts.hosts[row] for row in rows]
        self.hosts = np.array(hosts)
        self._positions = {host: position for position, host in enumerate(hosts)}
        positions, columns = list(range(len(rows))), [0] * len(rows)
        self.parts = [_Part(self.state.hosts, rows, self.design.rows, positions, columns)]
        self.layers: dict[str, list[LayerGroups]] = {slot: [] for slot in self.design.places}
        layers = {key.layer for key in self.state.groups}
        for layer in sorted(layers, key=lambda layer: (layer.slot, layer.n_below)):
            groups = self._gather(layer)
            if groups is not None:
                self.layers[layer.slot].append(groups)

    def bind(self) -> None:
        """Bind the stacked layers to the rows of this segment."""
        self._bind_groups()
        for part in self.parts:
            part.active.select(part.store, _range(part.rows), needs_grad=False)

    def losses(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each host on its own batch ``[K, B, ...]``."""
        outputs = self.design.net(inputs)
        return self.population.objective.losses(outputs, targets).flatten(1).mean(1)

    def check_losses(self, inputs: Tensor, targets: Tensor, tally: EpochTally) -> None:
        """Check the loss of each host as it is now, without changing it."""
        self.bind()
        buffers = [buffer for part in self.parts for buffer in part.active.buffers.values()]
        copies = [buffer.clone() for buffer in buffers]
        with torch.no_grad():
            losses = self.losses(inputs, targets).double().numpy()
            for buffer, copy in zip(buffers, copies, strict=True):
                buffer.copy_(copy)
        tally.check_losses(self.state.watch, self.hosts, losses)

    def _bind_groups(self) -> None:
        modules = [self.design.net]
        for slot, place in self.design.places.items():
            place.layers = self.layers[slot]
            for groups in place.layers:
                modules += [seed.module for seed in groups.seeds]
                modules += [] if groups.gate is None else [groups.gate]
        for module in modules:
            if module.training != self.is_training:
                module.train(self.is_training)

    def _gather(self, layer: Layer) -> LayerGroups | None:
        """Return the groups of a layer; None if no host has a seed there to compute."""
        found: list[tuple[StackedSeed, list[Member]]] = []
        for key, store in self.state.groups.items():
            rows = self._rows_of(store, layer) if key.layer == layer else []
            if rows:
                seed = self.design.seed(key)
                part = self._add_part(store, rows, seed.rows, layer)
                lives = [self._life(store.hosts[row], layer) for row in rows]
                members = [Member(*pair) for pair in zip(part.positions, lives, strict=True)]
                found.append((seed, members))
        gates, gate = self.state.gates.get(layer), None
        rows = [] if gates is None else self._rows_of(gates, layer)
        if gates is not None and rows:
            gate = self.design.gate(layer)
            self._add_part(gates, rows, gate.rows, layer)
        if not found:
            return None
        return LayerGroups(found, len(self.hosts), None if gate is None else gate.module)

    def _life(self, host: int, layer: Layer) -> SlotLife | Fossil:
        """Return a host's fossil in a layer, or the life of the seed that grows there."""
        life = self.state.lives[host][layer.slot]
        return life.fossils[layer.n_below] if layer.n_below < len(life.fossils) else life

    def _rows_of(self, store: RowStore, layer: Layer) -> list[int]:
        """Return the rows of a layer's store that this segment computes."""
        return [
            row
            for row, host in enumerate(store.hosts)
            if host in self._positions and self._is_computed(layer.slot, self._life(host, layer))
        ]

    def _is_computed(self, slot: str, life: SlotLife | Fossil) -> bool:
        is_fossil = isinstance(life, Fossil)
        return self.is_training or is_fossil or not self.ablation.excludes(slot, life)

    def _add_part(
        self, store: RowStore, rows: list[int], active: ActiveRows, layer: Layer
    ) -> _Part:
        hosts = [store.hosts[row] for row in rows]
        positions = [self._positions[host] for host in hosts]
        column = 1 + self.population.slot_config.slot_index(layer.slot)
        lives = [self._life(host, layer) for host in hosts]
        columns = [0 if isinstance(life, Fossil) else column for life in lives]
        part = _Part(store, rows, active, positions, columns)
        self.parts.append(part)
        return part


class TrainingSegment(Segment):
    """Some hosts that are trained together."""

    def __init__(self, population: StackedPopulation, rows: list[int]) -> None:
        super().__init__(population, rows, is_training=True)
        lives, hosts = self.state.lives, list(self._positions)
        sizes = [population.orders[host].batch_size for host in hosts]
        costs = [population.costs_of(host).training_flops(lives[host]) for host in hosts]
        self.costs = np.array(sizes) * np.array(costs)
        """``[K]`` FLOPs of a training step."""
        trained = [part for part in self.parts if part.store.sizes]
        self.optimizer = FlatOptimizer(
            [(part.store, _slice(part.rows)) for part in trained],
            np.concatenate([self._rates(part) for part in trained]),
        )
        self._columns = np.concatenate(
            [np.array(part.columns) * len(hosts) + np.array(part.positions) for part in trained]
        )
        """Index of each row's gradient norm in a flattened ``[1 + S, K]`` array."""
        self._bind_groups()
        self.optimizer.bind([part.active for part in trained])

    def compute_gradients(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each host on its own batch ``[K, B, ...]``; compute all gradients."""
        self.optimizer.gradient.zero_()
        losses = self.losses(inputs, targets)
        torch.autograd.backward(losses, torch.ones_like(losses))
        return losses.detach()

    def update(self, losses: Tensor, tally: EpochTally) -> None:
        """Check and record the step of each host, then update the parameters.

        A host that fails is recorded but not stopped: its rows affect no other host, and it is
        rolled back at the end of the epoch.
        """
        norms, seed_norms = self._gradient_norms()
        values = losses.double().numpy()
        tally.record_step(self.state.watch, self.hosts, values, norms, seed_norms, self.costs)
        self.optimizer.update(self.population.config)

    def _rates(self, part: _Part) -> NDArray[Any]:
        """Return the learning rate of each row of a part."""
        population = self.population
        hosts = [part.store.hosts[row] for row in part.rows]
        rates = np.array([population.learning_rate(host) for host in hosts])
        slots = population.slot_config.slot_ids
        is_growing = [
            column > 0 and self.state.lives[host][slots[column - 1]].is_growing
            for host, column in zip(hosts, part.columns, strict=True)
        ]
        return rates * np.where(is_growing, population.config.seed_lr_factor, 1.0)

    def _gradient_norms(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Return the gradient norms of each host ``[K]`` and of its seeds ``[K, S]``."""
        by_row = self.optimizer.gradient_squares()
        shape = (1 + self.population.slot_config.max_slots, len(self.hosts))
        squares = np.bincount(self._columns, by_row, shape[0] * shape[1]).reshape(shape)
        return np.sqrt(squares.sum(0)), np.sqrt(squares[1:]).T


def _range(rows: list[int]) -> Any:
    """Return ascending rows as a slice if they are contiguous, so that they share memory."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)


def _slice(rows: list[int]) -> slice:
    """Return rows as a slice; hosts that are trained together have contiguous rows."""
    assert rows[-1] - rows[0] + 1 == len(rows), "rows that are trained together are not contiguous"
    return slice(rows[0], rows[-1] + 1)
