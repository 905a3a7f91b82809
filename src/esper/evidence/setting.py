"""The learned controllers of an evaluation, and the task they are evaluated on."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import combinations
from os import PathLike
from pathlib import Path
from typing import Any, cast

from esper.config.checks import NonNegativeFloat, check, require_trusted_task
from esper.config.growth import Budget, GrowthConfig
from esper.config.run import TASK_OBJECT
from esper.environment.hosts import data_digest
from esper.environment.options import find_task
from esper.errors import ConfigError, RunError, TaskError
from esper.evidence.cache import ResultCache
from esper.results.arms import Arm
from esper.results.evidence import Evidence, make_evidence
from esper.tamiyo import SavedController
from esper.tasks import Task
from esper.training.host_trainer import BATCH_HOSTS
from esper.training.lookup import AnyController, find_saved

DEFAULT_TASK = "digits-family"
"""Where controllers are evaluated that no run was trained for."""


@dataclass(frozen=True, kw_only=True, eq=False)
class EvalSetting:
    """The task that controllers are evaluated on."""

    task: Task
    task_options: Mapping[str, Any]
    """The task's options, as plain values."""
    name: str | None
    """The name that makes the task; None for a task that was given as an object."""

    def cache(self, folder: str | PathLike[str] | None) -> ResultCache:
        """Return the cache in a folder; none for a task object, whose code has no digest."""
        path = Path(folder) if folder is not None and self.name is not None else None
        return ResultCache(path, self._key())

    def at(self, price: float) -> Task:
        """Return the task at another price of FLOPs."""
        return replace(self.task, budget=replace(self.task.budget, flop_price=price))

    def make_evidence(self, arms: Sequence[Arm], **facts: Any) -> Evidence:
        """Return the evidence of arms on this task, the first of which claims are about."""
        return make_evidence(
            arms,
            task=self.task.name,
            task_options=self.task_options,
            n_epochs=self.task.budget.n_epochs,
            test_pool=self.task.shared_tests,
            **facts,
        )

    def _key(self) -> dict[str, Any]:
        """Return everything but the price that determines the results of a host."""
        task = self.task
        return {
            "task": task.name,
            "options": {name: str(value) for name, value in self.task_options.items()},
            "data": data_digest(task.sample(0)),
            "n_epochs": task.budget.n_epochs,
            "training": asdict(task.training),
            "growth": None if task.growth is None else asdict(task.growth),
            "batch_hosts": BATCH_HOSTS,
        }


def find_learned(runs: AnyController | Sequence[AnyController]) -> list[SavedController]:
    """Return the learned controllers to evaluate, as training runs of one method.

    Raises:
        RunError: If there is none, one is given twice or is not learned, or some act greedily and
            others do not.
    """
    given = cast("list[AnyController]", list(runs) if isinstance(runs, (list, tuple)) else [runs])
    if not given:
        raise RunError("no run is given; name the folder of at least one.")
    found: list[SavedController] = []
    for one in given:
        saved = find_saved(one)
        if saved is None:
            raise RunError(
                f"{one} is not a learned controller; evaluate runs and saved controllers, and "
                "compare simple ones with esper compare."
            )
        found.append(saved)
    if len({one.deterministic for one in found}) > 1:
        raise RunError(
            f"of {', '.join(one.name for one in found)} some act greedily and others do not; "
            "evaluate them separately."
        )
    for first, second in combinations(found, 2):
        _require_different_runs(first, second)
    return found


def find_unfinished(
    saved: Sequence[SavedController | None], *, is_allowed: bool
) -> tuple[str, ...]:
    """Return the runs that are not done, with their rounds, and those that other software resumed.

    Raises:
        RunError: If there is one and that is not allowed.
    """
    found = tuple(
        f"{problem}: {one.label}, {one.origin[problem]}"
        for one in saved
        if one is not None
        for problem in ("unfinished", "changed")
        if one.origin.get(problem)
    )
    if found and not is_allowed:
        raise RunError(
            f"{'; '.join(found)}. Resume an unfinished run with esper resume, train a changed one "
            "again, or include it, named in every sentence: unfinished=True (--unfinished)."
        )
    return found


