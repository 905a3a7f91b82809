"""Settings that all hosts of a population share."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from esper.config.checks import make_numbers_plain, require_choice, require_int, require_number

OPTIMIZERS = ("sgd", "adam", "adamw")
WIDEN_STARTS = ("random", "gradmax")


@dataclass(frozen=True, kw_only=True)
class PopulationConfig:
    """How the hosts of a population are trained."""

    batch_size: int = 32
    """Samples of a step, or all of a host that has fewer."""

    batches_per_epoch: int | None = None
    """Batches of an epoch, from one shuffle after another; None for one pass of whole batches."""

    optimizer: Literal["sgd", "adam", "adamw"] = "adamw"
    """The rule by which parameters move."""

    learning_rate: float = 1e-3
    """Step size of hosts that have none of their own."""

    weight_decay: float = 0.0
    """How strongly weights are pulled to zero; decoupled from the gradient for adamw."""

    momentum: float = 0.9
    """Share of the last move that sgd repeats."""

    beta1: float = 0.9
    """Memory of the mean gradient, for adam and adamw."""

    beta2: float = 0.999
    """Memory of the squared gradient, for adam and adamw."""

    adam_eps: float = 1e-8
    """Floor under the root of the squared gradient, for adam and adamw."""

    seed_lr_factor: float = 1.0
    """Learning rate of a seed that is not committed, relative to its host's."""

    widen_start: Literal["random", "gradmax"] = "random"
    """Where a widening seed starts: anywhere, or where its gradient on a batch is largest."""

    def __post_init__(self) -> None:
        require_int("batch_size", self.batch_size, least=2)
        if self.batches_per_epoch is not None:
            require_int("batches_per_epoch", self.batches_per_epoch, least=1)
        require_number("learning_rate", self.learning_rate, above=0.0)
        require_number("weight_decay", self.weight_decay, least=0.0)
        for name in ("momentum", "beta1", "beta2"):
            require_number(name, getattr(self, name), least=0.0, most=0.999999)
        require_number("adam_eps", self.adam_eps, above=0.0)
        require_number("seed_lr_factor", self.seed_lr_factor, above=0.0)
        require_choice("optimizer", self.optimizer, OPTIMIZERS)
        require_choice("widen_start", self.widen_start, WIDEN_STARTS)
        make_numbers_plain(self)
