"""Computing some rows of a stacked population together: showing them, learning, judging steps.

Shapes: K = hosts that are computed together, B = samples of a batch, S = slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.growth.populations.arena import Arena
from esper.growth.populations.epoch_tally import EpochTally
from esper.growth.populations.rows import ActiveRows, RowStore
from esper.growth.populations.stacked_slots import Member, SlotGroups, StackedSeed
from esper.growth.populations.stacking import stack_inputs
from esper.growth.slot_lives import SlotLife
from esper.lifecycle.stages import Stage

Floats = NDArray[Any]

if TYPE_CHECKING:
    from esper.growth.populations.stacked import StackedPopulation


@dataclass(frozen=True, eq=False)
class _Part:
    """Rows of one store that are computed: the hosts' own, a group's seeds or a slot's gates."""

    store: RowStore
    rows: list[int]
    active: ActiveRows
    places: list[int]
    """Of the rows' hosts among those computed."""
    column: int
    """Where its gradient is counted: 0 for hosts, 1 + number of the slot for seeds."""


class Segment:
    """Some hosts that are computed together, by their rows in ascending order."""

    def __init__(
        self,
        population: StackedPopulation,
        rows: list[int],
        *,
        is_training: bool,
        without_slot: str | None = None,
        committed_only: bool = False,
    ) -> None:
        self.population = population
        self.state, self.design = population.state, population.design
        self.is_training = is_training
        self.committed_only = committed_only
        hosts = [self.state.hosts.hosts[row] for row in rows]
        self.hosts = np.array(hosts)
        self._places = {host: place for place, host in enumerate(hosts)}
        self.parts = [_Part(self.state.hosts, rows, self.design.rows, list(range(len(rows))), 0)]
        self.groups: dict[str, SlotGroups | None] = {
            slot: None if slot == without_slot else self._gather(slot)
            for slot in self.design.places
        }

    def show(self) -> None:
        """Let the stacked layers see these rows."""
        self._show_groups()
        for part in self.parts:
            part.active.select(part.store, _range(part.rows), needs_grad=False)

    def _show_groups(self) -> None:
        modules = [self.design.net]
        for slot, place in self.design.places.items():
            groups = place.groups = self.groups[slot]
            modules += [] if groups is None else [seed.module for seed in groups.seeds]
        for module in modules:
            if module.training != self.is_training:
                module.train(self.is_training)

    def _gather(self, slot: str) -> SlotGroups | None:
        """Return the groups of a slot; None if no host has a seed there."""
        found: list[tuple[StackedSeed, list[Member]]] = []
        column = 1 + self.population.slot_config.slot_index(slot)
        for key, store in self.state.groups.items():
            rows = self._rows_of(store, slot) if key.slot == slot else []
            if rows:
                seed = self.design.seed(key)
                part = self._add_part(store, rows, seed.rows, column)
                lives = [self.state.lives[store.hosts[row]][slot] for row in rows]
                members = [Member(*pair) for pair in zip(part.places, lives, strict=True)]
                found.append((seed, members))
        gates = self.state.gates.get(slot)
        rows = [] if gates is None else self._rows_of(gates, slot)
        if gates is not None and rows:
            self._add_part(gates, rows, self.design.gate(slot).rows, column)
        return SlotGroups(found, len(self.hosts)) if found else None

    def _rows_of(self, store: RowStore, slot: str) -> list[int]:
        """Return the rows of a slot's store that belong to hosts of the segment and compute."""
        return [
            row
            for row, host in enumerate(store.hosts)
            if host in self._places and self._takes_part(self.state.lives[host][slot])
        ]

    def _takes_part(self, life: SlotLife) -> bool:
        """Return whether a seed is computed."""
        if self.is_training:
            return True
        return life.counts and not (self.committed_only and life.is_growing)

    def _add_part(self, store: RowStore, rows: list[int], active: ActiveRows, column: int) -> _Part:
        places = [self._places[store.hosts[row]] for row in rows]
        part = _Part(store, rows, active, places, column)
        self.parts.append(part)
        return part


class TrainingSegment(Segment):
    """Some hosts that learn together."""

    def __init__(self, population: StackedPopulation, rows: list[int]) -> None:
        super().__init__(population, rows, is_training=True)
        lives, hosts = self.state.lives, list(self._places)
        sizes = [population.orders[host].batch_size for host in hosts]
        costs = [population.costs_of(host).training_flops(lives[host]) for host in hosts]
        self.costs = np.array(sizes) * np.array(costs)
        """``[K]`` FLOPs of a step of training."""
        learning = [part for part in self.parts if part.store.sizes]
        self.arena = Arena(
            [(part.store, _slice(part.rows)) for part in learning],
            np.concatenate([self._rates(part) for part in learning]),
        )
        self._columns = np.concatenate(
            [part.column * len(hosts) + np.array(part.places) for part in learning]
        )
        """Where each row's gradient is counted, column after column of hosts."""
        self._show_groups()
        self.arena.show([part.active for part in learning])

    def learn(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each host on its own batch ``[K, B, ...]`` and all gradients."""
        self.arena.gradient.zero_()
        outputs = self.design.net(stack_inputs(inputs))
        losses = self.population.objective.losses(outputs, targets).flatten(1).mean(1)
        torch.autograd.backward(losses, torch.ones_like(losses))
        return losses.detach()

    def settle(self, losses: Tensor, tally: EpochTally) -> None:
        """Judge the step of each host, note it and update the parameters.

        A host that fails is noted and not stopped: its rows touch no other host's, and it is
        restored when the epoch ends.
        """
        norms, seed_norms = self._gradient_norms()
        values = losses.double().numpy()
        tally.settle(self.state.watch, self.hosts, values, norms, seed_norms, self.costs)
        self.arena.update(self.population.config)

    def _rates(self, part: _Part) -> Floats:
        """Return the learning rate of each row of a part."""
        population = self.population
        hosts = [part.store.hosts[row] for row in part.rows]
        rates = np.array([population.learning_rate(host) for host in hosts])
        if part.column:
            slot, factor = population.slot_config.slot_ids[part.column - 1], population.config
            stages = [self.state.lives[host][slot].stage for host in hosts]
            is_committed = np.array([stage == Stage.FOSSILIZED for stage in stages])
            rates = rates * np.where(is_committed, 1.0, factor.seed_lr_factor)
        return rates

    def _gradient_norms(self) -> tuple[Floats, Floats]:
        """Return the norm of each host's whole gradient ``[K]`` and of its seeds' ``[K, S]``."""
        weights = self.arena.gradient_squares()
        shape = (1 + self.population.slot_config.max_slots, len(self.hosts))
        squares = np.bincount(self._columns, weights, shape[0] * shape[1]).reshape(shape)
        return np.sqrt(squares.sum(0)), np.sqrt(squares[1:]).T


def _range(rows: list[int]) -> Any:
    """Return ascending rows as a slice if nothing is left out, so that they share memory."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)


def _slice(rows: list[int]) -> slice:
    """Return rows as a slice; hosts that learn together have theirs side by side."""
    assert rows[-1] - rows[0] + 1 == len(rows), "rows that learn together lie apart"
    return slice(rows[0], rows[-1] + 1)
