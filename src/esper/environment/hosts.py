"""The hosts of episodes: one population for each design of a task, numbered consecutively.

Hosts whose designs are drawn have a population each. Their slots are padded to the number of the
hosts with the most: the slots that a host lacks are dormant for ever and no blueprint fits them.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.environment.draws import FinalSplit, make_host_data
from esper.errors import TaskError
from esper.growth.slot_states import Outcome
from esper.lifecycle.factored_actions import STYLES, BlendStyle, decode_action
from esper.lifecycle.slot_arrays import SlotArrays
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import (
    EpochReport,
    HostData,
    HostSpec,
    Population,
    make_population,
)
from esper.populations.factory import Form
from esper.populations.host_data import Split, join_states, split_states
from esper.populations.host_models import CostTable
from esper.tamiyo.policy.action_masks import ActionMasks, JointMasks, compute_array_masks
from esper.tamiyo.policy.observations import clip
from esper.tasks import Metric, Task, TaskDraw


@dataclass(frozen=True, eq=False)
class HostScores:
    """How well some hosts do on a split, one entry per host."""

    scores: Floats
    """Clipped to [-1, 1], so that a diverged host has a finite score."""
    losses: Floats
    flops: Floats


SparePopulations = dict[int, Population]
"""Populations of one host that are not in use, by the id of the function that makes the host."""


class HostGroup:
    """The hosts of one design: their draws and the population that trains them."""

    def __init__(
        self,
        task: Task,
        draw_seeds: Sequence[int],
        *,
        first: int,
        form: Form,
        final_split: FinalSplit,
        spares: SparePopulations | None = None,
    ) -> None:
        """Make a host for each draw seed; ``first`` is the number of the first among all hosts.

        ``spares`` are populations for other designs, if the task draws designs.
        """
        self.task, self.first, self.n_hosts = task, first, len(draw_seeds)
        self._form: Form = form
        self._final_split: FinalSplit = final_split
        self._spares = spares
        self._fixed_data: HostData | None = None
        drawn = [self._draw(seed) for seed in draw_seeds]
        self.draws: list[TaskDraw] = [draw for draw, _ in drawn]
        self._use(self._make_population([spec for _, spec in drawn]))

    @property
    def rows(self) -> slice:
        """Their positions among all hosts."""
        return slice(self.first, self.first + self.n_hosts)

    @property
    def metric(self) -> Metric:
        """What their scores measure."""
        return self.draws[0].metric or self.task.metric

    def price(self, host: int) -> float:
        """Return the price of a reference run's FLOPs for a host."""
        own = self.draws[host].flop_price
        return own if self.task.draws_price and own is not None else self.task.budget.flop_price

    def n_epochs(self, host: int) -> int:
        """Return the epochs of a host's episode: those that were drawn, within the budget."""
        maximum = self.task.budget.n_epochs
        return min(self.draws[host].n_epochs or maximum, maximum)

    def restart(self, host: int, seed: int) -> None:
        """Replace a host by that of another draw seed."""
        before = self.draws[host]
        self.draws[host], spec = self._draw(seed)
        if self._spares is None:
            self.population.restart(host, spec)
            return
        self.population.write_slots_to(SlotArrays.blank(1, self.population.slot_config.max_slots))
        self._spares.setdefault(id(before.make_host), self.population)
        spare = self._spares.pop(id(self.draws[host].make_host), None)
        if spare is not None:
            spare.restart(host, spec)
        self._use(spare or self._make_population([spec]))

    def start_again(self, host: int) -> None:
        """Replace a host by itself as it was before training."""
        self.population.restart(host, self.population.specs[host])

    def _make_population(self, specs: list[HostSpec]) -> Population:
        task, build = self.task, self.task.make_host
        if self._spares is not None:
            build = specs[0].build or build
        return make_population(
            build,
            specs,
            task.training,
            form="stacked" if self._spares is not None and self._form == "auto" else self._form,
            objective=self.metric.objective,
            growth_config=task.growth,
        )

    def _use(self, population: Population) -> None:
        """Train the hosts in this population from now on."""
        self.population = population
        is_paid = self.task.budget.parameter_rent > 0.0 or any(map(self.price, range(self.n_hosts)))
        own = population.slot_config
        own = replace(own, allow_finish=own.allow_finish and is_paid)
        self.slot_config = _padded(own, self.task.max_slots)
        """The slots of each host, and those that it lacks. Without costs it trains to the end."""
        self.seed_sizes = SeedSizes(population.costs, population.slot_config)

    def write_slots_to(self, arrays: SlotArrays) -> None:
        """Keep the state of all slots in these arrays from now on."""
        arrays.clear()
        self.population.write_slots_to(arrays)

    def reference_epoch_flops(self, host: int) -> float:
        """Return the FLOPs of training and validating the reference host for one epoch."""
        population, order = self.population, self.population.orders[host]
        return (
            order.n_batches * order.batch_size * population.costs.host_training
            + len(population.specs[host].data.validation_inputs) * population.costs.host_forward
        )

    def describe(self) -> dict[str, Any]:
        """Return everything that determines these hosts, as plain values."""
        task = self.task
        return {
            "task": task.name,
            "data": data_digest(task.sample(0)),
            "host": None
            if task.draws_designs
            else [list(p.shape) for p in self.population.template.parameters()],
            "budget": asdict(task.budget),
            "training": asdict(task.training),
            "growth": None if task.growth is None else asdict(task.growth),
            "slots": None if task.draws_designs else list(self.slot_config.slot_ids),
            "blueprints": list(self.slot_config.blueprints),
        }

    def _draw(self, seed: int) -> tuple[TaskDraw, HostSpec]:
        """Return the draw and specification of a seed's host; fixed data are shared."""
        draw = self.task.sample(seed)
        data = self._fixed_data or make_host_data(draw, self._final_split)
        self._fixed_data = None if self.task.data is None else data
        return draw, HostSpec(
            seed=seed,
            data=data,
            learning_rate=draw.learning_rate,
            build=draw.make_host,
            batch_size=draw.batch_size,
            batches_per_epoch=draw.batches_per_epoch,
        )


