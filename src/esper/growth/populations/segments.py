"""Computing some rows of a stacked population together: showing them, learning, judging steps.

Shapes: K = hosts that are computed together, B = samples of a batch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.errors import UnsupportedHostError
from esper.growth.blueprints import SeedForm, find_blueprint
from esper.growth.host_slots import slots
from esper.growth.populations.looped import LoopedModule
from esper.growth.populations.row_optimizer import update_rows
from esper.growth.populations.rows import ActiveRows, RowStore
from esper.growth.populations.stacked_slots import GroupKey, Membership, StackedSeed, StackedSlot
from esper.growth.populations.stacking import (
    require_plain_parameters,
    stack_inputs,
    stack_module,
)
from esper.growth.populations.trial import find_difference
from esper.growth.seed_slot import SeedSlot
from esper.lifecycle.stages import Stage

Floats = NDArray[Any]

if TYPE_CHECKING:
    from esper.growth.populations.stacked import StackedPopulation


class StackedDesign:
    """A host design and its seeds as modules that compute many hosts at once."""

    def __init__(self, template: nn.Module, sample: Tensor) -> None:
        """Stack a design; ``sample`` is a few samples of its input.

        Raises:
            UnsupportedHostError: If it cannot be computed for many hosts at once.
        """
        require_plain_parameters(template)
        self.slots = slots(template)
        self.rows = ActiveRows()
        self.places = {name: StackedSlot() for name in self.slots}
        self.net = stack_module(template, self.rows, self.places)
        self._seeds: dict[GroupKey, StackedSeed] = {}
        difference = find_difference(template, sample)
        if difference is not None:
            raise UnsupportedHostError(
                f"a {type(template).__name__} cannot be computed for many hosts at once: "
                f"{difference}. Use SequentialPopulation."
            )

    def seed(self, key: GroupKey) -> StackedSeed:
        """Return the stacked form of a group's seeds."""
        if key not in self._seeds:
            template = self.slots[key.slot]
            place = SeedSlot(template.site, template.block, self.slots.lives, self.slots.model)
            with torch.random.fork_rng(devices=[]):
                place.plant(key.blueprint, key.style)
            assert place.seed is not None
            form = find_blueprint(key.blueprint).form
            site = template.site
            shape = site.output_shape if form == SeedForm.SERIAL else site.input_shape
            assert shape is not None
            stacked = StackedSeed(key, form, place.seed, place.gate)
            stacked.seed = _stack_seed(place.seed, stacked.seed_rows, shape)
            if place.gate is not None:
                stacked.gate = _stack_seed(place.gate, stacked.gate_rows, site.output_shape)
            self._seeds[key] = stacked
        return self._seeds[key]


def _stack_seed(module: nn.Module, rows: ActiveRows, shape: tuple[int, ...]) -> nn.Module:
    """Return a seed's stacked form or, if it has none, the seed for each host by itself."""
    try:
        require_plain_parameters(module)
        stacked = stack_module(module, rows, {})
    except UnsupportedHostError:
        return LoopedModule(rows, module)
    sample = torch.zeros(3, *shape[1:])
    return stacked if find_difference(module, sample) is None else LoopedModule(rows, module)


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

    def add(self, hosts: Floats, losses: Floats, norms: Floats, seed_norms: Floats) -> None:
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

    def mean(self, sums: Floats, is_active: NDArray[np.bool_]) -> Floats:
        """Return sums by good step: NaN for a host without one, 0 for one that did not train."""
        means = np.divide(sums, self.counts, out=np.full_like(sums, np.nan), where=self.counts > 0)
        return np.where(is_active, means, 0.0)


class _Part:
    """Rows of one store that are computed: a host's own, a group's seeds or its gates."""

    def __init__(
        self,
        store: RowStore,
        rows: Any,
        active: ActiveRows,
        hosts: Any,
        rates: Any,
        column: int = 0,
    ) -> None:
        self.store = store
        self.rows = rows
        self.active = active
        self.hosts: Tensor | None = hosts
        """Where the rows' hosts are among those computed; None if they are all of them."""
        self.rates: Floats = rates
        """Learning rate of each row."""
        self.column = column
        """Where its gradient is counted: 0 for hosts, 1 + number of the slot for seeds."""


