"""The interface and shared code of populations. Shapes: N = hosts, S = slots."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from torch import nn

from esper.arrays import Floats
from esper.config.growth import GrowthConfig, PopulationConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.errors import ConfigError, IllegalActionError, SlotError
from esper.growth.governor import GovernorReport, LossWatch
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters, seeded
from esper.growth.slot_states import Fossil, Outcome, SlotLife, SlotStates, is_gate_open
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES, GrowthAction, Op
from esper.lifecycle.slot_arrays import NO_BLUEPRINT, SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.host_data import (
    Ablation,
    BatchOrder,
    BuildHost,
    CrossEntropy,
    DataCheck,
    HostSpec,
    HostState,
    Objective,
    Split,
    join_states,
    split_states,
)
from esper.populations.host_models import CostTable, load_model

_STYLE_NUMBERS = {style: number for number, style in enumerate(STYLES)}
_CURVE_NUMBERS = {curve: number for number, curve in enumerate(ALPHA_CURVES)}


def write_slot(
    arrays: SlotArrays,
    at: tuple[int, int],
    life: SlotLife,
    slot_config: SlotConfig,
    growth_config: GrowthConfig,
) -> None:
    """Write the state of one slot of one host."""
    schedule = life.schedule
    has_ramped = life.affects_output or not schedule.is_at_rest
    arrays.stage[at] = life.stage
    arrays.age_epochs[at] = life.age_epochs
    arrays.stage_epochs[at] = life.stage_epochs
    arrays.alpha[at] = life.alpha
    arrays.alpha_target[at] = schedule.target if has_ramped else life.alpha_target
    arrays.alpha_at_rest[at] = schedule.is_at_rest
    arrays.is_gate_open[at] = is_gate_open(life, growth_config)
    arrays.ramp_epochs_left[at] = max(0, schedule.n_epochs - schedule.epoch)
    arrays.blueprint[at] = (
        slot_config.blueprint_index(life.blueprint) if life.has_seed else NO_BLUEPRINT
    )
    arrays.style[at] = _STYLE_NUMBERS[life.style]
    arrays.curve[at] = _CURVE_NUMBERS[schedule.curve]


def write_fossils(
    arrays: SlotArrays, at: tuple[int, int], life: SlotLife, n_parameters: int
) -> None:
    """Write the fossils of one slot of one host, which have so many parameters together."""
    arrays.n_fossils[at] = len(life.fossils)
    arrays.fossil_units[at] = life.units
    arrays.fossil_parameters[at] = n_parameters


FACTS = frozenset({"lives", "n_germinated", "losses", "batch_order", "is_finished"})
"""The keys of a host state's facts."""


@dataclass(frozen=True, eq=False)
class EpochReport:
    """The results of one epoch of training for each host; zero for finished hosts."""

    losses: Floats
    """``[N]`` mean training loss."""
    gradient_norms: Floats
    """``[N]`` mean gradient norm."""
    flops: Floats
    """``[N]`` FLOPs of the training."""
    seed_gradient_norms: Floats
    """``[N, S]`` mean gradient norm of each slot's seed; zero without a trained seed."""
    gradient_noise: Floats
    """``[N]`` standard deviation of the batches' gradient norms, relative to their mean."""
    interventions: dict[int, GovernorReport]
    """The governor's report for each host that was rolled back."""

    @classmethod
    def blank(cls, n_hosts: int, n_slots: int) -> EpochReport:
        """Return a report of hosts that were not trained."""
        losses, norms, flops, noise = np.zeros((4, n_hosts))
        return cls(losses, norms, flops, np.zeros((n_hosts, n_slots)), noise, {})


