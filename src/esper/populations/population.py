"""The interface of a population, and what its forms share. Shapes: N = hosts, S = slots."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.arrays import Floats, Integers
from esper.config.growth import GovernorConfig, GrowthConfig, PopulationConfig
from esper.errors import ConfigError, IllegalActionError, SlotError
from esper.growth.governor import GovernorReport
from esper.growth.host_slots import slots
from esper.growth.modules import seeded
from esper.growth.slot_lives import Outcome, SlotLife, SlotLives
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES, GrowthAction, Op
from esper.lifecycle.slot_config import SlotConfig
from esper.populations.host_data import (
    BatchOrder,
    BuildHost,
    CrossEntropy,
    DataCheck,
    HostSpec,
    HostState,
    Objective,
    Split,
)
from esper.populations.host_models import CostTable, load_model

NO_BLUEPRINT = -1

_STYLE_NUMBERS = {style: number for number, style in enumerate(STYLES)}
_CURVE_NUMBERS = {curve: number for number, curve in enumerate(ALPHA_CURVES)}


@dataclass(frozen=True, eq=False)
class SlotArrays:
    """What action masks and observations read of all slots, ``[N, S]`` each.

    A population writes an entry when a slot changes, so that reading them costs nothing.
    """

    stage: Integers
    age_epochs: Integers
    stage_epochs: Integers
    alpha: Floats
    alpha_target: Floats
    """Where alpha is going, or will go on its first ramp."""
    alpha_at_rest: NDArray[np.bool_]
    ramp_epochs_left: Integers
    """Epochs until alpha is at rest."""
    blueprint: Integers
    """The blueprint head's choice, -1 without a seed."""
    style: Integers
    curve: Integers

    @classmethod
    def blank(cls, n_hosts: int, n_slots: int) -> SlotArrays:
        """Return the arrays of hosts whose slots are dormant."""
        shape = (n_hosts, n_slots)
        return cls(
            stage=np.zeros(shape, np.int64),
            age_epochs=np.zeros(shape, np.int64),
            stage_epochs=np.zeros(shape, np.int64),
            alpha=np.zeros(shape),
            alpha_target=np.zeros(shape),
            alpha_at_rest=np.ones(shape, np.bool_),
            ramp_epochs_left=np.zeros(shape, np.int64),
            blueprint=np.full(shape, NO_BLUEPRINT, np.int64),
            style=np.zeros(shape, np.int64),
            curve=np.zeros(shape, np.int64),
        )

    def write(self, host: int, slot: str, life: SlotLife, slot_config: SlotConfig) -> None:
        """Take over the state of one slot of one host."""
        at = host, slot_config.slot_index(slot)
        schedule = life.schedule
        has_ramped = life.affects_output or not schedule.is_at_rest
        self.stage[at] = life.stage
        self.age_epochs[at] = life.age_epochs
        self.stage_epochs[at] = life.stage_epochs
        self.alpha[at] = life.alpha
        self.alpha_target[at] = schedule.target if has_ramped else life.alpha_target
        self.alpha_at_rest[at] = schedule.is_at_rest
        self.ramp_epochs_left[at] = max(0, schedule.n_epochs - schedule.epoch)
        self.blueprint[at] = (
            slot_config.blueprint_index(life.blueprint) if life.has_seed else NO_BLUEPRINT
        )
        self.style[at] = _STYLE_NUMBERS[life.style]
        self.curve[at] = _CURVE_NUMBERS[schedule.curve]


FACTS = frozenset({"lives", "n_germinated", "losses", "batch_order", "is_finished"})
"""What the state of a host says beside its tensors."""


@dataclass(frozen=True, eq=False)
class EpochReport:
    """What one epoch of training did, for each host; zero for hosts that have finished."""

    losses: Floats
    """``[N]`` mean loss of the batches that were learned from."""
    gradient_norms: Floats
    """``[N]`` mean norm of the whole gradient."""
    flops: Floats
    """``[N]`` floating-point operations of the training."""
    seed_gradient_norms: Floats
    """``[N, S]`` mean norm of the gradient of each slot's seed; zero where none learned."""
    interventions: dict[int, GovernorReport]
    """Why the governor stepped in, by host."""


