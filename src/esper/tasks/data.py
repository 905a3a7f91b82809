"""The data of a task, and checks of it. Shapes: n samples, T predictions per
sample, K numbers to predict."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from numbers import Integral
from typing import Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.config.checks import NonNegativeFloat, PositiveFloat, PositiveInt, Settings
from esper.errors import BadDataError, type_of
from esper.formatting import array_text
from esper.tasks.metrics import Metric


@dataclass(frozen=True, eq=False)
class Samples:
    """Inputs with their targets.

    Examples:
        >>> samples = esper.Samples(torch.randn(20, 2), torch.arange(20) % 3)
        >>> samples.targets[:3]
        tensor([0, 1, 2])
    """

    inputs: Tensor
    """``[n, ...]``, floating point, or int64 for tokens."""
    targets: Tensor
    """``[n]`` or ``[n, T]``, int64: the right class of each prediction. For regression, ``[n]`` or
    ``[n, K]`` in the dtype of the inputs."""

    def __len__(self) -> int:
        return len(self.inputs)

    def __repr__(self) -> str:
        inputs, targets = array_text(self.inputs), array_text(self.targets)
        return f"Samples(inputs {inputs}, targets {targets})"


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskData:
    """Three disjoint sets of samples.

    Examples:
        >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
        >>> data = esper.TaskData.cut(x, y, sizes=(20, 20, 20))
        >>> data.train.inputs.shape
        torch.Size([20, 2])
    """

    train: Samples
    """The samples that a host is trained on."""
    validation: Samples
    """The samples of the scores that a controller sees."""
    test: Samples
    """The samples of the final score, which no decision uses."""

    def __post_init__(self) -> None:
        for split, samples in self.splits():
            if not isinstance(samples, Samples):
                raise BadDataError(
                    f"the {split} split of TaskData is {type_of(samples)}; it must be "
                    "Samples(inputs, targets)."
                )

    def __repr__(self) -> str:
        sizes = ", ".join(f"{len(samples):,} {split}" for split, samples in self.splits())
        inputs, targets = self.train.inputs, self.train.targets
        form = f"inputs {array_text(inputs[0])}, targets {array_text(targets[0])}"
        return f"TaskData({sizes}; each with {form})"

    @classmethod
    def of(cls, splits: Iterable[Samples]) -> Self:
        """Return the data of three sets of samples in the order of the fields."""
        train, validation, test = splits
        return cls(train=train, validation=validation, test=test)

    @classmethod
    def cut(cls, inputs: Tensor, targets: Tensor, sizes: Sequence[int]) -> Self:
        """Return consecutive samples as splits of these sizes."""
        parts = [slice(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]
        return cls.of(Samples(inputs[part], targets[part]) for part in parts)

    def splits(self) -> Iterator[tuple[str, Samples]]:
        """Yield the name and the samples of each split."""
        yield "train", self.train
        yield "validation", self.validation
        yield "test", self.test


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskDraw(Settings):
    """The data and the settings of one host.

    Examples:
        >>> draw = esper.make_task("digits-family").sample(0)
        >>> draw.data.train.inputs.shape[1] > 0
        True
    """

    data: TaskData
    n_classes: int
    """Number of classes; a host may have more outputs. 0 for regression."""
    learning_rate: PositiveFloat | None = None
    """Learning rate; None for the task's."""
    make_host: Callable[[int], nn.Module] | None = None
    """Creates the host from a seed; None for the task's."""
    batch_size: PositiveInt | None = None
    """Batch size; None for the task's."""
    batches_per_epoch: PositiveInt | None = None
    """Batches per epoch; None for the task's."""
    n_epochs: PositiveInt | None = None
    """Epochs of the episode, at most the task's; None for the task's."""
    flop_price: NonNegativeFloat | None = None
    """Price of a reference run's FLOPs; None for the task's."""
    metric: Metric | None = None
    """Metric; None for the task's."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """The drawn values by name, which are recorded but not observed."""
    title: str = ""
    """What was drawn, in words."""

    def __repr__(self) -> str:
        own = ("learning_rate", "batch_size", "batches_per_epoch", "n_epochs", "flop_price")
        settings = {name: getattr(self, name) for name in own if getattr(self, name) is not None}
        parts = [
            *([self.title] if self.title else []),
            f"{self.n_classes} classes" if self.n_classes else "regression",
            *(f"{name} {value:.4g}" for name, value in settings.items()),
            repr(self.data),
        ]
        return f"TaskDraw({', '.join(parts)})"

    def is_like(self, other: TaskDraw) -> bool:
        """Return whether another draw has the same data and settings."""
        facts = [(repr(draw), draw.facts, draw.metric, draw.make_host) for draw in (self, other)]
        pairs = zip(self.data.splits(), other.data.splits(), strict=True)
        return facts[0] == facts[1] and all(
            torch.equal(own.inputs, others.inputs) and torch.equal(own.targets, others.targets)
            for (_, own), (_, others) in pairs
        )


def log_uniform(rng: np.random.Generator, minimum: float, maximum: float) -> float:
    """Return a number in [minimum, maximum] whose logarithm is uniform."""
    drawn = math.exp(rng.uniform(math.log(minimum), math.log(maximum)))
    return min(max(drawn, minimum), maximum)  # exp(log(x)) can be off by one rounding.


def stratified_split(
    labels: NDArray[np.integer], sizes: Sequence[int], *, seed: int
) -> list[NDArray[np.int64]]:
    """Return the indices of disjoint splits, each with about the same share of every class.

    The shuffled samples of each class are spread evenly over one sequence, which is then cut.

    Args:
        labels: ``[n]`` class of each sample.
        sizes: Number of samples in each split.
        seed: Seeds the shuffle.

    Raises:
        BadDataError: If there are fewer samples than the splits need.
    """
    if sum(sizes) > len(labels):
        raise BadDataError(
            f"splits of {', '.join(map(str, sizes))} samples need {sum(sizes)}, but there are only "
            f"{len(labels)}."
        )
    rng = np.random.default_rng(np.random.SeedSequence(seed))
    shuffled = rng.permutation(len(labels))
    places = np.empty(len(labels))
    for label in np.unique(labels):
        of_label = labels[shuffled] == label
        count = int(of_label.sum())
        places[of_label] = (np.arange(count) + 0.5) / count
    row = shuffled[np.argsort(places, kind="stable")]
    ends = np.cumsum(sizes)
    return [row[end - size : end] for size, end in zip(sizes, ends, strict=True)]


def check_data(draw: TaskDraw, *, task: str, needs_all_classes: bool = True) -> None:
    """Reject data that no host can be trained or scored on.

    Args:
        draw: The data and the number of classes.
        task: The task's name, for messages.
        needs_all_classes: Whether each split must have a sample of each class.

    Raises:
        BadDataError: If a split is empty, not finite, lacks a class, has targets of the wrong kind,
            differs in shape or dtype from the others, or shares samples with one.
    """
    if not isinstance(draw, TaskDraw):
        raise BadDataError(
            f"draw of task {task!r} returned {type_of(draw)}; it must return a TaskDraw."
        )
    check_classes(draw.n_classes, task=task)
    for split, samples in draw.data.splits():
        what = f"task {task!r}, {split} split"
        _check_form(samples, like=draw.data.train, what=what)
        _check_inputs(samples.inputs.detach(), what=what)
        targets = samples.targets.detach()
        if targets.is_floating_point() != (draw.n_classes == 0):
            raise BadDataError(
                f"{what}: targets are {_name(targets.dtype)} and the task has {draw.n_classes} "
                "classes; classes must be int64, and the targets of a regression, which has 0 "
                "classes, floating point."
            )
        if draw.n_classes == 0:
            _require_finite(targets, "targets", what=what)
        else:
            _check_targets(targets, draw.n_classes, needs_all=needs_all_classes, what=what)
    for (one, first), (other, second) in combinations(draw.data.splits(), 2):
        if _share_rows(first.inputs, second.inputs):
            raise BadDataError(
                f"task {task!r}: the {one} and {other} splits share samples in memory; splits must "
                "be disjoint, such as TaskData.cut(inputs, targets, sizes)."
            )


def _share_rows(first: Tensor, second: Tensor) -> bool:
    """Return whether two tensors are views that have a row in common."""
    same_storage = first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    if not same_storage or first.stride() != second.stride():
        return False
    row = max(first.stride(0), 1) * first.element_size()
    n_rows, rest = divmod(second.data_ptr() - first.data_ptr(), row)
    return rest == 0 and -len(second) < n_rows < len(first)


def check_classes(n_classes: object, *, task: str) -> None:
    """Reject a number of classes that is neither 0, for regression, nor an integer of at least 2.

    Raises:
        BadDataError: Naming the task and the value.
    """
    count = int(n_classes) if isinstance(n_classes, Integral) else -1
    if count < 0 or count == 1 or isinstance(n_classes, bool):
        raise BadDataError(
            f"task {task!r} has {n_classes!r} classes; it must be an integer of at least 2, or 0 "
            "for regression."
        )


def check_forms(data: TaskData, *, task: str) -> None:
    """Reject splits that are empty or differ in shape or dtype.

    Raises:
        BadDataError: Naming the task and the split.
    """
    for split, samples in data.splits():
        _check_form(samples, like=data.train, what=f"task {task!r}, {split} split")


def _check_form(samples: Samples, *, like: Samples, what: str) -> None:
    """Reject samples whose lengths, shapes or dtypes are wrong, or differ from ``like``."""
    inputs, targets = samples.inputs, samples.targets
    if not isinstance(inputs, Tensor) or not isinstance(targets, Tensor):
        kinds = f"{type(inputs).__name__} and {type(targets).__name__}"
        raise BadDataError(f"{what}: inputs and targets are {kinds}; they must be tensors.")
    if inputs.ndim < 2 or targets.ndim not in (1, 2):
        raise BadDataError(
            f"{what}: inputs have shape {list(inputs.shape)} and targets {list(targets.shape)}; "
            "they must be [n, ...] and [n] or [n, T], or [n, K] for regression."
        )
    is_token = inputs.dtype == torch.int64 and inputs.ndim == 2 and inputs.shape[1] == 1
    is_regression = targets.is_floating_point()
    if targets.ndim == 2 and targets.shape[1] == 1 and not (is_token or is_regression):
        raise BadDataError(
            f"{what}: targets have shape {list(targets.shape)}; they must be [n], one class per "
            "sample (targets.squeeze(1)), or [n, T], one per prediction."
        )
    if len(inputs) != len(targets):
        raise BadDataError(f"{what}: there are {len(inputs)} inputs but {len(targets)} targets.")
    if inputs.numel() == 0 or targets.numel() == 0:
        raise BadDataError(
            f"{what}: inputs have shape {list(inputs.shape)} and targets {list(targets.shape)}; "
            "neither may be empty."
        )
    if targets.dtype != torch.int64 and not is_regression:
        raise BadDataError(
            f"{what}: targets are {_name(targets.dtype)}; they must be int64, or floating point "
            "for regression."
        )
    if is_regression and inputs.is_floating_point() and targets.dtype != inputs.dtype:
        raise BadDataError(
            f"{what}: targets are {_name(targets.dtype)} and inputs {_name(inputs.dtype)}; for "
            "regression they must have the same dtype (targets.to(inputs.dtype))."
        )
    for name, tensor, first in (
        ("inputs", inputs, like.inputs),
        ("targets", targets, like.targets),
    ):
        if tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
            raise BadDataError(
                f"{what}: {name} are {_form(tensor)}; they must be {_form(first)}, as in the train "
                "split."
            )


def _check_inputs(inputs: Tensor, *, what: str) -> None:
    """Reject inputs that are neither finite numbers nor tokens."""
    if inputs.dtype == torch.int64:
        if int(inputs.min()) < 0:
            raise BadDataError(
                f"{what}: a token is {int(inputs.min())}; tokens must be 0 or greater."
            )
        return
    if not inputs.is_floating_point():
        raise BadDataError(
            f"{what}: inputs are {_name(inputs.dtype)}; they must be floating point, or int64 for "
            "tokens."
        )
    _require_finite(inputs, "inputs", what=what)


def _require_finite(numbers: Tensor, name: str, *, what: str) -> None:
    # A finite sum, which is cheap, proves that all are finite. The converse fails: sums overflow.
    if math.isfinite(float(numbers.sum())):
        return
    wrong = ~numbers.isfinite()
    if wrong.any():
        sample = int(wrong.nonzero()[0, 0])
        value = float(numbers[wrong][0])
        raise BadDataError(
            f"{what}: {int(wrong.sum())} {name} are not finite; the first is {value} in sample "
            f"{sample}."
        )


def _check_targets(targets: Tensor, n_classes: int, *, needs_all: bool, what: str) -> None:
    """Reject targets that are not classes, or lack some if there is one target a sample."""
    minimum, maximum = (int(value) for value in torch.aminmax(targets))
    if minimum < 0 or maximum >= n_classes:
        raise BadDataError(
            f"{what}: a target is {minimum if minimum < 0 else maximum}; targets must be in "
            f"0..{n_classes - 1}."
        )
    if not needs_all or targets.ndim == 2:  # Not every character occurs in every part of a text.
        return
    present = cast("list[int]", targets.unique().tolist())
    if len(present) < n_classes:
        absent = next((k for k, label in enumerate(present) if label != k), len(present))
        raise BadDataError(
            f"{what}: there is no sample of class {absent}; every one of the {n_classes} classes "
            "needs at least one."
        )


def _form(tensor: Tensor) -> str:
    return f"{_name(tensor.dtype)} of shape {list(tensor.shape[1:])}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
