"""Measuring how much a controller could gain on a task, before training one.

Shapes: C = candidates, N = hosts, T = epochs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from typing import Any, Unpack

import numpy as np

from esper.arrays import Floats
from esper.config.checks import require_int
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.evidence.cache import ResultCache
from esper.evidence.evaluation import (
    MIN_HOSTS,
    MIN_TUNING_RUNS,
    EvalOptions,
    hire,
    host_numbers,
    report_work,
    shown_work,
)
from esper.evidence.host_trainer import HostTrainer, OnShare, run_candidates
from esper.evidence.search_space import Candidate
from esper.evidence.setting import find_prices, find_setting
from esper.evidence.tuning import CONTEXTS, TunedArms, pool_of, report_part
from esper.formatting import html_lines, html_table, points
from esper.populations.host_data import Split
from esper.statistics import Interval, mean_interval, paired_interval
from esper.tasks import Task

_SPLITS: tuple[Split, Split] = ("final", "validation")
"""What the first training of each host is scored on, and the second."""
TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Weights of a host's own scores: 0 chooses the same for all hosts, 1 each host's own best."""


@dataclass(frozen=True, kw_only=True, eq=False)
class HindsightScores:
    """The scores of candidates on hosts at every stopping epoch, ``[C, N, T + 1]`` each."""

    chooser: Floats
    """Scores of the training that settings are chosen by."""
    judge: Floats
    """Scores of the training that the choice is judged by."""


def score_candidates(
    trainer: HostTrainer,
    candidates: Sequence[Candidate],
    hosts: Sequence[int],
    *,
    price: float,
    cache: ResultCache,
    on_share: OnShare = lambda _: None,
) -> HindsightScores:
    """Train every host with every candidate twice, and score it after every epoch.

    The first training is scored on the final split; the second, with other weights and batches, on
    the validation samples.
    """
    shape = len(candidates), len(hosts), -1
    pairs = [(candidate, host) for candidate in candidates for host in hosts]
    key = {"hindsight": [[candidate.to_json(), host] for candidate, host in pairs]}

    def run(training: int) -> dict[str, Floats]:
        runs = run_candidates(
            trainer.again() if training else trainer,
            pairs,
            every_epoch=(_SPLITS[training],),
            on_share=report_part(on_share, training, 2),
        )
        scores = runs.validation_by_epoch if training else runs.accuracy_by_epoch
        return {"scores": scores, "flops": runs.flops_by_epoch}

    judge, chooser = (
        cache.get({**key, "training": training}, lambda training=training: run(training))
        for training in range(2)
    )
    stops = list(trainer.stops)
    settled = [
        (one["scores"] - price * one["flops"])[:, stops].reshape(shape) for one in (chooser, judge)
    ]
    return HindsightScores(chooser=settled[0], judge=settled[1])


