"""Tuning: choosing among candidates on draws that are used for nothing else.

Shapes: C = candidates, N = hosts, T = epochs.

A host run trains one host to the end of its budget with one candidate. It is scored at every epoch
at which the host could have stopped, so the stopping epoch is chosen along with the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats, Integers
from esper.evidence.arms import make_arm
from esper.evidence.cache import ResultCache
from esper.evidence.host_runs import HostRuns
from esper.evidence.host_trainer import HostTrainer, OnShare, run_candidates
from esper.evidence.results import Arm
from esper.evidence.search_space import (
    Candidate,
    fixed_candidates,
    heuristic_candidates,
    static_candidates,
)

Curves = tuple[Floats, Floats]
"""Accuracy and FLOPs of a host run, ``[T + 1]`` each, had the host stopped after each epoch."""


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A candidate and a stopping epoch."""

    candidate: Candidate
    stop: int
    """Epoch after which hosts stop at the latest."""
    value: float
    """Mean score on the hosts that it was chosen on."""

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
        """Return accuracy and FLOPs, ``[C, N, T + 1]`` each; run what is missing."""
        pairs = [(candidate, host) for candidate in candidates for host in hosts]
        missing = [pair for pair in pairs if pair not in self._curves]
        if missing:
            self._run(missing, on_share)
        shape = len(candidates), len(hosts), -1
        accuracy, flops = (
            np.stack([self._curves[pair][part] for pair in pairs]).reshape(shape)
            for part in range(2)
        )
        return accuracy, flops

    def _run(self, pairs: list[tuple[Candidate, int]], on_share: OnShare) -> None:
        key = {"tuning": [[candidate.to_json(), host] for candidate, host in pairs]}

        def run() -> dict[str, NDArray[np.generic]]:
            runs = run_candidates(self.trainer, pairs, every_epoch=("final",), on_share=on_share)
            return {"accuracy": runs.accuracy_by_epoch, "flops": runs.flops_by_epoch}

        found = self._cache.get(key, run)
        rows = zip(found["accuracy"], found["flops"], strict=True)
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
    hosts: Sequence[int] | None = None,
    keep: Candidate | None = None,
    on_share: OnShare = lambda _: None,
) -> Tuned:
    """Choose a candidate and a stopping epoch by successive halving.

    Args:
        runs: Host runs of candidates.
        candidates: The candidates.
        price: Score that the FLOPs of one reference run cost.
        budget: Host runs that may be spent.
        hosts: The hosts to choose on, in order; by default all.
        keep: A candidate that is never dropped.
        on_share: Called with the share that is done.
    """
    rungs = plan_rungs(len(candidates), budget)
    left = list(candidates)[: rungs[0][0]]
    if keep is not None and keep not in left:
        left[-1] = keep
    dropped: list[Candidate] = []
    used: set[tuple[Candidate, int]] = set()
    scores: Floats = np.zeros((len(left), 1))
    for number, (n, n_hosts) in enumerate(rungs):
        if number:
            left, worse = _keep_best(left, scores, n, keep)
            dropped = worse + dropped
        chosen = range(n_hosts) if hosts is None else hosts[:n_hosts]
        accuracy, flops = runs.curves(left, chosen, report_part(on_share, number, len(rungs)))
        used.update((candidate, host) for candidate in left for host in chosen)
        # Rounded, so that ties go to the first candidate and not to the last digit.
        means: Floats = (accuracy - price * flops).mean(1).round(9)
        scores = means[:, list(runs.trainer.stops)]
    order = _rank(scores)
    at = int(scores[order[0]].argmax())
    best = Choice(
        candidate=left[order[0]], stop=runs.trainer.stops[at], value=float(scores[order[0], at])
    )
    ranking = (*(left[index] for index in order), *dropped)
    return Tuned(best=best, ranking=ranking, runs=frozenset(used))


def _rank(scores: Floats) -> list[int]:
    """Return the indices of candidates, best first, each at its best stopping epoch."""
    order: list[int] = np.argsort(-scores.max(1), kind="stable").tolist()
    return order


