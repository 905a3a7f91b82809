"""What there is to win on a task before anyone trains a controller for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Unpack

import numpy as np

from esper.arrays import Floats
from esper.config.checks import require_int
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.evidence.cache import ResultCache
from esper.evidence.evaluation import EvaluationProgress, How, hosts_of
from esper.evidence.host_trainer import Bench, OnShare, treat
from esper.evidence.search_space import Candidate
from esper.evidence.setting import find_ground, find_prices
from esper.evidence.tuning import TunedArms, pool_of, within
from esper.formatting import points
from esper.populations.host_data import Split
from esper.statistics import Interval, mean_interval, paired_interval
from esper.tasks import Task

_SPLITS: tuple[Split, Split] = ("final", "validation")
"""What the first training of each host is scored by, and what the other."""
TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""How far a host's own scores count: 0 chooses the same for all hosts, 1 each host's own best."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HindsightScores:
    """What settings come to on hosts: ``[C, N, T + 1]`` each."""

    chooser: Floats
    """Score of the training that serves for choosing."""
    judge: Floats
    """Score of the training that serves for judging."""


def score_candidates(
    bench: Bench,
    candidates: Sequence[Candidate],
    hosts: Sequence[int],
    *,
    price: float,
    cache: ResultCache,
    on_share: OnShare = lambda _: None,
) -> HindsightScores:
    """Train every host by every candidate twice, and score it after every epoch.

    The first training is scored by the final split; the other, with other weights and batches, by
    the validation samples.
    """
    shape = len(candidates), len(hosts), -1
    pairs = [(candidate, host) for candidate in candidates for host in hosts]
    decided_by = {"hindsight": [[candidate.to_json(), host] for candidate, host in pairs]}

    def run(place: int) -> dict[str, Floats]:
        own = bench.again() if place else bench
        tell = within(on_share, place, 2)
        runs = treat(own, pairs, every_epoch=(_SPLITS[place],), on_share=tell)
        scores = runs.validation_by_epoch if place else runs.accuracy_by_epoch
        return {"scores": scores, "flops": runs.flops_by_epoch}

    judge, chooser = (
        cache.get({**decided_by, "training": place}, lambda place=place: run(place))
        for place in range(2)
    )
    stops = list(bench.stops)
    settled = [
        (one["scores"] - price * one["flops"])[:, stops].reshape(shape) for one in (chooser, judge)
    ]
    return HindsightScores(chooser=settled[0], judge=settled[1])


def choose_for_each(scores: HindsightScores, *, seed: int = 0) -> Floats:
    """Return what each host comes to with a setting of its own, ``[N]``, chosen without luck.

    Args:
        scores: Of all settings on all hosts.
        seed: Decides the halves of the hosts.
    """
    n_hosts = scores.judge.shape[1]
    order = np.random.default_rng(seed).permutation(n_hosts)
    halves = order[: n_hosts // 2], order[n_hosts // 2 :]
    by_trust = np.stack([_judge_choice(scores, trust) for trust in TRUSTS])
    found = np.zeros(n_hosts)
    for own, other in (halves, halves[::-1]):
        best = int(by_trust[:, other].mean(1).argmax()) if len(other) else 0
        found[own] = by_trust[best, own]
    return found


def choose_by_luck(scores: HindsightScores) -> Floats:
    """Return each host's best score, ``[N]``, by the very scores that judge it: too optimistic."""
    return _settings_first(scores.judge).max(0)


def _judge_choice(scores: HindsightScores, trust: float) -> Floats:
    """Return the judged scores ``[N]`` of what is chosen with so much trust in own scores."""
    chooser, judge = _settings_first(scores.chooser), _settings_first(scores.judge)
    means = chooser.mean(1, keepdims=True)
    chosen = (means + trust * (chooser - means)).argmax(0)
    return judge[chosen, np.arange(judge.shape[1])]


def _settings_first(scores: Floats) -> Floats:
    """Return scores as ``[C * (T + 1), N]``."""
    n_candidates, n_hosts, n_stops = scores.shape
    return scores.transpose(0, 2, 1).reshape(n_candidates * n_stops, n_hosts)


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
        **how: More that can be said by name: see :class:`esper.evidence.evaluation.How`.
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
