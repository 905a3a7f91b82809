"""What one host of a population learns from, and the order in which it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Protocol
from weakref import WeakSet

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from esper.config.checks import require_int, require_number
from esper.errors import ConfigError, ShapeError
from esper.growth.dry_run import evaluation_mode
from esper.growth.sites import describe

Split = Literal["train", "validation", "final"]
SPLITS: tuple[Split, ...] = ("train", "validation", "final")
BuildHost = Callable[[int], nn.Module]
"""Makes a host with slots from a number that decides its weights."""


@dataclass(frozen=True, eq=False)
class HostData:
    """Samples to learn from, samples to be judged by, and samples for a last judgement."""

    train_inputs: Tensor
    train_targets: Tensor
    validation_inputs: Tensor
    validation_targets: Tensor
    final_inputs: Tensor | None = None
    final_targets: Tensor | None = None

    def __post_init__(self) -> None:
        for entry in fields(self):
            tensor = getattr(self, entry.name)
            if tensor is not None and tensor.requires_grad:  # nobody learns what samples are
                object.__setattr__(self, entry.name, tensor.detach())
        has_final = self.final_inputs is not None or self.final_targets is not None
        for split in SPLITS if has_final else SPLITS[:2]:
            inputs, targets = self.split(split)
            if len(inputs) != len(targets) or len(inputs) < 2:
                raise ShapeError(
                    f"the {split} split has {len(inputs)} inputs and {len(targets)} targets; "
                    "it needs as many of each, and at least 2."
                )

    def has_split(self, name: Split) -> bool:
        """Return whether there are samples of a split."""
        return name != "final" or self.final_inputs is not None

    def split(self, name: Split) -> tuple[Tensor, Tensor]:
        """Return the inputs and targets of a split."""
        if name == "train":
            return self.train_inputs, self.train_targets
        if name == "validation":
            return self.validation_inputs, self.validation_targets
        if self.final_inputs is None or self.final_targets is None:
            raise ShapeError("the data have no final split; give final_inputs and final_targets.")
        return self.final_inputs, self.final_targets


@dataclass(frozen=True, kw_only=True, eq=False)
class HostSpec:
    """What makes one host differ from the others of its population."""

    seed: int
    """Decides its weights, its seeds' weights and its batch order."""
    data: HostData
    learning_rate: float | None = None
    """Step size; None for the population's."""
    build: BuildHost | None = None
    """Makes this host, if it is another (smaller) than the population's design; its tensors are
    corners of the design's."""

    def __post_init__(self) -> None:
        require_int("seed", self.seed, least=0)
        if self.learning_rate is not None:
            require_number("learning_rate", self.learning_rate, above=0.0)


