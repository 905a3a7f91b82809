"""The data of one host, its batch order, its objective and its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol, runtime_checkable
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper.config.checks import PositiveFloat, PositiveInt, Seed, Settings
from esper.config.growth import GrowthConfig, PopulationConfig
from esper.errors import ConfigError, ShapeError, message_of
from esper.formatting import array_text
from esper.growth.sites import describe
from esper.growth.slot_states import SlotLife
from esper.modes import evaluation_mode

Split = Literal["train", "validation", "final"]
SPLITS: tuple[Split, ...] = ("train", "validation", "final")
BuildHost = Callable[[int], nn.Module]
"""Builds a host with slots from a random seed."""


@runtime_checkable
class Objective(Protocol):
    """A loss and a metric of each prediction, for any leading axes."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each prediction, differentiable."""
        ...

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the metric of each prediction; the reported metric is their mean."""
        ...


@dataclass(frozen=True, eq=False)
class HostData:
    """Training and validation samples, and optionally a final test split.

    Examples:
        >>> inputs, targets = torch.randn(32, 2), torch.arange(32) % 3
        >>> data = esper.HostData(inputs, targets, inputs, targets)
        >>> data.train_inputs.shape
        torch.Size([32, 2])
    """

    train_inputs: Tensor
    train_targets: Tensor
    validation_inputs: Tensor
    validation_targets: Tensor
    final_inputs: Tensor | None = None
    final_targets: Tensor | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            tensor = getattr(self, entry.name)
            if tensor is not None and tensor.requires_grad:  # samples are never trained
                object.__setattr__(self, entry.name, tensor.detach())
        has_final = self.final_inputs is not None or self.final_targets is not None
        for split in SPLITS if has_final else SPLITS[:2]:
            inputs, targets = self.split(split)
            if len(inputs) != len(targets) or len(inputs) < 2:
                raise ShapeError(
                    f"the {split} split has {len(inputs)} inputs and {len(targets)} targets; "
                    "it needs the same number of both, at least 2."
                )

    def __repr__(self) -> str:
        splits = (self.train_inputs, self.validation_inputs, self.final_inputs)
        sizes = ", ".join(
            f"{len(inputs):,} {name}"
            for name, inputs in zip(SPLITS, splits, strict=True)
            if inputs is not None
        )
        return f"HostData({sizes}; inputs {array_text(self.train_inputs)})"

    @property
    def n_bytes(self) -> int:
        """The size of all samples."""
        tensors = [getattr(self, entry.name) for entry in fields(self)]
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)

    def split(self, name: Split) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a split."""
        if name == "train":
            return self.train_inputs, self.train_targets
        if name == "validation":
            return self.validation_inputs, self.validation_targets
        if self.final_inputs is None or self.final_targets is None:
            raise ShapeError("the data have no final split; set final_inputs and final_targets.")
        return self.final_inputs, self.final_targets


@dataclass(frozen=True, kw_only=True, eq=False)
class HostSpec(Settings):
    """The random seed, data and settings of one host.

    Examples:
        >>> inputs, targets = torch.randn(32, 2), torch.arange(32) % 3
        >>> data = esper.HostData(inputs, targets, inputs, targets)
        >>> esper.HostSpec(seed=0, data=data, learning_rate=0.01).learning_rate
        0.01
    """

    seed: Seed
    """Random seed for its weights, its seeds' weights and its batch order."""
    data: HostData
    learning_rate: PositiveFloat | None = None
    """Learning rate; None for the population's."""
    build: BuildHost | None = None
    """Builds this host if it is of another design; None for the population's."""
    batch_size: PositiveInt | None = None
    """Batch size; None for the population's."""
    batches_per_epoch: PositiveInt | None = None
    """Batches per epoch; None for the population's."""
    training: PopulationConfig | None = None
    """All other training settings; None for the population's."""
    objective: Objective | None = None
    """Loss and metric; None for the population's."""
    growth: GrowthConfig | None = None
    """Minimum number of epochs in each stage; None for the population's."""


