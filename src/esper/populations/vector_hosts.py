"""Training and evaluating hosts of a stacked population with the compiled kernel.

Shapes: K = hosts that are computed, T = steps of the longest epoch, S = slots, Q = parts of a host:
itself, then the seed and the gate of each slot, then those of each fossil.

Each host has a program for the kernel. Only classifiers of vectors made of linear layers have one;
others, and all hosts if the kernel was not built, use tensor operations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from esper.arrays import Floats
from esper.config.growth import OPTIMIZERS
from esper.growth.slot_lives import Fossil, SlotLife
from esper.lifecycle.factored_actions import BlendStyle
from esper.lifecycle.stages import Stage
from esper.populations.host_data import Ablation, CrossEntropy, HostData, Split
from esper.populations.rows import RowStore, Shapes
from esper.populations.segments import EpochTally
from esper.populations.stacked_slots import GroupKey, Layer
from esper.populations.vector_programs import (
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

MOST_PROGRAMS = 10_000
"""Most programs that are kept for hosts of the same structure to share."""

_JOB_FIELDS = ("plan", "inputs", "targets", "numbers", "n_batches", "batch", "losses", "squares")
_JOBS = np.dtype([(name, np.int64) for name in (*_JOB_FIELDS, "alphas", "parts")])
_PARTS = np.dtype(
    [("data", np.int64), ("plane", np.int64), ("rate", np.float64), ("n_steps", np.float64)]
)
_RULE = np.dtype(
    [("kind", np.int64), ("n_parts", np.int64)]
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


@dataclass(eq=False)
class _HostPlan:
    """The programs of a host, valid until one of its slots changes."""

    training: Program | None
    evaluation: dict[Ablation, Program | None]
    """Programs for evaluation, by ablation."""
    parts: list[tuple[int, GroupKey | Layer | None, float]]
    """Index, store (a group of seeds, a layer's gates, None for hosts) and rate of each part."""
    alphas: list[float]
    """Alpha of each slot's seed, then of each fossil."""
    sample_flops: float
    """FLOPs of training on one sample."""


class VectorHosts:
    """Trains and evaluates the hosts that have a program."""

    def __init__(self, population: StackedPopulation) -> None:
        self.population = population
        config = population.config
        data = population.specs[0].data
        self._is_possible = (
            _kernel is not None
            and type(population.objective) is CrossEntropy
            and data.train_inputs.ndim == 2
            and data.train_targets.ndim == 1
            and data.train_targets.dtype == torch.int64
            and not population.state.hosts.buffers
            and population.state.hosts.data.dtype == data.train_inputs.dtype
            and data.train_inputs.dtype in (torch.float32, torch.float64)
        )
        kind = OPTIMIZERS.index(config.optimizer)
        numbers = (config.weight_decay, config.momentum, config.beta1, config.beta2)
        self._rule = np.array([(kind, 0, *numbers, config.adam_eps)], _RULE)
        self._plans: dict[int, _HostPlan] = {}
        self._data: dict[tuple[int, Split], tuple[HostData, Tensor, Tensor]] = {}
        self._programs: dict[Any, tuple[Program | None, Any]] = {}
        """Programs by signature, with the shapes whose identity is part of it."""

    def forget(self, host: int) -> None:
        """Drop the plan of a host whose slots have changed."""
        self._plans.pop(host, None)

    def has_program(self, host: int) -> bool:
        """Return whether the kernel can train a host in its current state."""
        return self._is_possible and self._plan(host).training is not None

    def can_evaluate(self, host: int, ablation: Ablation) -> bool:
        """Return whether the kernel can evaluate a host in its current state."""
        return self._is_possible and self._evaluation_program(host, ablation) is not None

    def train(self, hosts: Sequence[int], tally: EpochTally) -> None:
        """Train hosts that have a program for one epoch and record every step."""
        population = self.population
        orders = [population.orders[host] for host in hosts]
        plans = [self._plan(host) for host in hosts]
        lengths = np.array([order.n_batches for order in orders])
        sizes = np.array([order.batch_size for order in orders])
        batches = [order.draw_epoch() for order in orders]
        numbers = np.concatenate([own.reshape(-1) for own in batches])
        firsts = np.cumsum(lengths * sizes) - lengths * sizes
        # Each step, then the last batch again after the last step.
        losses = np.full((len(hosts), lengths.max() + 1), np.nan)
        squares = np.zeros((len(hosts), lengths.max(), _count_parts(plans)))
        jobs = self._jobs(hosts, "train", [plan.training for plan in plans])
        jobs["numbers"] = numbers.ctypes.data + 8 * firsts
        jobs["n_batches"], jobs["batch"] = lengths, sizes
        jobs["losses"], jobs["squares"] = _addresses(losses), _addresses(squares)
        self._run(0, hosts, plans, jobs)
        self._count_steps(hosts, plans, lengths)
        step_flops = sizes * np.array([plan.sample_flops for plan in plans])
        self._record_steps(np.array(hosts), lengths, losses, squares, step_flops, tally)

    def evaluate(
        self, hosts: Sequence[int], split: Split, ablation: Ablation
    ) -> tuple[Floats, Floats]:
        """Return the mean loss and metric of hosts ``[K]`` with some seeds left out."""
        plans = [self._plan(host) for host in hosts]
        programs = [self._evaluation_program(host, ablation) for host in hosts]
        sizes = np.array([len(self._samples(host, split)[1]) for host in hosts])
        # All samples of a host, starting with its first.
        numbers = np.zeros(1, np.int64)
        totals = np.zeros((len(hosts), 2))
        jobs = self._jobs(hosts, split, programs)
        jobs["numbers"], jobs["n_batches"] = numbers.ctypes.data, sizes
        jobs["losses"] = _addresses(totals)
        self._run(1, hosts, plans, jobs)
        return totals[:, 0] / sizes, totals[:, 1] / sizes

    def _jobs(
        self, hosts: Sequence[int], split: Split, programs: Sequence[Program | None]
    ) -> NDArray[Any]:
        samples = [self._samples(host, split) for host in hosts]
        jobs = np.zeros(len(programs), _JOBS)
        jobs["plan"] = [program.address for program in programs if program is not None]
        jobs["inputs"] = [inputs.data_ptr() for inputs, _ in samples]
        jobs["targets"] = [targets.data_ptr() for _, targets in samples]
        return jobs

    def _samples(self, host: int, split: Split) -> tuple[Tensor, Tensor]:
        """Return a host's samples as contiguous tensors."""
        data = self.population.specs[host].data
        found = self._data.get((host, split))
        if found is None or found[0] is not data:
            inputs, targets = data.split(split)
            found = self._data[host, split] = (data, inputs.contiguous(), targets.contiguous())
        return found[1:]

    def _run(
        self, what: int, hosts: Sequence[int], plans: Sequence[_HostPlan], jobs: NDArray[Any]
    ) -> None:
        assert _kernel is not None
        is_double = self.population.state.hosts.data.dtype == torch.float64
        parts = self._parts(hosts, plans)
        alphas = np.zeros((len(plans), max(len(plan.alphas) for plan in plans)))
        for row, plan in zip(alphas, plans, strict=True):
            row[: len(plan.alphas)] = plan.alphas
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

    def _parts(self, hosts: Sequence[int], plans: Sequence[_HostPlan]) -> NDArray[Any]:
        """Return the addresses, learning rates and step counts of each host's parts, ``[K, Q]``."""
        parts = np.zeros((len(hosts), _count_parts(plans)), _PARTS)
        layouts: dict[Any, tuple[dict[int, int], int, int, int, Floats]] = {}
        for index, (host, plan) in enumerate(zip(hosts, plans, strict=True)):
            for number, key, rate in plan.parts:
                if key not in layouts:
                    layouts[key] = _memory_layout(self._store(key))
                rows, data, stride, plane, steps = layouts[key]
                row = rows[host]
                parts[index, number] = (data + row * stride, plane, rate, steps[row])
        return parts

    def _store(self, key: GroupKey | Layer | None) -> RowStore:
        state = self.population.state
        if key is None:
            return state.hosts
        return state.gates[key] if isinstance(key, Layer) else state.groups[key]

    def _count_steps(
        self, hosts: Sequence[int], plans: Sequence[_HostPlan], lengths: NDArray[np.int64]
    ) -> None:
        added: dict[Any, dict[int, int]] = {}
        for host, plan, n_steps in zip(hosts, plans, lengths.tolist(), strict=True):
            for _, key, _ in plan.parts:
                added.setdefault(key, {})[host] = n_steps
        for key, steps in added.items():
            store = self._store(key)
            if store.sizes:  # a store without parameters is never updated
                store.steps += np.array([steps.get(host, 0) for host in store.hosts])

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

    def _plan(self, host: int) -> _HostPlan:
        plan = self._plans.get(host)
        if plan is None:
            plan = self._plans[host] = self._make_plan(host)
        return plan

    def _make_plan(self, host: int) -> _HostPlan:
        population = self.population
        lives, config = population.state.lives[host], population.config
        rate = population.learning_rate(host)
        parts: list[tuple[int, GroupKey | Layer | None, float]] = [(0, None, rate)]
        alphas = [life.alpha for _, life in lives.items()]
        for held in self._held_seeds(host):
            is_growing = isinstance(held.life, SlotLife) and held.life.is_growing
            own = rate * config.seed_lr_factor if is_growing else rate
            parts.append((held.part, held.key, own))
            if held.is_gated:
                parts.append((held.part + 1, held.key.layer, own))
            if isinstance(held.life, Fossil):
                alphas.append(held.life.alpha)
        training = None
        if population.orders[host].batch_size <= MAX_SAMPLES:
            training = self._program(host, ablation=None)
        sample_flops = population.costs_of(host).training_flops(lives)
        return _HostPlan(training, {}, parts, alphas, sample_flops)

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

    def _evaluation_program(self, host: int, ablation: Ablation) -> Program | None:
        programs = self._plan(host).evaluation
        if ablation not in programs:
            programs[ablation] = self._program(host, ablation)
        return programs[ablation]

    def _program(self, host: int, ablation: Ablation | None) -> Program | None:
        """Return a host's program for training (None) or evaluation; equal hosts share it."""
        state = self.population.state
        own = state.hosts.own_shapes[state.hosts.hosts.index(host)]
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
            if len(self._programs) >= MOST_PROGRAMS:
                self._programs.clear()
            program = self._write(host, own, seeds, is_training=ablation is None)
            self._programs[known] = (program, own)
        return self._programs[known][0]

    def _write(
        self, host: int, own: Shapes, seeds: Sequence[_HeldSeed], *, is_training: bool
    ) -> Program | None:
        population = self.population
        state, design = population.state, population.design
        plans: dict[str, list[SeedPlan]] = {}
        for held in seeds:
            life, layer = held.life, held.key.layer
            store, seed = state.groups[held.key], design.seed(held.key)
            gate = None
            if held.is_gated:
                gates = state.gates[layer]
                layout = RowLayout(held.part + 1, gates.shapes, gates.shapes)
                gate = (design.gate(layer).template, layout)
            shapes = store.own_shapes[store.hosts.index(host)]
            is_isolated = isinstance(life, SlotLife) and life.stage == Stage.TRAINING
            plan = SeedPlan(
                number=held.number,
                template=seed.template,
                form=seed.form,
                layout=RowLayout(held.part, store.shapes, shapes),
                style=life.style,
                is_isolated=is_training and is_isolated,
                gate=gate,
            )
            plans.setdefault(layer.slot, []).append(plan)
        layout = RowLayout(0, state.hosts.shapes, own)
        n_inputs = population.specs[host].data.train_inputs.shape[1]
        try:
            return write_program(population.template, layout, n_inputs, plans)
        except NoProgramError:
            return None


def _count_parts(plans: Sequence[_HostPlan]) -> int:
    """Return the largest number of parts of any host."""
    return 1 + 2 * max(len(plan.alphas) for plan in plans)


def _memory_layout(store: RowStore) -> tuple[dict[int, int], int, int, int, Floats]:
    """Return the row of each host, the address, the row and plane strides, and the step counts.

    The row stride is in bytes, the plane stride in elements.
    """
    data = store.data
    assert data.is_contiguous(), "the data of a store are not contiguous"
    rows = {host: row for row, host in enumerate(store.hosts)}
    return (
        rows,
        data.data_ptr(),
        data.stride(1) * data.element_size(),
        data.stride(0),
        store.steps,
    )


def _addresses(array: NDArray[Any]) -> NDArray[np.int64]:
    """Return the address of each entry along the first axis of an array."""
    return array.ctypes.data + array.strides[0] * np.arange(len(array))
