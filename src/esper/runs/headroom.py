"""What there is to win on a task before anyone trains a controller for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Unpack

from esper.config.checks import require_int
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.reports.statistics import Interval, mean_interval, paired_interval
from esper.reports.words import points
from esper.runs.contestants import find_ground, find_prices
from esper.runs.evaluating import EvaluationProgress, How, hosts_of
from esper.simic.evaluation.arms.tuned import TunedArms
from esper.simic.evaluation.bench import Bench, OnShare
from esper.simic.evaluation.contexts import pool_of
from esper.simic.evaluation.hindsight import choose_by_luck, choose_for_each, score_candidates
from esper.tasks import Task

FAMILIES = ("static", "fixed")
N_WORKS = len(FAMILIES) + 1


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """How much better the best setting of each host is than the best one for all of them."""

    task: str
    task_options: dict[str, Any]
    price: float
    n_hosts: int
    n_candidates: int
    """Settings, but for their stopping epochs, that each host could choose from."""
    tuning_runs: int
    """Host runs spent on the best setting for all."""
    setting: str
    """The best setting for all hosts, in words."""
    best_fixed: Interval
    """Its score on the test split."""
    headroom: Interval
    """Chosen by another training of the same draw and scored on test samples, minus the best for
    all."""
    optimistic: Interval
    """Chosen by the very scores that it is judged by, minus the best for all: luck included."""

    def to_json(self) -> dict[str, Any]:
        """Return everything as plain values."""
        return asdict(self) | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """What the numbers support."""
        at = f"on {self.task} at price {self.price:g}"
        most = f"{100 * self.optimistic.high:.1f} points"
        if not self.headroom.is_from_enough:
            return f"Room {at}: {self.n_hosts} hosts are too few to tell."
        if self.headroom.is_above_zero:
            room = f"There is room for about {points(self.headroom)} {at}"
        else:
            room = f"No room is shown {at}: {points(self.headroom)}"
        return (
            f"{room}; a controller that gives each host the best of these settings could win at "
            f"most {most}, and that counts luck."
        )


def headroom(
    task: str | Task,
    *,
    n_hosts: int = 128,
    tuning_runs: int = 4096,
    price: float | None = None,
    task_options: Mapping[str, Any] | None = None,
    **how: Unpack[How],
) -> Headroom:
    """Measure the best setting in hindsight minus the best fixed one, on held-out hosts.

    Args:
        task: A task, or the name of one.
        n_hosts: Hosts of the draws for evaluation.
        tuning_runs: Host runs that may be spent on each family, fixed schedules and static
            networks, and again on trying the best of both on every host, twice.
        price: Score that the reference run's FLOPs cost; the task's if None.
        task_options: Options of the task.
        **how: More that can be said by name: see :class:`esper.runs.evaluating.How`.
    """
    require_int("n_hosts", n_hosts, least=2)
    require_int("tuning_runs", tuning_runs, least=2)
    hosts = hosts_of(how, n_hosts, HEADROOM_HOSTS)
    ground = find_ground([], task, task_options)
    (at,) = find_prices(price, ground.task.budget.flop_price)
    works, cache = _Works(how), ground.cache(how.get("folder"))
    evaluation = Bench(ground.task, purpose="evaluation", final_split="test")
    tuning = Bench(ground.task, purpose="tuning", final_split="validation")
    arms = TunedArms(tuning, evaluation, budget=tuning_runs, cache=cache, tell=works.begin)
    tuned = [arms.tune(family, at) for family in FAMILIES]
    best = arms.tune_best(FAMILIES, at)
    pool = pool_of(tuned)[: max(2, tuning_runs // (2 * n_hosts))]
    pool += [] if best.candidate in pool else [best.candidate]
    tell = works.begin("every setting on every host")
    scores = score_candidates(evaluation, pool, hosts, price=at, cache=cache, on_share=tell)
    stop = evaluation.stops.index(best.stop)
    fixed = scores.judge[pool.index(best.candidate), :, stop]
    return Headroom(
        task=ground.task.name,
        task_options=dict(ground.options),
        price=at,
        n_hosts=n_hosts,
        n_candidates=len(pool),
        tuning_runs=len(tuned[0].runs | tuned[1].runs),
        setting=best.words(),
        best_fixed=mean_interval(fixed),
        headroom=paired_interval(choose_for_each(scores), fixed),
        optimistic=paired_interval(choose_by_luck(scores), fixed),
    )


class _Works:
    """Counts pieces of work as they begin, for whoever is told of them."""

    def __init__(self, how: How) -> None:
        self._on_progress = how.get("on_progress", lambda _: None)
        self._number = 0

    def begin(self, work: str) -> OnShare:
        """Return what is told how far a piece of work is."""
        self._number += 1
        number = min(self._number, N_WORKS)
        return lambda share: self._on_progress(
            EvaluationProgress(work=work, share=share, number=number, n_arms=N_WORKS)
        )