def find_setting(
    saved: Sequence[SavedController],
    task: str | Task | None,
    task_options: Mapping[str, Any] | None,
    *,
    allow_code: bool = False,
) -> EvalSetting:
    """Return the controllers' own task with their budget, or another task with its own.

    Options are added to those that the controllers learned with, if it is their task. Seeds follow
    the growth rules that the controllers learned with. The shipped controller learned on hosts of
    many designs, so :data:`DEFAULT_TASK` stands in for its own.

    Args:
        saved: The controllers.
        task: A task or its name; None for the controllers' own.
        task_options: Options of the task.
        allow_code: Whether the controllers' own task may be code.

    Raises:
        RunError: If the controllers learned on different tasks and no task is named.
        TaskError: If the task cannot be made, or is code and that is not allowed.
    """
    task = _default_task(saved) if task is None else task
    learned_on = saved[0].origin.get("task") if saved else None
    is_other = task is not None and task_name(task) != learned_on
    for one in saved[1:]:
        _require_same_method(saved[0], one, is_other_task=is_other)
    options = dict(task_options or {})
    if task is not None and is_other:
        return EvalSetting(
            task=_make_task(task, options, saved),
            task_options=options,
            name=task if isinstance(task, str) else None,
        )
    first = saved[0]
    name, learned_options, budget = _learned_on(first)
    if name is None:
        raise RunError(f"controller {first.name!r} does not record its task; name a task (--task).")
    is_object = isinstance(task, Task)
    options = options if is_object else {**learned_options, **options}
    if task is None and name.startswith(TASK_OBJECT):
        raise TaskError(
            f"controller {first.name!r} learned on {name}, which no file can make again; pass it "
            "as task=, in Python, or name another task (--task)."
        )
    if task is None:
        source = f"controller {first.name!r}"
        require_trusted_task(name, options, source=source, allow_code=allow_code)
    made = replace(_make_task(task if is_object else name, options, saved), budget=budget)
    return EvalSetting(task=made, task_options=options, name=None if is_object else name)


def find_common_setting(
    saved: Sequence[SavedController],
    task: str | Task | None,
    task_options: Mapping[str, Any] | None,
    *,
    allow_code: bool = False,
) -> EvalSetting:
    """Return the task on which controllers of any origin are compared.

    It is the named task, with the options and the budget of the controllers that learned on it if
    they agree. If none is named, it is the task that all controllers learned on; the shipped one
    is at home on every task and does not count. Without any other it is :data:`DEFAULT_TASK`.
    Arguments and errors are those of :func:`find_setting`.
    """
    own = [one for one in saved if not one.is_shipped]
    task = _default_task(own) if task is None else task
    if task is None:
        for one in own[1:]:
            if (field := _different_field(own[0], one, _learned_fields)) is not None:
                raise RunError(f"{field}; name the task to compare them on (--task).")
        return find_setting(own[:1], None, task_options, allow_code=allow_code)
    own = [one for one in own if one.origin.get("task") == task_name(task)]
    if own and not any(_different_field(own[0], one, _learned_fields) for one in own[1:]):
        return find_setting(own[:1], task, task_options, allow_code=allow_code)
    return find_setting([], task, task_options)


def task_name(task: str | Task | None) -> str | None:
    """Return what the settings of a run call a task."""
    return f"{TASK_OBJECT}{task.name}" if isinstance(task, Task) else task


def _default_task(saved: Sequence[SavedController]) -> str | None:
    """Return the task of controllers that have none of their own; None if they have."""
    return DEFAULT_TASK if all(one.is_shipped for one in saved) else None


def find_prices(prices: float | Sequence[float] | None, default: float) -> tuple[float, ...]:
    """Return the distinct prices to evaluate at; the default if none is given."""
    if prices is None:
        return (default,)
    given = [prices] if isinstance(prices, (int, float)) else list(prices)
    if not given:
        raise ConfigError("prices is empty; give at least one price, or None for the default.")
    for price in given:
        check("price", price, NonNegativeFloat)
    return tuple(dict.fromkeys(float(price) for price in given))


