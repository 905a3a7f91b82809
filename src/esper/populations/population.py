"""Many hosts that are trained at once. Shapes: N = hosts, S = slots."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
from torch import nn

from esper.arrays import Flags, Floats
from esper.config.checks import check
from esper.config.growth import GovernorConfig, GrowthConfig, PopulationConfig
from esper.config.memory import BYTES_PER_WEIGHT, require_memory
from esper.errors import ConfigError, IllegalActionError, SlotError, UnsupportedHostError
from esper.growth.governor import GovernorReport, LossWatch
from esper.growth.host_slots import slots
from esper.growth.modules import count_parameters, named_tensors, parameters_of, seeded
from esper.growth.slot_states import Outcome, SlotLife, SlotStates, is_gate_open
from esper.growth.surgery_slots import SurgerySlot
from esper.lifecycle.factored_actions import ALPHA_CURVES, STYLES, GrowthAction, Op
from esper.lifecycle.slot_arrays import NO_BLUEPRINT, SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.lifecycle.stages import Stage
from esper.populations.host import Host, HostCosts, form_of
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
from esper.populations.tally import EpochTally
from esper.populations.vector_hosts import VectorHosts

Form = Literal["auto", "compiled", "torch"]

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


class Population:
    """Hosts that are trained independently of one another.

    The compiled kernel trains many at a time; torch trains those that the kernel cannot express,
    one after another. Results do not depend on which hosts are trained together.
    """

    def __init__(
        self,
        build: BuildHost,
        specs: Sequence[HostSpec],
        config: PopulationConfig | None = None,
        *,
        form: Form = "auto",
        objective: Objective | None = None,
        growth_config: GrowthConfig | None = None,
        max_slots: int = 0,
    ) -> None:
        """Build the hosts.

        Args:
            build: Builds a host with slots from a seed; the same seed gives the same host.
            specs: Seed, data and settings of each host, which override the following.
            config: Training settings.
            form: See :func:`make_population`.
            objective: Loss and metric; classification by default.
            growth_config: Minimum number of epochs in each stage; by default the built host's.
            max_slots: Slots of the host with the most, if it may come later.

        Raises:
            ConfigError: If there are no hosts, or their data do not fit them.
            UnsupportedHostError: If ``form`` is "compiled" and a host cannot be compiled.
        """
        if not specs:
            raise ConfigError("specs is empty; pass at least one HostSpec.")
        self.form: Form = check("form", form, Form)
        self.build = build
        self.config = config or PopulationConfig()
        self.objective = objective or CrossEntropy()
        self.growth_config = growth_config
        self._data_check = DataCheck()
        self._known_costs: dict[Any, HostCosts] = {}
        self._blueprints: tuple[str, ...] = ()
        first = self._make_host(0, specs[0])
        n_weights = count_parameters(first.model)
        require_memory(
            BYTES_PER_WEIGHT * n_weights * len(specs), hosts=len(specs), parameters=n_weights
        )
        others = (self._make_host(host, spec) for host, spec in enumerate(specs) if host)
        self._hosts = [first, *others]
        self.is_finished: Flags = np.zeros(len(specs), np.bool_)
        self._watch = LossWatch(len(specs), GovernorConfig())
        most = max(len(held.slots) for held in self._hosts)
        self._slot_arrays = SlotArrays.blank(len(specs), max(max_slots, most))
        self._forms: dict[tuple[int, str], tuple[Any, bool]] = {}
        """What programs depend on, by host and slot, and whether the model is plain there."""
        self._vector_hosts = VectorHosts(self._hosts, self._slot_arrays.alpha)
        for host in range(len(specs)):
            self._follow(host)

    def __repr__(self) -> str:
        n_weights = count_parameters(self._hosts[0].model)
        return f"Population({self.n_hosts} hosts, the first of {n_weights:,} parameters)"

    @property
    def n_hosts(self) -> int:
        """Number of hosts."""
        return len(self._hosts)

    @property
    def specs(self) -> list[HostSpec]:
        """The specification of each host."""
        return [held.spec for held in self._hosts]

    @property
    def orders(self) -> list[BatchOrder]:
        """The batch order of each host."""
        return [held.order for held in self._hosts]

    @property
    def slot_config(self) -> SlotConfig:
        """The slots of the first host."""
        return self._hosts[0].slots.slot_config

    def slot_config_of(self, host: int) -> SlotConfig:
        """Return the slots of a host."""
        return self._hosts[host].slots.slot_config

    def costs_of(self, host: int) -> HostCosts:
        """Return the size and the FLOPs of a host before growth."""
        return self._hosts[host].costs

    def training_flops(self, host: int) -> float:
        """Return the FLOPs of training a host as it is on one sample."""
        return self._hosts[host].flops(None)

    def forms(self) -> dict[str, int]:
        """Return how many hosts are "compiled", and how many run in torch, by the reason."""
        counts: dict[str, int] = {}
        for host in range(self.n_hosts):
            reason = (
                "it was asked for" if self.form == "torch" else self._vector_hosts.explain(host)
            )
            name = "compiled" if reason is None else f"torch: {reason}"
            counts[name] = counts.get(name, 0) + 1
        return counts

    def describe_forms(self) -> str | None:
        """Return a sentence about hosts that the kernel does not train; None if it trains all."""
        forms = self.forms()
        reasons = [name.removeprefix("torch: ") for name in forms if name != "compiled"]
        n_torch = self.n_hosts - forms.get("compiled", 0)
        which = "all hosts" if n_torch == self.n_hosts else f"{n_torch} of {self.n_hosts} hosts"
        if not reasons:
            return None
        return (
            f"PyTorch trains {which}, with the same results as the compiled kernel, but more "
            f"slowly: {'; '.join(reasons)}"
        )

    def measure(self, spec: HostSpec) -> HostCosts:
        """Return the size and the FLOPs of a host that is not part of the population."""
        return self._make_host(0, spec).costs

    def train_epoch(self, hosts: Sequence[int] | None = None) -> EpochTally:
        """Train unfinished hosts, all by default, for one epoch and advance their slots.

        A host that the governor rolls back loses its uncommitted seeds; the others are not
        affected.
        """
        tally = EpochTally(self.n_hosts, self._slot_arrays.stage.shape[1])
        chosen = self._require_hosts(range(self.n_hosts) if hosts is None else hosts)
        active = [host for host in chosen if not self.is_finished[host]]
        is_compiled = np.zeros(len(active), np.bool_)
        if self.form != "torch" and active:
            is_compiled = self._vector_hosts.can_train(active)
        compiled = [host for host, flag in zip(active, is_compiled.tolist(), strict=True) if flag]
        if compiled:
            self._vector_hosts.train(compiled, self._watch, tally)
            for host, reason in tally.failures.items():
                tally.interventions[host] = self._roll_back(host, reason)
        growing = (self._slot_arrays.stage != Stage.DORMANT).any(1)
        for host, is_own in zip(active, is_compiled.tolist(), strict=True):
            held = self._hosts[host]
            if not is_own:
                held.train_in_torch(host, self._watch, tally)
            if growing[host]:
                held.slots.tick()
            held.end_epoch(is_own)
        return tally

    def _roll_back(self, host: int, reason: str) -> GovernorReport:
        """Restore the state of a host before the epoch and prune its uncommitted seeds."""
        held = self._hosts[host]
        held.restore()
        self._watch.on_rollback(host)
        return GovernorReport(reason, tuple(held.slots.abandon_growing()))

    def evaluate(
        self,
        split: Split = "validation",
        *,
        hosts: Sequence[int] | None = None,
        without_slot: str | int | None = None,
        committed_only: bool = False,
    ) -> Evaluation:
        """Evaluate hosts, optionally with some seeds left out.

        Args:
            split: The split to evaluate on.
            hosts: Indices of the hosts; all by default.
            without_slot: Leave out the seed in this slot, given by name or number.
            committed_only: Leave out all uncommitted seeds.
        """
        chosen = self._require_hosts(range(self.n_hosts) if hosts is None else hosts)
        losses, metrics, flops = np.zeros((3, len(chosen)))
        by_ablation: dict[Ablation, list[int]] = {}
        for index, host in enumerate(chosen):
            ablation = Ablation(self._slot_name(host, without_slot), committed_only)
            by_ablation.setdefault(ablation, []).append(index)
            samples = len(self._hosts[host].spec.data.split(split)[0])
            flops[index] = samples * self._hosts[host].flops(ablation)
        for ablation, indices in by_ablation.items():
            some = [chosen[index] for index in indices]
            is_compiled = np.zeros(len(some), np.bool_)
            if self.form != "torch":
                is_compiled = self._vector_hosts.can_evaluate(some, ablation)
            pairs = list(zip(indices, is_compiled.tolist(), strict=True))
            if at := [index for index, flag in pairs if flag]:
                compiled = [chosen[index] for index in at]
                found = self._vector_hosts.evaluate(compiled, split, ablation)
                losses[at], metrics[at] = found
            for index in (index for index, flag in pairs if not flag):
                measured = self._hosts[chosen[index]].evaluate_in_torch(split, ablation)
                losses[index], metrics[index] = measured
        return Evaluation(losses, metrics, flops)

    def _slot_name(self, host: int, slot: str | int | None) -> str | None:
        if isinstance(slot, str):
            self.slot_config_of(host).slot_index(slot)
        return self.slot_config_of(host).slot_ids[slot] if isinstance(slot, int) else slot

    def lives(self, host: int) -> SlotStates:
        """Return the lives of a host's slots."""
        return self._hosts[host].slots.lives

    def model(self, host: int) -> nn.Module:
        """Return a copy of a host as a separate model with its slots and seeds."""
        model = copy.deepcopy(self._hosts[host].model)
        for tensor in named_tensors(model).values():  # copies of views may keep the whole memory
            tensor.data = tensor.data.clone()
        return model

    def get_state(self, host: int) -> HostState:
        """Return everything that the next epoch of a host depends on."""
        state = self._hosts[host].get_state()
        state.facts["losses"] = self._watch.get_state(host)
        state.facts["is_finished"] = bool(self.is_finished[host])
        return state

    def set_state(self, host: int, state: HostState) -> None:
        """Load a host state.

        Raises:
            ConfigError: If the state belongs to a host of another design or size; the host is
                then not changed.
        """
        self._require_hosts([host])
        self._put(host, self._load(host, state), state.facts)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all hosts as tensors and plain values."""
        return join_states([self.get_state(host) for host in range(self.n_hosts)])

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
        loaded = [self._load(host, own) for host, own in enumerate(states)]
        for host, (held, own) in enumerate(zip(loaded, states, strict=True)):
            self._put(host, held, own.facts)

    def _load(self, host: int, state: HostState) -> Host:
        """Return a host as a state describes it."""
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
        held = self._make_host(host, self._hosts[host].spec)
        try:
            held.load_state(state)
        except ConfigError as error:
            raise ConfigError(f"the state does not fit host {host}: {error}") from error
        return held

    def _put(self, host: int, held: Host, facts: dict[str, Any]) -> None:
        """Replace a host by one that was loaded."""
        self._hosts[host] = held
        self._watch.set_state(facts["losses"], host)
        self.is_finished[host] = facts["is_finished"]
        self._follow(host)

    def restart(self, host: int, spec: HostSpec) -> None:
        """Replace a host by a new one with its own data and seed."""
        self._require_hosts([host])
        self._hosts[host] = self._make_host(host, spec)
        self._watch.forget(host)
        self.is_finished[host] = False
        self._follow(host)

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
        outcome = self._hosts[host].slots.apply(action)
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
        held = self._hosts[host]
        if held.order.epoch:
            raise SlotError(
                f"host {host} has been trained for {held.order.epoch} epochs; plant seeds before "
                "training."
            )
        for seed in seeds:
            slot = seed.action.slot
            if held.slots[slot].stage == Stage.FOSSILIZED:
                held.slots.absorb(slot)
            held.slots.n_germinated = seed.number
            self.apply(host, seed.action)
            if held.slots[slot].stage != Stage.FOSSILIZED:
                held.slots.commit(slot)
        held.touch()

    def finish(self, host: int) -> None:
        """Stop training a host; it can still be evaluated, copied and restarted."""
        self._require_hosts([host])
        self.is_finished[host] = True

    def end_growth(self, host: int, *, keep: bool) -> None:
        """Commit the blended seeds of a host, or remove them; remove those that are not blended."""
        self._require_hosts([host])
        self._hosts[host].slots.end_growth(keep=keep)
        self._hosts[host].touch()

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as live arrays; treat them as read-only.

        Those that a host lacks are dormant for ever.
        """
        return self._slot_arrays

    def _require_hosts(self, hosts: Sequence[int]) -> list[int]:
        """Return host indices as a list; raise if one is out of range."""
        for host in hosts:
            if not 0 <= host < self.n_hosts:
                raise ConfigError(f"there is no host {host}; hosts are 0 to {self.n_hosts - 1}.")
        return list(hosts)

    def _make_host(self, host: int, spec: HostSpec) -> Host:
        """Build the host that a specification describes, and check that its data fit."""
        build, objective = spec.build or self.build, spec.objective or self.objective
        growth = spec.growth or self.growth_config
        with seeded(spec.seed):
            model = build(spec.seed)
        self._blueprints = self._blueprints or slots(model).slot_config.blueprints
        if slots(model).slot_config.blueprints != self._blueprints:
            raise ConfigError(
                f"the slots of host {host} have blueprints "
                f"{slots(model).slot_config.blueprints}; the population has {self._blueprints}. "
                "Register blueprints before creating the population."
            )
        slots(model).seed = spec.seed
        if growth is not None:
            slots(model).lives.growth_config = growth
        shapes = tuple(tuple(parameter.shape) for parameter in parameters_of(model))
        design = type(model), shapes, tuple(slots(model))
        self._data_check.require_fit(host, spec, model, design, objective)
        held = Host(model, spec, spec.training or self.config, objective, name=f"host {host}")
        size = design, held.input_shape
        if size not in self._known_costs:
            self._known_costs[size] = held.measure()
        held.costs = self._known_costs[size]
        return held

    def _follow(self, host: int) -> None:
        """Keep the slot arrays and the kernel's jobs in sync with a host."""
        held, arrays = self._hosts[host], self._slot_arrays
        arrays.clear_lives(host)
        lives = held.slots.lives
        lives.on_change = partial(self._on_slot_change, host)
        for slot, life in lives.items():
            self._forms.pop((host, slot), None)
            self._on_slot_change(host, slot, life)
        self._vector_hosts.replace(host)
        reason = self._vector_hosts.explain(host) if self.form == "compiled" else None
        if reason is not None:
            raise UnsupportedHostError(
                f"host {host} cannot be compiled: {reason}; use form='auto' or 'torch'."
            )

    def _on_slot_change(self, host: int, slot: str, life: SlotLife) -> None:
        held, arrays = self._hosts[host], self._slot_arrays
        config, at = held.slots.slot_config, (host, held.slots.slot_config.slot_index(slot))
        write_slot(arrays, at, life, config, held.slots.lives.growth_config)
        place, form = held.slots[slot], form_of(life)
        is_plain = isinstance(place, SurgerySlot) and not life.is_growing
        known = self._forms.get((host, slot), (None, True))
        if known[0] != form:
            self._forms[host, slot] = form, is_plain
            write_fossils(arrays, at, life, place.count_fossils())
            arrays.parameters[at] = place.count_live()
            if not (is_plain and known[1]):  # committed units and blocks are a plain model's
                held.note_life()


