"""The user's data in any supported form, as tensors, and checks that a model fits them."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError, NonFiniteError, type_of
from esper.growth.modules import named_modules
from esper.growth.sites import describe
from esper.modes import evaluation_mode
from esper.populations.host_data import CrossEntropy, sample_means
from esper.populations.sequential import EVALUATION_BATCH
from esper.tasks import Metric, Samples

FORMS = "a pair (inputs, targets) of tensors or arrays, or a Dataset or DataLoader of such pairs"


def read_samples(data: Any, name: str, *, like: Tensor | None = None) -> Samples:
    """Read all samples into memory.

    A data set or loader is iterated once. A loader may draw from torch's default generator, whose
    state is restored.

    Args:
        data: A pair of inputs and targets (tensors, arrays, lists of numbers), a data set or loader
            of such pairs, or :class:`~esper.Samples`.
        name: The name of the argument, for messages.
        like: A tensor with the device of the samples and the dtype of floating-point inputs.

    Raises:
        BadDataError: If the data have another form, or the targets are not classes.
    """
    with torch.random.fork_rng(devices=[]):
        inputs, targets = _read_pair(data, name)
    if targets.is_floating_point() or targets.is_complex():
        kind = str(targets.dtype).removeprefix("torch.")
        raise BadDataError(
            f"targets of {name} are {kind}; they must be integers, the class of each sample. "
            "esper.grow does not support regression."
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
    """Return the batch size of a loader; None for other data."""
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
    """Iterate over a data set, by index unless it is iterable."""
    if isinstance(dataset, IterableDataset):
        return cast(Iterable[Any], dataset)
    return (dataset[number] for number in range(len(dataset)))


def _pair(value: Any, name: str) -> tuple[Tensor, Tensor]:
    parts = list(cast(Sequence[Any], value)) if isinstance(value, (tuple, list)) else []
    if len(parts) != 2:
        kind = str(type(cast(object, value)).__name__)
        size = f" of {len(parts)}" if parts else ""
        raise BadDataError(f"{name} contains a {kind}{size}; it must be {FORMS}.")
    inputs, targets = parts
    return _tensor(inputs, name, "inputs"), _tensor(targets, name, "targets")


def _tensor(value: Any, name: str, part: str) -> Tensor:
    if isinstance(value, Tensor):
        if value.is_meta or value.layout is not torch.strided:
            kind = "on the meta device" if value.is_meta else "sparse"
            raise BadDataError(f"{part} of {name} are {kind}; they must be a dense tensor.")
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError) as error:
        raise BadDataError(
            f"{part} of {name} are {type_of(value)} that cannot be converted to a tensor; "
            f"{name} must be {FORMS}."
        ) from error


def _joined(pairs: list[tuple[Tensor, Tensor]], name: str, join: Any) -> tuple[Tensor, Tensor]:
    if not pairs:
        raise BadDataError(f"{name} has no samples; it must be {FORMS}.")
    inputs, targets = zip(*pairs, strict=True)
    try:
        return join(inputs), join(targets)
    except (RuntimeError, TypeError) as error:
        raise BadDataError(
            f"the samples of {name} differ in shape or type ({str(error).splitlines()[0]}); "
            "convert them to one shape first."
        ) from error


def require_fit(model: nn.Module, samples: Samples, name: str, metric: Metric) -> None:
    """Reject samples that a model cannot be run on, or whose targets it has no outputs for.

    Raises:
        BadDataError: Naming the data and what is wrong.
    """
    if len(samples) < 2:
        raise BadDataError(f"{name} has {len(samples)} sample; it must have at least 2.")
    inputs, targets = samples.inputs[:2], samples.targets[:2]
    try:
        with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
            outputs: Any = model(inputs.clone())
    # A user's model may raise anything.
    except Exception as error:
        reason = (str(error).splitlines() or [""])[0] or type(error).__name__
        raise BadDataError(
            f"the model fails on two inputs of {name}, {describe(inputs)}: {reason}"
        ) from error
    if not isinstance(outputs, Tensor) or outputs.shape[:1] != (2,):
        raise BadDataError(
            f"the model returns {describe(outputs)} for two inputs of {name}; it must return a "
            "tensor with one row per sample."
        )
    if isinstance(metric.objective, CrossEntropy):
        _require_classes(outputs, targets, samples, name)


def require_finite(model: nn.Module, samples: Samples, name: str) -> None:
    """Reject a model with weights or outputs that no training can mend.

    Outputs of minus infinity, with which models exclude classes, are fine. Outputs that are only
    bad in evaluation mode are fine too: statistics that they depend on may come with training.

    Raises:
        NonFiniteError: Naming the tensor, or the data and the first sample.
    """
    tensors = [(f"parameter {n}", p, p.requires_grad) for n, p in model.named_parameters()]
    tensors += [(f"buffer {n}", b, False) for n, b in model.named_buffers()]
    for what, tensor, is_trained in tensors:
        is_bad = ~tensor.isfinite() if is_trained else tensor.isnan()
        if bool(is_bad.any()):
            raise NonFiniteError(
                f"the model's {what} has {int(is_bad.sum()):,} of {tensor.numel():,} values that "
                "are NaN or infinite, so it cannot be trained; initialize it again or load a "
                "checkpoint from before it diverged."
            )
    for start in range(0, len(samples), EVALUATION_BATCH):
        inputs = samples.inputs[start : start + EVALUATION_BATCH]
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            with evaluation_mode(model):
                row = _find_bad_row(model(inputs.clone()))
            if row is None or _find_bad_row(copy.deepcopy(model).train()(inputs.clone())) is None:
                continue
        raise NonFiniteError(
            f"the model returns NaN or infinite outputs, first for sample {start + row} of {name}, "
            "although its weights are finite; check its forward pass for divisions, logarithms "
            "and overflow."
        )


def _find_bad_row(outputs: Tensor) -> int | None:
    is_bad = outputs.isnan() | outputs.isposinf()
    return int(is_bad.flatten(1).any(1).int().argmax()) if bool(is_bad.any()) else None


def measure(model: nn.Module, samples: Samples, metric: Metric) -> float:
    """Return a model's mean metric over samples in evaluation mode; its modes do not change."""
    total = 0.0
    with torch.no_grad(), evaluation_mode(model), torch.random.fork_rng(devices=[]):
        for start in range(0, len(samples), EVALUATION_BATCH):
            batch = slice(start, start + EVALUATION_BATCH)
            outputs = model(samples.inputs[batch])
            values = metric.objective.metrics(outputs, samples.targets[batch])
            total += float(sample_means(values).sum())
    return total / len(samples)


