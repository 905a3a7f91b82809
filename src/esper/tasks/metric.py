"""How hosts are scored: metrics that all become "0 for guessing, 1 for perfect".

Shapes: any axes ``...``, K classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Real
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esper.config.checks import make_numbers_plain, require_int
from esper.errors import TaskError
from esper.growth.populations.objective import CrossEntropy, Objective
from esper.tasks.own_functions import shown

Values = TypeVar("Values", float, NDArray[np.floating], Tensor)


class BitsPerPrediction(CrossEntropy):
    """Classification judged by surprise: the metric is minus the binary log of the target's p."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the bits that each target costs, in the shape of ``targets``."""
        return self.losses(outputs, targets) / math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A number by which hosts are judged."""

    name: str
    objective: Objective
    """Gives the loss and the metric of each prediction."""
    worst: float
    """The metric of guessing."""
    best: float
    """The metric of a perfect host."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"a metric's name is {self.name!r}; it must be a word.")
        for method in ("losses", "metrics"):
            if isinstance(self.objective, type) or not callable(
                getattr(self.objective, method, None)
            ):
                raise TaskError(
                    f"objective of metric {self.name!r} is {shown(self.objective)}; it must be an "
                    "object with the methods losses and metrics, as CrossEntropy() is."
                )
        ends = (self.worst, self.best)
        if not all(_is_finite(end) for end in ends) or self.worst == self.best:
            raise TaskError(
                f"metric {self.name!r} goes from worst {self.worst!r} to best {self.best!r}; they "
                "must be finite numbers and differ."
            )
        make_numbers_plain(self)

    def score(self, values: Values) -> Values:
        """Return metrics as scores: 0 for guessing, 1 for perfect, higher is better."""
        return (values - self.worst) / (self.best - self.worst)


def _is_finite(value: object) -> bool:
    """Return whether this is a finite number."""
    return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)


ACCURACY = Metric(name="accuracy", objective=CrossEntropy(), worst=0.0, best=1.0)
"""The share of predictions that are right."""


def bits_per_character(vocabulary: int) -> Metric:
    """Return the metric of models of text with so many different characters."""
    require_int("vocabulary", vocabulary, least=2)
    return Metric(
        name="bits per character",
        objective=BitsPerPrediction(),
        worst=math.log2(vocabulary),
        best=0.0,
    )