def _keep_best(
    left: list[Candidate], scores: Floats, n: int, keep: Candidate | None
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the best n candidates, including ``keep``, and the others."""
    ranked = [left[index] for index in _rank(scores)]
    best, worse = ranked[:n], ranked[n:]
    if keep is not None and keep not in best:
        worse = [best[-1], *(candidate for candidate in worse if candidate != keep)]
        best[-1] = keep
    return best, worse


def report_part(on_share: OnShare, number: int, n_parts: int) -> OnShare:
    """Return a function that reports the share of one part as a share of the whole."""
    return lambda share: on_share((number + share) / n_parts)


TUNING = "tuning"
"""How descriptions of work that tunes an arm begin."""
N_DRAWS = 1024
"""Number of draws that determine the buckets."""
N_BUCKETS = 3
"""Number of buckets of classes, and of samples."""
MIN_BUCKET_HOSTS = 16
"""A bucket with fewer hosts has no choice of its own."""
POOL = 32
"""Number of candidates that each bucket chooses from."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """The edges between buckets of classes and of samples."""

    classes: tuple[float, ...]
    samples: tuple[float, ...]

    @classmethod
    def of(cls, n_classes: Integers, n_samples: Integers) -> Buckets:
        """Return buckets that split these hosts as evenly as possible."""
        shares = np.arange(1, N_BUCKETS) / N_BUCKETS
        return cls(
            tuple(np.quantile(n_classes, shares).tolist()),
            tuple(np.quantile(n_samples, shares).tolist()),
        )

    def find(self, n_classes: Integers, n_samples: Integers) -> Integers:
        """Return the bucket of each host, ``[N]``, counted row by row."""
        rows = np.searchsorted(self.classes, n_classes)
        return rows * N_BUCKETS + np.searchsorted(self.samples, n_samples)


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextTable:
    """A choice for each bucket, and one for all hosts."""

    buckets: Buckets
    choices: dict[int, Choice]
    """By bucket; buckets that are missing use the overall choice."""
    overall: Choice
    n_runs: int
    """Number of host runs behind all choices."""

    def choose(self, n_classes: Integers, n_samples: Integers) -> list[Choice]:
        """Return the choice of each host."""
        found: list[int] = self.buckets.find(n_classes, n_samples).tolist()
        return [self.choices.get(bucket, self.overall) for bucket in found]

    def describe(self) -> str:
        """Return how many buckets have a choice of their own, in words."""
        n_own = sum(choice != self.overall for choice in self.choices.values())
        return (
            f"{n_own} of {N_BUCKETS**2} kinds of hosts have a setting other than the best for all "
            f"({self.overall.describe()})"
        )


def tune_contexts(
    runs: TuningRuns,
    families: Sequence[Tuned],
    *,
    price: float,
    budget: int,
    on_share: OnShare = lambda _: None,
) -> ContextTable:
    """Choose for each bucket among the best candidates of tuned families.

    A bucket gets its own choice only if that beats the overall choice on the bucket's hosts by more
    than a standard error. Otherwise choosing on few hosts would do harm where nothing can be
    gained.

    Args:
        runs: Host runs of candidates.
        families: The families, tuned on all hosts.
        price: Score that the FLOPs of one reference run cost.
        budget: Host runs that may be spent in addition to those of the families.
        on_share: Called with the share that is done.
    """
    n_classes, n_samples = runs.trainer.contexts(range(N_DRAWS))
    buckets = Buckets.of(n_classes, n_samples)
    overall = best_of(runs, families, price)
    found, used = buckets.find(n_classes, n_samples), set[tuple[Candidate, int]]()
    used.update(*(tuned.runs for tuned in families))
    choices: dict[int, Choice] = {}
    buckets_found, sizes = np.unique(found, return_counts=True)
    large: list[int] = buckets_found[sizes >= MIN_BUCKET_HOSTS].tolist()
    for number, bucket in enumerate(large):
        hosts: list[int] = np.flatnonzero(found == bucket).tolist()
        share = budget // len(large)
        last = hosts[: max(2, share // 4)]
        tuned = halve(
            runs,
            pool_of(families),
            price=price,
            budget=max(2, share - 2 * len(last)),
            hosts=hosts,
            keep=overall.candidate,
            on_share=report_part(on_share, number, len(large)),
        )
        choices[bucket] = _own_or_overall(runs, tuned.best.candidate, overall, last, price)
        both = (tuned.best.candidate, overall.candidate)
        used |= tuned.runs | {(candidate, host) for candidate in both for host in last}
    return ContextTable(buckets=buckets, choices=choices, overall=overall, n_runs=len(used))


def best_of(runs: TuningRuns, families: Sequence[Tuned], price: float) -> Choice:
    """Return the best choice of several families, on the hosts that all of them were run on."""
    bests = [tuned.best for tuned in families]
    tried = [
        {host for candidate, host in tuned.runs if candidate == tuned.best.candidate}
        for tuned in families
    ]
    common = sorted(set[int].intersection(*tried))
    values = [_scores(runs, best.candidate, common, price)[:, best.stop].mean() for best in bests]
    return bests[int(np.argmax(np.round(values, 9)))]


def _own_or_overall(
    runs: TuningRuns, candidate: Candidate, overall: Choice, hosts: Sequence[int], price: float
) -> Choice:
    """Return a candidate at its best stop if it clearly beats ``overall`` on these hosts."""
    scores, stops = _scores(runs, candidate, hosts, price), list(runs.trainer.stops)
    stop = stops[int(scores[:, stops].mean(0).round(9).argmax())]
    gains = scores[:, stop] - _scores(runs, overall.candidate, hosts, price)[:, overall.stop]
    if gains.mean() <= gains.std(ddof=1) / np.sqrt(len(hosts)):
        return overall
    return Choice(candidate=candidate, stop=stop, value=float(scores[:, stop].mean()))


def _scores(
    runs: TuningRuns, candidate: Candidate, hosts: Sequence[int], price: float
) -> NDArray[np.float64]:
    """Return the scores of a candidate on hosts for each stopping epoch, ``[N, T + 1]``."""
    accuracy, flops = runs.curves([candidate], hosts, lambda _: None)
    return (accuracy - price * flops)[0]


def pool_of(families: Sequence[Tuned]) -> list[Candidate]:
    """Return the best candidates of all families, taken in turn."""
    size = -(-POOL // len(families))
    ranked = [tuned.ranking[:size] for tuned in families]
    turns = [rank[turn] for turn in range(size) for rank in ranked if turn < len(rank)]
    return list(dict.fromkeys(turns))[:POOL]


FAMILIES = ("static", "fixed", "heuristic")
"""The arms that are tuned for all hosts together."""
CONTEXTS = {"context_table": ("static", "fixed"), "context_heuristic": ("heuristic",)}
"""The arms that are tuned for each kind of host, and the families that they choose from."""
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
            budget: Host runs that may be spent on each family.
            cache: Caches host runs.
            report: Reports progress.
        """
        self._runs = TuningRuns(tuning, cache)
        self._trainer, self._cache = evaluation, cache
        self._budget, self._report = budget, report
        self._tuned: dict[tuple[str, float], Tuned] = {}

    def run(self, arm: str, hosts: Sequence[int], price: float) -> Arm:
        """Return the results of an arm, tuned for this price."""
        if arm in FAMILIES:
            tuned = self.tune(arm, price)
            choices = [tuned.best] * len(hosts)
            setting, n_runs = tuned.best.describe(), len(tuned.runs)
        else:
            table = self.tune_contexts(arm, price)
            choices = table.choose(*self._trainer.contexts(hosts))
            setting, n_runs = table.describe(), table.n_runs
        runs = self._evaluate(arm, choices, hosts)
        return make_arm(arm, [runs], setting=setting, tuning_runs=n_runs)

    def tune(self, family: str, price: float) -> Tuned:
        """Choose a setting of a family for all hosts."""
        key = family, price
        if key not in self._tuned:
            config = self._runs.trainer.slot_config
            n_heuristics = count_heuristics(self._budget)
            candidates = {
                "static": lambda: static_candidates(config),
                "fixed": lambda: fixed_candidates(config, self._trainer.task.budget.n_epochs),
                "heuristic": lambda: heuristic_candidates(config, n_heuristics),
            }[family]()
            self._tuned[key] = halve(
                self._runs,
                candidates,
                price=price,
                budget=self._budget,
                on_share=self._report(f"{TUNING} {family.replace('_', ' ')}"),
            )
        return self._tuned[key]

    def tune_best(self, families: Sequence[str], price: float) -> Choice:
        """Choose the best setting for all hosts among several families."""
        return best_of(self._runs, [self.tune(family, price) for family in families], price)

    def tune_contexts(self, arm: str, price: float) -> ContextTable:
        """Choose a setting for each kind of host."""
        families = [self.tune(family, price) for family in CONTEXTS[arm]]
        return tune_contexts(
            self._runs,
            families,
            price=price,
            budget=self._budget,
            on_share=self._report(f"{TUNING} {arm.replace('_', ' ')}"),
        )

    def _evaluate(self, arm: str, choices: list[Choice], hosts: Sequence[int]) -> HostRuns:
        """Run each host with its choice; hosts with the same choice are trained together."""
        order = sorted(range(len(hosts)), key=lambda index: (str(choices[index]), index))
        pairs = [(choices[index].candidate, hosts[index]) for index in order]
        stops = np.array([choices[index].stop for index in order], np.int64)
        key = {
            "treated": [[candidate.to_json(), host] for candidate, host in pairs],
            "stops": stops.tolist(),
        }
        report = self._report(arm.replace("_", " "))
        runs = self._cache.runs(
            key, lambda: run_candidates(self._trainer, pairs, stops=stops, on_share=report)
        )
        return runs.select(np.argsort(np.array(order)))