class Segment:
    """Some hosts that are computed together, by their rows in ascending order."""

    def __init__(
        self, population: StackedPopulation, rows: list[int], without_slot: str | None
    ) -> None:
        self.population = population
        state, self.design = population.state, population.design
        hosts = [state.hosts.hosts[row] for row in rows]
        self.hosts = np.array(hosts)
        rates = np.array([population.learning_rate(host) for host in hosts])
        sizes = [population.orders[host].batch_size for host in hosts]
        costs = [population.costs.training_flops(state.lives[host]) for host in hosts]
        self.costs = np.array(sizes) * np.array(costs)
        """``[K]`` FLOPs of a step of training."""
        self.parts = [_Part(state.hosts, _range(rows), self.design.rows, None, rates)]
        members: dict[str, list[Membership]] = {name: [] for name in self.design.places}
        ranks = {host: rank for rank, host in enumerate(hosts)}
        for key, stores in state.groups.items():
            own = [row for row, host in enumerate(stores.seed.hosts) if host in ranks]
            if not own or key.slot == without_slot:
                continue
            grown = [stores.seed.hosts[row] for row in own]
            lives = [state.lives[host][key.slot] for host in grown]
            seed = self.design.seed(key)
            member = Membership(seed, [ranks[host] for host in grown], len(hosts), lives)
            factor = population.config.seed_lr_factor
            factors = [1.0 if life.stage == Stage.FOSSILIZED else factor for life in lives]
            own_rates = rates[[ranks[host] for host in grown]] * np.array(factors)
            for store, active in ((stores.seed, seed.seed_rows), (stores.gate, seed.gate_rows)):
                if store is not None:
                    column = 1 + population.slot_config.slot_index(key.slot)
                    part = _Part(store, _range(own), active, member.rows, own_rates, column)
                    self.parts.append(part)
            members[key.slot].append(member)
        self.members = members

    def show(self, *, needs_grad: bool) -> None:
        """Let the stacked layers see these rows."""
        for name, place in self.design.places.items():
            place.members = self.members[name]
            for member in self.members[name]:
                member.seed.seed.train(needs_grad)
        for part in self.parts:
            part.active.select(part.store, part.rows, needs_grad=needs_grad)

    def learn(self, inputs: Tensor, targets: Tensor) -> Tensor:
        """Compute the loss of each host on its own batch ``[K, B, ...]`` and all gradients."""
        self.show(needs_grad=True)
        outputs = self.design.net(stack_inputs(inputs))
        losses = self.population.objective.losses(outputs, targets).flatten(1).mean(1)
        losses.sum().backward()
        return losses.detach()

    def settle(self, losses: Tensor, tally: EpochTally) -> None:
        """Judge the step of each host, note it and update the parameters.

        A host that fails is noted and not stopped: its rows touch no other host's, and it is
        restored when the epoch ends.
        """
        watch, hosts = self.population.state.watch, self.hosts
        values, (norms, seed_norms) = losses.double().numpy(), self._gradient_norms()
        is_alive = tally.is_alive[hosts]
        tally.flops[hosts] += self.costs * is_alive
        is_well = is_alive & (values <= watch.limits(hosts)) & np.isfinite(values)
        is_well &= np.isfinite(norms)
        for index in np.flatnonzero(is_alive & ~is_well).tolist():
            tally.fail(int(hosts[index]), self._describe_failure(index, values[index]))
        watch.add(values[is_well], hosts[is_well])
        tally.add(hosts[is_well], values[is_well], norms[is_well], seed_norms[is_well])
        with torch.no_grad():
            for part in self.parts:
                leaf = part.active.leaf
                if leaf is not None and leaf.grad is not None:
                    config = self.population.config
                    update_rows(part.store, part.rows, leaf.grad, part.rates, config)

    def _gradient_norms(self) -> tuple[Floats, Floats]:
        """Return the norm of each host's whole gradient ``[K]`` and of its seeds' ``[K, S]``."""
        n_columns = 1 + self.population.slot_config.max_slots
        squares = torch.zeros(n_columns, len(self.hosts), dtype=torch.float64)
        for part in self.parts:
            leaf = part.active.leaf
            if leaf is None or leaf.grad is None:
                continue
            norms = cast(Tensor, torch.linalg.vector_norm(leaf.grad, dim=1))
            own = norms.double().square()
            if part.hosts is None:
                squares[part.column] += own
            else:
                squares[part.column].index_add_(0, part.hosts, own)
        return squares.sum(0).sqrt().numpy(), squares[1:].sqrt().t().numpy()

    def _describe_failure(self, index: int, loss: float) -> str:
        watch, host = self.population.state.watch, int(self.hosts[index])
        if not np.isfinite(loss):
            return f"the loss is {loss}"
        if loss > watch.limits(host):
            return watch.describe(loss, host)
        return "the gradient is not finite"


def _range(rows: list[int]) -> Any:
    """Return ascending rows as a slice if nothing is left out, so that they share memory."""
    if rows[-1] - rows[0] + 1 == len(rows):
        return slice(rows[0], rows[-1] + 1)
    return torch.tensor(rows, dtype=torch.int64)
