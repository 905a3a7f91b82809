"""The user's data in any form, batch by batch and never as a whole in memory.

A batch is split into what the model is called with and the targets:

    (inputs, targets)              model(inputs)
    (first, second, ..., targets)  model(first, second, ...)
    ((first, second), targets)     model(first, second)
    ({"a": ..., "b": ...}, targets)  model(a=..., b=...)
    {"a": ..., "labels": ...}      model(a=..., labels=...) if the model takes labels, else without
"""

from __future__ import annotations

import inspect
import math
import time
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esper.errors import BadDataError, message_of, type_of
from esper.formatting import many
from esper.tasks import Samples

TARGET_KEYS = ("labels", "label", "targets", "target", "y")
"""Names under which the targets of a batch that is a mapping are looked for."""

SIGNAL_SECONDS = 0.2
"""How long the signal of a dead worker process may come after its pipe has closed."""

FORMS = (
    "a pair (inputs, targets) of tensors or arrays, or a Dataset, DataLoader or other iterable of "
    "such pairs or of mappings with 'labels'"
)

DataLike = (
    tuple[Tensor | NDArray[Any], Tensor | NDArray[Any]]
    | Samples
    | Dataset[Any]
    | DataLoader[Any]
    | Iterable[Any]
)
"""Samples with their targets: a pair of tensors or arrays, a Dataset, or an iterable of batches."""

IMAGE_AXES = 3
"""Axes from which on bytes are images, which are scaled to [0, 1]; with fewer they are numbers."""


@dataclass(frozen=True)
class BadValue:
    """The first value of a batch that is NaN or infinite."""

    row: int
    """Its sample, by its index in the batch."""
    text: str
    """What it is, such as ``feature 3 is nan``."""
    n_rows: int
    """Samples of the batch that have such a value in the same input."""


