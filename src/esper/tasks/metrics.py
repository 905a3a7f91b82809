"""Metrics: an objective with the values of guessing and of a perfect host."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from esper.config.checks import Bounds, check
from esper.errors import TaskError, shown
from esper.populations.host_data import CrossEntropy, Objective, SquaredError

Values = TypeVar("Values", float, NDArray[np.floating], Tensor)


class BitsPerPrediction(CrossEntropy):
    """Classification whose metric is the cross-entropy in bits."""

    def metrics(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return ``-log2 p(target)`` of each prediction, in the shape of ``targets``."""
        return self.losses(outputs, targets) / math.log(2.0)


@dataclass(frozen=True, kw_only=True)
class Metric:
    """A measure of how good a host is.

    Examples:
        >>> esper.make_task("digits").metric.name
        'accuracy'
    """

    name: str
    objective: Objective
    """Computes the loss and the metric of each prediction."""
    worst: float
    """The value for random guessing."""
    best: float
    """The value for a perfect host."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"a metric's name is {self.name!r}; it must be a non-empty string.")
        for method in ("losses", "metrics"):
            if isinstance(self.objective, type) or not callable(
                getattr(self.objective, method, None)
            ):
                raise TaskError(
                    f"objective of metric {self.name!r} is {shown(self.objective)}; it must be an "
                    "object with the methods losses and metrics, such as CrossEntropy()."
                )
        for end in ("worst", "best"):
            value = check(f"{end} of metric {self.name!r}", getattr(self, end), float)
            object.__setattr__(self, end, value)
        if self.worst == self.best:
            raise TaskError(
                f"metric {self.name!r} has worst {self.worst!r} and best {self.best!r}; they must "
                "be different."
            )

    def __repr__(self) -> str:
        return f"Metric({self.name!r}, worst {self.worst:g}, best {self.best:g})"

    def score(self, values: Values) -> Values:
        """Return metrics as scores: 0 for guessing, 1 for perfect, higher is better."""
        return (values - self.worst) / (self.best - self.worst)


ACCURACY = Metric(name="accuracy", objective=CrossEntropy(), worst=0.0, best=1.0)
"""The share of correct predictions."""

RELATIVE_ERROR = Metric(
    name="error relative to the mean", objective=SquaredError(), worst=1.0, best=0.0
)
"""The squared error of a regression, relative to that of always predicting the mean.

Targets must be standardized to variance 1; the score is R squared then.
"""


@lru_cache(maxsize=32)
def bits_per_character(vocabulary: int) -> Metric:
    """Return the metric of character models with a vocabulary of this size."""
    check("vocabulary", vocabulary, Annotated[int, Bounds(2)])
    return Metric(
        name="bits per character",
        objective=BitsPerPrediction(),
        worst=math.log2(vocabulary),
        best=0.0,
    )
