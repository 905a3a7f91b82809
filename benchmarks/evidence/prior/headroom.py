"""Measures how much a controller could gain on a task, before one is trained.

Run:  python benchmarks/evidence/prior/headroom.py --task digits-family --hosts 128

Compares the best setting of each host with the best single setting for all hosts. Shapes: C =
candidates, N = hosts, T = epochs.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import count
from typing import Annotated, Any, Unpack

import numpy as np
import torch

from esper.arrays import Floats
from esper.config.checks import Bounds, check
from esper.config.held_out_hosts import HEADROOM_HOSTS
from esper.environment.draws import draw_seed
from esper.environment.episodes import GrowthEpisodes
from esper.errors import EsperError
from esper.evidence.cache import ResultCache
from esper.evidence.evaluation import (
    MIN_HOSTS,
    MIN_TUNING_RUNS,
    EvalOptions,
    host_numbers,
    make_workers,
    report_work,
    shown_work,
)
from esper.evidence.search_space import Candidate
from esper.evidence.setting import find_prices, find_setting
from esper.evidence.tuning import (
    Choice,
    Tuned,
    TunedArms,
    TuningRuns,
    report_part,
    run_candidates,
)
from esper.formatting import points
from esper.populations.host_data import Split
from esper.statistics import Interval, mean_interval, paired_interval
from esper.tasks import Task, TaskDraw
from esper.training.host_trainer import HostTrainer
from esper.training.worker_pool import OnShare

_SPLITS: tuple[Split, Split] = ("final", "validation")
"""What the first training of each host is scored on, and the second."""
TRUSTS = (0.0, 0.05, 0.1, 0.2, 0.35, 0.6, 1.0)
"""Weights of a host's own scores: 0 chooses the same for all hosts, 1 each host's own best."""


OFFSET = 2**40
"""Added to the number of a host that is trained again."""


class SecondTraining(HostTrainer):
    """Trains the same draws with other weights and batches, in this process."""

    def __init__(self, first: HostTrainer) -> None:
        """Prepare to train the hosts of a trainer again."""
        self._draws: dict[int, int] = {}
        sample, draws = first.task.sample, self._draws

        def draw(seed: int) -> TaskDraw:
            return sample(draws.get(seed, seed))

        task = first.task if first.task.draw is None else replace(first.task, draw=draw)
        super().__init__(task, purpose=first.purpose, final_split=first.final_split)

    def start(self, hosts: Sequence[int]) -> GrowthEpisodes:
        """Start the episodes of hosts, with the draws of their first training."""
        again = [host + OFFSET for host in hosts]
        for one, other in zip(again, hosts, strict=True):
            first = draw_seed(self.purpose, other, 0)
            self._draws[draw_seed(self.purpose, one, 0)] = first
        return super().start(again)


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
            SecondTraining(trainer) if training else trainer,
            pairs,
            every_epoch=(_SPLITS[training],),
            on_share=report_part(on_share, training, 2),
        )
        scores = runs.validation_by_epoch if training else runs.score_by_epoch
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


FAMILIES = ("fixed-size", "fixed")
"""The families whose settings each host could choose from."""
POOL = 32
"""Number of candidates that hosts choose from, at most."""
N_WORKS = len(FAMILIES) + 1
"""Pieces of work to report: tuning each family, then running the best settings on every host."""


def best_of(runs: TuningRuns, families: Sequence[Tuned], price: float) -> Choice:
    """Return the best choice of several families, on the hosts that all of them were run on."""
    bests = [tuned.best for tuned in families]
    tried = [
        {host for candidate, host in tuned.runs if candidate == tuned.best.candidate}
        for tuned in families
    ]
    common = sorted(set[int].intersection(*tried))
    values: list[float] = []
    for best in bests:
        score, flops = runs.curves([best.candidate], common, lambda _: None)
        values.append(float((score - price * flops)[0, :, best.stop].mean()))
    return bests[int(np.argmax(np.round(values, 9)))]


def pool_of(families: Sequence[Tuned]) -> list[Candidate]:
    """Return the best candidates of all families, taken in turn."""
    size = -(-POOL // len(families))
    ranked = [tuned.ranking[:size] for tuned in families]
    turns = [rank[turn] for turn in range(size) for rank in ranked if turn < len(rank)]
    return list(dict.fromkeys(turns))[:POOL]


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

    def to_json(self) -> dict[str, Any]:
        """Return the headroom as plain values."""
        return asdict(self) | {"sentence": self.sentence}

    @property
    def sentence(self) -> str:
        """What the intervals support, in words."""
        at = f"on {self.task} at price {self.price:g}"
        maximum = f"{100 * self.optimistic.high:.1f} points"
        if not self.headroom.is_from_enough:
            return f"Headroom {at}: {self.n_hosts} hosts are too few to tell."
        if self.headroom.is_above_zero:
            found = f"There is headroom of about {points(self.headroom)} {at}"
        else:
            found = f"No headroom is shown {at}: {points(self.headroom)}"
        return (
            f"{found}; a controller that gives each host the best of these settings could gain at "
            f"most {maximum}, luck included."
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
    """
    check("n_hosts", n_hosts, Annotated[int, Bounds(MIN_HOSTS)])
    check("tuning_runs", tuning_runs, Annotated[int, Bounds(MIN_TUNING_RUNS)])
    hosts = host_numbers(options, n_hosts, HEADROOM_HOSTS)
    setting = find_setting([], task, task_options)
    (at,) = find_prices(price, setting.task.budget.flop_price)
    cache = setting.cache(options.get("folder"))
    numbers = count(1)

    def report(work: str) -> OnShare:
        return report_work(on_progress, setting.task, work, min(next(numbers), N_WORKS), N_WORKS)

    with (
        shown_work(options, "measuring the headroom") as on_progress,
        make_workers(
            setting,
            options,
            max_runs=max(tuning_runs, 2 * n_hosts),
            all_runs=N_WORKS * tuning_runs,
        ) as helpers,
    ):
        task = setting.task
        evaluation = HostTrainer(task, purpose="evaluation", final_split="test", helpers=helpers)
        tuning = HostTrainer(task, purpose="tuning", final_split="validation", helpers=helpers)
        arms = TunedArms(tuning, evaluation, budget=tuning_runs, cache=cache, report=report)
        tuned = [arms.tune(family, at) for family in FAMILIES]
        best = best_of(arms.runs, tuned, at)
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


def main() -> None:
    """Measure the headroom of a task and print it as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--task", default="digits-family", help="task of the hosts")
    parser.add_argument("--hosts", type=int, default=128, help="held-out hosts")
    parser.add_argument("--tuning-runs", type=int, default=4096, help="host runs for each family")
    parser.add_argument("--price", type=float, help="score that plain training costs")
    parser.add_argument("--cache", help="folder for finished work, to resume after an interruption")
    parser.add_argument("--workers", type=int, help="worker processes")
    arguments = parser.parse_args()
    torch.set_num_threads(1)  # the hosts are small
    try:
        found = headroom(
            arguments.task,
            n_hosts=arguments.hosts,
            tuning_runs=arguments.tuning_runs,
            price=arguments.price,
            folder=arguments.cache,
            workers=arguments.workers,
        )
    except EsperError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(found.to_json(), indent=2))


if __name__ == "__main__":
    main()
