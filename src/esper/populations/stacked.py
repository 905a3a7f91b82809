"""The stacked form of a population: all hosts in one forward pass, backward pass and update.

Shapes: N = hosts, K = hosts that are computed together, B = samples of a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor, nn

from esper.arrays import Floats
from esper.config.growth import GovernorConfig
from esper.errors import ConfigError, UnsupportedHostError
from esper.growth.blueprints import find_blueprint
from esper.growth.governor import GovernorReport, LossWatch
from esper.growth.host_slots import draw_seed_number, slots
from esper.growth.modules import seeded
from esper.growth.seed_slot import SeedSlot
from esper.growth.slot_states import Outcome, SlotLife, SlotStates
from esper.lifecycle.factored_actions import BlendStyle, GrowthAction, Op
from esper.populations.host_data import (
    Ablation,
    HostSpec,
    HostState,
    Split,
    describe_form,
    sample_form,
    sample_means,
)
from esper.populations.host_models import load_model, moment_names
from esper.populations.population import EpochReport, Population
from esper.populations.rows import Row, RowStore
from esper.populations.segments import EpochTally, Segment, TrainingSegment
from esper.populations.stacked_design import StackedDesign
from esper.populations.stacked_state import StackedState, rows_of
from esper.populations.vector_hosts import VectorHosts


class StackedKeeper:
    """The seed keeper of one host of a stacked population."""

    def __init__(self, population: StackedPopulation, host: int) -> None:
        self.population = population
        self.state = population.state
        self.host = host

    def add_seed(self, slot: str, action: GrowthAction) -> None:
        """Build the action's blueprint; it is pending until it starts training."""
        seed, count = self.population.specs[self.host].seed, self.state.n_germinated[self.host]
        with seeded(draw_seed_number(seed, count)):
            place = self._plant(slot, action)
        self.state.n_germinated[self.host] = count + 1
        self.state.pending[self.host, slot] = place

    def _plant(self, slot: str, action: GrowthAction) -> SeedSlot:
        """Return a slot with a new seed."""
        place = self._new_slot(slot)
        if find_blueprint(action.blueprint).copies_block:
            # The design's block has the sizes and weights of another host.
            own = slots(self.population.model(self.host))[slot]
            place.block = own.block
            place.set_fossils(own.absorbed)
        place.plant(action.blueprint, action.style)
        return place

    def remove_seed(self, slot: str) -> None:
        """Remove a seed's rows."""
        self.state.drop_seed(self.host, slot)

    def restyle_seed(self, slot: str, style: BlendStyle) -> None:
        """Create the gate if the style needs one and there is none; remove it otherwise."""
        if style != BlendStyle.LEARNED_GATE:
            self.state.drop_gate(self.host, self.state.top(self.host, slot))
        elif self.state.lives[self.host][slot].style != style:
            place = self._new_slot(slot)
            place.restyle(style)
            assert place.gate is not None
            layer = self.state.top(self.host, slot)
            self.state.put_gate(self.host, layer, Row.of_module(place.gate))

    def commit_seed(self, slot: str) -> None:
        """Do nothing: the learning rate of a committed seed follows from its stage."""

    def absorb_seed(self, slot: str) -> int:
        """Return the hidden units that a committed seed added; its rows stay where they are."""
        life = self.state.lives[self.host][slot]
        return self.population.design.added_units(slot, life.blueprint, life.units)

    def is_full(self, slot: str) -> bool:
        """Return whether a slot's block, with its seed, may not be widened any further."""
        life = self.state.lives[self.host][slot]
        return self.population.design.is_full(slot, life.blueprint, life.units)

    def find_start_problem(self, slot: str) -> str | None:
        """Return why a germinated seed may not start training, or None if it may."""
        return self.state.pending[self.host, slot].find_start_problem()

    def explain_misfit(self, slot: str, blueprint: str) -> str:
        """Return why a blueprint does not fit a slot."""
        return self._new_slot(slot).explain_misfit(blueprint)

    def _new_slot(self, slot: str) -> SeedSlot:
        return self.population.design.new_slot(slot, self.state.lives[self.host])


EVALUATION_SAMPLES = 8192
"""Samples of all hosts in one step of an evaluation."""

EVALUATION_NUMBERS = 2**21
"""Input elements of all hosts in one step; vectors may use more samples up to this size."""