def controller_digest(saved: SavedController) -> str:
    """Return a digest of everything that determines a controller's actions."""
    total = hashlib.sha256(repr((saved.policy, saved.blueprints)).encode())
    for name, tensor in sorted(saved.weights.items()):
        total.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        total.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:32]


def training_episodes(saved: SavedController) -> int:
    """Return the number of episodes that a controller was trained on; 0 if unknown."""
    return int(saved.origin.get("episodes", 0))


def _require_different_runs(first: SavedController, second: SavedController) -> None:
    """Reject two controllers of one training run, and two of the same name."""
    trained = [(saved.origin.get("command"), saved.origin.get("seed")) for saved in (first, second)]
    is_same = controller_digest(first) == controller_digest(second)
    if is_same or (trained[0] == trained[1] and None not in trained[0]):
        raise RunError(
            f"{first.name} and {second.name} are from the same training run; give each run once, "
            "and train more with other seeds."
        )
    if first.name == second.name:
        raise RunError(
            f"two runs are named {second.name}; rename one of their folders to tell them apart."
        )


def _require_same_method(
    first: SavedController, second: SavedController, *, is_other_task: bool
) -> None:
    """Reject controllers that cannot be training runs of one method."""
    if (field := _different_field(first, second, _growth_fields)) is not None:
        raise RunError(f"{field}; evaluate them separately, or compare them with esper compare.")
    field = None if is_other_task else _different_field(first, second, _learned_fields)
    if field is not None:
        raise RunError(f"{field}; evaluate them separately, or on another task (--task).")
    are_known = all("settings" in one.origin for one in (first, second))
    if are_known and (field := _different_field(first, second, _method_fields)) is not None:
        raise RunError(
            f"{field}, so they are not seeds of one method; compare them with esper compare."
        )


def _different_field(
    first: SavedController,
    second: SavedController,
    fields_of: Callable[[SavedController], Mapping[str, Any]],
) -> str | None:
    """Return the first field in which two controllers differ, in words; None if they agree."""
    one, other = fields_of(first), fields_of(second)
    for name in {**one, **other}:
        if (values := (one.get(name), other.get(name)))[0] != values[1]:
            return f"{first.label} has {name} {values[0]} and {second.label} has {values[1]}"
    return None


def _learned_fields(saved: SavedController) -> dict[str, Any]:
    """Return what hosts a controller learned on, by the names of the settings."""
    task, options, budget = _learned_on(saved)
    named = {f"task_options.{name}": value for name, value in options.items()}
    return {"task": task, **named} | {f"budget.{k}": v for k, v in asdict(budget).items()}


def _method_fields(saved: SavedController) -> dict[str, Any]:
    """Return the settings that a controller learned with, except the task, seed and threads."""
    of_task = ("task", "task_options", "budget")
    settings = saved.origin["settings"].items()
    return {path: text for path, text in settings if path.partition(".")[0] not in of_task}


def _growth_fields(saved: SavedController) -> dict[str, Any]:
    """Return the growth rules that a controller learned with, by the names of the settings."""
    return {f"growth.{k}": v for k, v in asdict(saved.growth or GrowthConfig()).items()}


def other_rules(saved: SavedController, first: SavedController) -> str:
    """Return the growth rules of a controller that differ from another's; empty if none does."""
    own, others = _growth_fields(saved), _growth_fields(first)
    changed = [
        f"{name} {value}, not {others[name]}"
        for name, value in own.items()
        if value != others[name]
    ]
    return f"its own growth rules: {'; '.join(changed)}" if changed else ""


def _make_task(task: str | Task, options: dict[str, Any], saved: Sequence[SavedController]) -> Task:
    """Return a task of one design, with the growth rules of the controllers, if recorded."""
    made = find_task(task, options)
    if made.draws_designs:
        raise TaskError(
            f"task {made.name!r} draws hosts of different designs, but an evaluation needs hosts of"
            " one design; name another task (--task), such as digits-family."
        )
    growth = saved[0].growth if saved else None
    return made if growth is None else replace(made, growth=growth)


def _learned_on(saved: SavedController) -> tuple[str | None, dict[str, Any], Budget]:
    origin = saved.origin
    return origin.get("task"), dict(origin.get("task_options", {})), saved.budget
