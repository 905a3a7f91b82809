"""Comparing any controllers with one another on the same hosts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, Unpack, cast

from esper.config.checks import Bounds, check
from esper.config.growth import GrowthConfig
from esper.errors import ConfigError
from esper.evidence.arms import evaluated_arm
from esper.evidence.evaluation import (
    MIN_HOSTS,
    EvalOptions,
    OnProgress,
    host_numbers,
    make_workers,
    report_work,
    shown_work,
)
from esper.evidence.setting import (
    find_common_setting,
    find_prices,
    find_unfinished,
    other_rules,
    training_episodes,
)
from esper.results.arms import LABELS, Arm
from esper.results.evidence import Evidence
from esper.tamiyo import Controller, SavedController
from esper.tasks import Task
from esper.training.host_trainer import Helpers, HostTrainer, MakeController
from esper.training.lookup import AnyController, find_saved
from esper.training.trials import make_named, make_saved


def compare(
    contestants: Sequence[AnyController],
    *,
    n_hosts: int = 512,
    price: float | None = None,
    task: str | Task | None = None,
    task_options: Mapping[str, Any] | None = None,
    **options: Unpack[EvalOptions],
) -> Evidence:
    """Compare the first of several controllers with each of the others, on the same hosts.

    All are compared at the price and budget of one task. Each learned controller follows the growth
    rules that it learned with, simple ones those of the first learned one.

    Args:
        contestants: Two or more names of controllers, runs, saved controllers or controllers.
        n_hosts: Number of held-out hosts.
        price: Score that the FLOPs of one reference run cost; by default the task's.
        task: A task or its name; by default the one that the learned controllers, other than the
            shipped one, learned on, or ``"digits-family"``.
        task_options: Options of the task.
        **options: See :class:`esper.evidence.evaluation.EvalOptions`.

    Returns:
        The results; ``print(evidence)`` says what they show.

    Examples:
        >>> evidence = esper.compare(["runs/my-run", "heuristic"], n_hosts=64)  # doctest: +SKIP
    """
    given = list(contestants)
    if len(given) < 2:
        raise ConfigError(f"got {len(given)} to compare; name at least two controllers.")
    check("n_hosts", n_hosts, Annotated[int, Bounds(MIN_HOSTS)])
    saved = [find_saved(one) for one in given]
    learned = [one for one in saved if one is not None]
    unfinished = find_unfinished(saved, is_allowed=options.get("unfinished", False))
    allow_code = options.get("allow_code", False)
    setting = find_common_setting(learned, task, task_options, allow_code=allow_code)
    (price,) = find_prices(price, setting.task.budget.flop_price)
    hosts = host_numbers(options, n_hosts)
    runs = n_hosts * len(given)
    with (
        shown_work(options, "comparing") as on_progress,
        make_workers(setting, options, max_runs=n_hosts, all_runs=runs) as helpers,
    ):
        arms = _run_all(given, saved, setting.at(price), hosts, on_progress, helpers)
    return setting.make_evidence(
        arms,
        price=price,
        seed=hosts[0],
        runs=(arms[0].name,),
        command=options.get("command", ""),
        unfinished=unfinished,
    )


def _run_all(
    given: Sequence[AnyController],
    saved: Sequence[SavedController | None],
    task: Task,
    hosts: range,
    on_progress: OnProgress,
    helpers: Helpers | None,
) -> list[Arm]:
    """Run every controller on the same hosts."""
    first = next((one for one in saved if one is not None), None)
    trainers: dict[tuple[GrowthConfig | None, bool], HostTrainer] = {}
    arms: list[Arm] = []
    for number, (one, learned) in enumerate(zip(given, saved, strict=True), start=1):
        name, is_object = _name(one, learned), learned is None and not _is_name(one)
        guide = learned or first
        growth = task.growth if guide is None or guide.growth is None else guide.growth
        if (growth, is_object) not in trainers:
            trainers[growth, is_object] = HostTrainer(
                replace(task, growth=growth),
                purpose="evaluation",
                final_split="test",
                # Workers cannot make a controller that is an object.
                helpers=None if is_object else helpers,
            )
        runs = trainers[growth, is_object].run(
            hosts,
            _controller_maker(one, learned),
            on_share=report_work(on_progress, task, name, number, len(given)),
        )
        arms.append(
            evaluated_arm(
                name,
                [runs],
                task.budget.flop_price,
                label=_label(name, learned),
                kind="simple" if learned is None else "learned",
                setting="" if learned is None or first is None else other_rules(learned, first),
                tuning_runs=0 if learned is None else training_episodes(learned),
            )
        )
    return arms


def _controller_maker(one: AnyController, learned: SavedController | None) -> MakeController:
    if learned is not None:
        return partial(make_saved, learned)
    return partial(make_named, str(one)) if _is_name(one) else lambda _, __: cast(Controller, one)


def _name(one: AnyController, learned: SavedController | None) -> str:
    if learned is not None:
        return learned.label
    return str(one) if _is_name(one) else cast(Controller, one).name


def _label(name: str, learned: SavedController | None) -> str:
    if learned is None:
        return LABELS.get(name, name)
    return f"the controller {name if learned.is_shipped else repr(name)}"


def _is_name(one: AnyController) -> bool:
    return isinstance(one, (str, PathLike))
