"""Training and evaluating hosts of a stacked population with the compiled kernel.

Shapes: K = hosts that are computed, T = steps of the longest epoch, S = slots, Q = parts of a host:
itself, then the seed and the gate of each slot, then those of each fossil.

Each host has a program for the kernel. Only classifiers and regressors made of linear layers or 3x3
convolutions have one; others, and all hosts if the kernel was not built, use tensor operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats
from esper.config.growth import OPTIMIZERS
from esper.growth.slot_states import Fossil, SlotLife
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from esper.populations.host_data import (
    Ablation,
    CrossEntropy,
    HostData,
    Objective,
    Split,
    SquaredError,
)
from esper.populations.host_models import CostTable
from esper.populations.rows import RowStore, Shapes
from esper.populations.segments import EpochTally
from esper.populations.stacked_slots import GroupKey, Layer
from esper.populations.vector_programs import (
    Fragments,
    NoProgramError,
    Program,
    RowLayout,
    SeedPlan,
    write_program,
)

try:
    from esper.populations import _vector_hosts as _kernel
except ImportError:
    _kernel = None

if TYPE_CHECKING:
    from esper.populations.stacked import StackedPopulation


MAX_SAMPLES = 256
"""Largest batch size that the kernel supports."""

MAX_PROGRAMS = 1_000
"""Most programs that are kept for hosts of the same structure to share."""

_JOB_FIELDS = ("plan", "inputs", "targets", "numbers", "n_batches", "batch", "losses", "squares")
_JOBS = np.dtype([(name, np.int64) for name in (*_JOB_FIELDS, "alphas", "parts")])
_PART_ADDRESSES, _PART_NUMBERS = ("data", "plane", "buffers", "row"), ("rate", "n_steps")
_PARTS = np.dtype(
    [(name, np.int64) for name in _PART_ADDRESSES] + [(name, np.float64) for name in _PART_NUMBERS]
)
_RULE = np.dtype(
    [(name, np.int64) for name in ("kind", "n_parts", "objective")]
    + [(name, np.float64) for name in ("weight_decay", "momentum", "beta1", "beta2", "eps")]
)


def is_kernel_available() -> bool:
    """Return whether the compiled kernel was built when Esper was installed."""
    return _kernel is not None


@dataclass(frozen=True, eq=False)
class _HeldSeed:
    """A computed seed or fossil of a host."""

    number: int
    """Index of its alpha: the slot's for a seed, then one for each fossil."""
    key: GroupKey
    life: SlotLife | Fossil

    @property
    def part(self) -> int:
        """Index of its part; that of its gate is the next."""
        return 1 + 2 * self.number

    @property
    def is_gated(self) -> bool:
        """Whether it has a learned gate."""
        return self.life.style == BlendStyle.LEARNED_GATE


class _Samples:
    """The samples of one split of a host, contiguous in memory."""

    def __init__(self, data: HostData, split: Split) -> None:
        self.data = data
        self._tensors: list[Tensor] = [tensor.contiguous() for tensor in data.split(split)]
        self.inputs_address, self.targets_address = (each.data_ptr() for each in self._tensors)
        self.count = len(self._tensors[0])


@dataclass(eq=False)
class _Structure:
    """What hosts of one size have in common while they hold the same seeds in the same way."""

    parts: list[tuple[int, GroupKey | Layer | None, bool]]
    """Index, store (a group of seeds, a layer's gates, None for hosts) and whether it is growing,
    of each part."""
    fossil_alphas: list[float]
    training_flops: float
    """FLOPs of training on one sample."""
    origin: tuple[Shapes, CostTable]
    """The objects whose identity distinguishes structures."""
    programs: dict[Ablation | None, Program | None] = field(
        default_factory=dict[Ablation | None, Program | None]
    )
    """Programs for training (None) and for evaluation, by ablation."""
    evaluation_flops: dict[Ablation, float] = field(default_factory=dict[Ablation, float])
    """FLOPs of evaluating one sample, by ablation."""