def is_above(score: float, other: float) -> bool:
    """Return whether a score is above another; NaN is below every number."""
    return not math.isnan(score) and (math.isnan(other) or score > other)


def copy_modes(model: nn.Module, twin: nn.Module) -> None:
    """Set each module of a grown model to the mode of the module it comes from.

    A new module takes the mode of the nearest parent that the given model has.
    """
    modes = {name: module.training for name, module in named_modules(model).items()}
    for name, module in named_modules(twin).items():
        while name not in modes:
            name = name.rpartition(".")[0]
        module.training = modes[name]


def _require_classes(outputs: Tensor, targets: Tensor, samples: Samples, name: str) -> None:
    """Reject targets that do not match the outputs in shape or are not classes."""
    if outputs.ndim < 2 or outputs.shape[:-1] != targets.shape:
        raise BadDataError(
            f"the model returns {describe(outputs)} for targets of {name} of shape "
            f"{list(targets.shape)}; it must return logits, with one more axis than the targets."
        )
    least, most = int(samples.targets.min()), int(samples.targets.max())
    n_classes = outputs.shape[-1]
    if least < 0 or most >= n_classes:
        raise BadDataError(
            f"a target of {name} is {least if least < 0 else most}; the model has {n_classes} "
            f"outputs, so targets must be in 0..{n_classes - 1}."
        )
