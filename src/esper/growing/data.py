"""A user's samples, in whatever form they come, as one tensor of inputs and one of targets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError
from esper.growth.dry_run import evaluation_mode
from esper.growth.modules import named_modules
from esper.growth.sites import describe
from esper.populations.host_data import CrossEntropy, sample_means
from esper.populations.sequential import EVALUATION_BATCH
from esper.tasks import Metric, Samples

FORMS = "a pair (inputs, targets) of tensors or arrays, a Dataset or a DataLoader of such pairs"


def read_samples(data: Any, name: str, *, like: Tensor | None = None) -> Samples:
    """Return all samples of a set in memory.

    A data set or loader is gone through once; what a loader draws is drawn from torch's default
    generator, which is put back.

    Args:
        data: A pair of inputs and targets (tensors, arrays, lists of numbers), a data set or loader
            that gives such pairs, or :class:`~esper.Samples`.
        name: What the set is called in messages.
        like: A tensor whose device samples are put on, and whose dtype inputs get that are no whole
            numbers.

    Raises:
        BadDataError: If there are no such pairs, or targets that are no classes.
    """
    with torch.random.fork_rng(devices=[]):
        inputs, targets = _read_pair(data, name)
    if targets.is_floating_point() or targets.is_complex():
        kind = str(targets.dtype).removeprefix("torch.")
        raise BadDataError(
            f"targets of {name} are {kind}; they must be whole numbers, the class of each sample. "
            "esper.grow learns classes, not quantities."
        )
    if not inputs.is_floating_point() and inputs.dtype in (torch.int32, torch.int16):
        inputs = inputs.long()
    if like is not None:
        inputs = inputs.to(like.device)
        targets = targets.to(like.device)
        if inputs.is_floating_point():
            inputs = inputs.to(like.dtype)
    return Samples(inputs.detach(), targets.long())


def batch_size_of(data: Any) -> int | None:
    """Return how many samples a loader gives at once; None of anything else."""
    size = cast(Any, data).batch_size if isinstance(data, DataLoader) else None
    return size if isinstance(size, int) and size >= 2 else None


def _read_pair(data: Any, name: str) -> tuple[Tensor, Tensor]:
    if isinstance(data, Samples):
        return data.inputs, data.targets
    if isinstance(data, TensorDataset):
        data = data.tensors
    if isinstance(data, DataLoader):
        pairs = [_pair(batch, name) for batch in cast(Iterable[Any], data)]
        return _joined(pairs, name, torch.cat)
    if isinstance(data, Dataset):
        pairs = [_pair(item, name) for item in _items(cast(Any, data))]
        return _joined(pairs, name, torch.stack)
    return _pair(data, name)


def _items(dataset: Any) -> Iterable[Any]:
    """Go through a data set: as it comes if it is made for that, else by number."""
    if isinstance(dataset, IterableDataset):
        return cast(Iterable[Any], dataset)
    return (dataset[number] for number in range(len(dataset)))


def _pair(value: Any, name: str) -> tuple[Tensor, Tensor]:
    parts = list(cast(Sequence[Any], value)) if isinstance(value, (tuple, list)) else []
    if len(parts) != 2:
        kind = str(type(cast(object, value)).__name__)
        size = f" of {len(parts)}" if parts else ""
        raise BadDataError(f"{name} has a {kind}{size} for samples; it must be {FORMS}.")
    inputs, targets = parts
    return _tensor(inputs, name, "inputs"), _tensor(targets, name, "targets")


def _tensor(value: Any, name: str, part: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise BadDataError(
            f"{part} of {name} are a {type(value).__name__} that is no tensor of numbers; {name} "
            f"must be {FORMS}."
        ) from error


def _joined(pairs: list[tuple[Tensor, Tensor]], name: str, join: Any) -> tuple[Tensor, Tensor]:
    if not pairs:
        raise BadDataError(f"{name} has no samples; it must be {FORMS}.")
    inputs, targets = zip(*pairs, strict=True)
    try:
        return join(inputs), join(targets)
    except (RuntimeError, TypeError) as error:
        raise BadDataError(
            f"the samples of {name} are not of one form ({str(error).splitlines()[0]}); bring them "
            "to one shape first."
        ) from error


def require_fit(model: nn.Module, samples: Samples, name: str, metric: Metric) -> None:
    """Refuse samples that a model cannot be run on, or whose targets it has no outputs for.

    Raises:
        BadDataError: Naming the set, what is wrong with it, and what is needed.
    """
    if len(samples) < 2:
        raise BadDataError(f"{name} has {len(samples)} sample; at least 2 are needed.")
    inputs, targets = samples.inputs[:2], samples.targets[:2]
    try:
        with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
            outputs: Any = model(inputs.clone())
    # A user's model may raise anything.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise BadDataError(
            f"the model cannot be run on two inputs of {name}, {describe(inputs)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (2,):
        raise BadDataError(
            f"the model returns {describe(outputs)} for two inputs of {name}; it must return one "
            "tensor, with a row for each sample."
        )
    if isinstance(metric.objective, CrossEntropy):
        _require_classes(outputs, targets, samples, name)


def measure(model: nn.Module, samples: Samples, metric: Metric) -> float:
    """Return a model's mean metric over samples, in evaluation mode; its modes stay as they are."""
    total = 0.0
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        for start in range(0, len(samples), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            outputs = model(samples.inputs[batch])
            values = metric.objective.metrics(outputs, samples.targets[batch])
            total += float(sample_means(values).sum())
    return total / len(samples)


def is_above(score: float, other: float) -> bool:
    """Return whether a score is above another; what is not a number is below every number."""
    return not math.isnan(score) and (math.isnan(other) or score > other)


def copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Put each module of a grown twin into the mode of the module it comes from.

    A module that the model does not have takes the mode of the nearest one around it that it has.
    """
    modes = {name: module.training for name, module in named_modules(model).items()}
    for name, module in named_modules(twin).items():
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]


def _require_classes(outputs: Tensor, targets: Tensor, samples: Samples, name: str) -> None:
    """Refuse targets that are not one class for each prediction, or of a class there is not."""
    if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
        raise BadDataError(
            f"the model returns {describe(outputs)} for targets of {name} of shape "
            f"{list(targets.shape)}; it must return logits, one more axis than targets have."
        )
    least, most = int(samples.targets.min()), int(samples.targets.max())
    n_classes = outputs.shape[-1]
    if least < 0 or most >= n_classes:
        raise BadDataError(
            f"a target of {name} is {least if least < 0 else most}; the model has {n_classes} "
            f"outputs, so targets must be in 0..{n_classes - 1}."
        )
