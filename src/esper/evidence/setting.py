"""The learned controllers of an evaluation and the task they are evaluated on."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, cast

from esper.config.checks import require_number
from esper.config.growth import Budget
from esper.environment.hosts import data_digest
from esper.environment.options import find_task
from esper.errors import ConfigError, RunError
from esper.evidence.cache import ResultCache
from esper.evidence.host_trainer import PART
from esper.tamiyo import SavedController
from esper.tasks import Task
from esper.training.lookup import AnyController, find_saved

EPISODES = "episodes"
"""The fact of a controller's origin that tells how many host runs it was trained with."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """Where controllers are evaluated."""

    task: Task
    options: Mapping[str, Any]
    """The task's options, as plain values."""
    is_named: bool = True
    """Whether the task has a name that it is made from, as opposed to an object of the caller's."""

    def cache(self, folder: str | PathLike[str] | None) -> ResultCache:
        """Return where results are kept: nowhere for an object, whose functions have no digest."""
        path = Path(folder) if folder is not None and self.is_named else None
        return ResultCache(path, self.decided_by())

    def at(self, price: float) -> Task:
        """Return the task at another price of computing."""
        return replace(self.task, budget=replace(self.task.budget, flop_price=price))

    def decided_by(self) -> dict[str, Any]:
        """Return what decides what becomes of a host, as plain values, without the price."""
        task = self.task
        return {
            "task": task.name,
            "options": {name: str(value) for name, value in self.options.items()},
            "data": data_digest(task.sample(0)),
            "n_epochs": task.budget.n_epochs,
            "training": asdict(task.training),
            "growth": None if task.growth is None else asdict(task.growth),
            "part": PART,
        }


def find_contestants(runs: AnyController | Sequence[AnyController]) -> list[SavedController]:
    """Return learned controllers by whatever names them.

    Raises:
        RunError: If none is given, one is there twice, or what is named is no learned controller.
    """
    many = cast("list[AnyController]", list(runs) if isinstance(runs, (list, tuple)) else [runs])
    if not many:
        raise RunError("no run is given; name the folder of at least one.")
    found = [_require_learned(one) for one in many]
    if len({one.deterministic for one in found}) > 1:
        raise RunError(
            f"of {', '.join(one.name for one in found)} some act greedily and others do not; "
            "evaluate those that act alike together."
        )
    for number, one in enumerate(found):
        for other in found[:number]:
            _require_apart(other, one)
    return found


def find_ground(
    saved: Sequence[SavedController],
    task: str | Task | None,
    task_options: Mapping[str, Any] | None,
) -> Ground:
    """Return the task of controllers, with their budget, or another one, with its own.

    Options are added to those that the controllers learned with, if it is their task. Seeds live by
    the rules that they learned with.

    Raises:
        RunError: If the controllers learned on different tasks and none is named.
        TaskError: If the task cannot be made.
    """
    learned_on = saved[0].origin.get("task") if saved else None
    is_other = task is not None and task != learned_on
    for one in saved[1:]:
        _require_alike(saved[0], one, is_other_task=is_other)
    options = dict(task_options or {})
    if task is not None and is_other:
        made = find_task(task, options)
        made.require_one_design("an evaluation")
        is_named = isinstance(task, str)
        return Ground(task=_with_rules(made, saved), options=options, is_named=is_named)
    first = saved[0]
    name, own, budget = _learned_on(first)
    if name is None:
        raise RunError(
            f"controller {first.name!r} does not say what it learned on; name a task (--task)."
        )
    made = find_task(name, {**own, **options})
    made.require_one_design("an evaluation")
    task_alone = replace(_with_rules(made, saved), budget=budget)
    return Ground(task=task_alone, options={**own, **options})


def find_prices(prices: float | Sequence[float] | None, usual: float) -> tuple[float, ...]:
    """Return the prices to evaluate at, each once; the usual one if none is given."""
    if prices is None:
        return (usual,)
    many = [prices] if isinstance(prices, (int, float)) else list(prices)
    if not many:
        raise ConfigError("prices is empty; give one price at least, or None for the task's.")
    for price in many:
        require_number("price", price, least=0.0)
    return tuple(dict.fromkeys(float(price) for price in many))


def digest_of_controller(saved: SavedController) -> str:
    """Return a digest of everything that decides what a controller does."""
    total = hashlib.sha256(repr((saved.policy, saved.blueprints)).encode())
    for name, tensor in sorted(saved.weights.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:32]


def mean_episodes(saved: Sequence[SavedController]) -> int:
    """Return the host runs that controllers were trained with, in the mean."""
    counts = [int(one.origin.get(EPISODES, 0)) for one in saved]
    return round(sum(counts) / len(counts))


def _require_learned(one: AnyController) -> SavedController:
    saved = find_saved(one)
    if saved is None:
        raise RunError(
            f"{one} is no learned controller; evaluate the folder of a run or of a saved "
            "controller, and compare simple ones with esper compare."
        )
    return saved


def _require_apart(first: SavedController, one: SavedController) -> None:
    """Refuse what is no second training run: it would be counted as one."""
    trained = [(saved.origin.get("command"), saved.origin.get("seed")) for saved in (first, one)]
    is_same = digest_of_controller(first) == digest_of_controller(one)
    if is_same or (trained[0] == trained[1] and None not in trained[0]):
        raise RunError(
            f"{first.name} and {one.name} are of the same training run; give each run once, and "
            "train others with other seeds."
        )
    if first.name == one.name:
        raise RunError(
            f"two runs are named {one.name}; results are told apart by name, so give their folders "
            "different ones."
        )


def _require_alike(first: SavedController, one: SavedController, *, is_other_task: bool) -> None:
    """Refuse controllers that cannot be training runs of one method."""
    if first.growth != one.growth:
        raise RunError(
            f"{first.name} and {one.name} learned with different rules of growth; evaluate them "
            "one by one."
        )
    if not is_other_task and _learned_on(first) != _learned_on(one):
        raise RunError(
            f"{first.name} and {one.name} learned on different tasks, or with different budgets; "
            "say what they are evaluated on with task (--task)."
        )


def _with_rules(task: Task, saved: Sequence[SavedController]) -> Task:
    """Return a task whose seeds live by the rules that controllers learned with, if they say so."""
    growth = saved[0].growth if saved else None
    return task if growth is None else replace(task, growth=growth)


def _learned_on(saved: SavedController) -> tuple[str | None, dict[str, Any], Budget]:
    origin = saved.origin
    return origin.get("task"), dict(origin.get("task_options", {})), saved.budget
