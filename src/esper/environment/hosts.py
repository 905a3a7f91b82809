"""The hosts of episodes: a population, and what was drawn for each of its hosts.

Draws may have hosts of several designs. Their slots are padded to the number of the hosts with the
most: the slots that a host lacks are dormant for ever and no blueprint fits them.

Shapes: N = hosts, S = slots.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import torch

from esper.arrays import Integers
from esper.environment.draws import FinalSplit, make_host_data
from esper.environment.engine import HostScores
from esper.errors import TaskError
from esper.lifecycle.slot_config import SlotConfig
from esper.populations import Form, HostData, HostSpec, Population
from esper.populations.host import HostCosts
from esper.populations.host_data import HostState, Split
from esper.tamiyo.policy.action_masks import ActionMasks, JointMasks, compute_array_masks
from esper.tamiyo.policy.observations import clip
from esper.tasks import Metric, Task, TaskDraw

DRAWS_BYTES = 64e6
"""Size of the data that are kept because the same hosts may come again."""


class KnownDraws:
    """Draws and specifications of a task's hosts by seed.

    The last ones are kept, because trials of several controllers and the baselines of rewards meet
    the same hosts again, and to draw a problem may take longer than to learn it.
    """

    def __init__(self, task: Task, final_split: FinalSplit) -> None:
        """Draw hosts of a task, whose final scores are measured on a split."""
        self.task = task
        self._final_split: FinalSplit = final_split
        self._fixed_data: HostData | None = None
        self._found: OrderedDict[int, tuple[TaskDraw, HostSpec]] = OrderedDict()
        self._n_bytes = 0

    def find(self, seed: int) -> tuple[TaskDraw, HostSpec]:
        """Return the draw and the specification of a seed's host."""
        if seed in self._found:
            self._found.move_to_end(seed)
            return self._found[seed]
        self._found[seed] = found = self._draw(seed)
        self._n_bytes += found[1].data.n_bytes
        while self._n_bytes > DRAWS_BYTES and len(self._found) > 1:
            _, (_, oldest) = self._found.popitem(last=False)
            self._n_bytes -= oldest.data.n_bytes
        return found

    def _draw(self, seed: int) -> tuple[TaskDraw, HostSpec]:
        """Draw a seed's host; fixed data are shared."""
        task = self.task
        draw = task.sample(seed)
        data = self._fixed_data or make_host_data(draw, self._final_split)
        if task.data is not None:
            self._fixed_data = data
        return draw, HostSpec(
            seed=seed,
            data=data,
            learning_rate=draw.learning_rate,
            build=draw.make_host or task.make_host,
            batch_size=draw.batch_size,
            batches_per_epoch=draw.batches_per_epoch,
            training=task.training,
            objective=(draw.metric or task.metric).objective,
            growth=task.growth,
        )