class Hosts:
    """All hosts of a task; those of its variants come last."""

    def __init__(
        self, task: Task, draw_seeds: Sequence[int], *, form: Form, final_split: FinalSplit
    ) -> None:
        """Make a host for each draw seed.

        Raises:
            TaskError: If there are fewer hosts than designs, or the designs differ in slots or
                blueprints.
        """
        n_designs, self.n_hosts = len(task.designs), len(draw_seeds)
        if self.n_hosts < n_designs:
            raise TaskError(
                f"num_envs is {self.n_hosts} and task {task.name!r} has {n_designs} host designs; "
                f"use at least {n_designs} environments, or a task with one design, such as "
                "digits-family with host='mlp'."
            )
        spares = SparePopulations() if task.draws_designs else None
        parts = [(task, 1)] * self.n_hosts
        if not task.draws_designs:
            parts = list(zip(task.designs, task.share_out(self.n_hosts), strict=True))
        groups, first = list[HostGroup](), 0
        for design, count in parts:
            options: dict[str, Any] = {"form": form, "final_split": final_split, "spares": spares}
            seeds = draw_seeds[first : first + count]
            groups.append(HostGroup(design, seeds, first=first, **options))
            _require_same_slots(groups[0], groups[-1])
            first += count
        self.groups = tuple(groups)
        self._places = [(group, number) for group in groups for number in range(group.n_hosts)]
        self.slot_config: SlotConfig = groups[0].slot_config
        """The slots of the first hosts; others may name theirs differently."""
        if task.draws_designs:
            names = tuple(f"slot.{number}" for number in range(task.max_slots))
            self.slot_config = SlotConfig(names, blueprints=self.slot_config.blueprints)
        self._slot_arrays = SlotArrays.blank(self.n_hosts, self.slot_config.max_slots)
        self._joint_masks: JointMasks | None = None
        if len(groups) > 1 or task.draws_designs:
            self._joint_masks = JointMasks(self.slot_config, self.n_hosts)
        self.reference_parameters: Integers = np.zeros(self.n_hosts, np.int64)
        """``[N]`` parameters of the reference host that rent is relative to."""
        for group in groups:
            self._follow(group)

    def _follow(self, group: HostGroup) -> None:
        """Take note of the population that a group uses."""
        rows = group.rows
        group.write_slots_to(self._slot_arrays.view(rows))
        self.reference_parameters[rows] = group.population.costs.host_parameters
        if self._joint_masks is not None:
            self._joint_masks.set_slots(rows, group.slot_config)

    def restart(self, host: int, seed: int) -> None:
        """Replace a host by that of another draw seed."""
        group, number = self.locate(host)
        group.restart(number, seed)
        if group.task.draws_designs:
            self._follow(group)

    @property
    def draws(self) -> list[TaskDraw]:
        """The draw that each host learns from."""
        return [draw for group in self.groups for draw in group.draws]

    @property
    def is_finished(self) -> Flags:
        """Hosts that train no further."""
        return _join([group.population.is_finished for group in self.groups])

    def locate(self, host: int) -> tuple[HostGroup, int]:
        """Return the group of a host and its number in that group."""
        return self._places[host]

    def by_group(self, hosts: Sequence[int]) -> Iterator[tuple[HostGroup, list[int], list[int]]]:
        """Iterate over groups with the indices into ``hosts`` and the numbers in the group."""
        by_group: dict[int, tuple[HostGroup, list[int], list[int]]] = {}
        for index, host in enumerate(hosts):
            group, number = self._places[host]
            _, indices, numbers = by_group.setdefault(group.first, (group, [], []))
            indices.append(index)
            numbers.append(number)
        yield from by_group.values()

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        arrays = self._slot_arrays
        state = (arrays.stage, arrays.age_epochs, arrays.alpha_at_rest, arrays.is_gate_open)
        stage, age, at_rest, is_open = (torch.from_numpy(values) for values in state)
        if self._joint_masks is not None:
            return self._joint_masks.compute(stage, age, at_rest, is_open)
        return compute_array_masks(stage, age, at_rest, self.slot_config, is_open)

    def slot_configs(self) -> list[SlotConfig]:
        """Return the slots of each host."""
        return [group.slot_config for group, _ in self._places]

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as live arrays; treat them as read-only."""
        return self._slot_arrays

    def seed_parameters(self) -> Integers:
        """Return the parameters of each slot's seed, ``[N, S]``; 0 without one."""
        arrays = self._slot_arrays
        return _join([group.seed_sizes.count(arrays.view(group.rows)) for group in self.groups])

    def apply(self, host: int, choices: Sequence[int]) -> Outcome:
        """Carry out a legal action of one host."""
        group, number = self.locate(host)
        return group.population.apply(number, decode_action(choices, group.slot_config))

    def train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch; the report is zero for the others."""
        joined = EpochReport.blank(self.n_hosts, self.slot_config.max_slots)
        for group in self.groups:
            if not group.population.is_finished.all():
                report, rows = group.population.train_epoch(), group.rows
                joined.losses[rows] = report.losses
                joined.gradient_norms[rows] = report.gradient_norms
                joined.flops[rows] = report.flops
                own = report.seed_gradient_norms
                joined.seed_gradient_norms[rows, : own.shape[1]] = own
                joined.gradient_noise[rows] = report.gradient_noise
                for host, why in report.interventions.items():
                    joined.interventions[group.first + host] = why
        return joined

    def evaluate(
        self,
        hosts: Sequence[int],
        split: Split = "validation",
        *,
        without_slot: int | None = None,
        committed_only: bool = False,
    ) -> HostScores:
        """Score hosts: as they are, without one slot's seed, or with committed seeds only."""
        found = HostScores(*(np.empty(len(hosts)) for _ in fields(HostScores)))
        for group, indices, numbers in self.by_group(hosts):
            slot = None if without_slot is None else group.slot_config.slot_ids[without_slot]
            evaluation = group.population.evaluate(
                split, hosts=numbers, without_slot=slot, committed_only=committed_only
            )
            scores = np.asarray(group.metric.score(evaluation.metrics), np.float64)
            found.scores[indices] = clip(scores, -1.0, 1.0, missing=-1.0)
            found.losses[indices], found.flops[indices] = evaluation.losses, evaluation.flops
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all hosts: tensors and plain values."""
        return join_states([group.population.get_state(number) for group, number in self._places])

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, with hosts of the same draw seeds."""
        for (group, number), own in zip(self._places, split_states(state), strict=True):
            group.population.set_state(number, own)