class BatchOrder:
    """The order in which one host sees its samples, drawn from its own generator.

    An epoch is a new shuffle cut into whole batches; the remainder is dropped. A host with fewer
    samples than the batch size has one batch of all samples. With a fixed number of batches per
    epoch, an epoch draws as many shuffles as it needs.
    """

    def __init__(
        self, seed: int, n_samples: int, batch_size: int, n_batches: int | None = None
    ) -> None:
        self.n_samples = n_samples
        self.batch_size = min(batch_size, n_samples)
        self.n_batches = n_batches or n_samples // self.batch_size
        self.seed = seed
        self.epoch = 0
        """Number of epochs drawn."""
        # A separate stream, so that the order does not depend on how weights are drawn.
        self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))

    def draw_epoch(self) -> NDArray[np.int64]:
        """Return the sample indices of the next epoch, ``[batches, batch_size]``."""
        self.epoch += 1
        by_shuffle = self.n_samples // self.batch_size
        batches = [
            self._generator.permutation(self.n_samples)[: by_shuffle * self.batch_size]
            for _ in range(-(-self.n_batches // by_shuffle))
        ]
        order = batches[0] if len(batches) == 1 else np.concatenate(batches)
        return order[: self.n_batches * self.batch_size].reshape(self.n_batches, self.batch_size)

    @property
    def noise_seed(self) -> int:
        """Random seed for layers such as dropout in the current epoch."""
        return int(np.random.SeedSequence([self.seed, 2, self.epoch]).generate_state(1)[0])

    def get_state(self) -> dict[str, Any]:
        """Return the state of the order as plain values."""
        return {"epoch": self.epoch, "generator": dict(self._generator.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Load what :meth:`get_state` returned."""
        self.epoch = state["epoch"]
        self._generator.bit_generator.state = state["generator"]


@dataclass
class HostState:
    """Everything that the next epoch of a host depends on."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Plain values: slot lives, batch order, loss statistics."""


def join_states(states: Sequence[HostState]) -> dict[str, Any]:
    """Return the states of hosts as the tensors of all and the facts of each."""
    tensors = {
        f"{host}/{name}": tensor
        for host, state in enumerate(states)
        for name, tensor in state.tensors.items()
    }
    return {"tensors": tensors, "facts": [state.facts for state in states]}


def split_states(joined: dict[str, Any]) -> list[HostState]:
    """Return the states that :func:`join_states` joined."""
    states = [HostState({}, facts) for facts in joined["facts"]]
    for name, tensor in joined["tensors"].items():
        host, _, rest = name.partition("/")
        states[int(host)].tensors[rest] = tensor
    return states


@dataclass(frozen=True)
class Ablation:
    """Which seeds an evaluation leaves out, besides those that do not affect the output."""

    slot: str | None = None
    """Leave out the seed in this slot."""
    is_uncommitted: bool = False
    """Leave out all uncommitted seeds."""

    def excludes(self, slot: str, life: SlotLife) -> bool:
        """Return whether the seed in a slot is left out."""
        is_ablated = slot == self.slot or (self.is_uncommitted and life.is_growing)
        return is_ablated or not life.affects_output


NO_ABLATION = Ablation()


class CrossEntropy:
    """Classification: logits ``[..., K]`` and class indices ``[...]``; the metric is accuracy."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the negative log-probability of each target, in the shape of ``targets``."""
        flat = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def require_classes(self, n_classes: int, targets: Tensor) -> None:
        """Raise if a target is not a class index.

        Raises:
            ValueError: If a target is out of range.
        """
        minimum, maximum = int(targets.min()), int(targets.max())
        if minimum < 0 or maximum >= n_classes:
            wrong = minimum if minimum < 0 else maximum
            raise ValueError(f"target {wrong} is out of range; it must be 0 to {n_classes - 1}.")

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 for each correct prediction and 0 for each wrong one."""
        return (outputs.argmax(-1) == targets).to(outputs.dtype)


class SquaredError:
    """Regression: outputs ``[..., K]`` and targets ``[..., K]``, or ``[...]`` if K is 1."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the squared error of each prediction, the mean over its K numbers.

        Raises:
            ShapeError: If outputs and targets differ in shape, or targets are integers.
        """
        wanted = targets.unsqueeze(-1) if targets.ndim == outputs.ndim - 1 else targets
        # Tensors of other shapes would be broadcast.
        if outputs.ndim < 2 or outputs.shape != wanted.shape:
            raise ShapeError(
                f"outputs have shape {list(outputs.shape)} and targets {list(targets.shape)}; for "
                "a squared error they must be [n, K] and [n, K], or [n, 1] and [n]."
            )
        if not targets.is_floating_point():
            kind = str(targets.dtype).removeprefix("torch.")
            raise ShapeError(
                f"targets are {kind}; for a squared error they must be floating point."
            )
        return (outputs - wanted).square().mean(-1)

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the same as :meth:`losses`."""
        return self.losses(outputs, targets)


def sample_means(values: Tensor) -> Tensor:
    """Return the mean of each sample's predictions ``[B, ...]``, as ``[B]`` in double precision."""
    values = values.double()
    return values if values.ndim == 1 else values.flatten(1).mean(1)


Kind = tuple[Any, ...]


class DataCheck:
    """Checks that designs run on data, once for each design and kind of data."""

    def __init__(self) -> None:
        self._known: set[Kind] = set()
        self._fitting: WeakKeyDictionary[HostData, set[Kind]] = WeakKeyDictionary()

    def require_fit(
        self, host: int, spec: HostSpec, model: nn.Module, design: Kind, objective: Objective
    ) -> None:
        """Raise if a new host of a design does not run on every split of its data.

        Raises:
            ConfigError: If it does not; the message names the host.
        """
        data, design = spec.data, (*design, objective)
        fitting = self._fitting.setdefault(data, set())
        if design in fitting:
            return
        form = sample_form(data)
        for split in SPLITS if data.final_inputs is not None else SPLITS[:2]:
            inputs, targets = data.split(split)
            own = _form_of(inputs, targets)
            if own != form:
                raise ConfigError(
                    f"the splits of host {host} differ: its train split has "
                    f"{describe_form(form)}, its {split} split {describe_form(own)}."
                )
            kind = (design, form, _range_of(inputs), _range_of(targets))
            if kind not in self._known:
                problem, cause = _try(model, objective, inputs, targets)
                if problem is not None:
                    where = "" if split == "train" else f" in its {split} split"
                    raise ConfigError(
                        f"the data of host {host} do not fit the model{where}: {problem}"
                    ) from cause
                self._known.add(kind)
        fitting.add(design)


def _try(
    model: nn.Module, objective: Objective, inputs: Tensor, targets: Tensor
) -> tuple[str | None, Exception | None]:
    """Return what is wrong with a model's outputs for some samples, and the error behind it."""
    rows = _extreme_rows(inputs, targets)
    try:
        with torch.no_grad(), evaluation_mode(model):
            outputs: Any = model(inputs[rows])
            return _find_problem(objective, outputs, targets, rows), None
    # A user's model and objective may raise anything.
    except Exception as error:
        return message_of(error) or type(error).__name__, error


def _find_problem(objective: Objective, outputs: Any, targets: Tensor, rows: Tensor) -> str | None:
    """Return what is wrong with a model's outputs for some samples, or None."""
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != rows.shape:
        return (
            f"it returns {describe(outputs)} for {len(rows)} samples; it must return a tensor "
            "with one row per sample."
        )
    if isinstance(objective, CrossEntropy):
        objective.require_classes(outputs.shape[-1], targets)
    for measure in (objective.losses, objective.metrics):
        values: Any = measure(outputs, targets[rows])
        if not isinstance(values, Tensor) or values.shape[:1] != rows.shape:
            return (
                f"the objective's {measure.__name__} returns {describe(values)} for "
                f"{len(rows)} samples; it must return a tensor with one row per sample."
            )
    return None


def sample_form(data: HostData) -> Kind:
    """Return the shapes and dtypes of a training sample and its target."""
    return _form_of(*data.split("train"))


def _form_of(inputs: Tensor, targets: Tensor) -> Kind:
    return inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype


def describe_form(form: Kind) -> str:
    """Describe the shapes and dtypes of samples and targets."""
    names = [str(dtype).removeprefix("torch.") for dtype in (form[1], form[3])]
    return f"{names[0]} inputs {list(form[0])} with {names[1]} targets {list(form[2])}"


def _range_of(numbers: Tensor) -> Kind:
    """Return the range of integers, which a model may use as indices; empty for other dtypes."""
    if not _is_integer(numbers):
        return ()
    minimum, maximum = torch.aminmax(numbers)
    return minimum.item(), maximum.item()


def _is_integer(numbers: Tensor) -> bool:
    is_real = numbers.is_floating_point() or numbers.is_complex()
    return not is_real and numbers.numel() > 0


def _extreme_rows(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the first two samples and those with the smallest and largest integers."""
    rows = {0, 1}
    for numbers in (inputs, targets):
        if _is_integer(numbers):
            by_row = numbers.numel() // len(numbers)
            flat = numbers.flatten().to(torch.int64)
            rows |= {int(flat.argmin()) // by_row, int(flat.argmax()) // by_row}
    return torch.tensor(sorted(rows))
