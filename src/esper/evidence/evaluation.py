"""Evaluating learned controllers: every arm on the same hosts, which nobody has met before."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from os import PathLike
from typing import Any, TypedDict, Unpack

import numpy as np
import torch

from esper.config.checks import require_int
from esper.config.held_out_hosts import EVALUATION_HOSTS, HostNumbers
from esper.evidence.arms import (
    LEARNED,
    OTHER_WAY,
    ArmEnds,
    HostEnds,
    as_evidence,
    choose_arms,
    ends_of,
    join_ends,
)
from esper.evidence.host_runs import HostRuns
from esper.evidence.host_trainer import Bench, MakeController, OnShare
from esper.evidence.matched_arms import (
    at_same_epochs,
    at_same_flops,
    run_random,
    run_scratch,
    run_shuffled,
    run_wide,
    run_wrong_task,
)
from esper.evidence.results import Evidence
from esper.evidence.setting import (
    Ground,
    digest_of_controller,
    find_contestants,
    find_ground,
    find_prices,
    mean_episodes,
)
from esper.evidence.tuning import TunedArms
from esper.tamiyo import SavedController, WaitController
from esper.tasks import Task
from esper.training.lookup import AnyController
from esper.version import __version__

FEWEST_HOSTS = 2
SCRATCH = {"scratch_same_epochs": at_same_epochs, "scratch_same_flops": at_same_flops}


@dataclass(frozen=True, kw_only=True)
class EvaluationProgress:
    """How far an evaluation is."""

    work: str
    """What is being done, in words."""
    share: float
    """How much of that is done."""
    number: int
    """Of the arm, counted from 1 over all prices."""
    n_arms: int


OnProgress = Callable[[EvaluationProgress], None]


class How(TypedDict, total=False):
    """How an evaluation is done, apart from what is compared."""

    seed: int
    """The number of the first host; the others follow. Not given, the first that is kept for this
    use: see :mod:`esper.config.held_out_hosts`."""
    folder: str | PathLike[str] | None
    """Where results are kept, so that an evaluation that was interrupted goes on; nowhere if not
    given, or if the task is an object and no name."""
    command: str
    """What gives these results again, for the record."""
    on_progress: OnProgress
    """Told how far it is."""


def evaluate(
    runs: AnyController | Sequence[AnyController],
    *,
    n_hosts: int = 512,
    tuning_runs: int = 4096,
    prices: float | Sequence[float] | None = None,
    arms: Sequence[str] | None = None,
    task: str | Task | None = None,
    task_options: Mapping[str, Any] | None = None,
    **how: Unpack[How],
) -> list[Evidence]:
    """Compare learned controllers with every arm of :data:`ARMS`, on the same held-out hosts.

    Args:
        runs: Runs, their folders or names, or saved controllers; several count as training runs of
            one method, each with its own seed.
        n_hosts: Hosts of the draws for evaluation, which nothing is trained or chosen on.
        tuning_runs: Host runs, on draws for tuning, that each tuned arm may spend on its choice.
        prices: Score that the reference run's FLOPs cost, one or several; the controllers' if None.
        arms: Names of the arms to run; all if None.
        task: Another task than the controllers learned on, or its name.
        task_options: Options of the task.
        **how: More that can be said by name: see :class:`How`.

    Returns:
        The results at each price.
    """
    require_int("n_hosts", n_hosts, least=FEWEST_HOSTS)
    require_int("tuning_runs", tuning_runs, least=2)
    chosen, saved = choose_arms(arms), find_contestants(runs)
    ground = find_ground(saved, task, task_options)
    campaign = Campaign(saved, ground, n_hosts=n_hosts, tuning_runs=tuning_runs, **how)
    return campaign.run(chosen, find_prices(prices, saved[0].budget.flop_price))


class Campaign:
    """An evaluation under way; what is done is kept and not done again."""

    def __init__(
        self,
        saved: Sequence[SavedController],
        ground: Ground,
        *,
        n_hosts: int,
        tuning_runs: int,
        **how: Unpack[How],
    ) -> None:
        """Get ready.

        Args:
            saved: The controllers.
            ground: What they are evaluated on.
            n_hosts: Hosts of the draws for evaluation.
            tuning_runs: Host runs that each tuned arm may spend.
            **how: See :class:`How`.
        """
        self._saved, self._ground = list(saved), ground
        self._hosts = hosts_of(how, n_hosts)
        self._command = how.get("command", "")
        self._on_progress = how.get("on_progress", lambda _: None)
        self._cache = ground.cache(how.get("folder"))
        self._number, self._n_arms = 0, 1
        self._bench = Bench(ground.task, purpose="evaluation", final_split="test")
        self._benches: dict[float, Bench] = {}
        """Where hosts are grown by controllers that see the price."""
        tuning = Bench(ground.task, purpose="tuning", final_split="validation")
        self._tuned = TunedArms(
            tuning, self._bench, budget=tuning_runs, cache=self._cache, tell=self._tell
        )

    def run(self, arms: Sequence[str], prices: Sequence[float]) -> list[Evidence]:
        """Run all arms at all prices."""
        self._n_arms = len(arms) * len(prices)
        return [self._evidence(arms, price) for price in prices]

    def _evidence(self, arms: Sequence[str], price: float) -> Evidence:
        is_greedy, done = self._saved[0].deterministic, list[Any]()
        learned = [self._run_learned(n, price) for n in range(len(self._saved))]
        for name in arms:
            done.append(as_evidence(name, self._arm(name, price, learned), is_greedy=is_greedy))
            self._number += 1
        task = self._ground.task
        return Evidence(
            task=task.name,
            task_options=dict(self._ground.options),
            price=price,
            learned_price=self._learned_price(),
            reference=f"training the reference host of {task.name} for "
            f"{task.budget.n_epochs} epochs",
            seed=self._hosts[0],
            runs=tuple(one.name for one in self._saved),
            arms=tuple(done),
            learned=LEARNED,
            created=datetime.now(UTC).isoformat(timespec="seconds"),
            versions=find_versions(),
            command=self._command,
        )

    def _learned_price(self) -> float | None:
        """Return the price that all controllers learned at; None if they differ."""
        prices = {one.budget.flop_price for one in self._saved}
        return prices.pop() if len(prices) == 1 else None

    def _arm(self, name: str, price: float, learned: list[HostRuns]) -> ArmEnds:
        """Run an arm, or take what is kept of it."""
        if name in (LEARNED, OTHER_WAY):
            is_other = name == OTHER_WAY
            many = range(len(self._saved))
            runs = (
                [self._run_learned(n, price, is_other=True) for n in many] if is_other else learned
            )
            way = "greedy" if self._saved[0].deterministic != is_other else "sampled"
            ends = [ends_of(one) for one in runs]
            return join_ends(ends, setting=way, tuning_runs=mean_episodes(self._saved))
        if name == "wait":
            runs = self._keep({"arm": name}, lambda: self._wait())
            return join_ends([ends_of(runs)], setting="the whole budget")
        if name in ("random", "wide_static", "shuffled", "wrong_task", *SCRATCH):
            ends = [self._follow(name, n, price, one) for n, one in enumerate(learned)]
            return join_ends(ends)
        return self._tuned.run(name, self._hosts, price)

    def _wait(self) -> HostRuns:
        tell = self._tell("hosts left alone")
        return self._bench.run(self._hosts, lambda _, __: WaitController(), on_share=tell)

    def _run_learned(self, n: int, price: float, *, is_other: bool = False) -> HostRuns:
        """Run a learned controller, which sees the price, in its usual way or in the other."""
        bench, make = self._learned_bench(price), self._maker(n, is_other=is_other)
        tell = self._tell(f"{self._saved[n].name}{', the other way' if is_other else ''}")
        key = self._key(n, price) | {"arm": LEARNED, "is_other": is_other}
        return self._keep(key, lambda: bench.run(self._hosts, make, on_share=tell))

    def _follow(self, name: str, n: int, price: float, learned: HostRuns) -> HostEnds:
        """Run an arm that follows what a learned controller did."""
        tell = self._tell(f"{name.replace('_', ' ')} after {self._saved[n].name}")
        key, hosts = self._key(n, price), self._hosts
        if name == "shuffled":
            bench, make = self._learned_bench(price), self._maker(n)
            runs = self._keep(
                key | {"arm": name}, lambda: run_shuffled(bench, make, hosts, on_share=tell)
            )
            return ends_of(runs)
        kind = "scratch" if name in SCRATCH else name
        make_runs = {
            "random": run_random,
            "wide_static": run_wide,
            "wrong_task": run_wrong_task,
            "scratch": run_scratch,
        }[kind]
        runs = self._keep(key | {"arm": kind}, lambda: make_runs(self._bench, learned, hosts, tell))
        return SCRATCH[name](runs, learned) if name in SCRATCH else ends_of(runs)

    def _maker(self, n: int, *, is_other: bool = False) -> MakeController:
        saved = self._saved[n]
        return lambda growth, _: saved.make(
            growth.slot_config, deterministic=saved.deterministic != is_other
        )

    def _learned_bench(self, price: float) -> Bench:
        if price not in self._benches:
            task = self._ground.at(price)
            self._benches = {price: Bench(task, purpose="evaluation", final_split="test")}
        return self._benches[price]

    def _key(self, n: int, price: float) -> dict[str, Any]:
        return {"controller": digest_of_controller(self._saved[n]), "price": price}

    def _keep(self, key: Mapping[str, Any], make: Callable[[], HostRuns]) -> HostRuns:
        hosts = [self._hosts[0], len(self._hosts)]
        is_greedy = self._saved[0].deterministic
        return self._cache.runs({**key, "hosts": hosts, "is_greedy": is_greedy}, make)

    def _tell(self, work: str) -> OnShare:
        number = min(self._number + 1, self._n_arms)

        def tell(share: float) -> None:
            self._on_progress(
                EvaluationProgress(work=work, share=share, number=number, n_arms=self._n_arms)
            )

        return tell


def hosts_of(how: How, n_hosts: int, numbers: HostNumbers = EVALUATION_HOSTS) -> range:
    """Return the numbers of the hosts of an evaluation, which no other use has met."""
    first = how.get("seed")
    if first is not None:
        require_int("seed", first, least=0)
    return numbers.take(first, n_hosts)


def find_versions() -> dict[str, str]:
    """Return what results were computed with."""
    return {
        "esper": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
    }
