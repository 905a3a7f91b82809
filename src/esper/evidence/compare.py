"""Comparing controllers with one another on the same hosts, whoever they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from os import PathLike, fspath
from pathlib import Path
from typing import Any, Unpack, cast

from esper.config.checks import require_int
from esper.errors import ConfigError, EvidenceError, RunError
from esper.evidence.arms import ends_of, join_ends
from esper.evidence.evaluation import EvaluationProgress, How, OnProgress, find_versions, hosts_of
from esper.evidence.files import EvidenceFile
from esper.evidence.host_trainer import Bench, OnShare
from esper.evidence.results import Arm, Evidence
from esper.evidence.setting import Ground, find_ground, find_prices
from esper.tamiyo import Controller, SavedController, make_controller
from esper.tasks import Task
from esper.training.lookup import AnyController, find_saved

_SAME = ("task", "task_options", "price", "reference", "seed", "purpose", "split", "n_hosts")
"""What two evaluations must have in common for hosts and units to be the same."""


def compare(
    contestants: Sequence[AnyController],
    *,
    n_hosts: int = 512,
    price: float | None = None,
    task: str | Task | None = None,
    task_options: Mapping[str, Any] | None = None,
    **how: Unpack[How],
) -> Evidence:
    """Compare the first of several controllers with each of the others, on the same hosts.

    Args:
        contestants: Two or more: names of controllers, runs, saved controllers, controllers; or
            files that evaluations have written, whose learned arms are compared.
        n_hosts: Hosts of the draws for evaluation.
        price: Score that the reference run's FLOPs cost; the task's if None.
        task: What hosts learn; what the learned controllers learned on if None.
        task_options: Options of the task.
        **how: More that can be said by name: see :class:`esper.evidence.evaluation.How`.

    Returns:
        The results; :func:`esper.evidence.claims.verdict_sentences` says what they show.
    """
    many = list(contestants)
    if len(many) < 2:
        raise ConfigError(f"there is {len(many)} to compare; name two controllers at least.")
    require_int("n_hosts", n_hosts, least=2)
    files = [_is_file(one) for one in many]
    if all(files):
        return compare_files([Path(fspath(cast("str", one))) for one in many], price)
    if any(files):
        raise RunError(
            "an evaluation's file and a controller are given; compare files with files, whose "
            "hosts have been run, or controllers with controllers."
        )
    saved = [find_saved(one) for one in many]
    learned = [one for one in saved if one is not None]
    if task is None and not learned:
        raise RunError("simple controllers learned on no task; name one with task (--task).")
    ground = find_ground(learned, task, task_options)
    own = learned[0].budget if learned and task is None else ground.task.budget
    (at,) = find_prices(price, own.flop_price)
    hosts = hosts_of(how, n_hosts)
    arms = _run_all(many, saved, ground, at, hosts, how)
    return _evidence(arms, ground, at, hosts, how)


def compare_files(paths: Sequence[Path], price: float | None = None) -> Evidence:
    """Compare the learned arms of evaluations of the same hosts.

    Raises:
        EvidenceError: If a file cannot be read, or the hosts are not the same.
    """
    entries = [_entry(path, price) for path in paths]
    first = entries[0]
    for path, entry in zip(paths[1:], entries[1:], strict=True):
        for name in _SAME:
            values = getattr(first, name), getattr(entry, name)
            if values[0] != values[1]:
                raise EvidenceError(
                    f"{paths[0]} has {name} {values[0]} and {path} has {values[1]}; compare "
                    "evaluations of the same hosts, with FLOPs of the same unit."
                )
        if entry.own.n_runs != first.own.n_runs:
            raise EvidenceError(
                f"{paths[0]} has {first.own.n_runs} training runs and {path} has "
                f"{entry.own.n_runs}; evaluate as many of each."
            )
    arms = [
        replace(entry.own, name=str(path), label=f"the controller of {path}")
        for path, entry in zip(paths, entries, strict=True)
    ]
    return replace(first, arms=tuple(arms), learned=arms[0].name)


def _is_file(one: AnyController) -> bool:
    return isinstance(one, (str, PathLike)) and Path(one).is_file()


def _entry(path: Path, price: float | None) -> Evidence:
    """Return what an evaluation's file says at a price."""
    entries = EvidenceFile.from_text(path.read_text("utf-8"), name=str(path)).entries
    found = [entry for entry in entries if price is None or entry.price == price]
    if len(found) != 1:
        prices = ", ".join(f"{entry.price:g}" for entry in entries)
        raise EvidenceError(f"{path} has the prices {prices}; choose one of them (--price).")
    return found[0]


def _run_all(
    many: Sequence[AnyController],
    saved: Sequence[SavedController | None],
    ground: Ground,
    price: float,
    hosts: range,
    how: How,
) -> list[Arm]:
    """Run every contestant on the same hosts."""
    bench = Bench(ground.at(price), purpose="evaluation", final_split="test")
    arms: list[Arm] = []
    for number, (one, own) in enumerate(zip(many, saved, strict=True), start=1):
        name = _name(one, own)
        tell = _teller(how.get("on_progress", lambda _: None), name, number, len(many))
        runs = bench.run(
            hosts,
            lambda growth, _, one=one, own=own: _make(one, own, growth),
            on_share=tell,
        )
        ends = join_ends([ends_of(runs)])
        arms.append(
            Arm(
                name=name,
                label=name if own is None else f"the controller {name}",
                kind="simple" if own is None else "learned",
                accuracy=ends.accuracy,
                flops=ends.flops,
                parameters=ends.parameters,
                n_epochs=ends.n_epochs,
                grown_share=ends.grown_share,
                tuning_runs=0 if own is None else int(own.origin.get("episodes", 0)),
                test_reads=ends.n_reads,
            )
        )
    return arms


def _make(one: AnyController, own: SavedController | None, growth: Any) -> Controller:
    if own is not None:
        return own.make(growth.slot_config)
    if isinstance(one, (str, PathLike)):
        return make_controller(str(one), growth.layout)
    return cast(Controller, one)


def _name(one: AnyController, own: SavedController | None) -> str:
    if own is not None:
        return own.name
    return str(one) if isinstance(one, (str, PathLike)) else cast(Controller, one).name


def _teller(on_progress: OnProgress, work: str, number: int, n_arms: int) -> OnShare:
    return lambda share: on_progress(
        EvaluationProgress(work=work, share=share, number=number, n_arms=n_arms)
    )


def _evidence(
    arms: Sequence[Arm], ground: Ground, price: float, hosts: range, how: How
) -> Evidence:
    task = ground.task
    return Evidence(
        task=task.name,
        task_options=dict(ground.options),
        price=price,
        reference=f"training the reference host of {task.name} for {task.budget.n_epochs} epochs",
        seed=hosts[0],
        runs=(arms[0].name,),
        arms=tuple(arms),
        learned=arms[0].name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        versions=find_versions(),
        command=how.get("command", ""),
    )