class VectorHosts:
    """Trains and evaluates the hosts that have a program."""

    def __init__(self, population: StackedPopulation) -> None:
        self.population = population
        config = population.config
        data = population.specs[0].data
        objective = _objective_kind(population.objective, data)
        self._is_possible = (
            _kernel is not None
            and objective is not None
            and data.train_inputs.ndim in (2, 4)
            and population.state.hosts.data.dtype == data.train_inputs.dtype
            and data.train_inputs.dtype in (torch.float32, torch.float64)
        )
        kind = OPTIMIZERS.index(config.optimizer)
        numbers = (config.weight_decay, config.momentum, config.beta1, config.beta2)
        self._rule = np.array([(kind, 0, objective or 0, *numbers, config.adam_eps)], _RULE)
        self._forms: dict[int, list[Any]] = {}
        """What the structure of each host depends on, by slot."""
        self._structures: dict[int, _Structure] = {}
        """The current structure of each host."""
        self._known: dict[Any, _Structure] = {}
        """All structures by what distinguishes them."""
        self._data: dict[tuple[int, Split], _Samples] = {}
        self._programs: dict[Any, tuple[Program | None, Any]] = {}
        """Programs by signature, with the shapes whose identity is part of it."""
        self._fragments: dict[int, tuple[Shapes, Fragments]] = {}
        """Fragments of hosts of one size, by the identity of their shapes."""
        self._seed_plans: dict[Any, SeedPlan] = {}

    def forget(self, host: int) -> None:
        """Drop the structure of a host that was replaced, or whose seeds have moved."""
        self._structures.pop(host, None)

    def follow(self, host: int, slot: int, life: SlotLife) -> None:
        """Drop the structure of a host if a slot has changed in a way that it depends on."""
        forms = self._forms.setdefault(host, [None] * self.population.slot_config.max_slots)
        form = _form_of(life)
        if forms[slot] != form:
            forms[slot] = form
            self.forget(host)

    def has_program(self, host: int) -> bool:
        """Return whether the kernel can train a host in its current state."""
        is_possible = self._is_possible and self.population.orders[host].batch_size <= MAX_SAMPLES
        return is_possible and self._program(host, None) is not None

    def can_evaluate(self, host: int, ablation: Ablation) -> bool:
        """Return whether the kernel can evaluate a host in its current state."""
        return self._is_possible and self._program(host, ablation) is not None

    def evaluation_flops(self, host: int, ablation: Ablation) -> float:
        """Return the FLOPs of evaluating a host in its current state on one sample."""
        known = self._structure(host).evaluation_flops
        if ablation not in known:
            population = self.population
            costs, lives = population.costs_of(host), population.lives(host)
            known[ablation] = costs.evaluation_flops(lives, ablation)
        return known[ablation]

    def train(self, hosts: Sequence[int], tally: EpochTally) -> None:
        """Train hosts that have a program for one epoch and record every step."""
        population = self.population
        orders = [population.orders[host] for host in hosts]
        structures = [self._structure(host) for host in hosts]
        lengths = np.array([order.n_batches for order in orders])
        sizes = np.array([order.batch_size for order in orders])
        batches = [order.draw_epoch() for order in orders]
        numbers = np.concatenate([own.reshape(-1) for own in batches])
        firsts = np.cumsum(lengths * sizes) - lengths * sizes
        # Each step, then the last batch again after the last step.
        losses = np.full((len(hosts), lengths.max() + 1), np.nan)
        squares = np.zeros((len(hosts), lengths.max(), self._count_parts(structures)))
        jobs = self._jobs(hosts, "train", None)
        jobs["numbers"] = numbers.ctypes.data + 8 * firsts
        jobs["n_batches"], jobs["batch"] = lengths, sizes
        jobs["losses"], jobs["squares"] = _addresses(losses), _addresses(squares)
        self._run(0, hosts, structures, jobs)
        self._count_steps(hosts, structures, lengths)
        step_flops = sizes * np.array([own.training_flops for own in structures])
        self._record_steps(np.array(hosts), lengths, losses, squares, step_flops, tally)

    def evaluate(
        self, hosts: Sequence[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        """Return the mean loss and metric of hosts ``[K]`` with some seeds left out."""
        structures = [self._structure(host) for host in hosts]
        sizes = np.array([self._samples(host, split).count for host in hosts])
        # All samples of a host, starting with its first.
        numbers = np.zeros(1, np.int64)
        totals = np.zeros((len(hosts), 2))
        jobs = self._jobs(hosts, split, ablation)
        jobs["numbers"], jobs["n_batches"] = numbers.ctypes.data, sizes
        jobs["losses"] = _addresses(totals)
        self._run(1, hosts, structures, jobs)
        return totals[:, 0] / sizes, totals[:, 1] / sizes

    def _jobs(self, hosts: Sequence[int], split: Split, ablation: Ablation | None) -> NDArray[Any]:
        samples = [self._samples(host, split) for host in hosts]
        programs = [self._program(host, ablation) for host in hosts]
        jobs = np.zeros(len(programs), _JOBS)
        jobs["plan"] = [program.address for program in programs if program is not None]
        jobs["inputs"] = [own.inputs_address for own in samples]
        jobs["targets"] = [own.targets_address for own in samples]
        return jobs

    def _samples(self, host: int, split: Split) -> _Samples:
        data = self.population.specs[host].data
        found = self._data.get((host, split))
        if found is None or found.data is not data:
            found = self._data[host, split] = _Samples(data, split)
        return found

    def _run(
        self, what: int, hosts: Sequence[int], structures: Sequence[_Structure], jobs: NDArray[Any]
    ) -> None:
        assert _kernel is not None
        is_double = self.population.state.hosts.data.dtype == torch.float64
        parts, _tables = self._parts(hosts, structures)
        of_seeds = self.population.slot_arrays().alpha[np.array(hosts)]
        n_fossils = max(len(own.fossil_alphas) for own in structures)
        of_fossils = [_padded(own.fossil_alphas, n_fossils) for own in structures]
        alphas = np.concatenate([of_seeds, np.array(of_fossils).reshape(len(hosts), -1)], 1)
        self._rule["n_parts"] = parts.shape[1]
        jobs["alphas"], jobs["parts"] = _addresses(alphas), _addresses(parts)
        _kernel.run(
            what,
            is_double,
            torch.get_num_threads(),
            len(jobs),
            jobs.ctypes.data,
            self._rule.ctypes.data,
        )

    def _parts(
        self, hosts: Sequence[int], structures: Sequence[_Structure]
    ) -> tuple[NDArray[Any], list[NDArray[np.int64]]]:
        """Return the addresses, learning rates and step counts of each host's parts, ``[K, Q]``.

        Also return the tables of buffers that they point to.
        """
        population = self.population
        n_parts = self._count_parts(structures)
        layouts: dict[Any, tuple[dict[int, int], int, int, int, list[float], int]] = {}
        tables: list[NDArray[np.int64]] = []
        indices = list[int]()
        columns = {name: list[float]() for name in (*_PART_ADDRESSES, *_PART_NUMBERS)}
        data, planes, buffers, own_rows, rates, steps = columns.values()
        for index, (host, own) in enumerate(zip(hosts, structures, strict=True)):
            rate = population.learning_rate(host)
            seed_rate = rate * population.config.seed_lr_factor
            for number, key, is_growing in own.parts:
                layout = layouts.get(key)
                if layout is None:
                    store = self._store(key)
                    tables.append(_table_buffers(store))
                    layout = layouts[key] = (*_memory_layout(store), tables[-1].ctypes.data)
                rows, address, stride, plane, n_steps, table = layout
                row = rows[host]
                indices.append(index * n_parts + number)
                data.append(address + row * stride)
                planes.append(plane)
                buffers.append(table)
                own_rows.append(row)
                rates.append(seed_rate if is_growing else rate)
                steps.append(n_steps[row])
        parts = np.zeros(len(hosts) * n_parts, _PARTS)
        for name, values in columns.items():
            parts[name][indices] = values
        return parts.reshape(len(hosts), n_parts), tables

    def _count_parts(self, structures: Sequence[_Structure]) -> int:
        """Return the largest number of parts of any host."""
        n_slots = self.population.slot_config.max_slots
        return 1 + 2 * (n_slots + max(len(own.fossil_alphas) for own in structures))

    def _store(self, key: GroupKey | Layer | None) -> RowStore:
        state = self.population.state
        if key is None:
            return state.hosts
        return state.gates[key] if isinstance(key, Layer) else state.groups[key]

    def _count_steps(
        self, hosts: Sequence[int], structures: Sequence[_Structure], lengths: NDArray[np.int64]
    ) -> None:
        added: dict[Any, tuple[list[int], list[int]]] = {}
        for host, own, n_steps in zip(hosts, structures, lengths.tolist(), strict=True):
            for _, key, _ in own.parts:
                entry = added.setdefault(key, ([], []))
                entry[0].append(host)
                entry[1].append(n_steps)
        for key, (own_hosts, steps) in added.items():
            store = self._store(key)
            if store.sizes:  # a store without parameters is never updated
                rows = [store.rows[host] for host in own_hosts]
                store.steps[rows] += steps
                for name, counts in store.buffers.items():
                    if name.endswith("num_batches_tracked"):
                        counts[rows] += torch.tensor(steps)

    def _record_steps(
        self,
        hosts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        losses: Floats,
        squares: Floats,
        step_flops: Floats,
        tally: EpochTally,
    ) -> None:
        """Record the steps of all hosts in order, as if they had been taken one by one.

        Then check the loss of each host after its last step.
        """
        watch = self.population.state.watch
        norms = np.sqrt(squares.sum(2))
        # Fossils come after the seeds; their gradients count as the host's.
        of_seeds = squares[:, :, 1 : 1 + 2 * self.population.slot_config.max_slots]
        seed_norms = np.sqrt(of_seeds[:, :, ::2] + of_seeds[:, :, 1::2])
        for step in range(squares.shape[1]):
            now = slice(None) if lengths.min() > step else lengths > step
            tally.record_step(
                watch,
                hosts[now],
                losses[now, step],
                norms[now, step],
                seed_norms[now, step],
                step_flops[now],
            )
        tally.check_losses(watch, hosts, losses[np.arange(len(hosts)), lengths])

    def _structure(self, host: int) -> _Structure:
        """Return the structure of a host; equal hosts share it."""
        structure = self._structures.get(host)
        if structure is None:
            state = self.population.state
            held = self._held_seeds(host)
            keys = tuple(seed.key for seed in held)
            shapes, costs = (
                state.hosts.own_shapes[state.hosts.rows[host]],
                self.population.costs_of(host),
            )
            key = id(shapes), id(costs), keys, *self._forms[host]
            structure = self._known.get(key)
            if structure is None:
                # Those of seeds long gone would pile up.
                if len(self._known) >= MAX_PROGRAMS:
                    self._known.clear()
                structure = self._known[key] = self._describe(host, held, (shapes, costs))
            self._structures[host] = structure
        return structure

    def _describe(
        self, host: int, seeds: Sequence[_HeldSeed], origin: tuple[Shapes, CostTable]
    ) -> _Structure:
        parts: list[tuple[int, GroupKey | Layer | None, bool]] = [(0, None, False)]
        for held in seeds:
            is_growing = isinstance(held.life, SlotLife) and held.life.is_growing
            parts.append((held.part, held.key, is_growing))
            if held.is_gated:
                parts.append((held.part + 1, held.key.layer, is_growing))
        alphas = [held.life.alpha for held in seeds if isinstance(held.life, Fossil)]
        flops = origin[1].training_flops(self.population.lives(host))
        return _Structure(parts, alphas, flops, origin)

    def _held_seeds(self, host: int) -> list[_HeldSeed]:
        """Return the fossils and the computed seed of each slot of a host, in order."""
        state, found = self.population.state, list[_HeldSeed]()
        number = self.population.slot_config.max_slots
        for index, (slot, life) in enumerate(state.lives[host].items()):
            for n_below, fossil in enumerate(life.fossils):
                key = state.find_seed(host, Layer(slot, n_below))
                assert key is not None, "every fossil is computed"
                found.append(_HeldSeed(number, key, fossil))
                number += 1
            key = state.find_seed(host, state.top(host, slot)) if life.is_computing else None
            if key is not None:
                found.append(_HeldSeed(index, key, life))
        return found

    def _program(self, host: int, ablation: Ablation | None) -> Program | None:
        """Return a host's program for training (None) or evaluation."""
        programs = self._structure(host).programs
        if ablation not in programs:
            programs[ablation] = self._find_program(host, ablation)
        return programs[ablation]

    def _find_program(self, host: int, ablation: Ablation | None) -> Program | None:
        """Return a program that may be shared with other structures."""
        own = self._structure(host).origin[0]
        signature: list[Any] = [id(own)]
        seeds: list[_HeldSeed] = []
        for held in self._held_seeds(host):
            life = held.life
            is_live = isinstance(life, SlotLife)
            if is_live and ablation is not None and ablation.excludes(held.key.layer.slot, life):
                continue
            seeds.append(held)
            is_isolated = is_live and ablation is None and life.stage == Stage.TRAINING
            signature.append((held.number, held.key, life.blueprint, life.style, is_isolated))
        known = tuple(signature)
        if known not in self._programs:
            # Hosts hold the programs they run; those of structures long gone would pile up.
            if len(self._programs) >= MAX_PROGRAMS:
                self._programs.clear()
            program = self._write(host, own, seeds, is_training=ablation is None)
            self._programs[known] = (program, own)
        return self._programs[known][0]

    def _write(
        self, host: int, own: Shapes, seeds: Sequence[_HeldSeed], *, is_training: bool
    ) -> Program | None:
        population = self.population
        plans: dict[str, list[tuple[int, SeedPlan]]] = {}
        for held in seeds:
            plan = self._seed_plan(host, held, is_training=is_training)
            plans.setdefault(held.key.layer.slot, []).append((held.number, plan))
        store = population.state.hosts
        layout = RowLayout(0, store.shapes, own, tuple(store.buffers))
        inputs = tuple(population.specs[host].data.train_inputs.shape[1:])
        _, fragments = self._fragments.setdefault(id(own), (own, {}))
        try:
            return write_program(population.template, layout, inputs, plans, fragments)
        except NoProgramError:
            return None

    def _seed_plan(self, host: int, held: _HeldSeed, *, is_training: bool) -> SeedPlan:
        """Return the plan of a seed; seeds of the same kind share it."""
        state, design = self.population.state, self.population.design
        life, layer, store = held.life, held.key.layer, state.groups[held.key]
        shapes = store.own_shapes[store.rows[host]]
        is_isolated = is_training and isinstance(life, SlotLife) and life.stage == Stage.TRAINING
        key = held.key, tuple(shapes.items()), life.style, is_isolated
        if key not in self._seed_plans:
            seed, gate = design.seed(held.key), None
            if held.is_gated:
                gates = state.gates[layer]
                gate = (design.gate(layer).template, RowLayout(2, gates.shapes, gates.shapes))
            self._seed_plans[key] = SeedPlan(
                template=seed.template,
                form=seed.form,
                layout=RowLayout(1, store.shapes, shapes, tuple(store.buffers)),
                style=life.style,
                is_isolated=is_isolated,
                gate=gate,
            )
        return self._seed_plans[key]


def _objective_kind(objective: Objective, data: HostData) -> int | None:
    """Return the kernel's number of an objective; None if it cannot compute it for the targets."""
    targets, kind = data.train_targets, type(objective)
    if kind is CrossEntropy and targets.ndim == 1 and targets.dtype == torch.int64:
        return 0
    if kind is SquaredError and targets.ndim <= 2 and targets.dtype == data.train_inputs.dtype:
        return 1
    return None


def _form_of(life: SlotLife) -> tuple[Any, ...]:
    """Return what the structure of a host depends on in one of its slots."""
    if not life.is_computing:
        return (life.fossils,)
    is_isolated = life.stage == Stage.TRAINING
    return (
        life.fossils,
        life.blueprint,
        life.style,
        is_isolated,
        life.is_growing,
        life.affects_output,
    )


def _padded(numbers: list[float], length: int) -> list[float]:
    return numbers + [0.0] * (length - len(numbers))


def _memory_layout(store: RowStore) -> tuple[dict[int, int], int, int, int, list[float]]:
    """Return the row of each host, the address, the row and plane strides, and the step counts.

    The row stride is in bytes, the plane stride in elements.
    """
    data = store.data
    assert data.stride(2) == 1, "the parameters of a row are not contiguous"
    stride = data.stride(1) * data.element_size()
    return store.rows, data.data_ptr(), stride, data.stride(0), store.steps.tolist()


def _table_buffers(store: RowStore) -> NDArray[np.int64]:
    """Return the address and the row stride in bytes of each buffer of a store."""
    buffers = store.buffers.values()
    table = [(buffer.data_ptr(), buffer.stride(0) * buffer.element_size()) for buffer in buffers]
    return np.array(table, np.int64)


def _addresses(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the address of each entry along the first axis of an array."""
    return array.ctypes.data + array.strides[0] * np.arange(len(array))
