"""What all adapters share: their options, the metrics they log, and missing packages."""

from __future__ import annotations

import importlib
import math
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypedDict

from torch import nn

from esper.config.checks import reject_unknown
from esper.errors import ConfigError
from esper.growing.decisions import Decision
from esper.growing.grower import Grower
from esper.growth.dry_run import SampleInput
from esper.growth.sharding import total_norm
from esper.training.lookup import AnyController


class GrowerOptions(TypedDict, total=False):
    """Arguments of :class:`esper.Grower` that adapters pass on as they are."""

    at: Sequence[str] | None
    controller: AnyController
    ema: nn.Module | Sequence[nn.Module] | None
    price: float
    sample_input: SampleInput | None
    seed: int


GROWER_OPTIONS = tuple(GrowerOptions.__annotations__)


def require_options(given: Mapping[str, Any]) -> None:
    """Raise ConfigError if an option is not one that adapters pass on."""
    reject_unknown("the Grower of an adapter", given, GROWER_OPTIONS, {})


@dataclass(frozen=True)
class MetricNames:
    """The metrics of a library by which the controller decides."""

    score: str | None
    """More is better; None to decide by the loss."""
    val_loss: str | None
    """The validation loss; it may be missing if there is a score."""

    def __post_init__(self) -> None:
        if self.score is None and self.val_loss is None:
            raise ConfigError("score and val_loss are both None; name a metric of the validation.")

    def read(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments for :meth:`esper.Grower.end_epoch`.

        Raises:
            ConfigError: If the metric to decide by is missing, with the metrics that there are.
        """
        needed = self.val_loss if self.score is None else self.score
        if needed not in metrics:
            known = ", ".join(sorted(map(str, metrics))) or "none"
            raise ConfigError(
                f"metric {needed!r} was not logged in this epoch; logged were: {known}. Name "
                "another as score= (more is better) or val_loss=, and validate after every epoch."
            )
        pairs = (("score", self.score), ("val_loss", self.val_loss))
        return {key: float(metrics[name]) for key, name in pairs if name and name in metrics}


def metrics_of(decision: Decision) -> dict[str, float]:
    """Return the metrics of growth that adapters log after each epoch."""
    growing = [stage for stage in decision.stages.values() if stage != "fossilized"]
    return {
        "growth/score": decision.score,
        "growth/flops": decision.flops,
        "growth/parameters": float(decision.parameters),
        "growth/seed_parameters": float(decision.seed_parameters),
        "growth/growing_seeds": float(len(growing)),
    }


def check_gradients(grower: Grower) -> bool:
    """Check the gradients of a step, if there are any; return whether they can be used.

    Libraries unscale gradients before Esper averages those of seeds over the ranks, so a scaler may
    have seen an overflow on one rank only. What is not finite is dropped on all of them.
    """
    found = [p for p in grower.model.parameters() if p.grad is not None]
    if not found or grower.check_gradients() is not None:
        return False  # a rollback has dropped them
    is_finite = math.isfinite(total_norm([p.grad for p in found if p.grad is not None]))
    if not is_finite:
        for parameter in found:
            parameter.grad = None
    return is_finite


@contextmanager
def full_precision(model: nn.Module) -> Generator[None]:
    """Undo inside the context that Accelerate has put autocast into a model's ``forward``.

    A Grower runs single blocks to find its slots, outside ``forward``.
    """
    names = ("forward", "_original_forward") if "_original_forward" in model.__dict__ else ()
    hidden = {name: model.__dict__.pop(name) for name in names}
    try:
        yield
    finally:
        model.__dict__.update(hidden)


def import_library(module: str, extra: str) -> Any:
    """Return a module of another library.

    Raises:
        ConfigError: If it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"esper.integrations.{extra} needs {error.name}, which is not installed; run: "
            f'pip install "esper-lite[{extra}]"'
        ) from error