@dataclass(frozen=True)
class Batch:
    """What a model is called with, and the targets."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    targets: Any
    size: int
    """Number of samples."""

    def run(self, model: nn.Module) -> Any:
        """Return the outputs of a model."""
        return model(*self.args, **self.kwargs)

    def take(self, row: int) -> Batch:
        """Return the batch of one sample."""
        rows = slice(row, row + 1)
        kwargs = {key: _taken(each, rows) for key, each in self.kwargs.items()}
        args = tuple(_taken(each, rows) for each in self.args)
        return Batch(args, kwargs, _taken(self.targets, rows), 1)

    def find_bad_value(self) -> BadValue | None:
        """Return the first value of the inputs or the targets that is NaN or infinite, if any."""
        several = len(self.args) > 1
        parts = [(f" of input {k}" * several, each) for k, each in enumerate(self.args)]
        parts += [(f" of {key!r}", each) for key, each in self.kwargs.items()]
        parts.append((" of the target", self.targets))
        for part, value in parts:
            if not isinstance(value, Tensor) or not value.is_floating_point() or not value.ndim:
                continue
            if math.isfinite(float(value.sum())):  # cheap, and neither NaN nor infinity cancels out
                continue
            is_bad = ~value.isfinite()
            rows = is_bad.flatten(1).any(1) if value.ndim > 1 else is_bad
            if not bool(rows.any()):
                continue
            row = int(rows.int().argmax())
            place = [int(k) for k in is_bad[row].nonzero()[0]]
            where = f"feature {place[0] if len(place) == 1 else place}{part}"
            if not place:
                where = part.removeprefix(" of ") or "the input"
            number = float(value[(row, *place)])
            return BadValue(row, f"{where} is {number}", int(rows.sum()))
        return None

    @property
    def sample(self) -> Any:
        """The arguments in the form that :func:`esper.add_slots` takes."""
        return self.kwargs or self.args


class Batches:
    """Data that is iterated over once in every epoch."""

    def __init__(
        self,
        data: DataLike | None,
        name: str,
        model: nn.Module,
        *,
        batch_size: int,
        shuffle: bool,
        limit: int | None = None,
    ) -> None:
        """Take data in any of the supported forms.

        Args:
            data: The data.
            name: The name of the argument, for messages.
            model: The model, whose device and dtype inputs get.
            batch_size: Samples per batch, for data that do not come in batches.
            shuffle: Whether to shuffle such data in every epoch, by torch's default generator.
            limit: Most batches per epoch; None for all.

        Raises:
            BadDataError: If the data have another form.
        """
        self.name = name
        self._limit = limit
        self._place = _Place.of(model)
        self._takes = _arguments_of(model)
        self._shuffle = shuffle
        self._batch_size = batch_size
        self._source: Any = None
        """A loader or another iterable of batches ..."""
        self.whole: Batch | None = None
        """... or all samples, if the user has them in memory anyway."""
        if data is None:
            raise BadDataError(f"{name} is missing; it must be {FORMS}.")
        if isinstance(data, (Samples, TensorDataset)) or _is_pair(data):
            self.whole = self._read_whole(data)
        elif isinstance(data, DataLoader):
            self._source = data
        elif isinstance(data, Dataset):
            may_shuffle = shuffle and not isinstance(data, IterableDataset)
            if not isinstance(data, IterableDataset) and len(cast(Any, data)) == 0:
                raise BadDataError(f"{name} has no samples; it must be {FORMS}.")
            self._source = DataLoader(cast(Any, data), batch_size=batch_size, shuffle=may_shuffle)
        elif isinstance(data, (str, bytes, Tensor, np.ndarray)) or not isinstance(data, Iterable):
            raise BadDataError(f"{name} is {type_of(cast(object, data))}; it must be {FORMS}.")
        elif isinstance(data, Iterator):
            raise BadDataError(
                f"{name} is {type_of(cast(object, data))}, which can be read only once, but every "
                "epoch reads the data again; give a DataLoader, or an object whose __iter__ starts "
                "again."
            )
        else:
            self._source = cast(Iterable[Any], data)

    def __iter__(self) -> Iterator[Batch]:
        """Yield the batches of an epoch."""
        batches = self._slices(self.whole) if self.whole is not None else self._stream()
        for number, batch in enumerate(batches):
            if self._limit is not None and number >= self._limit:
                return
            yield batch

    def first(self) -> Batch:
        """Return a first batch; torch's default generator is left as it is.

        Raises:
            BadDataError: If there is none.
        """
        with torch.random.fork_rng(devices=[]):
            for batch in self:
                return batch
        raise BadDataError(f"{self.name} has no samples; it must be {FORMS}.")

    def _read_whole(self, data: Any) -> Batch:
        parts: Sequence[Any]
        if isinstance(data, Samples):
            parts = (data.inputs, data.targets)
        else:
            parts = data.tensors if isinstance(data, TensorDataset) else cast(Sequence[Any], data)
        if len(parts) != 2:
            raise BadDataError(f"{self.name} contains a tuple of {len(parts)}; it must be {FORMS}.")
        inputs, targets = parts
        targets = self._place.tensor(targets, self.name, "targets", is_target=True)
        if isinstance(inputs, (tuple, Mapping)) and _is_batch(inputs):
            whole = self._read_batch((inputs, targets))
        else:
            found = self._place.tensor(inputs, self.name, "inputs")
            whole = Batch((found,), {}, targets, len(found) if found.ndim else 0)
        n_targets = len(targets) if targets.ndim else 0
        if whole.size != n_targets:
            raise BadDataError(
                f"{self.name}: there are {whole.size} inputs but {n_targets} targets; there must "
                "be as many of each."
            )
        if whole.size < 2:
            raise BadDataError(
                f"{self.name} has {many(whole.size, 'sample')}; it must have at least 2."
            )
        return whole

    def _slices(self, whole: Batch) -> Iterator[Batch]:
        n, size = whole.size, self._batch_size
        order = torch.randperm(n) if self._shuffle else None
        order = order if order is None else order.to(whole.targets.device)
        for start in range(0, n, size):
            if self._shuffle and start and n - start == 1:
                return  # one sample has no batch statistics
            rows: Any = slice(start, start + size)
            rows = rows if order is None else order[rows]
            args = tuple(_taken(each, rows) for each in whole.args)
            kwargs = {key: _taken(each, rows) for key, each in whole.kwargs.items()}
            yield Batch(args, kwargs, _taken(whole.targets, rows), min(size, n - start))

    def _stream(self) -> Iterator[Batch]:
        with self._worker_deaths_named():
            for value in self._source:
                yield self._read_batch(value)

    @contextmanager
    def _worker_deaths_named(self) -> Generator[None]:
        """Say that a worker process of a DataLoader died, for which there is no exception."""
        try:
            yield
        except (ConnectionError, EOFError, RuntimeError) as error:
            is_death = not isinstance(error, RuntimeError) or "DataLoader worker (pid" in str(error)
            is_raised_there = str(error).startswith("Caught ")  # by the dataset, in a worker
            if is_raised_there or not (is_death and getattr(self._source, "num_workers", 0)):
                raise
            with suppress(RuntimeError):  # raised wherever this process is when the signal comes
                time.sleep(SIGNAL_SECONDS)
            raise BadDataError(
                f"a worker process of {self.name} died ({message_of(error) or 'without a word'}); "
                "it may have run out of memory or of shared memory (/dev/shm): use fewer workers, "
                "or num_workers=0 to see what happens."
            ) from error

    def _read_batch(self, value: Any) -> Batch:
        args, kwargs, targets = self._split(value)
        place = self._place
        args = tuple(place.nested(each, self.name) for each in args)
        kwargs = {key: place.nested(each, self.name) for key, each in kwargs.items()}
        targets = place.nested(targets, self.name, is_target=True)
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        if not tensors:
            raise BadDataError(f"a batch of {self.name} has no tensor; it must be {FORMS}.")
        return Batch(args, kwargs, targets, len(tensors[0]))

    def _split(self, value: Any) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
        if isinstance(value, Mapping):
            given = dict(cast(Mapping[str, Any], value))
            found = next((key for key in TARGET_KEYS if key in given), None)
            targets = None if found is None else given[found]
            if found is not None and found not in self._takes:
                del given[found]
            return (), given, targets
        parts = list(cast(Sequence[Any], value)) if isinstance(value, (tuple, list)) else []
        if len(parts) < 2:
            kind = type_of(cast(object, value))
            size = f" of {len(parts)}" if parts else ""
            raise BadDataError(f"{self.name} contains {kind}{size}; it must be {FORMS}.")
        *inputs, targets = parts
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            return (), dict(cast(Mapping[str, Any], inputs[0])), targets
        if len(inputs) == 1 and isinstance(inputs[0], (tuple, list)):
            return tuple(cast(Sequence[Any], inputs[0])), {}, targets
        return tuple(inputs), {}, targets


@dataclass(frozen=True)
class _Place:
    """The device and the dtype that a model's inputs get."""

    device: torch.device | None
    dtype: torch.dtype | None

    @classmethod
    def of(cls, model: nn.Module) -> _Place:
        for parameter in model.parameters():
            if parameter.is_floating_point():
                return cls(parameter.device, parameter.dtype)
        return cls(None, None)

    def nested(self, value: Any, name: str, *, is_target: bool = False) -> Any:
        """Return a value with all tensors and arrays in it converted."""
        if isinstance(value, (Tensor, np.ndarray)):
            return self.tensor(value, name, "targets" if is_target else "inputs", is_target)
        if isinstance(value, Mapping):
            pairs = cast(Mapping[Any, Any], value).items()
            return {key: self.nested(each, name, is_target=is_target) for key, each in pairs}
        if isinstance(value, (tuple, list)):
            parts = cast(Sequence[Any], value)
            found = [self.nested(each, name, is_target=is_target) for each in parts]
            return tuple(found) if isinstance(value, tuple) else found
        return value

    def tensor(self, value: Any, name: str, part: str, is_target: bool = False) -> Tensor:
        """Return an array as a tensor of the model's device and dtype."""
        if not isinstance(value, Tensor):
            try:
                found = np.asarray(value)  # a view of a data frame may be read-only
                value = torch.as_tensor(found if found.flags.writeable else found.copy())
            except (TypeError, ValueError) as error:
                raise BadDataError(
                    f"{part} of {name} are {type_of(value)} that cannot be converted to a tensor; "
                    f"{name} must be {FORMS}."
                ) from error
        if value.is_meta or value.layout is not torch.strided:
            kind = "on the meta device" if value.is_meta else "sparse"
            raise BadDataError(f"{part} of {name} are {kind}; they must be a dense tensor.")
        value = value.detach()
        if self.device is not None:
            value = value.to(self.device)
        if value.is_floating_point():
            return value if self.dtype is None else value.to(self.dtype)
        if value.dtype is torch.uint8 and value.ndim >= IMAGE_AXES and not is_target:
            return value.to(self.dtype or torch.float32) / 255.0
        if is_target and value.dtype is torch.bool:
            return value.long()
        is_whole = value.dtype in (torch.uint8, torch.int8, torch.int16, torch.int32)
        return value.long() if is_whole else value