def choose_for_each(scores: HindsightScores, *, seed: int = 0) -> Floats:
    """Return the score of each host with a setting of its own, ``[N]``, chosen without luck.

    The weight of a host's own scores is tuned on one half of the hosts and applied to the other.

    Args:
        scores: Scores of all settings on all hosts.
        seed: Determines the halves.
    """
    n_hosts = scores.judge.shape[1]
    order = np.random.default_rng(seed).permutation(n_hosts)
    halves = order[: n_hosts // 2], order[n_hosts // 2 :]
    by_trust = np.stack([_judge_choice(scores, trust) for trust in TRUSTS])
    found = np.zeros(n_hosts)
    for half, other in (halves, halves[::-1]):
        best = int(by_trust[:, other].mean(1).argmax()) if len(other) else 0
        found[half] = by_trust[best, half]
    return found


def choose_by_luck(scores: HindsightScores) -> Floats:
    """Return the best score of each host, ``[N]``, chosen by the scores that judge it."""
    return _settings_first(scores.judge).max(0)


def _judge_choice(scores: HindsightScores, trust: float) -> Floats:
    """Return the judged scores ``[N]`` of the choices with this weight of own scores."""
    chooser, judge = _settings_first(scores.chooser), _settings_first(scores.judge)
    means = chooser.mean(1, keepdims=True)
    chosen = (means + trust * (chooser - means)).argmax(0)
    return judge[chosen, np.arange(judge.shape[1])]


def _settings_first(scores: Floats) -> Floats:
    """Return scores as ``[C * (T + 1), N]``."""
    n_candidates, n_hosts, n_stops = scores.shape
    return scores.transpose(0, 2, 1).reshape(n_candidates * n_stops, n_hosts)


FAMILIES = CONTEXTS["context_table"]
"""The families whose settings each host could choose from."""
N_WORKS = len(FAMILIES) + 1
"""Pieces of work to report: tuning each family, then running the best settings on every host."""


@dataclass(frozen=True, kw_only=True)
class Headroom:
    """How much better the best setting of each host is than the best setting for all."""

    task: str
    task_options: dict[str, Any]
    price: float
    n_hosts: int
    n_candidates: int
    """Number of settings, without stopping epochs, that each host could choose from."""
    tuning_runs: int
    """Host runs spent on finding the best setting for all."""
    setting: str
    """The best setting for all hosts, in words."""
    best_fixed: Interval
    """Its score on the test split."""
    headroom: Interval
    """Score of each host's own setting, chosen by another training of the same draw, minus that of
    the best setting for all."""
    optimistic: Interval
    """The same with the settings chosen by the scores that judge them: luck included."""

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"Headroom({self.sentence})"

    def _repr_html_(self) -> str:
        rows = [
            ("best setting for all hosts", self.setting, self.best_fixed.text(signed=False)),
            ("gain of each host's own setting", "chosen without luck", self.headroom.text()),
            ("gain of each host's own setting", "luck included", self.optimistic.text()),
        ]
        caption = (
            f"Scores of {self.n_hosts} hosts of {self.task} with {self.n_candidates} settings at "
            f"price {self.price:g}, with 95% intervals."
        )
        table = html_table(("", "setting", "score"), rows, n_left=2, caption=caption)
        return html_lines([self.sentence], is_headed=True) + table

    def to_json(self) -> dict[str, Any]:
        """Return the headroom as plain values."""
        return asdict(self) | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """What the intervals support, in words."""
        at = f"on {self.task} at price {self.price:g}"
        most = f"{100 * self.optimistic.high:.1f} points"
        if not self.headroom.is_from_enough:
            return f"Headroom {at}: {self.n_hosts} hosts are too few to tell."
        if self.headroom.is_above_zero:
            found = f"There is headroom of about {points(self.headroom)} {at}"
        else:
            found = f"No headroom is shown {at}: {points(self.headroom)}"
        return (
            f"{found}; a controller that gives each host the best of these settings could gain at "
            f"most {most}, luck included."
        )


def headroom(
    task: str | Task,
    *,
    n_hosts: int = 128,
    tuning_runs: int = 4096,
    price: float | None = None,
    task_options: Mapping[str, Any] | None = None,
    **options: Unpack[EvalOptions],
) -> Headroom:
    """Measure the gain of the best setting of each host over the best one for all.

    Args:
        task: A task, or the name of one.
        n_hosts: Number of held-out hosts.
        tuning_runs: Host runs that may be spent on tuning each family, fixed schedules and static
            networks, and again on running the best of both on every host, twice.
        price: Score that the FLOPs of one reference run cost; by default the task's.
        task_options: Options of the task.
        **options: See :class:`esper.evidence.evaluation.EvalOptions`.

    Examples:
        >>> result = esper.headroom("digits-family", n_hosts=32)  # doctest: +SKIP
    """
    require_int("n_hosts", n_hosts, least=MIN_HOSTS)
    require_int("tuning_runs", tuning_runs, least=MIN_TUNING_RUNS)
    hosts = host_numbers(options, n_hosts, HEADROOM_HOSTS)
    setting = find_setting([], task, task_options)
    (at,) = find_prices(price, setting.task.budget.flop_price)
    cache = setting.cache(options.get("folder"))
    numbers = count(1)

    def report(work: str) -> OnShare:
        return report_work(on_progress, setting.task, work, min(next(numbers), N_WORKS), N_WORKS)

    with (
        shown_work(options, "measuring the headroom") as on_progress,
        hire(
            setting,
            options,
            most_runs=max(tuning_runs, 2 * n_hosts),
            all_runs=N_WORKS * tuning_runs,
        ) as helpers,
    ):
        task = setting.task
        evaluation = HostTrainer(task, purpose="evaluation", final_split="test", helpers=helpers)
        tuning = HostTrainer(task, purpose="tuning", final_split="validation", helpers=helpers)
        arms = TunedArms(tuning, evaluation, budget=tuning_runs, cache=cache, report=report)
        tuned = [arms.tune(family, at) for family in FAMILIES]
        best = arms.tune_best(FAMILIES, at)
        pool = pool_of(tuned)[: max(2, tuning_runs // (2 * n_hosts))]
        pool += [] if best.candidate in pool else [best.candidate]
        show = report("every setting on every host")
        scores = score_candidates(evaluation, pool, hosts, price=at, cache=cache, on_share=show)
    stop = evaluation.stops.index(best.stop)
    fixed = scores.judge[pool.index(best.candidate), :, stop]
    return Headroom(
        task=setting.task.name,
        task_options=dict(setting.task_options),
        price=at,
        n_hosts=n_hosts,
        n_candidates=len(pool),
        tuning_runs=len(tuned[0].runs | tuned[1].runs),
        setting=best.describe(),
        best_fixed=mean_interval(fixed),
        headroom=paired_interval(choose_for_each(scores), fixed),
        optimistic=paired_interval(choose_by_luck(scores), fixed),
    )