def make_population(
    build: BuildHost,
    specs: Sequence[HostSpec],
    config: PopulationConfig | None = None,
    *,
    form: Form = "auto",
    objective: Objective | None = None,
    growth_config: GrowthConfig | None = None,
) -> Population:
    """Return a population of hosts.

    Args:
        build: Builds a host with slots from a seed; the same seed gives the same host.
        specs: Seed, data and settings of each host.
        config: Training settings.
        form: "auto" to compile the hosts that can be, "torch" to train all with torch, which gives
            the same up to rounding, or "compiled" to reject hosts that cannot be compiled.
        objective: Loss and metric; classification by default.
        growth_config: Minimum number of epochs in each stage; by default the built host's.

    Raises:
        ConfigError: If ``form`` is unknown.
        UnsupportedHostError: If ``form`` is "compiled" and a host cannot be compiled.

    Examples:
        >>> inputs, targets = torch.randn(32, 2), torch.arange(32) % 3
        >>> data = esper.HostData(inputs, targets, inputs, targets)
        >>> specs = [esper.HostSpec(seed=seed, data=data) for seed in range(4)]
        >>> config = esper.MLPHostConfig(n_features=2, n_classes=3)
        >>> def build(seed):
        ...     return esper.make_host(config, seed=seed)
        >>> hosts = esper.make_population(build, specs)
        >>> report = hosts.train_epoch()
    """
    options: dict[str, Any] = {"objective": objective, "growth_config": growth_config}
    return Population(build, specs, config, form=form, **options)
