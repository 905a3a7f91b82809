"""The stacked form of a population: all hosts in one forward, one backward and one update.

Shapes: N = hosts, K = hosts that are computed together, B = samples of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from esper.errors import ConfigError, UnsupportedHostError
from esper.growth.governor import GovernorReport, LossWatch
from esper.growth.host_slots import draw_seed_number, slots
from esper.growth.modules import seeded
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_lives import Outcome, SlotLife, SlotLives
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.populations.flat_optimizer import Segment, TrainingSegment
from esper.populations.host_data import (
    BuildHost,
    HostSpec,
    HostState,
    Split,
    describe_form,
    sample_form,
    sample_means,
)
from esper.populations.host_models import (
    CostTable,
    load_model,
    moment_names,
    start_with_gradmax,
    tensors_of,
)
from esper.populations.population import EpochReport, Evaluation, Population
from esper.populations.rows import Row, RowStore
from esper.populations.sample_pool import SamplePool
from esper.populations.stacked_design import StackedDesign
from esper.populations.stacked_state import EpochTally, StackedState, load_modules, rows_of
from esper.populations.stacking import stack_inputs
from esper.populations.vector_hosts import LeftOut, VectorHosts

if TYPE_CHECKING:
    from esper.populations.stacked import StackedPopulation


class StackedKeeper:
    """Keeps the seeds of one host of a stacked population."""

    def __init__(self, population: StackedPopulation, host: int) -> None:
        self.population = population
        self.state = population.state
        self.host = host

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint; it waits until it may learn."""
        seed, count = self.population.specs[self.host].seed, self.state.n_germinated[self.host]
        place = self._fresh_place(slot)
        with seeded(draw_seed_number(seed, count)):
            place.plant(action.blueprint, action.style)
        self.state.n_germinated[self.host] = count + 1
        self.state.pending[self.host, slot] = place

    def remove_seed(self, slot: str) -> None:
        """Take a seed's rows away."""
        self.state.drop_seed(self.host, slot)

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Make the gate if the style has one and there is none; remove it if it has none."""
        if style != BlendStyle.LEARNED_GATE:
            self.state.drop_gate(self.host, slot)
        elif self.state.lives[self.host][slot].style != style:
            place = self._fresh_place(slot)
            place.restyle(style)
            assert place.gate is not None
            self.state.put_gate(self.host, slot, place.gate)

    def commit_seed(self, slot: str) -> None:
        """Change nothing: what a committed seed learns by is read from its stage."""

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start learning, or None if it may."""
        return self.state.pending[self.host, slot].find_start_problem()

    def _fresh_place(self, slot: str) -> SeedSlot:
        template = self.population.design.slots[slot]
        lives, model = self.state.lives[self.host], self.population.design.slots.model
        return SeedSlot(template.site, template.block, lives, model)


EVALUATION_SAMPLES = 8192
"""Samples, over all hosts, of one step of an evaluation."""

EVALUATION_NUMBERS = 2**21
"""Numbers, over all hosts, up to which a step may have more samples if they are vectors."""


