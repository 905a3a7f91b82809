"""One host: a plain model with its slots, optimizer, batch order and governor."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from esper.config.growth import PopulationConfig
from esper.errors import ConfigError, UnsupportedHostError, blame_user_code
from esper.growth.footprint import forward_flops, training_step_flops
from esper.growth.governor import Governor, GovernorReport, LossWatch
from esper.growth.host_slots import Slot, slot_size
from esper.growth.modules import (
    count_parameters,
    named_parameters,
    named_tensors,
    parameters_of,
    seeded,
    unchanged_buffers,
)
from esper.growth.optimizers import copied_state
from esper.growth.ranks import Ranks
from esper.growth.sites import SlotSize
from esper.growth.slot_states import SlotLife
from esper.lifecycle.stages import Stage
from esper.populations.host_data import (
    Ablation,
    BatchOrder,
    HostSpec,
    HostState,
    Objective,
    Split,
    sample_means,
)
from esper.populations.tally import EpochTally
from esper.populations.trained_model import TrainedModel
from esper.populations.vector_programs import NoProgramError, Program, TensorTable, write_program

EVALUATION_BATCH = 512


def moment_names(config: PopulationConfig) -> tuple[str, ...]:
    """Return torch's names of the optimizer's state for each parameter."""
    if config.optimizer == "sgd":
        return ("momentum_buffer",) if config.momentum else ()
    return ("exp_avg", "exp_avg_sq")


def make_optimizer(
    model: nn.Module, config: PopulationConfig, learning_rate: float, *, fused: bool = False
) -> Optimizer:
    """Return the optimizer of one host; a fused one is faster and differs in the last digits."""
    parameters = parameters_of(model)
    decay, is_fused = config.weight_decay, fused or None
    if config.optimizer == "sgd":
        return SGD(
            parameters, learning_rate, momentum=config.momentum, weight_decay=decay, fused=is_fused
        )
    betas = (config.beta1, config.beta2)
    kind = Adam if config.optimizer == "adam" else AdamW
    return kind(
        parameters,
        learning_rate,
        betas=betas,
        eps=config.adam_eps,
        weight_decay=decay,
        fused=is_fused,
    )


@dataclass(frozen=True)
class HostCosts:
    """The size of a host before growth, and its FLOPs for one sample."""

    host_forward: float
    host_training: float
    host_parameters: int
    slot_sizes: tuple[SlotSize, ...]
    """The size of each slot."""


LINE = 64
"""Bytes that the numbers are aligned to."""


class HostMemory:
    """Step counts, parameters, moments and buffers; the model's and optimizer's own are views.

    Parameters and buffers stay the same objects.
    """

    def __init__(
        self, table: TensorTable, optimizer: Optimizer, moments: Sequence[str], *, has_steps: bool
    ) -> None:
        """Move the tensors here.

        Args:
            table: The tensors of the model, all of one dtype.
            optimizer: The optimizer of its parameters.
            moments: The names of the optimizer's moments.
            has_steps: Whether the optimizer counts the steps of each parameter.
        """
        dtype = table.parameters[0].dtype
        first = -(-4 * len(table.parameters) // LINE) * LINE
        length = first + table.length * dtype.itemsize
        whole = torch.zeros(length, dtype=torch.uint8)
        steps = whole[: 4 * len(table.parameters)].view(torch.float32)
        self._numbers: Tensor = whole[first:].view(dtype)
        end = table.n_planes * table.plane
        planes = self._numbers[:end].view(table.n_planes, table.plane)
        # As grown parameters differ in age, each has a step count of its own, as in torch.
        counts: list[Tensor] = list(cast(Any, steps).unbind(0))
        pieces: list[Tensor] = list(cast(Any, planes).split(table.sizes, 1))
        for index, piece in enumerate(pieces):
            parameter = table.parameters[index]
            views = piece.view(table.n_planes, *table.shapes[index]).unbind(0)
            state: dict[str, Any] = {}
            if moments:
                state = optimizer.state.setdefault(parameter, {})
            for name, view in zip(moments, views[1:], strict=True):
                if state.get(name) is not None:
                    view.copy_(state[name])
                state[name] = view
            if has_steps:
                if "step" in state:
                    counts[index].copy_(state["step"])
                state["step"] = counts[index]
            parameter.data = views[0].copy_(parameter.data)
        rest = cast(Any, self._numbers[end:]).split(table.buffer_sizes)
        for buffer, own in zip(table.buffers, rest, strict=True):
            own.copy_(buffer.flatten())
            buffer.data = own.view(buffer.shape)
        self._bytes = whole.numpy()
        self._saved = self._bytes.copy()
        self.steps_address: int = steps.data_ptr()
        self.address: int = self._numbers.data_ptr()
        self._values = [self._numbers[: table.plane], self._numbers[end:]]

    def is_finite(self) -> bool:
        """Return whether all parameters and buffers are finite."""
        return all(bool(torch.isfinite(values).all()) for values in self._values)

    def save(self) -> None:
        """Save the current state for :meth:`restore`."""
        np.copyto(self._saved, self._bytes)

    def restore(self) -> None:
        """Restore the saved state, at first the initial one."""
        np.copyto(self._bytes, self._saved)


class Host(TrainedModel):
    """A model with data of its own, trained by torch or by the kernel.

    The kernel works on the model's own tensors, which are then views of one block of memory.
    """

    def __init__(
        self,
        model: nn.Module,
        spec: HostSpec,
        config: PopulationConfig,
        objective: Objective,
        *,
        name: str,
    ) -> None:
        """Prepare to train a new model by these settings, which the specification may override."""
        self.learning_rate = spec.learning_rate or config.learning_rate
        self.optimizer = make_optimizer(model, config, self.learning_rate)
        super().__init__(model, [self.optimizer])
        self.spec, self.config, self.objective, self._name = spec, config, objective, name
        self.order = BatchOrder(
            spec.seed,
            len(spec.data.train_inputs),
            spec.batch_size or config.batch_size,
            spec.batches_per_epoch or config.batches_per_epoch,
        )
        self.costs: HostCosts
        """Those before growth, which hosts of the same size share."""
        self.memory: HostMemory | None = None
        """What holds the tensors for the kernel; None until it needs them again."""
        self.counters: list[Tensor] = []
        """Buffers that count the batches of training."""
        self._table: TensorTable | None = None
        self._programs: dict[Ablation | tuple[str, ...] | None, Program | str] = {}
        """By what is left out, or the slots whose seeds that are; None for training."""
        self._flops: dict[Ablation | None, float] = {}
        self._is_watched = False
        """Whether there is a governor."""
        self._is_kept = False
        """Whether the governor's snapshot is the current state."""
        first = next(model.parameters(), None)
        self.is_double: bool = first is not None and first.dtype == torch.float64
        self.on_change: Callable[[], None] | None = None
        """Called when the programs of the host are out of date."""
        self.slots.listeners.append(self._on_new_parameters)

    @property
    def input_shape(self) -> tuple[int, ...]:
        """The shape of a sample."""
        return tuple(self.spec.data.train_inputs.shape[1:])

    def measure(self) -> HostCosts:
        """Return the costs of the host, in which nothing has grown yet."""
        sizes = tuple(map(slot_size, self.slots.values()))
        evaluation = self.flops(Ablation())
        return HostCosts(evaluation, self.flops(None), count_parameters(self.model), sizes)

    def note_life(self) -> None:
        """Drop what depends on the stages and styles of seeds."""
        self._programs.clear()
        self._flops.clear()
        if self.on_change is not None:
            self.on_change()

    def _on_new_parameters(self) -> None:
        self._table = self.memory = None
        self.note_life()

    def program(self, ablation: Ablation | None) -> Program | str:
        """Return the program that trains (None) or evaluates the host; or why none does."""
        found = self._programs.get(ablation)
        if found is None:
            key = None if ablation is None else self._left_out(ablation)
            found = self._programs.get(key)
            if found is None:
                try:
                    found = self._programs[key] = self._write(key)
                except NoProgramError as error:
                    found = self._programs[key] = str(error)
            self._programs[ablation] = found
        return found

    def _left_out(self, ablation: Ablation) -> tuple[str, ...] | None:
        """Return the slots whose seeds an evaluation leaves out; None if it runs what is trained.

        The kernel sums apart what uncommitted seeds compute, so that is not quite what it trains.
        """
        seeds = [(name, life) for name, life in self.slots.lives.items() if life.has_seed]
        off = tuple(name for name, life in seeds if ablation.excludes(name, life))
        return off if off or any(life.is_growing for _, life in seeds) else None

    def _write(self, left_out: tuple[str, ...] | None) -> Program:
        if self._table is None:
            self._table = TensorTable(self.model, 1 + len(moment_names(self.config)))
        if (problem := self._table.problem) is not None:
            raise NoProgramError(problem)
        seeds = self._describe_seeds(self._table) if left_out is None else ()
        off, is_training = left_out or (), left_out is None
        with torch.set_grad_enabled(is_training), self.slots.without(lambda n, _: n in off):
            program, counters = write_program(
                self.model, self._table, self.input_shape, list(self.slots), seeds
            )
        if left_out is None:
            self.counters = counters
        return program

    def _mode(self, ablation: Ablation | None) -> ExitStack:
        """Return the context of training (None) or of evaluating with some seeds left out."""
        stack = ExitStack()
        stack.enter_context(torch.set_grad_enabled(ablation is None))
        if ablation is not None:
            stack.enter_context(self.slots.without(ablation.excludes))
        return stack

    def _describe_seeds(self, table: TensorTable) -> tuple[tuple[int, float], ...]:
        """Return the norm's column and the rate's factor of each parameter; () without seeds."""
        found = {
            id(parameter): (1 + number, 1.0)
            for number, slot in enumerate(self.slots.values())
            for parameter in uncommitted_parameters(slot)
        }
        return tuple(found.get(id(p), (0, 1.0)) for p in table.parameters) if found else ()

    def lay_out(self) -> HostMemory:
        """Return the memory that holds the host's tensors, making it at first use."""
        if self.memory is None:
            assert self._table is not None, "a host with a program has a table"
            names = moment_names(self.config)
            has_steps = self.config.optimizer != "sgd"
            self.memory = HostMemory(self._table, self.optimizer, names, has_steps=has_steps)
        return self.memory

    def flops(self, ablation: Ablation | None) -> float:
        """Return the FLOPs of training (None) or evaluating the host as it is on one sample."""
        if ablation not in self._flops:
            program = self.program(ablation)
            if isinstance(program, Program):
                is_training = ablation is None
                found = program.training_flops if is_training else program.forward_flops
            else:
                found = self._count_flops(ablation)
            self._flops[ablation] = found
        return self._flops[ablation]

    def _count_flops(self, ablation: Ablation | None) -> float:
        sample = self.spec.data.train_inputs[:2]
        with self._mode(ablation):
            count = training_step_flops if ablation is None else forward_flops
            return count(self.model, sample) / len(sample)

    def train_in_torch(self, number: int, watch: LossWatch, tally: EpochTally) -> None:
        """Train an epoch with torch and the governor; do not advance the slots.

        Args:
            number: The number of the host in the other arguments.
            watch: The statistics of all hosts' losses.
            tally: What the epoch of all hosts comes to.
        """
        self._start_governor()
        self.governor.watch = watch.of_host(number)
        self.start_epoch(tally, number)
        report = self._train_batches() or self.governor.check_parameters()
        if report is not None:
            tally.interventions[number] = report
            self._on_new_parameters()  # its optimizer's state was replaced

    def _train_batches(self) -> GovernorReport | None:
        """Train on all batches of an epoch; return the governor's report if it rolls back."""
        inputs, targets = self.spec.data.split("train")
        batches = torch.from_numpy(self.order.draw_epoch())
        cost = self.order.batch_size * self.flops(None)
        self.model.train()
        with seeded(self.order.noise_seed):
            for batch in batches:
                loss = self._loss(inputs[batch], targets[batch])
                self.tally.flops[self.number] += cost
                loss.backward()
                if (report := self.step(loss)) is not None:
                    return report
            with torch.no_grad(), unchanged_buffers(self.model):
                value = self._loss(inputs[batches[-1]], targets[batches[-1]]).item()
            return self.governor.check_loss(value)

    def _start_governor(self) -> None:
        """Let the governor know the current state, which is good."""
        if not self._is_watched:
            self.governor = Governor(self.model, self.optimizer, ranks=Ranks())
        elif not self._is_kept:
            self.governor.keep(is_good=True)
        self._is_watched = self._is_kept = True

    def end_epoch(self, is_compiled: bool) -> None:
        """Keep the state after an epoch and the advance of the slots, which is good."""
        if is_compiled:
            self._is_kept = False
            if self.memory is not None:
                self.memory.save()
        elif self._is_watched:
            self.governor.keep()

    def restore(self) -> None:
        """Undo an epoch of the kernel."""
        assert self.memory is not None, "a compiled host has memory"
        self.memory.restore()
        for counter in self.counters:
            counter -= self.order.n_batches

    def touch(self) -> None:
        """Note that something other than training has changed the state."""
        self._is_kept = False
        if self.memory is not None and self.memory.is_finite():
            self.memory.save()

    def _loss(self, inputs: Tensor, targets: Tensor) -> Tensor:
        return self.objective.losses(self.run(inputs), targets).mean()

    def run(self, inputs: Tensor) -> Tensor:
        """Return the model's outputs; an error names the model."""
        try:
            return self.model(inputs)
        except Exception as error:
            blame_user_code(
                UnsupportedHostError,
                error,
                self._name,
                f"on inputs of shape {list(inputs.shape)}; fix its forward().",
            )

    def evaluate_in_torch(self, split: Split, ablation: Ablation) -> tuple[float, float]:
        """Return the mean loss and the mean metric on a split with some seeds left out."""
        self.model.eval()
        with self._mode(ablation):
            return evaluate(self.run, self.objective, *self.spec.data.split(split))

    def get_state(self) -> HostState:
        """Return everything that the next epoch depends on, but for the population's facts."""
        tensors = {f"model/{n}": t.detach().clone() for n, t in named_tensors(self.model).items()}
        for name, parameter in named_parameters(self.model).items():
            for key, value in _trained_state(self.optimizer, parameter).items():
                tensors[f"optimizer/{key}/{name}"] = value
        lives = self.slots.lives.to_json()
        facts = {"lives": lives, "n_germinated": self.slots.n_germinated}
        return HostState(tensors, facts | {"batch_order": self.order.get_state()})

    def load_state(self, state: HostState) -> None:
        """Load a state into a new host.

        Raises:
            ConfigError: If the state belongs to a host with other slots or tensors.
        """
        lives = state.facts["lives"]
        if lives.keys() != self.slots.keys():
            raise ConfigError(
                f"the state has slots {', '.join(lives)}, but the host has "
                f"{', '.join(self.slots)}; load a state of the same design."
            )
        self.slots.lives.load_json(lives)
        self.slots.n_germinated = state.facts["n_germinated"]
        self.slots.rebuild_seeds()
        own = named_tensors(self.model)
        given = {n.removeprefix("model/"): t for n, t in state.tensors.items() if n[:6] == "model/"}
        _require_tensors(own, given)
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(given[name])
        self.optimizer.state.clear()
        for key, value in state.tensors.items():
            kind, _, rest = key.partition("/")
            if kind == "optimizer":
                entry, _, name = rest.partition("/")
                parameter = own.get(name)
                if not isinstance(parameter, nn.Parameter) or (
                    entry != "step" and value.shape != parameter.shape
                ):
                    raise ConfigError(
                        f"the state has {entry} {list(value.shape)} of {name}, which does not fit "
                        "the host; load a state of hosts of the same size."
                    )
                self.optimizer.state.setdefault(parameter, {})[entry] = value.clone()
        self.order.set_state(state.facts["batch_order"])
        self._on_new_parameters()
        self._is_kept = False