@dataclass(frozen=True, kw_only=True)
class FirstSeed:
    """A seed that a host starts with."""

    action: GrowthAction
    """The germination that would create it."""
    number: int
    """Number of seeds that germinate in the host before it, which determines its weights."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """Mean losses, mean metrics and FLOPs of the evaluated hosts."""

    losses: Floats
    metrics: Floats
    flops: Floats


class Population(ABC):
    """Hosts of one design that are trained independently of one another."""

    def __init__(
        self,
        build: BuildHost,
        specs: Sequence[HostSpec],
        config: PopulationConfig | None = None,
        *,
        objective: Objective | None = None,
        growth_config: GrowthConfig | None = None,
    ) -> None:
        """Build the hosts.

        Args:
            build: Builds a host with slots from a seed; the same seed gives the same host.
            specs: Seed, data and settings of each host.
            config: Training settings.
            objective: Loss and metric; classification by default.
            growth_config: Minimum number of epochs in each stage; by default the built host's.
        """
        if not specs:
            raise ConfigError("specs is empty; pass at least one HostSpec.")
        self.build = build
        self.specs = list(specs)
        self.config = config or PopulationConfig()
        self.objective = objective or CrossEntropy()
        self.growth_config = growth_config
        self.template = self._build(build, specs[0].seed)
        """A host of the full design; every host has its size or is smaller."""
        n_weights = count_parameters(self.template)
        require_memory(
            BYTES_PER_WEIGHT * n_weights * len(specs), hosts=len(specs), parameters=n_weights
        )
        self.slot_config: SlotConfig = slots(self.template).slot_config
        self._data_check = DataCheck(self.template, self.objective)
        for host, spec in enumerate(specs):
            self._data_check.require_fit(host, spec)
        self.costs: CostTable = CostTable(self.template, specs[0].data.train_inputs[:2])
        """FLOPs of hosts of the full design."""
        self._cost_tables = {_size_of(self.template, specs[0]): self.costs}
        self._costs = [self.costs] * len(specs)
        self.orders: list[BatchOrder] = [self._make_order(spec) for spec in specs]
        self.is_finished = np.zeros(len(specs), dtype=np.bool_)
        self._slot_arrays = SlotArrays.blank(len(specs), self.slot_config.max_slots)
        self._written_fossils: dict[tuple[int, int], tuple[Fossil, ...]] = {}
        """The fossils that the arrays describe, by host and slot."""
        self._prepare()

    @abstractmethod
    def _prepare(self) -> None:
        """Make the hosts, once everything that all populations have is there."""

    def __repr__(self) -> str:
        n_weights = count_parameters(self.template)
        return f"{type(self).__name__}({self.n_hosts} hosts of {n_weights:,} parameters)"

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self.specs)

    def build_host(self, spec: HostSpec) -> nn.Module:
        """Return a new host that follows this population's growth configuration.

        Its seed also determines what ``build`` draws from torch's default generator.
        """
        return self._build(spec.build or self.build, spec.seed)

    def costs_of(self, host: int) -> CostTable:
        """Return the FLOPs of hosts of this host's size."""
        return self._costs[host]

    def learning_rate(self, host: int) -> float:
        """Return the learning rate of a host."""
        own = self.specs[host].learning_rate
        return self.config.learning_rate if own is None else own

    @abstractmethod
    def train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch and advance its slots.

        A host that the governor rolls back loses its uncommitted seeds; the others are not
        affected.
        """

    def evaluate(
        self,
        split: Split = "validation",
        *,
        hosts: Sequence[int] | None = None,
        without_slot: str | None = None,
        committed_only: bool = False,
    ) -> Evaluation:
        """Evaluate hosts, optionally with some seeds left out.

        Args:
            split: The split to evaluate on.
            hosts: Indices of the hosts; all by default.
            without_slot: Leave out the seed in this slot.
            committed_only: Leave out all uncommitted seeds.
        """
        chosen = self._require_hosts(range(self.n_hosts) if hosts is None else hosts)
        if without_slot is not None:
            self.slot_config.slot_index(without_slot)
        if not chosen:
            return Evaluation(np.zeros(0), np.zeros(0), np.zeros(0))
        ablation = Ablation(without_slot, committed_only)
        losses, metrics = self._evaluate(chosen, split, ablation)
        sizes = [len(self.specs[host].data.split(split)[0]) for host in chosen]
        flops = [
            size * self._evaluation_flops(host, ablation)
            for host, size in zip(chosen, sizes, strict=True)
        ]
        return Evaluation(losses, metrics, np.array(flops))

    def _evaluation_flops(self, host: int, ablation: Ablation) -> float:
        """Return the FLOPs of evaluating a host on one sample."""
        return self.costs_of(host).evaluation_flops(self.lives(host), ablation)

    @abstractmethod
    def _evaluate(
        self, hosts: list[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        """Return the mean loss and the mean metric of each host."""

    @abstractmethod
    def lives(self, host: int) -> SlotStates:
        """Return the lives of a host's slots."""

    @abstractmethod
    def _act(self, host: int, action: GrowthAction) -> Outcome:
        """Apply an action to an unfinished host."""

    @abstractmethod
    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a separate model with its slots and seeds."""

    @abstractmethod
    def get_state(self, host: int) -> HostState:
        """Return everything that the next epoch of a host depends on."""

    def set_state(self, host: int, state: HostState) -> None:
        """Load a host state, which may come from a population of either form.

        Raises:
            ConfigError: If the state belongs to a host of another design or size; the host is
                then not changed.
        """
        self._require_hosts([host])
        self._require_state(host, state)
        self._set_state(host, state)

    @abstractmethod
    def _set_state(self, host: int, state: HostState) -> None:
        """Load a host state that has been checked."""

    @abstractmethod
    def restart(self, host: int, spec: HostSpec) -> None:
        """Replace a host by a new one with its own data and seed."""

    def apply(self, host: int, action: GrowthAction) -> Outcome:
        """Apply an action to one host; after a finish action it is no longer trained.

        Raises:
            IllegalActionError: If the host's state does not allow the action, or it has finished.
        """
        self._require_hosts([host])
        if self.is_finished[host] and action.op != Op.WAIT:
            raise IllegalActionError(
                f"host {host} has finished; {action.op.name.lower()} is illegal, only wait is not."
            )
        outcome = self._act(host, action)
        if action.op == Op.FINISH:
            self.finish(host)
        return outcome

    def plant(self, host: int, seeds: Sequence[FirstSeed]) -> None:
        """Start a host with committed seeds: the network that growth would lead to.

        Each seed has the weights that germination would give it and is at its alpha target from the
        first batch on, without isolated training or gates.

        Raises:
            SlotError: If the host has been trained, or a slot or blueprint cannot be used.
        """
        self._require_hosts([host])
        if self.orders[host].epoch:
            raise SlotError(
                f"host {host} has been trained for {self.orders[host].epoch} epochs; plant seeds "
                "before training."
            )
        for seed in seeds:
            slot = seed.action.slot
            if self.lives(host)[slot].stage == Stage.FOSSILIZED:
                self._absorb(host, slot)
            self._set_germinated(host, seed.number)
            self.apply(host, seed.action)
            self._commit(host, slot)

    @abstractmethod
    def _set_germinated(self, host: int, count: int) -> None:
        """Set how many seeds have germinated, which determines the weights of the next."""

    @abstractmethod
    def _commit(self, host: int, slot: str) -> None:
        """Commit a newly germinated seed."""

    @abstractmethod
    def _absorb(self, host: int, slot: str) -> None:
        """Make a committed seed part of its block, so that another can be planted there."""

    def finish(self, host: int) -> None:
        """Stop training a host; it can still be evaluated, copied and restarted."""
        self._require_hosts([host])
        self.is_finished[host] = True

    @abstractmethod
    def end_growth(self, host: int, *, keep: bool) -> None:
        """Commit the blended seeds of a host, or remove them; remove those that are not blended."""

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as live arrays; treat them as read-only."""
        return self._slot_arrays

    def write_slots_to(self, arrays: SlotArrays) -> None:
        """Keep the state of all slots in the first columns of these arrays from now on."""
        own = arrays.view((slice(None), slice(self.slot_config.max_slots)))
        own.assign(..., self._slot_arrays)
        self._slot_arrays = own

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all hosts as tensors and plain values."""
        return join_states(self.get_state(host) for host in range(self.n_hosts))

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load what :meth:`state_dict` returned.

        Raises:
            ConfigError: If the state belongs to other hosts; no host is then changed.
        """
        states = split_states(state)
        if len(states) != self.n_hosts:
            raise ConfigError(
                f"the state has {len(states)} hosts, but the population has {self.n_hosts}."
            )
        for host, host_state in enumerate(states):
            self._require_state(host, host_state)
        for host, host_state in enumerate(states):
            self._set_state(host, host_state)

    def _require_hosts(self, hosts: Sequence[int]) -> list[int]:
        """Return host indices as a list; raise if one is out of range."""
        for host in hosts:
            if not 0 <= host < self.n_hosts:
                raise ConfigError(f"there is no host {host}; hosts are 0 to {self.n_hosts - 1}.")
        return list(hosts)

    def _require_host(self, host: int, model: nn.Module) -> None:
        """Raise if a new host cannot be part of the population."""
        own, wanted = slots(model).slot_config, self.slot_config
        if own.slot_ids != wanted.slot_ids:
            raise ConfigError(
                f"host {host} has slots {', '.join(own.slot_ids)}; the population's design has "
                f"{', '.join(wanted.slot_ids)}."
            )
        for name in [field.name for field in fields(SlotConfig)] if own != wanted else ():
            values = getattr(own, name), getattr(wanted, name)
            if values[0] != values[1]:
                raise ConfigError(
                    f"the slots of host {host} have {name} {values[0]}; the population's design "
                    f"has {values[1]}. Register blueprints before creating the population, and "
                    "build all hosts with the same settings."
                )

    def _require_state(self, host: int, state: HostState) -> None:
        """Raise if a state cannot be loaded into a host."""
        missing = sorted(FACTS - state.facts.keys())
        if missing:
            raise ConfigError(
                f"the state of host {host} lacks {', '.join(missing)}; load what get_state or "
                "state_dict returned."
            )
        if (n_found := len(state.facts["losses"])) != LossWatch.N_STATISTICS:
            raise ConfigError(
                f"the state of host {host} has {n_found} loss statistics instead of "
                f"{LossWatch.N_STATISTICS}."
            )
        try:
            load_model(self.build_host(self.specs[host]), state)
        except ConfigError as error:
            raise ConfigError(f"the state does not fit host {host}: {error}") from error

    def _build_model(self, host: int) -> nn.Module:
        """Build the host that its specification describes."""
        spec = self.specs[host]
        return self._register(host, self.build_host(spec), spec)

    def _require_spec(self, host: int, spec: HostSpec) -> None:
        """Raise if a host cannot be replaced by one with this specification."""
        self._require_hosts([host])
        self._data_check.require_fit(host, spec)

    def _replace_spec(self, host: int, spec: HostSpec) -> None:
        self.specs[host] = spec
        self.orders[host] = self._make_order(spec)
        self.is_finished[host] = False

    def _register(self, host: int, model: nn.Module, spec: HostSpec) -> nn.Module:
        """Return a new host after checking it and looking up its cost table."""
        self._require_host(host, model)
        size = _size_of(model, spec)
        if size not in self._cost_tables:
            sample = spec.data.train_inputs[:2]
            self._cost_tables[size] = CostTable(model, sample, like=self.costs)
        self._costs[host] = self._cost_tables[size]
        return model

    def _build(self, build: BuildHost, seed: int) -> nn.Module:
        """Build a host that follows this population's growth configuration."""
        with seeded(seed):
            model = build(seed)
        slots(model).seed = seed
        if self.growth_config is not None:
            slots(model).lives.growth_config = self.growth_config
        return model

    def _make_order(self, spec: HostSpec) -> BatchOrder:
        config = self.config
        return BatchOrder(
            spec.seed,
            len(spec.data.train_inputs),
            spec.batch_size or config.batch_size,
            spec.batches_per_epoch or config.batches_per_epoch,
        )

    def _follow(self, host: int, lives: SlotStates) -> None:
        """Keep the slot arrays in sync with a host's lives."""
        lives.on_change = partial(self._on_slot_change, host, lives)
        for slot, life in lives.items():
            self._on_slot_change(host, lives, slot, life)

    def _on_slot_change(self, host: int, lives: SlotStates, slot: str, life: SlotLife) -> None:
        arrays, at = self._slot_arrays, (host, self.slot_config.slot_index(slot))
        write_slot(arrays, at, life, self.slot_config, lives.growth_config)
        # Fossils are never changed, only replaced.
        if self._written_fossils.get(at) is not life.fossils:
            self._written_fossils[at] = life.fossils
            n_parameters = self.costs_of(host).fossil_parameters(slot, life)
            write_fossils(arrays, at, life, n_parameters)

    def _shared_facts(self, host: int) -> dict[str, Any]:
        return {
            "batch_order": self.orders[host].get_state(),
            "is_finished": bool(self.is_finished[host]),
        }

    def _load_shared_facts(self, host: int, facts: dict[str, Any]) -> None:
        self.orders[host].set_state(facts["batch_order"])
        self.is_finished[host] = facts["is_finished"]


def _size_of(model: nn.Module, spec: HostSpec) -> tuple[Any, ...]:
    """Return what the cost of a host depends on: its tensors, sites and samples."""
    shapes = tuple(parameter.shape for parameter in model.parameters())
    return shapes, tuple(slots(model).sites), spec.data.train_inputs.shape[1:]
