"""A user's samples, in whatever form they come, as one tensor of inputs and one of targets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError
from esper.tasks import Samples

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