class StackedPopulation(Population):
    """Hosts of one design as rows of the same tensors.

    Raises:
        UnsupportedHostError: If the design cannot be computed for many hosts at once.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take what :class:`Population` takes."""
        super().__init__(*args, **kwargs)
        self._form = sample_form(self.specs[0].data)
        for host, spec in enumerate(self.specs):
            if sample_form(spec.data) != self._form:
                raise UnsupportedHostError(
                    f"{self._describe_misfit(host, spec)} Use SequentialPopulation."
                )
        sample = self.specs[0].data.train_inputs[:3]
        self.design: StackedDesign = StackedDesign(self.template, sample)
        self.state: StackedState = StackedState(
            design=self.design,
            config=self.config,
            hosts=RowStore(self.template, moment_names(self.config)),
            lives=[],
            n_germinated=[0] * self.n_hosts,
            watch=LossWatch(self.n_hosts, self.governor_config),
        )
        models = [self._make_model(host) for host in range(self.n_hosts)]
        self.state.lives = [slots(model).lives for model in models]
        self.state.hosts.put({host: Row.of_module(model) for host, model in enumerate(models)})
        self._spares: dict[int, tuple[BuildHost, nn.Module, Row, CostTable]] = {}
        """A host of each maker, to be given other weights, its tensors and what it costs."""
        self._pools: dict[Split, SamplePool] = {}
        self.vector_hosts: VectorHosts = VectorHosts(self)
        self._changed: set[int] = set()
        """Hosts of which a slot has changed since the snapshot was taken."""
        for host, lives in enumerate(self.state.lives):
            self._follow(host, lives)
        self._keep()

    def train_epoch(self) -> EpochReport:
        """Train every host that has not finished for one epoch, and let the epoch pass.

        An epoch that is interrupted has not been: all hosts go back to where they were.
        """
        epochs = [order.epoch for order in self.orders]
        try:
            return self._train_epoch()
        except BaseException:
            self._take_back(epochs)
            raise

    def _train_epoch(self) -> EpochReport:
        tally = EpochTally(self.n_hosts, self.slot_config.max_slots)
        is_active = ~self.is_finished
        interventions: dict[int, GovernorReport] = {}
        self._restore_unfinite(tally, interventions)
        self._sort_rows()
        if self._has_acted:
            self._keep()
        active = np.flatnonzero(is_active).tolist()
        compiled = [host for host in active if self.vector_hosts.has_program(host)]
        if compiled:
            self.vector_hosts.train(compiled, tally)
        for cohort in self._cohorts():
            self._train_cohort(cohort, tally)
        for host, reason in tally.failures.items():
            interventions.setdefault(host, self._restore(host, reason))
        self._restore_unfinite(tally, interventions)
        for host in active:
            self.state.lives[host].tick(StackedKeeper(self, host))
        self._keep()
        losses, norms = tally.mean(tally.losses, is_active), tally.mean(tally.norms, is_active)
        seed_norms = tally.seed_norms / np.maximum(tally.counts, 1.0)[:, None]
        return EpochReport(losses, norms, tally.flops, seed_norms, interventions)

    def _take_back(self, epochs: Sequence[int]) -> None:
        """Go back to the last good state; orders that drew an epoch since draw it again."""
        for order, epoch in zip(self.orders, epochs, strict=True):
            if order.epoch > epoch:
                order.take_back_epoch()
        if self._has_acted:  # and nothing was computed since
            return
        lives, self.state = self.state.lives, self._snapshot.copied()
        # Whoever follows or holds the lives knows these, not copies of them.
        for own, before in zip(lives, self.state.lives, strict=True):
            for slot, life in before.items():
                own.set_life(slot, life)
        self.state.lives = lives

    def evaluate(
        self,
        split: Split = "validation",
        *,
        hosts: Sequence[int] | None = None,
        without_slot: str | None = None,
        committed_only: bool = False,
    ) -> Evaluation:
        """Judge hosts (all if not given), as they are or with seeds left out."""
        chosen = self._require_hosts(range(self.n_hosts) if hosts is None else hosts)
        if without_slot is not None:
            self.slot_config.slot_index(without_slot)
        if not chosen:
            return Evaluation(np.zeros(0), np.zeros(0), np.zeros(0))
        sizes = [len(self.specs[host].data.split(split)[0]) for host in chosen]
        left_out = LeftOut(without_slot, committed_only)
        flops = [
            size
            * self.costs_of(host).evaluation_flops(
                self.state.lives[host], without_slot, committed_only=committed_only
            )
            for host, size in zip(chosen, sizes, strict=True)
        ]
        losses, metrics = np.zeros((2, len(chosen)))
        is_compiled = [self.vector_hosts.can_judge(host, left_out) for host in chosen]
        for flag in set(is_compiled):
            places = [place for place, own in enumerate(is_compiled) if own == flag]
            some = [chosen[place] for place in places]
            judge = self.vector_hosts.judge if flag else self._judge_by_tensors
            losses[places], metrics[places] = judge(some, split, left_out)
        return Evaluation(losses, metrics, np.array(flops))

    def _judge_by_tensors(
        self, hosts: list[int], split: Split, left_out: LeftOut
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean loss and metric of hosts, in the order in which they are given."""
        self._sort_rows()
        ranks = {host: rank for rank, host in enumerate(self.state.hosts.hosts)}
        ordered = sorted(set(hosts), key=lambda host: ranks[host])
        rows = [ranks[host] for host in ordered]
        segment = Segment(
            self,
            rows,
            is_training=False,
            without_slot=left_out.slot,
            committed_only=left_out.is_uncommitted,
        )
        losses, metrics = self._judge(segment, ordered, split)
        where = [ordered.index(host) for host in hosts]
        return losses[where], metrics[where]

    def _note_change(self, host: int, slot: str, life: SlotLife) -> None:
        super()._note_change(host, slot, life)
        self.vector_hosts.forget(host)
        self._changed.add(host)

    def lives(self, host: int) -> SlotLives:
        """Return the lives of a host's slots."""
        return self.state.lives[host]

    def _act(self, host: int, action: GrowthAction) -> Outcome:
        outcome = self.state.lives[host].apply(action, StackedKeeper(self, host))
        if action.op == Op.GERMINATE and self.config.widen_start == "gradmax":
            model = self.model(host)
            start_with_gradmax(model, action.slot, self, host)
            seed = slots(model)[action.slot].seed
            assert seed is not None
            load_modules(
                {"seed": self.state.pending[host, action.slot].seed},
                {"seed": Row.of_module(seed)},
            )
        self._start_computing(host)
        self._has_acted |= outcome.was_done and action.op != Op.WAIT
        return outcome

    def _set_germinated(self, host: int, count: int) -> None:
        self.state.n_germinated[host] = count

    def _commit(self, host: int, slot: str) -> None:
        self.state.lives[host].commit(slot, StackedKeeper(self, host))
        self._start_computing(host)
        self._has_acted = True

    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a model of its own, with its slots and seeds."""
        model = self.build_host(self.specs[host])
        load_model(model, self.state.get_host(host))
        return model

    def get_state(self, host: int) -> HostState:
        """Return everything that the next epoch of a host depends on."""
        state = self.state.get_host(host)
        state.facts.update(self._shared_facts(host))
        return state

    def _set_state(self, host: int, state: HostState) -> None:
        self._load_shared_facts(host, state.facts)
        self._put_host(self.state, host, state)
        self._put_host(self._snapshot, host, state)

    def remove_uncommitted(self, host: int) -> None:
        """Remove every seed of a host that is not committed, at once."""
        self._require_hosts([host])
        self._abandon_growing(host)
        self._has_acted = True

    def restart(self, host: int, spec: HostSpec) -> None:
        """Put a new host in the place of one, with its own data and seed."""
        self._require_spec(host, spec)
        model, row = self._start_model(host, spec)
        self._take_spec(host, spec)
        self._replace_samples(host, spec)
        hosts = self.state.hosts
        hosts.put({host: row})
        self._snapshot.hosts.copy_row(host, hosts)
        for state in (self.state, self._snapshot):
            state.start_host(host, slots(model).lives.growth_config)
        self._follow(host, self.state.lives[host])

    def _start_model(self, host: int, spec: HostSpec) -> tuple[nn.Module, Row]:
        """Return a new host and its tensors: one that was made before, if its maker can redraw it.

        Only tensors are read, so one model serves all hosts of a maker.
        """
        build = spec.build or self.build
        redraw = getattr(build, "redraw", None)
        if redraw is None:
            model = self._accept(host, self.build_host(spec), spec)
            return model, Row.of_module(model)
        if id(build) in self._spares:
            _, model, row, self._costs[host] = self._spares[id(build)]
            redraw(model, spec.seed)
            return model, row
        model = self._accept(host, self.build_host(spec), spec)
        row = Row({name: tensor.detach() for name, tensor in tensors_of(model).items()}, {})
        self._spares[id(build)] = (build, model, row, self._costs[host])
        return model, row

    def _require_spec(self, host: int, spec: HostSpec) -> None:
        super()._require_spec(host, spec)
        if sample_form(spec.data) != self._form:
            raise ConfigError(self._describe_misfit(host, spec))

    def _describe_misfit(self, host: int, spec: HostSpec) -> str:
        return (
            f"host {host} learns from {describe_form(sample_form(spec.data))}; hosts that are "
            f"stacked need samples of one form, here {describe_form(self._form)}."
        )

    def _require_host(self, host: int, model: nn.Module) -> None:
        super()._require_host(host, model)
        self.design.require_host(model, host)

    def _keep(self) -> None:
        """Remember the present state of all hosts as good, in place of the one before."""
        hosts = [host for host in range(self.n_hosts) if host not in self._changed]
        self._snapshot = self.state.copied({host: self._snapshot.lives[host] for host in hosts})
        self._has_acted = False
        self._changed.clear()

    def _restore_unfinite(
        self, tally: EpochTally, interventions: dict[int, GovernorReport]
    ) -> None:
        """Take back every host with a parameter or buffer that is not finite."""
        bad = {host for store in self.state.stores() for host in store.find_unfinite()}
        for host in sorted(bad):
            tally.fail(host, "a parameter is not finite")
            interventions.setdefault(host, self._restore(host, tally.failures[host]))

    def _restore(self, host: int, reason: str) -> GovernorReport:
        """Take one host back to its last good state and prune what was growing in it."""
        self._put_host(self.state, host, self._snapshot.get_host(host))
        growing = self._abandon_growing(host)
        self.state.watch.forget(host)
        return GovernorReport(reason, tuple(growing))

    def _abandon_growing(self, host: int) -> list[str]:
        """Prune every seed of a host that is not committed; return the slots it was done to."""
        lives, keeper = self.state.lives[host], StackedKeeper(self, host)
        growing = [slot for slot, life in lives.items() if life.is_growing]
        for slot in growing:
            lives.abandon(slot, keeper)
        return growing

    def _put_host(self, target: StackedState, host: int, state: HostState) -> None:
        model = self.build_host(self.specs[host])
        load_model(model, state)
        places = {name: slot for name, slot in slots(model).items() if slot.seed is not None}
        target.set_host(host, state, places)

    def _start_computing(self, host: int) -> None:
        """Move seeds that have begun to learn from waiting to computing."""
        for slot, life in self.state.lives[host].items():
            place = self.state.pending.get((host, slot))
            if place is not None and life.is_computing:
                del self.state.pending[host, slot]
                self.state.put_seed(host, slot, life.blueprint, rows_of(place))

    def _sort_rows(self) -> None:
        """Order rows so that hosts with the same batch size, and the longer epochs, come first."""

        def rank(host: int) -> tuple[bool, int, int, int]:
            order = self.orders[host]
            is_apart = bool(self.is_finished[host]) or self.vector_hosts.has_program(host)
            return is_apart, order.batch_size, -order.n_batches, host

        self.state.sort(sorted(range(self.n_hosts), key=rank))

    def _cohorts(self) -> list[list[int]]:
        """Return the rows of hosts without program by batch size, longest epoch first."""
        cohorts: dict[int, list[int]] = {}
        for row, host in enumerate(self.state.hosts.hosts):
            if not (self.is_finished[host] or self.vector_hosts.has_program(host)):
                cohorts.setdefault(self.orders[host].batch_size, []).append(row)
        return list(cohorts.values())

    def _train_cohort(self, rows: list[int], tally: EpochTally) -> None:
        """Train the hosts of some rows, which have the same batch size, for one epoch."""
        hosts = [self.state.hosts.hosts[row] for row in rows]
        pool = self._pool("train")
        lengths = np.array([self.orders[host].n_batches for host in hosts])
        batches = np.zeros((len(hosts), lengths.max(), self.orders[hosts[0]].batch_size), np.int64)
        for index, host in enumerate(hosts):
            batches[index, : lengths[index]] = self.orders[host].draw_epoch() + pool.offsets[host]
        numbers = torch.from_numpy(batches)
        # Hosts whose epoch is over leave; the others, which come first, go on.
        for first, last in pairwise([0, *np.unique(lengths).tolist()]):
            n_active = int((lengths > first).sum())
            segment = TrainingSegment(self, rows[:n_active])
            for step in range(first, last):
                segment.settle(segment.learn(*pool.take(numbers[:n_active, step])), tally)
            segment.arena.write_back()

    def _judge(
        self, segment: Segment, hosts: list[int], split: Split
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the mean loss and metric of some hosts on a split."""
        pool = self._pool(split)
        sizes = torch.from_numpy(pool.sizes[hosts])
        offsets = torch.from_numpy(pool.offsets[hosts])
        n_at_once = EVALUATION_SAMPLES
        if pool.inputs.ndim == 2:
            n_at_once = max(n_at_once, EVALUATION_NUMBERS // pool.inputs.shape[1])
        n_steps, chunk = int(sizes.max()), max(8, n_at_once // len(hosts))
        totals = torch.zeros(2, len(hosts), dtype=torch.float64)
        with torch.no_grad():
            segment.show()
            for start in range(0, n_steps, chunk):
                numbers = torch.arange(start, min(start + chunk, n_steps)).expand(len(hosts), -1)
                is_real = numbers < sizes[:, None]
                # Hosts with fewer samples see some twice; those are not counted.
                chosen = torch.where(is_real, numbers, 0) + offsets[:, None]
                inputs, wanted = pool.take(chosen)
                outputs = self.design.net(stack_inputs(inputs))
                losses = self.objective.losses(outputs, wanted).flatten(0, 1)
                metrics = self.objective.metrics(outputs, wanted).flatten(0, 1)
                for row, values in enumerate((losses, metrics)):
                    means = sample_means(values).view(is_real.shape)
                    totals[row] += torch.where(is_real, means, 0.0).sum(1)
        means = (totals / sizes).numpy()
        return means[0], means[1]

    def _pool(self, split: Split) -> SamplePool:
        if split not in self._pools:
            data = [spec.data for spec in self.specs]
            # A host that has no such split is never asked for it; it holds the place of another.
            other = next(one for one in data if one.has_split(split))
            pairs = [(one if one.has_split(split) else other).split(split) for one in data]
            self._pools[split] = SamplePool(pairs)
        return self._pools[split]

    def _replace_samples(self, host: int, spec: HostSpec) -> None:
        """Put a new host's samples in the place of another's, where samples are pooled."""
        for split, pool in list(self._pools.items()):
            if not (spec.data.has_split(split) and pool.replace(host, spec.data.split(split))):
                del self._pools[split]
