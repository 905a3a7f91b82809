"""A task: what a host learns, how it starts, how it is judged and what it may cost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from esper.config.checks import require_int
from esper.config.growth import GrowthConfig
from esper.config.population import PopulationConfig
from esper.config.tasks import Budget
from esper.errors import TaskError
from esper.growth.hosts import HostMaker
from esper.tasks.checking import check_classes, check_data, check_forms
from esper.tasks.metric import ACCURACY, Metric
from esper.tasks.own_functions import (
    call_with_seed,
    checked_host_maker,
    require_function_of_seed,
    shown,
)
from esper.tasks.task_data import Samples, TaskData, TaskDraw

__all__ = ["ACCURACY", "Metric", "Samples", "Task", "TaskData", "TaskDraw"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task:
    """Data, a host factory, a metric and a budget."""

    name: str
    make_host: Callable[[int], nn.Module]
    """Makes a host with slots from a seed; also the reference that prices are relative to. A
    function of your own is called through a check of what it returns."""
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
    needs_all_classes: bool = True
    """Whether each split must have a sample of each class."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"a task's name is {self.name!r}; it must be a word.")
        if (self.data is None) == (self.draw is None):
            has = "neither data nor draw" if self.data is None else "both data and draw"
            raise TaskError(f"task {self.name!r} has {has}; it must have exactly one of them.")
        self._require_kinds()
        if self.n_classes is not None:
            if self.data is None:
                raise TaskError(
                    f"task {self.name!r} has draw and n_classes {self.n_classes!r}; what is drawn "
                    "says how many classes there are, so n_classes must be None."
                )
            check_classes(self.n_classes, task=self.name)
        if self.draw is not None:
            require_function_of_seed(f"draw of task {self.name!r}", self.draw)
        checked = checked_host_maker(f"make_host of task {self.name!r}", self.make_host)
        object.__setattr__(self, "make_host", checked)

    def sample(self, seed: int) -> TaskDraw:
        """Return what the host of this seed learns from; fixed data are the same for all seeds.

        Raises:
            BadDataError: If the data cannot be used.
            TaskError: If the task's function fails.
        """
        require_int("seed", seed, least=0)
        if self.draw is None:
            return self._fixed
        drawn = call_with_seed(f"draw of task {self.name!r}", self.draw, seed)
        check_data(drawn, task=self.name, needs_all_classes=self.needs_all_classes)
        if drawn.make_host is None or isinstance(drawn.make_host, HostMaker):
            return drawn
        return replace(drawn, make_host=self._checked_maker(drawn.make_host))

    def _require_kinds(self) -> None:
        """Refuse a field that holds something of another kind."""
        kinds: dict[str, tuple[type, ...]] = {
            "data": (TaskData, type(None)),
            "metric": (Metric,),
            "budget": (Budget,),
            "training": (PopulationConfig,),
            "growth": (GrowthConfig, type(None)),
        }
        for name, allowed in kinds.items():
            value = getattr(self, name)
            if not isinstance(value, allowed):
                raise TaskError(
                    f"{name} of task {self.name!r} is {shown(value)}; it must be a "
                    f"{allowed[0].__name__}."
                )

    @cached_property
    def _fixed(self) -> TaskDraw:
        """The fixed data, looked at once."""
        assert self.data is not None, "a task without draw has data"
        n_classes = self.n_classes
        if n_classes is None:
            check_forms(self.data, task=self.name)
            n_classes = 1 + max(int(samples.targets.max()) for _, samples in self.data.splits())
        drawn = TaskDraw(data=self.data, n_classes=n_classes)
        check_data(drawn, task=self.name, needs_all_classes=self.needs_all_classes)
        return drawn

    @cached_property
    def _drawn_makers(self) -> dict[int, Callable[[int], nn.Module]]:
        """What makes the hosts of draws, by the identity of the function that was drawn."""
        return {}

    def _checked_maker(self, make_host: Callable[[int], nn.Module]) -> Callable[[int], nn.Module]:
        """Return a drawn function, checked: the same for the same function if it can redraw."""
        known = self._drawn_makers.get(id(make_host))
        if known is not None:
            return known
        checked = checked_host_maker(f"make_host of a draw of task {self.name!r}", make_host)
        if hasattr(make_host, "redraw"):  # Populations keep a host for each of these.
            self._drawn_makers[id(make_host)] = checked
        return checked