@dataclass(frozen=True, kw_only=True)
class FirstSeed:
    """A seed that a host starts with."""

    action: GrowthAction
    """How it would germinate."""
    number: int
    """Seeds that germinate in the host before it, which decides its weights."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well hosts do on a split, one entry for each host that was asked for."""

    losses: Floats
    metrics: Floats
    flops: Floats


class Population(ABC):
    """Hosts of one design that are trained side by side, each by itself."""

    def __init__(
        self,
        build: BuildHost,
        specs: Sequence[HostSpec],
        config: PopulationConfig | None = None,
        *,
        objective: Objective | None = None,
        growth_config: GrowthConfig | None = None,
        governor_config: GovernorConfig | None = None,
    ) -> None:
        """Make the hosts.

        Args:
            build: Makes a host with slots from a seed; the same seed gives the same host.
            specs: What each host learns from.
            config: How hosts are trained.
            objective: What hosts are trained for; classification if not given.
            growth_config: How long seeds stay in a stage; the built host's if not given.
            governor_config: When a loss counts as an outlier.
        """
        if not specs:
            raise ConfigError("specs is empty; a population needs at least one host.")
        self.build = build
        self.specs = list(specs)
        self.config = config or PopulationConfig()
        self.objective = objective or CrossEntropy()
        self.growth_config = growth_config
        self.governor_config = governor_config or GovernorConfig()
        self.template = self._build(build, specs[0].seed)
        """A host of the design that all hosts have, or are smaller than."""
        self.slot_config: SlotConfig = slots(self.template).slot_config
        self._data_check = DataCheck(self.template, self.objective)
        for host, spec in enumerate(specs):
            self._data_check.require_fit(host, spec)
        self.costs: CostTable = CostTable(self.template, specs[0].data.train_inputs[:2])
        """What hosts of the design cost."""
        self._cost_tables = {_size_of(self.template, specs[0]): self.costs}
        self._costs = [self.costs] * len(specs)
        self.orders: list[BatchOrder] = [self._make_order(spec) for spec in specs]
        self.is_finished = np.zeros(len(specs), dtype=np.bool_)
        self._slot_arrays = SlotArrays.blank(len(specs), self.slot_config.max_slots)

    def __deepcopy__(self, memo: dict[int, Any]) -> Population:
        """Return a population in the same state that lives by itself; data are shared."""
        twin = type(self)(
            self.build,
            self.specs,
            self.config,
            objective=copy.deepcopy(self.objective, memo),
            growth_config=self.growth_config,
            governor_config=self.governor_config,
        )
        memo[id(self)] = twin
        twin.load_state_dict(self.state_dict())
        return twin

    @property
    def n_hosts(self) -> int:
        """How many hosts there are."""
        return len(self.specs)

    def build_host(self, spec: HostSpec) -> nn.Module:
        """Return a new host, its seeds living by this population's rules.

        What its maker draws from torch's default generator is decided by the seed as well.
        """
        return self._build(spec.build or self.build, spec.seed)

    def costs_of(self, host: int) -> CostTable:
        """Return what a host of this host's size costs."""
        return self._costs[host]

    def learning_rate(self, host: int) -> float:
        """Return the step size of a host."""
        own = self.specs[host].learning_rate
        return self.config.learning_rate if own is None else own

    @abstractmethod
    def train_epoch(self) -> EpochReport:
        """Train every host that has not finished for one epoch, and let the epoch pass.

        The governor looks at every step; a host that fails is restored and what was growing in it
        pruned, while the others go on.
        """

    @abstractmethod
    def evaluate(
        self,
        split: Split = "validation",
        *,
        hosts: Sequence[int] | None = None,
        without_slot: str | None = None,
        committed_only: bool = False,
    ) -> Evaluation:
        """Judge hosts (all if not given), as they are or with seeds left out.

        Args:
            split: The samples that they are judged by.
            hosts: Their numbers.
            without_slot: A slot whose seed is left out.
            committed_only: Whether every seed that is not committed is left out.
        """

    @abstractmethod
    def lives(self, host: int) -> SlotLives:
        """Return the lives of a host's slots."""

    @abstractmethod
    def _act(self, host: int, action: GrowthAction) -> Outcome:
        """Act on one host that has not finished."""

    @abstractmethod
    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a model of its own, with its slots and seeds."""

    @abstractmethod
    def get_state(self, host: int) -> HostState:
        """Return everything that the next epoch of a host depends on."""

    def set_state(self, host: int, state: HostState) -> None:
        """Put a host into a state that :meth:`get_state` returned, of this or of the other form.

        Raises:
            ConfigError: If it is the state of a host of another design or size; nothing changes.
        """
        self._require_hosts([host])
        self._require_state(host, state)
        self._set_state(host, state)

    @abstractmethod
    def _set_state(self, host: int, state: HostState) -> None:
        """Put a host into a state that fits it."""

    @abstractmethod
    def restart(self, host: int, spec: HostSpec) -> None:
        """Put a new host in the place of one, with its own data and seed."""

    def apply(self, host: int, action: GrowthAction) -> Outcome:
        """Act on one host; after finish it learns no more.

        Raises:
            IllegalActionError: If the host's state does not allow the action, or it has finished.
        """
        self._require_hosts([host])
        if self.is_finished[host] and action.op != Op.WAIT:
            raise IllegalActionError(
                f"host {host} has finished; {action.op.name.lower()} is not legal, only wait is."
            )
        outcome = self._act(host, action)
        if action.op == Op.FINISH:
            self.finish(host)
        return outcome

    def apply_all(self, actions: Sequence[GrowthAction]) -> list[Outcome]:
        """Act on every host, one action for each."""
        if len(actions) != self.n_hosts:
            raise SlotError(f"there are {len(actions)} actions; there are {self.n_hosts} hosts.")
        return [self.apply(host, action) for host, action in enumerate(actions)]

    def plant(self, host: int, seeds: Sequence[FirstSeed]) -> None:
        """Start a host with committed seeds: the static network that growing would lead to.

        Each seed has the weights that germinating it would give it, and counts at its alpha target
        from the first batch on; nothing is isolated and no gate is asked.

        Raises:
            SlotError: If the host has trained, or a slot or blueprint cannot be used.
        """
        self._require_hosts([host])
        if self.orders[host].epoch:
            raise SlotError(
                f"host {host} has trained for {self.orders[host].epoch} epochs; seeds are planted "
                "in hosts that have not trained."
            )
        for seed in seeds:
            self._set_germinated(host, seed.number)
            self.apply(host, seed.action)
            self._commit(host, seed.action.slot)

    @abstractmethod
    def _set_germinated(self, host: int, count: int) -> None:
        """Let the weights of a host's next seed be those of a seed that so many came before."""

    @abstractmethod
    def _commit(self, host: int, slot: str) -> None:
        """Commit a seed that has just germinated."""

    def finish(self, host: int) -> None:
        """Take a host out of the training; it can still be judged, copied and restarted."""
        self._require_hosts([host])
        self.is_finished[host] = True

    @abstractmethod
    def remove_uncommitted(self, host: int) -> None:
        """Remove every seed of a host that is not committed, at once."""

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as arrays, which follow the slots; do not change them."""
        return self._slot_arrays

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all hosts: tensors and plain values, without any class of ours."""
        states = [self.get_state(host) for host in range(self.n_hosts)]
        return {
            "tensors": {
                f"{host}/{name}": tensor
                for host, state in enumerate(states)
                for name, tensor in state.tensors.items()
            },
            "facts": [state.facts for state in states],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where :meth:`state_dict` was called.

        Raises:
            ConfigError: If the state is that of other hosts; nothing changes then.
        """
        facts = state["facts"]
        if len(facts) != self.n_hosts:
            raise ConfigError(f"the state has {len(facts)} hosts; the population {self.n_hosts}.")
        by_host: list[dict[str, Tensor]] = [{} for _ in facts]
        for name, tensor in state["tensors"].items():
            host, _, rest = name.partition("/")
            by_host[int(host)][rest] = tensor
        states = [HostState(*pair) for pair in zip(by_host, facts, strict=True)]
        for host, one in enumerate(states):
            self._require_state(host, one)
        for host, one in enumerate(states):
            self._set_state(host, one)

    def _require_hosts(self, hosts: Sequence[int]) -> list[int]:
        """Return the hosts' numbers; refuse any that there is not."""
        for host in hosts:
            if not 0 <= host < self.n_hosts:
                raise ConfigError(f"there is no host {host}; there are 0 to {self.n_hosts - 1}.")
        return list(hosts)

    def _require_host(self, host: int, model: nn.Module) -> None:
        """Refuse a new host that cannot be part of the population."""
        own, wanted = slots(model).slot_config, self.slot_config
        if own.slot_ids != wanted.slot_ids:
            raise ConfigError(
                f"host {host} has the slots {', '.join(own.slot_ids)}; it must have those of the "
                f"population's design, {', '.join(wanted.slot_ids)}."
            )
        for name in [field.name for field in fields(SlotConfig)] if own != wanted else ():
            values = getattr(own, name), getattr(wanted, name)
            if values[0] != values[1]:
                raise ConfigError(
                    f"host {host} has slots of which {name} is {values[0]}; the population's "
                    f"design has {values[1]}. Register blueprints before the population is made, "
                    "and make all hosts with the same settings."
                )

    def _require_state(self, host: int, state: HostState) -> None:
        """Refuse a state that a host cannot be put into."""
        missing = sorted(FACTS - state.facts.keys())
        if missing:
            raise ConfigError(
                f"the state of host {host} does not say {', '.join(missing)}; load what "
                "get_state or state_dict returned."
            )
        try:
            load_model(self.build_host(self.specs[host]), state)
        except ConfigError as error:
            raise ConfigError(f"host {host} cannot be put into this state: {error}") from error

    def _make_model(self, host: int) -> nn.Module:
        """Return the host of its specification, new."""
        spec = self.specs[host]
        return self._accept(host, self.build_host(spec), spec)

    def _require_spec(self, host: int, spec: HostSpec) -> None:
        """Refuse a new host's specification that cannot be taken over."""
        self._require_hosts([host])
        self._data_check.require_fit(host, spec)

    def _take_spec(self, host: int, spec: HostSpec) -> None:
        """Put a new host's specification in the place of another's."""
        self.specs[host] = spec
        self.orders[host] = self._make_order(spec)
        self.is_finished[host] = False

    def _accept(self, host: int, model: nn.Module, spec: HostSpec) -> nn.Module:
        """Refuse a new host that does not fit in, or note what hosts of its size cost."""
        self._require_host(host, model)
        size = _size_of(model, spec)
        if size not in self._cost_tables:
            sample = spec.data.train_inputs[:2]
            self._cost_tables[size] = CostTable(model, sample, like=self.costs)
        self._costs[host] = self._cost_tables[size]
        return model

    def _build(self, build: BuildHost, seed: int) -> nn.Module:
        """Return the host of a seed; its seeds live by this population's rules."""
        with seeded(seed):
            model = build(seed)
        slots(model).seed = seed
        if self.growth_config is not None:
            slots(model).lives.growth_config = self.growth_config
        return model

    def _make_order(self, spec: HostSpec) -> BatchOrder:
        config = self.config
        return BatchOrder(
            spec.seed, len(spec.data.train_inputs), config.batch_size, config.batches_per_epoch
        )

    def _follow(self, host: int, lives: SlotLives) -> None:
        """Keep the arrays of slot states up to date with a host's lives."""

        note = partial(self._note_change, host)
        lives.on_change = note
        for slot, life in lives.items():
            note(slot, life)

    def _note_change(self, host: int, slot: str, life: SlotLife) -> None:
        """Take note of a slot that has changed."""
        self._slot_arrays.write(host, slot, life, self.slot_config)

    def _shared_facts(self, host: int) -> dict[str, Any]:
        return {
            "batch_order": self.orders[host].get_state(),
            "is_finished": bool(self.is_finished[host]),
        }

    def _load_shared_facts(self, host: int, facts: dict[str, Any]) -> None:
        self.orders[host].set_state(facts["batch_order"])
        self.is_finished[host] = facts["is_finished"]


def _size_of(model: nn.Module, spec: HostSpec) -> tuple[Any, ...]:
    """Return what decides the cost of a host: its tensors, its slots' places and its samples."""
    shapes = tuple(parameter.shape for parameter in model.parameters())
    return shapes, tuple(slots(model).sites), spec.data.train_inputs.shape[1:]
