"""The rows of several modules side by side in memory, so that one update moves them all.

Shapes: R = rows of all modules, T = their parameters in all, M = moments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats
from esper.config.growth import PopulationConfig
from esper.growth.slot_lives import SlotLife
from esper.lifecycle.stages import Stage
from esper.populations.rows import ActiveRows, RowStore
from esper.populations.stacked_slots import Member, SlotGroups, StackedSeed
from esper.populations.stacked_state import EpochTally
from esper.populations.stacking import stack_inputs

if TYPE_CHECKING:
    from esper.populations.stacked import StackedPopulation


def decay_weights(
    values: Tensor, gradient: Tensor, rates: Tensor, config: PopulationConfig
) -> None:
    """Pull parameters to zero: adamw by their own size, the others through the gradient.

    Args:
        values: ``[T]`` parameters; changed in place.
        gradient: ``[T]``; changed in place.
        rates: ``[T]`` step sizes.
        config: Which rule, and its settings.
    """
    if config.weight_decay and config.optimizer == "adamw":
        values.mul_(1.0 - rates * config.weight_decay)
    elif config.weight_decay:
        gradient.add_(values, alpha=config.weight_decay)


def update_by_sgd(
    values: Tensor,
    momentum: Tensor | None,
    gradient: Tensor,
    rates: Tensor,
    config: PopulationConfig,
) -> None:
    """Move parameters ``[T]`` as ``torch.optim.SGD`` does, in place; None is no momentum."""
    if momentum is None:
        values.addcmul_(gradient, rates, value=-1.0)
        return
    momentum.mul_(config.momentum).add_(gradient)
    values.addcmul_(momentum, rates, value=-1.0)


def adam_factors(
    learning_rates: Floats, steps: Floats, config: PopulationConfig
) -> tuple[Floats, Floats]:
    """Return the factor ``[R]`` of the root and what is added to it in Adam's denominator.

    Adam's move is ``rate / (1 - beta1**n) * mean / (sqrt(square) / sqrt(1 - beta2**n) + eps)``
    after n steps, which is ``mean / (sqrt(square) * factor + floor)``.
    """
    step_sizes = learning_rates / (1.0 - config.beta1**steps)
    roots = np.sqrt(1.0 - config.beta2**steps)
    return 1.0 / (step_sizes * roots), config.adam_eps / step_sizes


def update_by_adam(
    data: Tensor, gradient: Tensor, factors: Tensor, floors: Tensor, config: PopulationConfig
) -> None:
    """Move parameters as ``torch.optim.Adam`` does.

    Args:
        data: ``[3, T]`` parameters, mean gradients, mean squares; changed in place.
        gradient: ``[T]``; overwritten.
        factors: ``[T]`` as :func:`adam_factors` gives them.
        floors: ``[T]``.
        config: The settings.
    """
    values, mean, square = data
    mean.lerp_(gradient, 1.0 - config.beta1)
    square.mul_(config.beta2).addcmul_(gradient, gradient, value=1.0 - config.beta2)
    # The gradient is not needed any more; its memory holds the denominator.
    torch.sqrt(square, out=gradient)
    torch.addcmul(floors, gradient, factors, out=gradient)
    values.addcdiv_(mean, gradient, value=-1.0)


class Arena:
    """Copies of some rows of some stores, while they learn.

    One parameter of all rows of a store lies in one piece, as layers like to read it.
    """

    def __init__(self, blocks: Sequence[tuple[RowStore, slice]], learning_rates: Floats) -> None:
        """Copy rows.

        Args:
            blocks: Stores, and which of their rows.
            learning_rates: ``[R]`` step size of each row, block after block.
        """
        self.blocks = blocks
        self.learning_rates = learning_rates
        self._pieces = [piece for store, rows in blocks for piece in _pieces_of(store, rows)]
        self.data = torch.cat([piece.flatten(1) for piece in self._pieces], 1)
        """``[1 + M, T]`` the parameters, then each moment."""
        self.gradient = torch.zeros_like(self.data[0])
        """``[T]``."""
        self.steps = np.concatenate([store.steps[rows] for store, rows in blocks])
        """``[R]`` updates taken."""
        self._lengths, self._chunk_rows = self._measure()
        self._row_of = torch.from_numpy(self._chunk_rows).int().repeat_interleave(self._lengths)
        """``[T]`` the row that each parameter belongs to."""
        # Memory of this size is given back and taken again at each step unless it is kept.
        self._scratch = torch.empty_like(self.data[:2])
        self._rates = self._spread(learning_rates, torch.empty_like(self.gradient))

    def show(self, active: Sequence[ActiveRows]) -> None:
        """Let layers see the copies; their gradients add up in :attr:`gradient`."""
        sizes = [piece[0].numel() for piece in self._pieces]
        values, gradients = (
            iter(torch.split(self.data[0], sizes)),
            iter(torch.split(self.gradient, sizes)),
        )
        for (store, rows), seen in zip(self.blocks, active, strict=True):
            n_rows, parameters = rows.stop - rows.start, dict[str, Tensor]()
            for name, shape in store.shapes.items():
                parameters[name] = next(values).view(n_rows, *shape).detach().requires_grad_()
                parameters[name].grad = next(gradients).view(n_rows, *shape)
            buffers = {name: buffer[rows] for name, buffer in store.buffers.items()}
            seen.bind(parameters, buffers)

    def gradient_squares(self) -> Floats:
        """Return the sum of the squares of each row's gradient, ``[R]``."""
        squares = torch.mul(self.gradient, self.gradient, out=self._scratch[0])
        sums = torch.segment_reduce(squares, "sum", lengths=self._lengths)
        totals = np.zeros(len(self.steps))
        np.add.at(totals, self._chunk_rows, sums.double().numpy())
        return totals

    def update(self, config: PopulationConfig) -> None:
        """Move all parameters against their gradient, which is used up."""
        self.steps += 1.0
        data, gradient = self.data, self.gradient
        decay_weights(data[0], gradient, self._rates, config)
        if config.optimizer == "sgd":
            momentum = data[1] if config.momentum else None
            update_by_sgd(data[0], momentum, gradient, self._rates, config)
            return
        numbers = adam_factors(self.learning_rates, self.steps, config)
        factors, floors = map(self._spread, numbers, self._scratch)
        update_by_adam(data, gradient, factors, floors, config)

    def write_back(self) -> None:
        """Put what was learned into the stores."""
        parts = torch.split(self.data, [piece[0].numel() for piece in self._pieces], 1)
        for piece, part in zip(self._pieces, parts, strict=True):
            piece.copy_(part.view(piece.shape))
        first = 0
        for store, rows in self.blocks:
            n_rows = rows.stop - rows.start
            store.steps[rows] = self.steps[first : first + n_rows]
            first += n_rows

    def _measure(self) -> tuple[Tensor, NDArray[np.int64]]:
        """Return the length and the row of each run of parameters that belong to one row."""
        lengths: list[int] = []
        rows: list[int] = []
        first = 0
        for store, own in self.blocks:
            n_rows = own.stop - own.start
            for size in store.sizes:
                lengths += [size] * n_rows
                rows += range(first, first + n_rows)
            first += n_rows
        return torch.tensor(lengths), np.array(rows, dtype=np.int64)

    def _spread(self, numbers: Floats, out: Tensor) -> Tensor:
        """Write one number of each row ``[R]`` for each of its parameters, ``[T]``."""
        values = torch.from_numpy(numbers).to(out.dtype)
        return torch.index_select(values, 0, self._row_of, out=out)


def _pieces_of(store: RowStore, rows: slice) -> tuple[Tensor, ...]:
    """Return each parameter of some rows with its moments, ``[1 + M, rows, size]``, as views."""
    return torch.split(store.data[:, rows], store.sizes, 2)


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
        return life.affects_output and not (self.committed_only and life.is_growing)

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

    def _rates(self, part: _Part) -> NDArray[Any]:
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

    def _gradient_norms(self) -> tuple[NDArray[Any], NDArray[Any]]:
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
