"""Tasks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property

from torch import nn

from esper.config.checks import Seed, Settings, check
from esper.config.growth import Budget, GrowthConfig, PopulationConfig
from esper.errors import ConfigError, TaskError
from esper.growth.hosts import HostMaker
from esper.populations.host_data import CrossEntropy, SquaredError
from esper.tasks.data import Samples, TaskData, TaskDraw, check_classes, check_data, check_forms
from esper.tasks.metrics import ACCURACY, Metric
from esper.tasks.user_code import call_with_seed, checked_host_maker, require_function_of_seed

MAX_BATCHES = 100_000_000
"""Maximum batches of an episode, which take hours even for the smallest hosts."""

__all__ = ["ACCURACY", "Metric", "Samples", "Task", "TaskData", "TaskDraw"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Task(Settings):
    """Data, a host factory, a metric and a budget.

    Examples:
        >>> x, y = torch.randn(60, 2), torch.arange(60) % 3
        >>> task = esper.Task(
        ...     name="mine",
        ...     make_host=lambda seed: esper.make_host(
        ...         esper.MLPHostConfig(n_features=2, n_classes=3), seed=seed
        ...     ),
        ...     data=esper.TaskData.cut(x, y, sizes=(20, 20, 20)),
        ...     n_classes=3,
        ... )
        >>> task.metric.name
        'accuracy'
    """

    name: str
    make_host: Callable[[int], nn.Module]
    """Creates a host with slots from a seed. Costs are relative to this host. The results of your
    own functions are checked."""
    data: TaskData | None = None
    """Fixed data ..."""
    draw: Callable[[int], TaskDraw] | None = None
    """... or a distribution: a function of a seed that always returns the same draw for it."""
    n_classes: int | None = None
    """Number of classes of fixed data, 0 for regression; None for one more than the largest target,
    or 0 if targets are floating point."""
    metric: Metric = ACCURACY
    """Measures hosts, unless a draw has a metric of its own."""
    budget: Budget = field(default_factory=Budget)
    training: PopulationConfig = field(default_factory=PopulationConfig)
    growth: GrowthConfig | None = None
    """How long seeds stay in their stages; None for the defaults."""
    summary: str = ""
    """A short description of the task."""
    needs_all_classes: bool = True
    """Whether each split must have a sample of each class."""
    draws_price: bool = False
    """Whether the prices of draws count, instead of the budget's."""
    draws_designs: bool = False
    """Whether draws have hosts of different designs, with 1 to ``max_slots`` slots."""
    max_slots: int = 0
    """Slots that all hosts are padded to, if draws have hosts of different designs."""
    test_pool: int | None = None
    """Test samples that all draws choose from; None if each draw has its own. Fixed data are
    always shared."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"name is {self.name!r}; it must be a non-empty string.")
        if (self.data is None) == (self.draw is None):
            has = "neither data nor draw" if self.data is None else "both data and draw"
            raise TaskError(f"task {self.name!r} has {has}; it must have exactly one of them.")
        try:
            super().__post_init__()
        except ConfigError as error:
            raise TaskError(f"task {self.name!r}: {error}") from error
        self._require_end()
        if self.n_classes is not None:
            if self.data is None:
                raise TaskError(
                    f"task {self.name!r} has draw and n_classes {self.n_classes!r}; each draw has "
                    "its own number of classes, so n_classes must be None."
                )
            check_classes(self.n_classes, task=self.name)
        if self.draw is not None:
            require_function_of_seed(f"draw of task {self.name!r}", self.draw)
        checked = checked_host_maker(f"make_host of task {self.name!r}", self.make_host)
        object.__setattr__(self, "make_host", checked)

    def __repr__(self) -> str:
        data = "a draw for each host" if self.data is None else repr(self.data)
        about = f" ({self.summary})" if self.summary else ""
        return (
            f"Task({self.name!r}{about}: {data}; {self.metric.name}, "
            f"{self.budget.n_epochs} epochs, FLOPs at price {self.budget.flop_price:g})"
        )

    def sample(self, seed: int) -> TaskDraw:
        """Return the draw of a seed; fixed data are the same for all seeds.

        Raises:
            BadDataError: If the data are invalid.
            TaskError: If the task's function fails.
        """
        check("seed", seed, Seed)
        if self.draw is None:
            return self._fixed
        drawn = call_with_seed(f"draw of task {self.name!r}", self.draw, seed)
        self._check_draw(drawn)
        if drawn.make_host is None or isinstance(drawn.make_host, HostMaker):
            return drawn
        what = f"make_host of a draw of task {self.name!r}"
        return replace(drawn, make_host=checked_host_maker(what, drawn.make_host))

    def require_variety(self) -> None:
        """Reject a draw that ignores its seed.

        Raises:
            TaskError: If sixteen seeds all have the same draw, as one time in 32,768 for a
                distribution of two problems.
        """
        if self.draw is None:
            return
        first = self.sample(0)
        if all(first.is_like(self.sample(seed)) for seed in range(1, 16)):
            raise TaskError(
                f"draw of task {self.name!r} returned the same draw for each of 16 seeds; it must "
                "depend on its seed. Pass the data of a single problem as data."
            )

    @property
    def shared_tests(self) -> int | None:
        """Test samples that all hosts share; None if each draw has its own."""
        return self.test_pool if self.data is None else len(self.data.test.targets)

    def _require_end(self) -> None:
        """Reject an episode that would never end."""
        n_epochs, n_batches = self.budget.n_epochs, self.training.batches_per_epoch or 1
        if n_epochs * n_batches > MAX_BATCHES:
            raise TaskError(
                f"task {self.name!r} has n_epochs {n_epochs} and batches_per_epoch {n_batches}; an "
                f"episode may have at most {MAX_BATCHES} batches. Use fewer epochs or batches."
            )

    @cached_property
    def _fixed(self) -> TaskDraw:
        """The fixed data, validated once."""
        assert self.data is not None, "a task without draw has data"
        n_classes = self.n_classes
        if n_classes is None:
            check_forms(self.data, task=self.name)
            if self.data.train.targets.is_floating_point():
                n_classes = 0
            else:
                n_classes = 1 + max(int(samples.targets.max()) for _, samples in self.data.splits())
        drawn = TaskDraw(data=self.data, n_classes=n_classes)
        self._check_draw(drawn)
        return drawn

    def _check_draw(self, drawn: TaskDraw) -> None:
        """Reject invalid data, and a metric for other targets.

        Raises:
            BadDataError: If the data are invalid.
            TaskError: If the metric does not fit them.
        """
        check_data(drawn, task=self.name, needs_all_classes=self.needs_all_classes)
        metric, is_regression = drawn.metric or self.metric, drawn.n_classes == 0
        if isinstance(metric.objective, CrossEntropy if is_regression else SquaredError):
            kind = str(drawn.data.train.targets.dtype).removeprefix("torch.")
            fitting = "RELATIVE_ERROR" if is_regression else "ACCURACY"
            raise TaskError(
                f"task {self.name!r} has {kind} targets and the metric {metric.name!r}, which "
                f"is not for them; use another metric, such as esper.tasks.{fitting}."
            )