class BatchOrder:
    """The order in which one host sees its samples, from a generator of its own.

    An epoch is a fresh shuffle cut into whole batches; what is left over waits for another epoch.
    A host with fewer samples than a batch has one batch of all of them. With a fixed number of
    batches an epoch goes from one fresh shuffle to the next until it has them.
    """

    def __init__(
        self, seed: int, n_samples: int, batch_size: int, n_batches: int | None = None
    ) -> None:
        self.n_samples = n_samples
        self.batch_size = min(batch_size, n_samples)
        self.n_batches = n_batches or n_samples // self.batch_size
        self.seed = seed
        self.epoch = 0
        """Epochs that were drawn."""
        # A stream of its own, so that the order does not depend on how weights were drawn.
        self._generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, 1])))
        self._before = self._generator.bit_generator.state

    def draw_epoch(self) -> NDArray[np.int64]:
        """Return the samples of each batch of the next epoch, ``[batches, batch_size]``."""
        self._before = self._generator.bit_generator.state
        self.epoch += 1
        by_shuffle = self.n_samples // self.batch_size
        batches = [
            self._generator.permutation(self.n_samples)[: by_shuffle * self.batch_size]
            for _ in range(-(-self.n_batches // by_shuffle))
        ]
        order = batches[0] if len(batches) == 1 else np.concatenate(batches)
        return order[: self.n_batches * self.batch_size].reshape(self.n_batches, self.batch_size)

    def take_back_epoch(self) -> None:
        """Draw the last epoch once more when the next is asked for."""
        self.epoch -= 1
        self._generator.bit_generator.state = self._before

    @property
    def noise_seed(self) -> int:
        """What layers that draw at random (dropout) are to draw from in the present epoch."""
        return int(np.random.SeedSequence([self.seed, 2, self.epoch]).generate_state(1)[0])

    def get_state(self) -> dict[str, Any]:
        """Return where the order is, as plain values."""
        return {"epoch": self.epoch, "generator": dict(self._generator.bit_generator.state)}

    def set_state(self, state: dict[str, Any]) -> None:
        """Go to where another order was."""
        self.epoch = state["epoch"]
        self._generator.bit_generator.state = state["generator"]


@dataclass
class HostState:
    """Everything that the next epoch of a host depends on."""

    tensors: dict[str, Tensor]
    facts: dict[str, Any] = field(default_factory=dict[str, Any])
    """Plain values: the slots' lives, the batch order's generator, the losses seen."""

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors of a part by their names inside it."""
        prefix = f"{name}/"
        found = {k: v for k, v in self.tensors.items() if k.startswith(prefix)}
        return {key.removeprefix(prefix): value for key, value in found.items()}


class Objective(Protocol):
    """A loss and a metric of each prediction, whatever axes are in front of it."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the loss of each prediction, differentiable."""
        ...

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return how good each prediction is; its mean is the metric."""
        ...


class CrossEntropy:
    """Classification: logits ``[..., K]`` and class numbers ``[...]``; the metric is accuracy."""

    def losses(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return minus the log-probability of each target, in the shape of ``targets``."""
        flat = cross_entropy(outputs.flatten(0, -2), targets.flatten(), reduction="none")
        return flat.view(targets.shape)

    def require_classes(self, n_classes: int, targets: Tensor) -> None:
        """Refuse targets that are not one of the classes.

        Raises:
            ValueError: If there is one.
        """
        least, most = int(targets.min()), int(targets.max())
        if least < 0 or most >= n_classes:
            raise ValueError(f"a target is {least if least < 0 else most}; there are {n_classes}.")

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return 1 where the largest logit is the target's and 0 elsewhere."""
        return (outputs.argmax(-1) == targets).to(outputs.dtype)


def sample_means(values: Tensor) -> Tensor:
    """Return the mean of each sample's predictions ``[B, ...]``, as ``[B]`` in double precision."""
    values = values.double()
    return values if values.ndim == 1 else values.flatten(1).mean(1)


Kind = tuple[Any, ...]


class DataCheck:
    """Tries a design on data, once for each kind of data."""

    def __init__(self, template: nn.Module, objective: Objective) -> None:
        self.template = template
        self.objective = objective
        self._known: set[Kind] = set()
        self._fitting: WeakSet[HostData] = WeakSet()

    def require_fit(self, host: int, spec: HostSpec) -> None:
        """Refuse data that the design cannot be run on, in any split.

        Raises:
            ConfigError: If it cannot; the message names the host.
        """
        data = spec.data
        if data in self._fitting:
            return
        form = sample_form(data)
        for split in SPLITS:
            if not data.has_split(split):
                continue
            inputs, targets = data.split(split)
            own = _form_of(inputs, targets)
            if own != form:
                raise ConfigError(
                    f"the data of host {host} are not of one form: its train split has "
                    f"{describe_form(form)}, its {split} split {describe_form(own)}."
                )
            kind = (form, _range_of(inputs), _range_of(targets))
            if kind not in self._known:
                self._try(host, split, inputs, targets)
                self._known.add(kind)
        self._fitting.add(data)

    def _try(self, host: int, split: str, inputs: Tensor, targets: Tensor) -> None:
        rows, cause = _telling_rows(inputs, targets), None
        try:
            with torch.no_grad(), evaluation_mode(self.template):
                outputs: Any = self.template(inputs[rows])
                problem = self._find_problem(outputs, targets, rows)
        # A user's model and objective may raise anything.
        except Exception as error:
            problem = (str(error).splitlines() or [""])[0] or type(error).__name__
            cause = error
        if problem is not None:
            where = "" if split == "train" else f" in its {split} split"
            raise ConfigError(
                f"the data of host {host} do not fit the model{where}: {problem}"
            ) from cause

    def _find_problem(self, outputs: Any, targets: Tensor, rows: Tensor) -> str | None:
        """Return what is wrong with what a model makes of some samples, or None."""
        if not isinstance(outputs, Tensor) or outputs.shape[:1] != rows.shape:
            return f"it returns {describe(outputs)}; a tensor is needed, a row for each sample."
        if isinstance(self.objective, CrossEntropy):
            self.objective.require_classes(outputs.shape[-1], targets)
        for measure in (self.objective.losses, self.objective.metrics):
            values: Any = measure(outputs, targets[rows])
            if not isinstance(values, Tensor) or values.shape[:1] != rows.shape:
                return (
                    f"the objective's {measure.__name__} returns {describe(values)} for "
                    f"{len(rows)} samples; a tensor with a number for each is needed."
                )
        return None


def sample_form(data: HostData) -> Kind:
    """Return the shapes and dtypes of one sample to learn from and of its target."""
    return _form_of(*data.split("train"))


def _form_of(inputs: Tensor, targets: Tensor) -> Kind:
    return inputs.shape[1:], inputs.dtype, targets.shape[1:], targets.dtype


def describe_form(form: Kind) -> str:
    """Return shapes and dtypes of samples in words."""
    names = [str(dtype).removeprefix("torch.") for dtype in (form[1], form[3])]
    return f"{names[0]} inputs {list(form[0])} with {names[1]} targets {list(form[2])}"


def _range_of(numbers: Tensor) -> Kind:
    """Return the least and the largest of whole numbers, which a model may look up in a table."""
    if not _is_whole(numbers):
        return ()
    least, most = torch.aminmax(numbers)
    return least.item(), most.item()


def _is_whole(numbers: Tensor) -> bool:
    is_real = numbers.is_floating_point() or numbers.is_complex()
    return not is_real and numbers.numel() > 0


def _telling_rows(inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the first samples, and those with the least and the largest whole numbers."""
    rows = {0, 1}
    for numbers in (inputs, targets):
        if _is_whole(numbers):
            by_row = numbers.numel() // len(numbers)
            flat = numbers.flatten().to(torch.int64)
            rows |= {int(flat.argmin()) // by_row, int(flat.argmax()) // by_row}
    return torch.tensor(sorted(rows))
