"""What one host of a population learns from, and the order in which it sees it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.config.checks import require_int, require_number
from esper.errors import ShapeError

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
        for field in fields(self):
            tensor = getattr(self, field.name)
            if tensor is not None and tensor.requires_grad:  # nobody learns what samples are
                object.__setattr__(self, field.name, tensor.detach())
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