class StackedPopulation(Population):
    """Hosts of one design as rows of the same tensors.

    Raises:
        UnsupportedHostError: If the design cannot be computed for many hosts at once.
    """

    def _prepare(self) -> None:
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
            watch=LossWatch(self.n_hosts, GovernorConfig()),
        )
        models = [self._build_model(host) for host in range(self.n_hosts)]
        self.state.lives = [slots(model).lives for model in models]
        self.state.hosts.put({host: Row.of_module(model) for host, model in enumerate(models)})
        self.vector_hosts: VectorHosts = VectorHosts(self)
        self._changed: set[int] = set()
        """Hosts with a slot that has changed since the last snapshot."""
        for host, lives in enumerate(self.state.lives):
            self._follow(host, lives)
        self._has_acted = False
        self._snapshot = self.state.copied()
        """The last good state."""

    def train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch and advance its slots.

        An interrupted epoch is rolled back.
        """
        epochs = [order.epoch for order in self.orders]
        try:
            return self._train_epoch()
        except BaseException:
            self._undo_epoch(epochs)
            raise

    def _train_epoch(self) -> EpochReport:
        tally = EpochTally(self.n_hosts, self.slot_config.max_slots)
        is_active = ~self.is_finished
        interventions: dict[int, GovernorReport] = {}
        self._restore_nonfinite(tally, interventions)
        if self._has_acted:
            self._take_snapshot()
        active = np.flatnonzero(is_active).tolist()
        compiled = [host for host in active if self.vector_hosts.has_program(host)]
        if compiled:
            self.vector_hosts.train(compiled, tally)
        if len(compiled) < len(active):
            self._sort_rows()
            for cohort in self._cohorts():
                self._train_cohort(cohort, tally)
        for host, reason in tally.failures.items():
            interventions.setdefault(host, self._restore(host, reason))
        self._restore_nonfinite(tally, interventions)
        for host in active:
            self.state.lives[host].tick(StackedKeeper(self, host))
        self._take_snapshot()
        losses, norms = tally.mean(tally.losses, is_active), tally.mean(tally.norms, is_active)
        seed_norms = tally.seed_norms / np.maximum(tally.counts, 1.0)[:, None]
        noise = tally.gradient_noise(is_active)
        return EpochReport(losses, norms, tally.flops, seed_norms, noise, interventions)

    def _undo_epoch(self, epochs: Sequence[int]) -> None:
        """Restore the last snapshot and undo the epochs drawn since."""
        for order, epoch in zip(self.orders, epochs, strict=True):
            if order.epoch > epoch:
                order.undo_epoch()
        if self._has_acted:  # then no training has happened since the action
            return
        lives, self.state = self.state.lives, self._snapshot.copied()
        # Subscribers hold references to these lives, so they are updated in place.
        for own, before in zip(lives, self.state.lives, strict=True):
            for slot, life in before.items():
                own.set_life(slot, life)
        self.state.lives = lives

    def _evaluate(
        self, hosts: list[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        losses, metrics = np.zeros((2, len(hosts)))
        is_compiled = [self.vector_hosts.can_evaluate(host, ablation) for host in hosts]
        for flag in set(is_compiled):
            positions = [position for position, own in enumerate(is_compiled) if own == flag]
            some = [hosts[position] for position in positions]
            evaluate = self.vector_hosts.evaluate if flag else self._evaluate_with_tensors
            losses[positions], metrics[positions] = evaluate(some, split, ablation)
        return losses, metrics

    def _evaluate_with_tensors(
        self, hosts: list[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        """Return the mean loss and metric of hosts, in the given order."""
        self._sort_rows()
        ranks = {host: rank for rank, host in enumerate(self.state.hosts.hosts)}
        ordered = sorted(set(hosts), key=lambda host: ranks[host])
        rows = [ranks[host] for host in ordered]
        segment = Segment(self, rows, is_training=False, ablation=ablation)
        losses, metrics = self._evaluate_segment(segment, ordered, split)
        positions = [ordered.index(host) for host in hosts]
        return losses[positions], metrics[positions]

    def _evaluation_flops(self, host: int, ablation: Ablation) -> float:
        return self.vector_hosts.evaluation_flops(host, ablation)

    def _on_slot_change(self, host: int, lives: SlotStates, slot: str, life: SlotLife) -> None:
        super()._on_slot_change(host, lives, slot, life)
        self.vector_hosts.follow(host, self.slot_config.slot_index(slot), life)
        self._changed.add(host)

    def lives(self, host: int) -> SlotStates:
        """Return the lives of a host's slots."""
        return self.state.lives[host]

    def _act(self, host: int, action: GrowthAction) -> Outcome:
        outcome = self.state.lives[host].apply(action, StackedKeeper(self, host))
        self._start_computing(host)
        self._has_acted |= outcome.was_done and action.op != Op.WAIT
        return outcome

    def _set_germinated(self, host: int, count: int) -> None:
        self.state.n_germinated[host] = count

    def _commit(self, host: int, slot: str) -> None:
        self.state.lives[host].commit(slot, StackedKeeper(self, host))
        self._start_computing(host)
        self._has_acted = True

    def _absorb(self, host: int, slot: str) -> None:
        self.state.lives[host].absorb(slot, StackedKeeper(self, host))
        self._has_acted = True

    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a separate model with its slots and seeds."""
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

    def end_growth(self, host: int, *, keep: bool) -> None:
        """Commit the blended seeds of a host, or remove them; remove those that are not blended."""
        self._require_hosts([host])
        self.state.lives[host].end_growth(StackedKeeper(self, host), keep=keep)
        self._has_acted = True

    def restart(self, host: int, spec: HostSpec) -> None:
        """Replace a host by a new one with its own data and seed."""
        self._require_spec(host, spec)
        model = self._register(host, self.build_host(spec), spec)
        self._replace_spec(host, spec)
        hosts = self.state.hosts
        hosts.put({host: Row.of_module(model)})
        self._snapshot.hosts.copy_row(host, hosts)
        for state in (self.state, self._snapshot):
            state.start_host(host, slots(model).lives.growth_config)
        self.vector_hosts.forget(host)
        self._follow(host, self.state.lives[host])

    def _require_spec(self, host: int, spec: HostSpec) -> None:
        super()._require_spec(host, spec)
        if sample_form(spec.data) != self._form:
            raise ConfigError(self._describe_misfit(host, spec))

    def _describe_misfit(self, host: int, spec: HostSpec) -> str:
        return (
            f"host {host} has {describe_form(sample_form(spec.data))}; stacked hosts need samples "
            f"of the same form, here {describe_form(self._form)}."
        )

    def _require_host(self, host: int, model: nn.Module) -> None:
        super()._require_host(host, model)
        self.design.require_host(model, host)

    def _take_snapshot(self) -> None:
        """Save the current state of all hosts as the last good one."""
        unchanged = [host for host in range(self.n_hosts) if host not in self._changed]
        known = {host: self._snapshot.lives[host] for host in unchanged}
        # The last snapshot stays whole until there is another, in case of an interruption.
        self._snapshot = self.state.copied(known)
        self._has_acted = False
        self._changed.clear()

    def _restore_nonfinite(
        self, tally: EpochTally, interventions: dict[int, GovernorReport]
    ) -> None:
        """Roll back every host with a non-finite parameter or buffer."""
        bad = {host for store in self.state.stores() for host in store.find_nonfinite()}
        for host in sorted(bad):
            tally.fail(host, "a parameter is not finite")
            interventions.setdefault(host, self._restore(host, tally.failures[host]))

    def _restore(self, host: int, reason: str) -> GovernorReport:
        """Roll one host back to the last snapshot and prune its uncommitted seeds.

        What is known about its losses is kept.
        """
        watch = self.state.watch
        losses = watch.get_state(host)
        self._put_host(self.state, host, self._snapshot.get_host(host))
        watch.set_state(losses, host)
        watch.on_rollback(host)
        pruned = self.state.lives[host].abandon_growing(StackedKeeper(self, host))
        return GovernorReport(reason, tuple(pruned))

    def _put_host(self, target: StackedState, host: int, state: HostState) -> None:
        model = self.build_host(self.specs[host])
        load_model(model, state)
        places = {name: slot for name, slot in slots(model).items() if slot.is_in_use}
        target.set_host(host, state, places)

    def _start_computing(self, host: int) -> None:
        """Move pending seeds that have started training to their groups."""
        for slot, life in self.state.lives[host].items():
            place = self.state.pending.get((host, slot))
            if place is not None and life.is_computing:
                del self.state.pending[host, slot]
                self.state.put_seed(host, self.state.top(host, slot), rows_of(place))
                self.vector_hosts.forget(host)

    def _sort_rows(self) -> None:
        """Order rows by batch size, longest epochs first; finished and compiled hosts come last."""

        def rank(host: int) -> tuple[bool, int, int, int]:
            order = self.orders[host]
            is_last = bool(self.is_finished[host]) or self.vector_hosts.has_program(host)
            return is_last, order.batch_size, -order.n_batches, host

        self.state.sort(sorted(range(self.n_hosts), key=rank))

    def _cohorts(self) -> list[list[int]]:
        """Return the rows of hosts without a program by batch size, longest epochs first."""
        cohorts: dict[int, list[int]] = {}
        for row, host in enumerate(self.state.hosts.hosts):
            if not (self.is_finished[host] or self.vector_hosts.has_program(host)):
                cohorts.setdefault(self.orders[host].batch_size, []).append(row)
        return list(cohorts.values())

    def _train_cohort(self, rows: list[int], tally: EpochTally) -> None:
        """Train hosts with the same batch size for one epoch."""
        hosts = [self.state.hosts.hosts[row] for row in rows]
        lengths = np.array([self.orders[host].n_batches for host in hosts])
        batches = np.zeros((len(hosts), lengths.max(), self.orders[hosts[0]].batch_size), np.int64)
        for index, host in enumerate(hosts):
            batches[index, : lengths[index]] = self.orders[host].draw_epoch()
        numbers = torch.from_numpy(batches)
        # Hosts whose epoch is over drop out; those with longer epochs come first.
        for first, last in pairwise([0, *np.unique(lengths).tolist()]):
            n_active = int((lengths > first).sum())
            segment = TrainingSegment(self, rows[:n_active])
            for step in range(first, last):
                losses = segment.compute_gradients(*self._take(hosts, numbers[:n_active, step]))
                segment.update(losses, tally)
            segment.optimizer.write_back()
        last = numbers[torch.arange(len(hosts)), torch.from_numpy(lengths) - 1]
        Segment(self, rows, is_training=True).check_losses(*self._take(hosts, last), tally)

    def _evaluate_segment(
        self, segment: Segment, hosts: list[int], split: Split
    ) -> tuple[Floats, Floats]:
        samples = [self.specs[host].data.split(split)[0] for host in hosts]
        sizes = torch.tensor([len(own) for own in samples])
        n_at_once = EVALUATION_SAMPLES
        if samples[0].ndim == 2:
            n_at_once = max(n_at_once, EVALUATION_NUMBERS // samples[0].shape[1])
        n_steps, chunk = int(sizes.max()), max(8, n_at_once // len(hosts))
        totals = torch.zeros(2, len(hosts), dtype=torch.float64)
        with torch.no_grad():
            segment.bind()
            for start in range(0, n_steps, chunk):
                numbers = torch.arange(start, min(start + chunk, n_steps)).expand(len(hosts), -1)
                is_real = numbers < sizes[:, None]
                # Hosts with fewer samples are padded with their first; padding is not counted.
                inputs, wanted = self._take(hosts, torch.where(is_real, numbers, 0), split)
                outputs = self.design.net(inputs)
                losses = self.objective.losses(outputs, wanted).flatten(0, 1)
                metrics = self.objective.metrics(outputs, wanted).flatten(0, 1)
                for row, values in enumerate((losses, metrics)):
                    means = sample_means(values).view(is_real.shape)
                    totals[row] += torch.where(is_real, means, 0.0).sum(1)
        means = (totals / sizes).numpy()
        return means[0], means[1]

    def _take(
        self, hosts: Sequence[int], numbers: Tensor, split: Split = "train"
    ) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets ``[K, B, ...]`` of samples by their numbers ``[K, B]``."""
        pairs = [self.specs[host].data.split(split) for host in hosts[: len(numbers)]]
        chosen = list(zip(pairs, numbers, strict=True))
        inputs = torch.stack([own[rows] for (own, _), rows in chosen])
        return inputs, torch.stack([own[rows] for (_, own), rows in chosen])
