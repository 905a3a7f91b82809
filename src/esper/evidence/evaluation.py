"""Evaluating learned controllers: every arm on the same held-out hosts."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from os import PathLike
from typing import Annotated, Any, TypedDict, Unpack

import torch

from esper.config.checks import Bounds, Seed, check
from esper.config.held_out_hosts import EVALUATION_HOSTS, HostNumbers
from esper.errors import ConfigError
from esper.evidence.arms import choose_arms, evaluated_arm, kind_of
from esper.evidence.matched_arms import (
    at_same_epochs,
    at_same_flops,
    make_random,
    make_wrong_task,
    run_scratch,
)
from esper.evidence.setting import (
    EvalSetting,
    controller_digest,
    find_learned,
    find_prices,
    find_setting,
    find_unfinished,
    training_episodes,
)
from esper.evidence.tuning import TUNING, TunedArms
from esper.formatting import many
from esper.progress import ProgressBar, ShowProgress
from esper.results.arms import LABELS, LEARNED, NO_GROWTH, Arm
from esper.results.evidence import Evidence, EvidenceList
from esper.tamiyo import SavedController
from esper.tasks import Task
from esper.training.host_runs import HostRuns
from esper.training.host_trainer import (
    BATCH_HOSTS,
    Helpers,
    HostTrainer,
    MakeController,
    count_batches,
)
from esper.training.lookup import AnyController
from esper.training.trials import make_named, make_saved
from esper.training.worker_pool import OnShare
from esper.training.workers import Workload, choose_pool

MIN_HOSTS = 2
"""The fewest hosts that can be compared."""
MIN_TUNING_RUNS = 2
SCRATCH = {"scratch-same-epochs": at_same_epochs, "scratch-same-flops": at_same_flops}
"""The arms that read the same training from scratch at different epochs."""


WARM_UP = "esper.evidence.tuning"
"""Imports everything that a worker of an evaluation needs."""


@dataclass(frozen=True, kw_only=True)
class EvaluationProgress:
    """The progress of an evaluation."""

    task: str
    """Name of the task of the hosts."""
    work: str
    """What is being done, in words."""
    share: float
    """Share of that work that is done."""
    number: int
    """Number of the arm, from 1, over all prices."""
    n_arms: int
    total: float
    """Share of all work that is done, by host runs."""

    def __str__(self) -> str:
        return f"{self.number} of {self.n_arms}: {self.work}"


OnProgress = Callable[[EvaluationProgress], None]


class EvalOptions(TypedDict, total=False):
    """Options that all kinds of evaluations share."""

    seed: int
    """Number of the first host; the others follow. By default the first host that is reserved for
    this use: see :mod:`esper.config.held_out_hosts`."""
    folder: str | PathLike[str] | None
    """Where results are cached, so that an interrupted evaluation can continue; by default, and
    for a task that is an object, nowhere."""
    command: str
    """The command that reproduces these results, for the record."""
    allow_code: bool
    """Whether to run a task that a controller or run names by ``module:function``; False by
    default. A task that the caller names always may."""
    unfinished: bool
    """Whether to include runs that are not done or that another version of PyTorch resumed, which
    every sentence then names; False by default."""
    on_progress: OnProgress
    """Called with the progress."""
    progress: ShowProgress
    """Whether to show a bar; by default in terminals and notebooks, unless ``on_progress`` is
    given."""
    workers: int | None
    """Worker processes that train the hosts; 0 for this process alone. By default as many as there
    are cores or batches of hosts, if the work is large enough to gain. Each uses as many threads as
    this process (see :func:`torch.set_num_threads`), and results do not depend on their number. A
    task that is an object, or a controller that is one, stays in this process."""
    ray_address: str | None
    """Ray cluster whose workers train the hosts instead: ``host:port``, ``auto`` or ``local``."""


def evaluate(
    runs: AnyController | Sequence[AnyController],
    *,
    n_hosts: int = 512,
    tuning_runs: int = 4096,
    prices: float | Sequence[float] | None = None,
    arms: Sequence[str] | None = None,
    task: str | Task | None = None,
    task_options: Mapping[str, Any] | None = None,
    **options: Unpack[EvalOptions],
) -> EvidenceList:
    """Compare learned controllers with all arms, on the same held-out hosts.

    :data:`esper.evidence.arms.ARMS` lists the arms.

    Args:
        runs: Runs, their folders or names, or saved controllers; several are treated as
            seeds of the same method.
        n_hosts: Number of held-out hosts.
        tuning_runs: Host runs, on draws for tuning, that each tuned arm may spend on its choice.
        prices: Score that the FLOPs of one reference run cost, one or several; by default the price
            that the controllers learned at.
        arms: Names of the arms to run; all by default. ``"shuffled:slots"`` shuffles some
            observations only; names are those of ``ablation.hidden``.
        task: A task or its name; by default the one that the controllers learned on, or
            ``"digits-family"`` for the shipped one.
        task_options: Options of the task.
        **options: See :class:`EvalOptions`.

    Returns:
        The results at each price.

    Examples:
        >>> evidence = esper.evaluate("runs/my-run", n_hosts=64)  # doctest: +SKIP
    """
    check("n_hosts", n_hosts, Annotated[int, Bounds(MIN_HOSTS)])
    check("tuning_runs", tuning_runs, Annotated[int, Bounds(MIN_TUNING_RUNS)])
    chosen, saved = choose_arms(arms), find_learned(runs)
    allow_code = options.get("allow_code", False)
    setting = find_setting(saved, task, task_options, allow_code=allow_code)
    unfinished = find_unfinished(saved, is_allowed=options.get("unfinished", False))
    at = find_prices(prices, saved[0].budget.flop_price)
    n_tuned = sum(kind_of(name) == "tuned" for name in chosen)
    with (
        shown_work(options, "evaluating") as on_progress,
        make_workers(
            setting,
            options,
            max_runs=max(n_hosts, tuning_runs if n_tuned else 0),
            all_runs=(n_hosts * len(chosen) + tuning_runs * n_tuned) * len(at),
        ) as helpers,
    ):
        evaluation = Evaluation(
            saved,
            setting,
            n_hosts=n_hosts,
            tuning_runs=tuning_runs,
            helpers=helpers,
            **options | {"on_progress": on_progress},
        )
        found = evaluation.run(chosen, at)
    return EvidenceList(replace(one, unfinished=unfinished) for one in found)


class Evaluation:
    """An evaluation in progress; cached results are not computed again."""

    def __init__(
        self,
        saved: Sequence[SavedController],
        setting: EvalSetting,
        *,
        n_hosts: int,
        tuning_runs: int,
        helpers: Helpers | None = None,
        **options: Unpack[EvalOptions],
    ) -> None:
        """Prepare what :func:`evaluate` was asked for; helpers, if any, train the hosts."""
        self._saved, self._setting = list(saved), setting
        self._hosts = host_numbers(options, n_hosts)
        self._command = options.get("command", "")
        self._on_progress = options.get("on_progress", lambda _: None)
        self._cache = setting.cache(options.get("folder"))
        self._is_greedy = self._saved[0].deterministic
        self._number, self._tuning_runs = 0, tuning_runs
        self._sizes: list[tuple[int, int]] = []
        """Host runs of each arm: those that tune it, and those that are its results."""
        self._helpers = helpers
        self._trainer = self._make_trainer(setting.task)
        self._priced_trainers: dict[float, HostTrainer] = {}
        """Train hosts for learned controllers, which observe the price."""
        tuning = HostTrainer(
            setting.task, purpose="tuning", final_split="validation", helpers=helpers
        )
        self._tuned = TunedArms(
            tuning, self._trainer, budget=tuning_runs, cache=self._cache, report=self._report
        )

    def run(self, arms: Sequence[str], prices: Sequence[float]) -> EvidenceList:
        """Run all arms at all prices."""
        self._sizes = [
            (self._tuning_runs if kind_of(arm) == "tuned" else 0, len(self._hosts))
            for _ in prices
            for arm in arms
        ]
        return EvidenceList(self._run_at_price(arms, price) for price in prices)

    def _run_at_price(self, arms: Sequence[str], price: float) -> Evidence:
        learned = [self._run_learned(n, price) for n in range(len(self._saved))]
        results: list[Arm] = []
        for name in arms:
            results.append(self._run_arm(name, price, learned))
            self._number += 1
        learned_prices = {one.learned_price for one in self._saved}
        return self._setting.make_evidence(
            results,
            price=price,
            learned_price=learned_prices.pop() if len(learned_prices) == 1 else None,
            seed=self._hosts[0],
            runs=tuple(one.label for one in self._saved),
            command=self._command,
        )

    def _run_arm(self, name: str, price: float, learned: list[HostRuns]) -> Arm:
        """Run an arm, given the host runs of each learned controller."""
        if kind_of(name) == "tuned":
            return self._tuned.run(name, self._hosts, price)
        if name in (NO_GROWTH, "progressive"):
            make, report = partial(make_named, name), self._report(LABELS[name])
            runs = self._cached(
                {"arm": name}, lambda: self._trainer.run(self._hosts, make, on_share=report)
            )
            return evaluated_arm(name, [runs], price)
        if name == LEARNED:
            episodes = [training_episodes(saved) for saved in self._saved]
            return evaluated_arm(
                name,
                learned,
                price,
                setting="greedy" if self._is_greedy else "sampled",
                tuning_runs=round(sum(episodes) / len(episodes)),
            )
        matched = [self._run_matched(name, n, price, one) for n, one in enumerate(learned)]
        return evaluated_arm(name, matched, price)

    def _run_learned(self, n: int, price: float) -> HostRuns:
        trainer, make = self._trainer_at(price), partial(make_saved, self._saved[n])
        report, key = self._report(self._saved[n].label), self._key(n, price) | {"arm": LEARNED}
        return self._cached(key, lambda: trainer.run(self._hosts, make, on_share=report))

    def _run_matched(self, name: str, n: int, price: float, learned: HostRuns) -> HostRuns:
        """Run an arm that is matched to what a learned controller did in each host."""
        report = self._report(f"{name} after {self._saved[n].label}")
        kind, hosts = "scratch" if name in SCRATCH else name, self._hosts

        def run() -> HostRuns:
            if kind == "scratch":
                return run_scratch(self._trainer, learned, hosts, report)
            make: dict[str, MakeController] = {
                "random": partial(make_random, learned),
                "wrong-task": partial(make_wrong_task, learned.actions, hosts[0]),
                "shuffled": partial(
                    make_saved, self._saved[n], shuffled=(name.partition(":")[2] or "*",)
                ),
            }
            family = name.partition(":")[0]
            trainer = self._trainer_at(price) if family == "shuffled" else self._trainer
            return trainer.run(hosts, make[family], on_share=report)

        runs = self._cached(self._key(n, price) | {"arm": kind}, run)
        return SCRATCH[name](runs, learned) if name in SCRATCH else runs

    def _trainer_at(self, price: float) -> HostTrainer:
        if price not in self._priced_trainers:
            self._priced_trainers = {price: self._make_trainer(self._setting.at(price))}
        return self._priced_trainers[price]

    def _make_trainer(self, task: Task) -> HostTrainer:
        return HostTrainer(task, purpose="evaluation", final_split="test", helpers=self._helpers)

    def _key(self, n: int, price: float) -> dict[str, Any]:
        return {"controller": controller_digest(self._saved[n]), "price": price}

    def _cached(self, key: Mapping[str, Any], run: Callable[[], HostRuns]) -> HostRuns:
        hosts = [self._hosts[0], len(self._hosts)]
        return self._cache.runs({**key, "hosts": hosts, "is_greedy": self._is_greedy}, run)

    def _report(self, work: str) -> OnShare:
        n_arms = len(self._sizes)
        number = min(self._number + 1, n_arms)
        tuning, hosts = self._sizes[number - 1]
        all_runs = sum(map(sum, self._sizes))
        start = sum(map(sum, self._sizes[: number - 1]))
        is_tuning = work.startswith(TUNING)
        start += 0 if is_tuning else tuning
        end = start + (tuning if is_tuning else hosts)
        span = start / all_runs, end / all_runs
        return report_work(self._on_progress, self._setting.task, work, number, n_arms, span)


@contextmanager
def shown_work(options: EvalOptions, title: str) -> Generator[OnProgress]:
    """Show an evaluation inside the context; yields the function to call with its progress."""
    given, wanted = options.get("on_progress"), options.get("progress", "auto")
    if given is not None and wanted == "auto":
        yield given
        return
    with ProgressBar(wanted, title=title) as bar:

        def show(progress: EvaluationProgress) -> None:
            bar.show(str(progress), progress.total)
            if given is not None:
                given(progress)

        yield show


def report_work(
    on_progress: OnProgress,
    task: Task,
    work: str,
    number: int,
    n_arms: int,
    span: tuple[float, float] | None = None,
) -> OnShare:
    """Return a function that reports the share of one piece of work that is done.

    Args:
        on_progress: Called with the progress.
        task: The task of the hosts.
        work: The piece of work, in words.
        number: Its number, from 1.
        n_arms: Number of all pieces.
        span: Shares of all work at its start and its end; by default pieces are of equal size.
    """
    start, end = span or ((number - 1) / n_arms, number / n_arms)
    return lambda share: on_progress(
        EvaluationProgress(
            task=task.name,
            work=work,
            share=share,
            number=number,
            n_arms=n_arms,
            total=start + share * (end - start),
        )
    )


@contextmanager
def make_workers(
    setting: EvalSetting, options: EvalOptions, *, max_runs: int, all_runs: int
) -> Generator[Helpers | None]:
    """Provide the workers that options ask for, None for this process, and end them.

    Args:
        setting: The task.
        options: Options of an evaluation.
        max_runs: Host runs that do not depend on one another, at most.
        all_runs: Host runs of the whole evaluation, about.

    Raises:
        ConfigError: If there are more workers than batches, or they cannot make the task.
    """
    workers, ray_address = options.get("workers"), options.get("ray_address")
    if setting.name is None:
        if workers or ray_address is not None:
            given = f"workers is {workers}" if workers else f"ray_address is {ray_address!r}"
            raise ConfigError(
                f"{given}, but task {setting.task.name!r} is an object, which workers cannot make; "
                "give the name of a registered task or module:function, or use workers = 0."
            )
        yield None
        return
    n_batches = count_batches(max_runs)
    work = Workload(
        n_parts=n_batches,
        parts=f"the hosts are trained in {many(n_batches, 'group')} of at most {BATCH_HOSTS}",
        env_steps=all_runs * setting.task.budget.n_epochs,
        threads=torch.get_num_threads(),
        warm_up=WARM_UP,
    )
    with closing(choose_pool(work, workers=workers, ray_address=ray_address)) as pool:
        helpers = Helpers(pool=pool, task=setting.name, options=setting.task_options)
        yield None if pool.is_local else helpers


def host_numbers(
    options: EvalOptions, n_hosts: int, numbers: HostNumbers = EVALUATION_HOSTS
) -> range:
    """Return the numbers of an evaluation's hosts, which are reserved for this use."""
    first = options.get("seed")
    check("seed", first, Seed | None)
    return numbers.take(first, n_hosts)