def _require_tensors(own: dict[str, Tensor], given: dict[str, Tensor]) -> None:
    """Raise if the tensors of a state do not match a host's in name and shape."""
    hint = "load a state of hosts of the same size."
    for name in own.keys() ^ given.keys():
        has, lacks = ("state", "host") if name in given else ("host", "state")
        raise ConfigError(f"the {has} has a tensor {name}, but the {lacks} does not; {hint}")
    for name, tensor in own.items():
        if tensor.shape != given[name].shape:
            raise ConfigError(
                f"{name} has shape {list(given[name].shape)} in the state, but "
                f"{list(tensor.shape)} in the host; {hint}"
            )


def _trained_state(optimizer: Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
    """Return the optimizer's state of a parameter; empty if it is that of an untrained one."""
    state: dict[str, Any] = optimizer.state.get(parameter, {})
    known = {key: value for key, value in state.items() if isinstance(value, Tensor)}
    if not any(bool(value.any()) for value in known.values()):
        return {}
    return copied_state(known)


def uncommitted_parameters(slot: Slot) -> list[nn.Parameter]:
    """Return the parameters that are the uncommitted seed's of a slot alone."""
    return slot.seed_parameters() if slot.life.is_growing else []


def form_of(life: SlotLife) -> tuple[Any, ...]:
    """Return what the programs of a host depend on in one of its slots."""
    if not life.has_seed:
        return (life.fossils,)
    flags = life.stage == Stage.TRAINING, life.is_computing, life.is_growing
    effect = life.affects_output, life.alpha == 1.0  # hooks blend units and blocks in until then
    return (life.fossils, life.blueprint, life.style, *flags, *effect)


def evaluate(
    run: Callable[[Tensor], Tensor], objective: Objective, inputs: Tensor, targets: Tensor
) -> tuple[float, float]:
    """Return the mean loss and the mean metric of what computes outputs, batch by batch."""
    totals, n = [0.0, 0.0], len(inputs)
    for start in range(0, n, EVALUATION_BATCH):
        batch = slice(start, start + EVALUATION_BATCH)
        outputs = run(inputs[batch])
        for index, measure in enumerate((objective.losses, objective.metrics)):
            totals[index] += sample_means(measure(outputs, targets[batch])).sum().item()
    return totals[0] / n, totals[1] / n