class Hosts(Population):
    """All hosts of a task."""

    def __init__(self, draws: KnownDraws, draw_seeds: Sequence[int], *, form: Form) -> None:
        """Make a host for each draw seed.

        Raises:
            TaskError: If the hosts differ in slots or blueprints.
        """
        self.task = task = draws.task
        self.known_draws = draws
        drawn = [draws.find(seed) for seed in draw_seeds]
        self.draws: list[TaskDraw] = [draw for draw, _ in drawn]
        """The draw that each host learns from."""
        specs = [spec for _, spec in drawn]
        super().__init__(task.make_host, specs, form=form, max_slots=task.max_slots)
        self._kept: dict[int, tuple[HostState, bool]] = {}
        """The state after the epoch that counts, and whether its blended seeds are kept."""
        own = specs[0] if task.draws_designs else replace(specs[0], build=task.make_host)
        self._reference: HostCosts = self.measure(own)
        """The costs of the task's own design."""
        self.shown_slots: SlotConfig = self._find_slots(0)
        """The slots as a controller sees them; hosts may name theirs differently."""
        self._slot_configs = [self.shown_slots]
        for host in range(1, self.n_hosts):
            own = self._find_slots(host) if task.draws_designs else self.shown_slots
            self._slot_configs.append(own)
            self._require_same_slots(host)
        self._joint_masks: JointMasks | None = None
        if task.draws_designs:
            names = tuple(f"slot.{number}" for number in range(task.max_slots))
            self.shown_slots = SlotConfig(names, blueprints=self.shown_slots.blueprints)
            self._joint_masks = JointMasks(self.shown_slots, self.n_hosts)
            for host, config in enumerate(self._slot_configs):
                self._joint_masks.set_slots(slice(host, host + 1), config)

    def reference_of(self, host: int) -> HostCosts:
        """Return the costs that those of a host are relative to."""
        return self.costs_of(host) if self.task.draws_designs else self._reference

    def _find_slots(self, host: int) -> SlotConfig:
        """Return the slots of a host, and those that it lacks."""
        own, task = super().slot_config_of(host), self.task
        prices = map(self.price, [host] if task.draws_designs else range(self.n_hosts))
        is_paid = task.budget.parameter_rent > 0.0 or any(prices)
        # Without costs a host trains to the end.
        return _padded(replace(own, allow_finish=own.allow_finish and is_paid), task.max_slots)

    def _require_same_slots(self, host: int) -> None:
        """Reject a host that a controller of the first host could not steer."""
        first, other = self._slot_configs[0], self._slot_configs[host]
        what = f"a host of task {self.task.name!r}"
        if other.max_slots != first.max_slots:
            raise TaskError(
                f"{what} has {other.max_slots} slots and another {first.max_slots}; max_slots "
                "must be those of the host with the most."
            )
        if other.blueprints != first.blueprints:
            raise TaskError(
                f"{what} has blueprints {', '.join(other.blueprints)}; they must be "
                f"{', '.join(first.blueprints)}, like those of the others."
            )

    def metric(self, host: int) -> Metric:
        """Return what the scores of a host measure."""
        return self.draws[host].metric or self.task.metric

    def price(self, host: int) -> float:
        """Return the price of a reference run's FLOPs for a host."""
        task, own = self.task, self.draws[host].flop_price
        return own if task.draws_price and own is not None else task.budget.flop_price

    def n_epochs(self, host: int) -> int:
        """Return the epochs of a host's episode: those that were drawn, within the budget."""
        maximum = self.task.budget.n_epochs
        return min(self.draws[host].n_epochs or maximum, maximum)

    @property
    def reference_parameters(self) -> Integers:
        """Parameters ``[N]`` of the reference host that rent is relative to."""
        costs = map(self.reference_of, range(self.n_hosts))
        return np.array([own.host_parameters for own in costs], np.int64)

    def reference_epoch_flops(self, host: int) -> float:
        """Return the FLOPs of training and validating the reference host for one epoch."""
        order, costs = self.orders[host], self.reference_of(host)
        n_validated = len(self.specs[host].data.validation_inputs)
        training = order.n_batches * order.batch_size * costs.host_training
        return training + n_validated * costs.host_forward

    def draw(self, host: int, seed: int) -> None:
        """Replace a host by that of another draw seed."""
        self.draws[host], spec = self.known_draws.find(seed)
        self.restart(host, spec)
        if self.task.draws_designs:
            self._slot_configs[host] = self._find_slots(host)
            assert self._joint_masks is not None, "the hosts have several designs"
            self._joint_masks.set_slots(slice(host, host + 1), self._slot_configs[host])

    def describe(self) -> dict[str, Any]:
        """Return everything that determines the hosts, as plain values."""
        task, config = self.task, self._slot_configs[0]
        return {
            "task": task.name,
            "data": data_digest(task.sample(0)),
            "host": None if task.draws_designs else self._reference.host_parameters,
            "budget": asdict(task.budget),
            "training": asdict(task.training),
            "growth": None if task.growth is None else asdict(task.growth),
            "slots": None if task.draws_designs else list(config.slot_ids),
            "blueprints": list(config.blueprints),
        }

    def masks(self) -> ActionMasks:
        """Return the legal actions of each host."""
        arrays = self.slot_arrays()
        state = (arrays.stage, arrays.age_epochs, arrays.alpha_at_rest, arrays.is_gate_open)
        stage, age, at_rest, is_open = (torch.from_numpy(values) for values in state)
        if self._joint_masks is not None:
            return self._joint_masks.compute(stage, age, at_rest, is_open)
        return compute_array_masks(stage, age, at_rest, self.shown_slots, is_open)

    @property
    def can_measure(self) -> bool:
        """Whether hosts can be evaluated without a seed."""
        return True

    def slot_configs(self) -> list[SlotConfig]:
        """Return the slots of each host, and those that it lacks."""
        return self._slot_configs

    def slot_config_of(self, host: int) -> SlotConfig:
        """Return the slots of a host, and those that it lacks."""
        return self._slot_configs[host]

    def score(
        self,
        hosts: Sequence[int],
        split: Split = "validation",
        *,
        without_slot: int | None = None,
        committed_only: bool = False,
    ) -> HostScores:
        """Score hosts: as they are, without one slot's seed, or with committed seeds only."""
        found = self.evaluate(
            split, hosts=hosts, without_slot=without_slot, committed_only=committed_only
        )
        scores = np.empty(len(hosts))
        by_metric: dict[int, tuple[Metric, list[int]]] = {}
        for index, host in enumerate(hosts):
            metric = self.metric(host)
            by_metric.setdefault(id(metric), (metric, []))[1].append(index)
        for metric, indices in by_metric.values():
            scores[indices] = np.asarray(metric.score(found.metrics[indices]), np.float64)
        scores = clip(scores, -1.0, 1.0, missing=-1.0)  # of a diverged host it is finite, too
        return HostScores(scores, found.losses, found.flops, scores)

    def keep(self, host: int, *, with_blended: bool) -> None:
        """Keep the state of a host until :meth:`restore_kept`, with or without blended seeds."""
        self._kept[host] = self.get_state(host), with_blended

    def restore_kept(self, host: int) -> None:
        """End growth in the state that was kept of a host, if one was."""
        if host in self._kept:
            state, with_blended = self._kept.pop(host)
            self.set_state(host, state)
            self.end_growth(host, keep=with_blended)


def _padded(slot_config: SlotConfig, n_slots: int) -> SlotConfig:
    """Return a configuration with at least so many slots; nothing grows in those added."""
    own = slot_config.slot_ids
    absent = tuple(f"absent.{number}" for number in range(len(own), n_slots))
    if not absent:
        return slot_config
    fits = {**slot_config.fits, **dict.fromkeys(absent, ())}
    return replace(slot_config, slot_ids=(*own, *absent), fits=fits)


def data_digest(draw: TaskDraw) -> str:
    """Return a short hash of a draw's data."""
    digest = hashlib.sha256()
    for _, samples in draw.data.splits():
        for tensor in (samples.inputs, samples.targets):
            digest.update(str(tuple(tensor.shape)).encode())
            digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()[:16]