def _is_pair(data: Any) -> bool:
    """Return whether data are inputs and targets of all samples, rather than a list of batches."""
    if not isinstance(data, (tuple, list)):
        return False
    parts = cast(Sequence[Any], data)
    if len(parts) == 2 and isinstance(parts[1], (Tensor, np.ndarray)):
        return True  # also if the inputs are several
    return not any(_is_batch(part) for part in parts)


def _is_batch(value: Any) -> bool:
    """Return whether a value is a mapping, or a sequence with a tensor or array in it."""
    if isinstance(value, Mapping):
        return True
    if not isinstance(value, (tuple, list)):
        return False
    return any(isinstance(each, (Tensor, np.ndarray)) for each in cast(Sequence[Any], value))


def _taken(value: Any, rows: Any) -> Any:
    """Return the given rows of every tensor in a value."""
    if isinstance(value, Tensor):
        return value.index_select(0, rows) if isinstance(rows, Tensor) else value[rows]
    if isinstance(value, Mapping):
        return {key: _taken(each, rows) for key, each in cast(Mapping[Any, Any], value).items()}
    if isinstance(value, tuple):
        return tuple(_taken(each, rows) for each in cast(tuple[Any, ...], value))
    return value


def _arguments_of(model: nn.Module) -> frozenset[str]:
    """Return the names of the arguments of a model's forward pass, as far as they are known."""
    try:
        return frozenset(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        return frozenset()
