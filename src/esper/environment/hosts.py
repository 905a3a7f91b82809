"""The hosts of episodes: one population for each design of a task, numbered consecutively.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from esper.arrays import Flags, Floats, Integers
from esper.environment.draws import FinalSplit, make_host_data
from esper.errors import TaskError, UnsupportedEnvironmentError
from esper.growth.slot_lives import Outcome
from esper.lifecycle.factored_actions import STYLES, BlendStyle, decode_action
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import (
    EpochReport,
    HostData,
    HostSpec,
    HostState,
    SlotArrays,
    make_population,
)
from esper.populations.factory import Form
from esper.populations.host_data import Split
from esper.populations.host_models import CostTable
from esper.tamiyo.policy.action_masks import ActionMasks, compute_array_masks
from esper.tamiyo.policy.observations import clip
from esper.tasks import Task, TaskDraw


@dataclass(frozen=True, eq=False)
class HostScores:
    """How well some hosts do on a split, one entry per host."""

    scores: Floats
    """Clipped to [-1, 1], so that a diverged host has a finite score."""
    losses: Floats
    flops: Floats


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
    ) -> None:
        self.task, self.first, self.n_hosts = task, first, len(draw_seeds)
        self._final_split: FinalSplit = final_split
        self._fixed_data: HostData | None = None
        drawn = [self._draw(seed) for seed in draw_seeds]
        self.draws: list[TaskDraw] = [draw for draw, _ in drawn]
        self.population = make_population(
            task.make_host,
            [spec for _, spec in drawn],
            task.training,
            form=form,
            objective=task.metric.objective,
            growth_config=task.growth,
        )
        self.slot_config = self.population.slot_config
        self.seed_sizes = SeedSizes(self.population.costs, self.slot_config)

    @property
    def rows(self) -> slice:
        """Their positions among all hosts."""
        return slice(self.first, self.first + self.n_hosts)

    def restart(self, host: int, seed: int) -> None:
        """Replace a host by that of another draw seed."""
        self.draws[host], spec = self._draw(seed)
        self.population.restart(host, spec)

    def masks(self) -> ActionMasks:
        """Return the legal actions of these hosts."""
        arrays = self.population.slot_arrays()
        return compute_array_masks(
            torch.from_numpy(arrays.stage),
            torch.from_numpy(arrays.age_epochs),
            torch.from_numpy(arrays.alpha_at_rest),
            self.slot_config,
            torch.from_numpy(arrays.is_gate_open),
        )

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
            "host": [list(p.shape) for p in self.population.template.parameters()],
            "budget": asdict(task.budget),
            "training": asdict(task.training),
            "growth": None if task.growth is None else asdict(task.growth),
            "slots": list(self.slot_config.slot_ids),
            "blueprints": list(self.slot_config.blueprints),
        }

    def _draw(self, seed: int) -> tuple[TaskDraw, HostSpec]:
        """Return the draw and specification of a seed's host; fixed data are shared."""
        draw = self.task.sample(seed)
        if self.task.data is None:
            data = make_host_data(draw, self._final_split)
        else:
            if self._fixed_data is None:
                self._fixed_data = make_host_data(draw, self._final_split)
            data = self._fixed_data
        return draw, HostSpec(
            seed=seed, data=data, learning_rate=draw.learning_rate, build=draw.make_host
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
        groups, first = list[HostGroup](), 0
        for design, count in zip(task.designs, task.share_out(self.n_hosts), strict=True):
            seeds = draw_seeds[first : first + count]
            groups.append(HostGroup(design, seeds, first=first, form=form, final_split=final_split))
            _require_same_slots(groups[0], groups[-1])
            first += count
        self.groups = tuple(groups)
        counts = [group.n_hosts for group in groups]
        references = [group.population.costs.host_parameters for group in groups]
        self.reference_parameters: Integers = np.repeat(references, counts)
        """``[N]`` parameters of the reference host that rent is relative to."""

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
        group = next(group for group in reversed(self.groups) if group.first <= host)
        return group, host - group.first

    def by_group(self, hosts: Sequence[int]) -> Iterator[tuple[HostGroup, list[int], list[int]]]:
        """Iterate over groups with the indices into ``hosts`` and the numbers in the group."""
        for group in self.groups:
            members = range(group.first, group.first + group.n_hosts)
            indices = [index for index, host in enumerate(hosts) if host in members]
            if indices:
                yield group, indices, [hosts[index] - group.first for index in indices]

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        return ActionMasks.join([group.masks() for group in self.groups])

    def slot_arrays(self) -> SlotArrays:
        """Return the state of all slots as read-only arrays."""
        parts = [group.population.slot_arrays() for group in self.groups]
        if len(parts) == 1:
            return parts[0]
        names = [field.name for field in fields(SlotArrays)]
        return SlotArrays(**{name: _join([getattr(p, name) for p in parts]) for name in names})

    def seed_parameters(self) -> Integers:
        """Return the parameters of each slot's seed and fossils, ``[N, S]``; 0 without any."""
        return _join([g.seed_sizes.count(g.population.slot_arrays()) for g in self.groups])

    def apply(self, host: int, choices: Sequence[int]) -> Outcome:
        """Carry out a legal action of one host."""
        group, number = self.locate(host)
        return group.population.apply(number, decode_action(choices, group.slot_config))

    def train_epoch(self) -> EpochReport:
        """Train every unfinished host for one epoch; the report is zero for the others."""
        n, n_slots = self.n_hosts, self.groups[0].slot_config.max_slots
        joined = EpochReport(
            losses=np.zeros(n),
            gradient_norms=np.zeros(n),
            flops=np.zeros(n),
            seed_gradient_norms=np.zeros((n, n_slots)),
            gradient_noise=np.zeros(n),
            interventions={},
        )
        for group in self.groups:
            if not group.population.is_finished.all():
                report, rows = group.population.train_epoch(), group.rows
                joined.losses[rows] = report.losses
                joined.gradient_norms[rows] = report.gradient_norms
                joined.flops[rows] = report.flops
                joined.seed_gradient_norms[rows] = report.seed_gradient_norms
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
            scores = np.asarray(group.task.metric.score(evaluation.metrics), np.float64)
            found.scores[indices] = clip(scores, -1.0, 1.0, missing=-1.0)
            found.losses[indices], found.flops[indices] = evaluation.losses, evaluation.flops
        return found

    def finish(self, host: int) -> None:
        """End the training of a host."""
        group, number = self.locate(host)
        group.population.finish(number)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of all hosts: tensors and plain values."""
        tensors, facts = dict[str, torch.Tensor](), list[dict[str, Any]]()
        for host in range(self.n_hosts):
            group, number = self.locate(host)
            state = group.population.get_state(number)
            tensors |= {f"{host}/{name}": tensor for name, tensor in state.tensors.items()}
            facts.append(state.facts)
        return {"tensors": tensors, "facts": facts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned, with hosts of the same draw seeds."""
        by_host: list[dict[str, torch.Tensor]] = [{} for _ in range(self.n_hosts)]
        for name, tensor in state["tensors"].items():
            host, _, rest = name.partition("/")
            by_host[int(host)][rest] = tensor
        for host, (tensors, facts) in enumerate(zip(by_host, state["facts"], strict=True)):
            group, number = self.locate(host)
            group.population.set_state(number, HostState(tensors, facts))

    def require_one_group(self) -> HostGroup:
        """Return the only group.

        Raises:
            UnsupportedEnvironmentError: If the hosts have several designs.
        """
        if len(self.groups) != 1:
            raise UnsupportedEnvironmentError(
                f"these hosts have {len(self.groups)} designs, each with its own population; use "
                "growth.hosts.groups, or environments of one design."
            )
        return self.groups[0]


_GATE = STYLES.index(BlendStyle.LEARNED_GATE)


class SeedSizes:
    """The parameter counts of seeds, looked up on first use and cached."""

    def __init__(self, costs: CostTable, slot_config: SlotConfig) -> None:
        self._costs, self._config = costs, slot_config
        self._sizes = np.full((slot_config.max_slots, len(slot_config.blueprints), 2), -1)
        """By slot, blueprint and whether the seed has a gate, without fossils; -1 if not looked up
        yet."""

    def count(self, arrays: SlotArrays) -> Integers:
        """Return the parameters of each slot's seed and fossils, gates included, ``[N, S]``."""
        counts = arrays.fossil_parameters.copy()
        hosts, slots = np.nonzero(arrays.blueprint >= 0)
        if len(hosts):
            blueprints = arrays.blueprint[hosts, slots]
            is_gated = (arrays.style[hosts, slots] == _GATE).astype(np.int64)
            units = arrays.fossil_units[hosts, slots]
            found = self._sizes[slots, blueprints, is_gated]
            for index in np.flatnonzero((found < 0) | (units > 0)).tolist():
                key = int(slots[index]), int(blueprints[index]), int(is_gated[index])
                found[index] = self._count(*key, int(units[index]))
                if units[index] == 0:
                    self._sizes[key] = found[index]
            counts[hosts, slots] += found
        return counts

    def _count(self, slot: int, blueprint: int, is_gated: int, units: int) -> int:
        config = self._config
        return self._costs.seed_work(
            config.slot_ids[slot], config.blueprints[blueprint], bool(is_gated), units
        ).parameters


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
