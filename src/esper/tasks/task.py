"""A task: what a host learns, how it starts, how it is judged and what it may cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from esper.config.checks import make_numbers_plain, require_int
from esper.config.growth import Budget, GrowthConfig, PopulationConfig
from esper.errors import TaskError
from esper.growth.hosts import HostMaker
from esper.populations.host_data import CrossEntropy, Objective
from esper.tasks.data import Samples, TaskData, TaskDraw, check_classes, check_data, check_forms
from esper.tasks.user_code import (
    call_with_seed,
    checked_host_maker,
    require_function_of_seed,
    shown,
)

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
    variants: tuple[tuple[Task, float], ...] = ()
    """Hosts of other designs that the same controller grows: tasks, each with its share of the
    environments. Their budgets are not used: that of this task is for all."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise TaskError(f"a task's name is {self.name!r}; it must be a word.")
        if (self.data is None) == (self.draw is None):
            has = "neither data nor draw" if self.data is None else "both data and draw"
            raise TaskError(f"task {self.name!r} has {has}; it must have exactly one of them.")
        self._require_kinds()
        object.__setattr__(self, "variants", self._check_variants())
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

    @cached_property
    def designs(self) -> tuple[Task, ...]:
        """The task without variants, then each variant with the task's budget."""
        if not self.variants:
            return (self,)
        others = [replace(variant, budget=self.budget) for variant, _ in self.variants]
        return (replace(self, variants=()), *others)

    def share_out(self, n_hosts: int, *, least: int = 1) -> list[int]:
        """Return how many of the hosts each design has: its share, the first one what is left.

        Args:
            n_hosts: Of all designs; more if that is too few for ``least`` of each.
            least: The fewest hosts of each of several designs.
        """
        if not self.variants:
            return [n_hosts]
        shares = [share for _, share in self.variants]
        wanted = [n_hosts * (1.0 - sum(shares)), *(n_hosts * share for share in shares)]
        counts = [least] * len(wanted)
        for _ in range(n_hosts - sum(counts)):
            lacking = [wish - count for wish, count in zip(wanted, counts, strict=True)]
            counts[lacking.index(max(lacking))] += 1
        return counts

    def require_one_design(self, what: str) -> None:
        """Reject a task with variants.

        Raises:
            TaskError: Naming ``what``, which takes hosts of one design, and the variants.
        """
        if self.variants:
            names = ", ".join(repr(variant.name) for variant, _ in self.variants)
            raise TaskError(
                f"task {self.name!r} has the variants {names}; {what} takes hosts of one design. "
                "Give one of task.designs, or make the task without variants: digits-family with "
                "host 'mlp' or 'cnn'."
            )

    def _check_variants(self) -> tuple[tuple[Task, float], ...]:
        """Return the variants with their shares; reject what is not a task with a share."""
        what, total = f"variants of task {self.name!r}", 0.0
        pairs = _as_pairs(self.variants)
        if pairs is None or not all(isinstance(variant, Task) for variant, _ in pairs):
            raise TaskError(
                f"{what} is {shown(self.variants)}; it must be a tuple of pairs, each of a Task "
                "and its share of the environments."
            )
        for variant, share in pairs:
            if variant.variants:
                raise TaskError(
                    f"{what} has {variant.name!r}, which has variants itself; list them all in "
                    f"{self.name!r}."
                )
            is_number = isinstance(share, (int, float)) and not isinstance(share, bool)
            if not is_number or not 0.0 < share < 1.0:
                raise TaskError(
                    f"{what} gives {variant.name!r} the share {share!r} of the environments; it "
                    "must be a number above 0 and below 1."
                )
            total += share
        if total >= 1.0:
            raise TaskError(
                f"{what} gives away {total:g} of the environments; it must be less than 1, so that "
                f"some are left for {self.name!r}."
            )
        return tuple((variant, float(share)) for variant, share in pairs)

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


def _as_pairs(given: Any) -> list[tuple[Any, Any]] | None:
    """Return the pairs of a tuple or list of pairs; None if it is something else."""
    if not isinstance(given, (tuple, list)):
        return None
    pairs: list[Any] = list(cast("list[Any]", given))
    is_right = all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs)  # pyright: ignore[reportUnknownArgumentType]
    return [(pair[0], pair[1]) for pair in pairs] if is_right else None
