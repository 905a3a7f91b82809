"""Tuning: choosing among candidates on draws that are used for nothing else.

Shapes: C = candidates, N = hosts, T = epochs.

A host run trains one host to the end of its budget with one candidate. It is scored at every epoch
at which the host could have stopped, so the stopping epoch is chosen along with the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Features, Flags, Floats, Integers
from esper.environment.episodes import GrowthEpisodes
from esper.evidence.arms import evaluated_arm
from esper.evidence.cache import ResultCache
from esper.evidence.search_space import (
    Candidate,
    fixed_candidates,
    heuristic_candidates,
    size_candidates,
)
from esper.lifecycle.factored_actions import HEAD_NAMES, Op
from esper.populations.host_data import Split
from esper.results.arms import Arm
from esper.tamiyo import Controller
from esper.tamiyo.controllers.controller import EpochCounter
from esper.tamiyo.policy.action_masks import ActionMasks
from esper.training.host_runs import HostRuns
from esper.training.host_trainer import HostTrainer
from esper.training.worker_pool import OnShare

_OP = HEAD_NAMES.index("op")

Curves = tuple[Floats, Floats]
"""Score and FLOPs of a host run, ``[T + 1]`` each, had the host stopped after each epoch."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A candidate and a stopping epoch."""

    candidate: Candidate
    stop: int
    """Epoch after which hosts stop at the latest."""
    value: float
    """Mean return on the hosts that it was chosen on."""

    def describe(self) -> str:
        """Return the choice in words."""
        return self.candidate.describe(self.stop)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A choice and the host runs behind it."""

    best: Choice
    ranking: tuple[Candidate, ...]
    """All candidates, best first: the later one was dropped, the earlier it comes."""
    runs: frozenset[tuple[Candidate, int]]
    """The host runs that were used, by candidate and host."""


class TuningRuns:
    """The host runs of candidates; each is run once."""

    def __init__(self, trainer: HostTrainer, cache: ResultCache) -> None:
        self.trainer = trainer
        self._cache = cache
        self._curves: dict[tuple[Candidate, int], Curves] = {}

    def curves(
        self, candidates: Sequence[Candidate], hosts: Sequence[int], on_share: OnShare
    ) -> tuple[Floats, Floats]:
        """Return score and FLOPs, ``[C, N, T + 1]`` each; run what is missing."""
        pairs = [(candidate, host) for candidate in candidates for host in hosts]
        missing = [pair for pair in pairs if pair not in self._curves]
        if missing:
            self._run(missing, on_share)
        shape = len(candidates), len(hosts), -1
        score, flops = (
            np.stack([self._curves[pair][part] for pair in pairs]).reshape(shape)
            for part in range(2)
        )
        return score, flops

    def _run(self, pairs: list[tuple[Candidate, int]], on_share: OnShare) -> None:
        key = {"tuning": [[candidate.to_json(), host] for candidate, host in pairs]}

        def run() -> dict[str, NDArray[np.generic]]:
            runs = run_candidates(self.trainer, pairs, every_epoch=("final",), on_share=on_share)
            return {"score": runs.score_by_epoch, "flops": runs.flops_by_epoch}

        found = self._cache.get(key, run)
        rows = zip(found["score"], found["flops"], strict=True)
        self._curves.update(dict(zip(pairs, rows, strict=True)))


def plan_rungs(n_candidates: int, budget: int) -> list[tuple[int, int]]:
    """Return the numbers of candidates and hosts at each rung of successive halving.

    All candidates run on a few hosts, the better half on twice as many, and so on to the last two.
    Each rung includes the hosts of the one before, so it only pays for the others. A budget that is
    too small for all candidates runs as many as it can.

    Reference: Jamieson and Talwalkar (2016).
    """
    n = max(1, n_candidates)
    while n > 1 and _cost(n, 1) > budget:
        n -= 1
    hosts = max(1, budget) if n == 1 else max(1, budget // _cost(n, 1))
    rungs = [(n, hosts)]
    while n > 2:
        n, hosts = (n + 1) // 2, 2 * hosts
        rungs.append((n, hosts))
    return rungs


def _cost(n: int, hosts: int) -> int:
    """Return the host runs that halving n candidates takes, starting on ``hosts`` hosts."""
    total = n * hosts
    while n > 2:
        n, hosts = (n + 1) // 2, 2 * hosts
        total += n * hosts // 2
    return total


def halve(
    runs: TuningRuns,
    candidates: Sequence[Candidate],
    *,
    price: float,
    budget: int,
    on_share: OnShare = lambda _: None,
) -> Tuned:
    """Choose a candidate and a stopping epoch by successive halving.

    Args:
        runs: Host runs of candidates.
        candidates: The candidates.
        price: Score that the FLOPs of one reference run cost.
        budget: Host runs that may be spent.
        on_share: Called with the share that is done.
    """
    rungs = plan_rungs(len(candidates), budget)
    left = list(candidates)[: rungs[0][0]]
    dropped: list[Candidate] = []
    used: set[tuple[Candidate, int]] = set()
    returns: Floats = np.zeros((len(left), 1))
    for number, (n, n_hosts) in enumerate(rungs):
        if number:
            ranked = [left[index] for index in _rank(returns)]
            left, dropped = ranked[:n], ranked[n:] + dropped
        hosts = range(n_hosts)
        score, flops = runs.curves(left, hosts, report_part(on_share, number, len(rungs)))
        used.update((candidate, host) for candidate in left for host in hosts)
        # Rounded, so that ties go to the first candidate and not to the last digit.
        means: Floats = (score - price * flops).mean(1).round(9)
        returns = means[:, list(runs.trainer.stops)]
    order = _rank(returns)
    at = int(returns[order[0]].argmax())
    best = Choice(
        candidate=left[order[0]], stop=runs.trainer.stops[at], value=float(returns[order[0], at])
    )
    ranking = (*(left[index] for index in order), *dropped)
    return Tuned(best=best, ranking=ranking, runs=frozenset(used))


def _rank(returns: Floats) -> list[int]:
    """Return the indices of candidates, best first, each at its best stopping epoch."""
    order: list[int] = np.argsort(-returns.max(1), kind="stable").tolist()
    return order


def report_part(on_share: OnShare, number: int, n_parts: int) -> OnShare:
    """Return a function that reports the share of one part as a share of the whole."""
    return lambda share: on_share((number + share) / n_parts)


class Stopping:
    """A controller wrapper that finishes each host after its own number of epochs."""

    def __init__(self, controller: Controller, stops: Integers) -> None:
        self._controller, self._stops = controller, np.asarray(stops, np.int64)
        self.name = controller.name
        self._epochs = EpochCounter()

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start the wrapped controller."""
        self._epochs.start(n_hosts)
        self._controller.start(n_hosts, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Choose an action for each host."""
        is_due = self._epochs.count(observations, starts) >= self._stops
        actions = self._controller.act(observations, masks, starts).copy()
        actions[is_due, _OP] = Op.FINISH
        return actions


class ControllerGroup:
    """Several controllers, each of which steers a consecutive range of hosts."""

    name = "group"

    def __init__(self, controllers: Sequence[Controller], sizes: Sequence[int]) -> None:
        self._controllers = list(controllers)
        self._ends = np.cumsum(sizes).tolist()
        self._ranges = list(zip([0, *self._ends[:-1]], self._ends, strict=True))

    def start(self, n_hosts: int, *, seed: int = 0) -> None:
        """Start every controller for its hosts."""
        assert n_hosts == self._ends[-1], "the controllers steer all hosts"
        for controller, (first, end) in zip(self._controllers, self._ranges, strict=True):
            controller.start(end - first, seed=seed)

    def act(self, observations: Features, masks: ActionMasks, starts: Flags) -> Integers:
        """Let every controller choose for its hosts."""
        rows = [
            controller.act(observations[first:end], masks.of_hosts(first, end), starts[first:end])
            for controller, (first, end) in zip(self._controllers, self._ranges, strict=True)
        ]
        return np.concatenate(rows)


def _make_candidates(
    candidates: Sequence[Candidate], stops: Integers | None, growth: GrowthEpisodes, batch: slice
) -> Controller:
    """Return controllers of which each follows the candidate of its hosts."""
    own = groupby(candidates[batch])
    groups = [(candidate, len(list(same))) for candidate, same in own]
    controllers = [candidate.make(growth.layout) for candidate, _ in groups]
    group = ControllerGroup(controllers, [size for _, size in groups])
    return group if stops is None else Stopping(group, stops[batch])


def run_candidates(
    trainer: HostTrainer,
    pairs: Sequence[tuple[Candidate, int]],
    *,
    stops: Integers | None = None,
    every_epoch: Sequence[Split] = (),
    on_share: OnShare = lambda _: None,
) -> HostRuns:
    """Train hosts, each with its own candidate.

    Args:
        trainer: Trains the hosts.
        pairs: The candidate and the number of each host.
        stops: ``[N]`` epochs after which each host is finished; by default the end of the budget.
        every_epoch: Splits to score on after every epoch.
        on_share: Called with the share that is done.
    """
    candidates = [candidate for candidate, _ in pairs]
    return trainer.run(
        [host for _, host in pairs],
        partial(_make_candidates, candidates, None if stops is None else np.asarray(stops)),
        seeds={index: candidate.first_seeds() for index, (candidate, _) in enumerate(pairs)},
        every_epoch=every_epoch,
        on_share=on_share,
    )


TUNING = "tuning"
"""How descriptions of work that tunes an arm begin."""
N_HEURISTICS = 64
"""Number of heuristics to try with a moderate budget; a large one tries more."""

Report = Callable[[str], OnShare]
"""Returns, for a piece of work in words, the function that reports its progress."""


def count_heuristics(budget: int) -> int:
    """Return the number of heuristics to try with a budget of host runs."""
    return max(2, min(budget // 16, max(N_HEURISTICS, budget // 32)))


class TunedArms:
    """Tunes arms at a price and runs what was chosen."""

    def __init__(
        self,
        tuning: HostTrainer,
        evaluation: HostTrainer,
        *,
        budget: int,
        cache: ResultCache,
        report: Report = lambda _: lambda _: None,
    ) -> None:
        """Prepare to tune.

        Args:
            tuning: Trains the hosts that settings are chosen on.
            evaluation: Trains the hosts that the chosen settings are run on.
            budget: Host runs that may be spent on each arm.
            cache: Caches host runs.
            report: Reports progress.
        """
        self.runs = TuningRuns(tuning, cache)
        self._trainer, self._cache = evaluation, cache
        self._budget, self._report = budget, report
        self._tuned: dict[tuple[str, float], Tuned] = {}

    def run(self, arm: str, hosts: Sequence[int], price: float) -> Arm:
        """Return the result of an arm, tuned for this price."""
        tuned = self.tune(arm, price)
        pairs = [(tuned.best.candidate, host) for host in hosts]
        stops = np.full(len(hosts), tuned.best.stop)
        key = {
            "tuned": [[candidate.to_json(), host] for candidate, host in pairs],
            "stops": stops.tolist(),
        }
        report = self._report(arm)
        runs = self._cache.runs(
            key, lambda: run_candidates(self._trainer, pairs, stops=stops, on_share=report)
        )
        setting, n_runs = tuned.best.describe(), len(tuned.runs)
        return evaluated_arm(arm, [runs], price, setting=setting, tuning_runs=n_runs)

    def tune(self, arm: str, price: float) -> Tuned:
        """Choose a setting of an arm for all hosts."""
        key = arm, price
        if key not in self._tuned:
            config = self.runs.trainer.slot_config
            n_heuristics = count_heuristics(self._budget)
            candidates = {
                "fixed-size": lambda: size_candidates(config),
                "fixed": lambda: fixed_candidates(config, self._trainer.task.budget.n_epochs),
                "heuristic": lambda: heuristic_candidates(config, n_heuristics),
            }[arm]()
            self._tuned[key] = halve(
                self.runs,
                candidates,
                price=price,
                budget=self._budget,
                on_share=self._report(f"{TUNING} {arm}"),
            )
        return self._tuned[key]
