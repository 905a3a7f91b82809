"""A task: what a host learns, how it starts, how it is judged and what it may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property

from torch import nn

from esper.config.checks import require_int
from esper.config.growth import GrowthConfig
from esper.config.population import PopulationConfig
from esper.config.tasks import Budget
from esper.errors import BadDataError, TaskError
from esper.tasks.checking import check_data
from esper.tasks.metric import ACCURACY, Metric
from esper.tasks.task_data import Samples, TaskData, TaskDraw

__all__ = ["ACCURACY", "Metric", "Samples", "Task", "TaskData", "TaskDraw"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Data, a host factory, a metric and a budget."""

    name: str
    make_host: Callable[[int], nn.Module]
    """Makes a host with slots from a seed; also the reference that prices are relative to."""
    data: TaskData | None = None
    """One fixed set of data ..."""
    draw: Callable[[int], TaskDraw] | None = None
    """... or a distribution: the same seed gives the same draw."""
    n_classes: int | None = None
    """Classes of fixed data; None for one more than the largest target."""
    metric: Metric = ACCURACY
    budget: Budget = field(default_factory=Budget)
    training: PopulationConfig = field(default_factory=PopulationConfig)
    growth: GrowthConfig | None = None
    """How long seeds stay in their stages; None for the usual."""
    summary: str = ""
    """What the task is, in a few words."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"a task's name is {self.name!r}; it must be a word.")
        if (self.data is None) == (self.draw is None):
            has = "neither data nor draw" if self.data is None else "both data and draw"
            raise TaskError(f"task {self.name!r} has {has}; it must have exactly one of them.")
        if self.n_classes is not None and self.data is None:
            raise TaskError(
                f"task {self.name!r} has draw and n_classes {self.n_classes!r}; what is drawn says "
                "how many classes there are, so n_classes must be None."
            )
        for name, function in (("make_host", self.make_host), ("draw", self.draw)):
            if not callable(function) and (name, function) != ("draw", None):
                raise TaskError(
                    f"{name} of task {self.name!r} is {function!r}; it must be a function of a "
                    "seed."
                )
        if self.data is not None and not isinstance(self.data, TaskData):
            kind = type(self.data).__name__
            raise TaskError(f"data of task {self.name!r} is a {kind}; it must be a TaskData.")

    def sample(self, seed: int) -> TaskDraw:
        """Return what the host of this seed learns from; fixed data are the same for all seeds.

        Raises:
            BadDataError: If the data cannot be used.
        """
        require_int("seed", seed, least=0)
        if self.draw is None:
            return self._fixed
        drawn = self.draw(seed)
        check_data(drawn, task=self.name)
        return drawn

    @cached_property
    def _fixed(self) -> TaskDraw:
        """The fixed data, looked at once."""
        assert self.data is not None, "a task without draw has data"
        n_classes = self._count_classes(self.data) if self.n_classes is None else self.n_classes
        drawn = TaskDraw(data=self.data, n_classes=n_classes)
        check_data(drawn, task=self.name)
        return drawn

    def _count_classes(self, data: TaskData) -> int:
        try:
            return 1 + max(int(samples.targets.max()) for _, samples in data.splits())
        except (AttributeError, RuntimeError) as error:
            raise BadDataError(
                f"task {self.name!r}: the classes of its targets cannot be counted ({error}); "
                "targets must be int64 tensors and none may be empty."
            ) from error
