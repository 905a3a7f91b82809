"""The data that a host learns from and is judged by. Shapes: n samples, T predictions of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from torch import Tensor, nn

from esper.config.checks import make_numbers_plain, require_number
from esper.errors import BadDataError, TaskError


@dataclass(frozen=True, eq=False)
class Samples:
    """Samples and what a host is to say of each."""

    inputs: Tensor
    """``[n, ...]``: numbers, or the int64 numbers of tokens."""
    targets: Tensor
    """``[n]`` or ``[n, T]``, int64: the class of each prediction."""

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskData:
    """Three sets of samples that have none in common."""

    train: Samples
    """What a host learns from."""
    validation: Samples
    """What a controller sees of how well a host does."""
    test: Samples
    """What a host is judged by at the end; nothing is decided by it."""

    def __post_init__(self) -> None:
        for split, samples in self.splits():
            if not isinstance(samples, Samples):
                raise BadDataError(
                    f"the {split} split of a TaskData is a {type(samples).__name__}; it must be "
                    "Samples(inputs, targets)."
                )

    def splits(self) -> Iterator[tuple[str, Samples]]:
        """Go through the name and the samples of each split."""
        yield "train", self.train
        yield "validation", self.validation
        yield "test", self.test


@dataclass(frozen=True, kw_only=True, eq=False)
class TaskDraw:
    """What one host learns from and how it starts."""

    data: TaskData
    n_classes: int
    """Classes that occur; a host may have more outputs."""
    learning_rate: float | None = None
    """Step size; None for the task's."""
    make_host: Callable[[int], nn.Module] | None = None
    """Makes the host from a seed; None for the task's."""
    facts: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was drawn, by name: recorded, not observed."""

    def __post_init__(self) -> None:
        if not isinstance(self.data, TaskData):
            kind = type(self.data).__name__
            raise BadDataError(f"data of a TaskDraw is a {kind}; it must be a TaskData.")
        if self.learning_rate is not None:
            require_number("learning_rate of a TaskDraw", self.learning_rate, above=0.0)
        if self.make_host is not None and not callable(self.make_host):
            raise TaskError(
                f"make_host of a TaskDraw is {self.make_host!r}; it must be a function of a seed, "
                "or None for the task's."
            )
        make_numbers_plain(self)