def _padded(slot_config: SlotConfig, n_slots: int) -> SlotConfig:
    """Return a configuration with at least so many slots; nothing grows in those added."""
    own = slot_config.slot_ids
    absent = tuple(f"absent.{number}" for number in range(len(own), n_slots))
    if not absent:
        return slot_config
    fits = {**slot_config.fits, **dict.fromkeys(absent, ())}
    return replace(slot_config, slot_ids=(*own, *absent), fits=fits)


_GATE = STYLES.index(BlendStyle.LEARNED_GATE)


class SeedSizes:
    """The parameter counts of seeds, looked up on first use and cached."""

    def __init__(self, costs: CostTable, slot_config: SlotConfig) -> None:
        self._costs, self._config = costs, slot_config
        self._sizes = np.full((slot_config.max_slots, len(slot_config.blueprints), 2), -1)
        """By slot, blueprint and whether the seed has a gate, without fossils; -1 if not looked up
        yet."""

    def count(self, arrays: SlotArrays) -> Integers:
        """Return the parameters of each slot's seed, its gate included, ``[N, S]``."""
        counts, config = np.zeros_like(arrays.parameters), self._config
        hosts, slots = np.nonzero(arrays.blueprint >= 0)
        if len(hosts):
            blueprints = arrays.blueprint[hosts, slots]
            is_gated = (arrays.style[hosts, slots] == _GATE).astype(np.int64)
            units = arrays.fossil_units[hosts, slots]
            found = self._sizes[slots, blueprints, is_gated]
            for index in np.flatnonzero((found < 0) | (units > 0)).tolist():
                key = int(slots[index]), int(blueprints[index]), int(is_gated[index])
                slot, blueprint = config.slot_ids[key[0]], config.blueprints[key[1]]
                work = self._costs.seed_work(slot, blueprint, bool(key[2]), int(units[index]))
                found[index] = work.parameters
                if units[index] == 0:
                    self._sizes[key] = found[index]
            counts[hosts, slots] = found
        return counts


def data_digest(draw: TaskDraw) -> str:
    """Return a short hash of a draw's data."""
    digest = hashlib.sha256()
    for _, samples in draw.data.splits():
        for tensor in (samples.inputs, samples.targets):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]


def _join(parts: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Concatenate the arrays of all groups; a single array is not copied."""
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _require_same_slots(first: HostGroup, other: HostGroup) -> None:
    """Reject a design that a controller of the first design could not steer."""
    what = f"a host of variant {other.task.name!r} of task {first.task.name!r}"
    n_slots, n_first = other.slot_config.max_slots, first.slot_config.max_slots
    if n_slots != n_first:
        raise TaskError(
            f"{what} has {n_slots} slots; it must have {n_first}, like the task's own hosts."
        )
    if other.slot_config.blueprints != first.slot_config.blueprints:
        raise TaskError(
            f"{what} has blueprints {', '.join(other.slot_config.blueprints)}; they must be "
            f"{', '.join(first.slot_config.blueprints)}, like those of the task's own hosts."
        )
