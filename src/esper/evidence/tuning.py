"""Choosing among candidates on draws that only serve for choosing.

Shapes: C = candidates, N = hosts, T = epochs.

A host run is one host trained to the end of its budget by one candidate. It is read at every epoch
at which the host could have stopped, so that the stopping epoch is chosen along with the candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from esper.arrays import Floats, Integers
from esper.evidence.arms import ArmEnds, ends_of, join_ends
from esper.evidence.cache import ResultCache
from esper.evidence.host_runs import HostRuns
from esper.evidence.host_trainer import Bench, OnShare, treat
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
    """What was chosen."""

    candidate: Candidate
    stop: int
    """Epochs after which hosts stop at the latest."""
    value: float
    """Mean score on the hosts that decided it."""

    def words(self) -> str:
        """Return what was chosen."""
        return self.candidate.words(self.stop)


@dataclass(frozen=True, kw_only=True)
class Tuned:
    """A choice, and how it came about."""

    best: Choice
    ranking: tuple[Candidate, ...]
    """All candidates, those that were dropped last first."""
    runs: frozenset[tuple[Candidate, int]]
    """The host runs that it is from, by candidate and host."""


class TuningRuns:
    """Host runs of candidates, each made once."""

    def __init__(self, bench: Bench, cache: ResultCache) -> None:
        self.bench = bench
        self._cache = cache
        self._curves: dict[tuple[Candidate, int], Curves] = {}

    def curves(
        self, candidates: Sequence[Candidate], hosts: Sequence[int], on_share: OnShare
    ) -> tuple[Floats, Floats]:
        """Return accuracy and FLOPs, ``[C, N, T + 1]``; runs that are missing are made."""
        pairs = [(candidate, host) for candidate in candidates for host in hosts]
        missing = [pair for pair in pairs if pair not in self._curves]
        if missing:
            self._make(missing, on_share)
        shape = len(candidates), len(hosts), -1
        accuracy, flops = (
            np.stack([self._curves[pair][part] for pair in pairs]).reshape(shape)
            for part in range(2)
        )
        return accuracy, flops

    def _make(self, pairs: list[tuple[Candidate, int]], on_share: OnShare) -> None:
        """Run what is missing, or take it from the cache."""
        decided_by = {"tuning": [[candidate.to_json(), host] for candidate, host in pairs]}

        def run() -> dict[str, NDArray[np.generic]]:
            runs = treat(self.bench, pairs, every_epoch=("final",), on_share=on_share)
            return {"accuracy": runs.accuracy_by_epoch, "flops": runs.flops_by_epoch}

        found = self._cache.get(decided_by, run)
        rows = zip(found["accuracy"], found["flops"], strict=True)
        self._curves.update(dict(zip(pairs, rows, strict=True)))


def plan_rungs(n_candidates: int, budget: int) -> list[tuple[int, int]]:
    """Return how many candidates are tried on how many hosts at each rung of halving.

    All on few hosts, the better half on twice as many, and so on to the last two. Hosts of a rung
    are among those of the next, so that a rung costs as much as its hosts that are not in the one
    before. With too little budget for all candidates, as many as it lasts for.

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
    """Return the host runs that halving n candidates takes, starting on so many hosts."""
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
        runs: Where host runs are made.
        candidates: What there is to choose from.
        price: Score that the reference run's FLOPs cost.
        budget: Host runs that may be spent.
        hosts: The hosts to choose by, in order; all if not given.
        keep: A candidate that stays until the end.
        on_share: Told how far it is.
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
            left, gone = _narrow(left, scores, n, keep)
            dropped = gone + dropped
        own = range(n_hosts) if hosts is None else hosts[:n_hosts]
        accuracy, flops = runs.curves(left, own, within(on_share, number, len(rungs)))
        used.update((candidate, host) for candidate in left for host in own)
        # Rounded, so that no last digit decides between equals: the first of them is taken.
        means: Floats = (accuracy - price * flops).mean(1).round(9)
        scores = means[:, list(runs.bench.stops)]
    order = _order(scores)
    at = int(scores[order[0]].argmax())
    best = Choice(
        candidate=left[order[0]], stop=runs.bench.stops[at], value=float(scores[order[0], at])
    )
    ranking = (*(left[index] for index in order), *dropped)
    return Tuned(best=best, ranking=ranking, runs=frozenset(used))


def _order(scores: Floats) -> list[int]:
    """Return the numbers of candidates, best first, each at its best stopping epoch."""
    order: list[int] = np.argsort(-scores.max(1), kind="stable").tolist()
    return order


def _narrow(
    left: list[Candidate], scores: Floats, n: int, keep: Candidate | None
) -> tuple[list[Candidate], list[Candidate]]:
    """Return the best n candidates, one that is to be kept among them, and the others."""
    ranked = [left[index] for index in _order(scores)]
    kept, gone = ranked[:n], ranked[n:]
    if keep is not None and keep not in kept:
        gone = [kept[-1], *(candidate for candidate in gone if candidate != keep)]
        kept[-1] = keep
    return kept, gone


def within(on_share: OnShare, number: int, n_parts: int) -> Callable[[float], None]:
    """Return what is told how far a part of the work is, as a share of the whole."""
    return lambda share: on_share((number + share) / n_parts)


N_DRAWS = 1024
"""Draws by which hosts are sorted into buckets."""
N_BUCKETS = 3
"""Buckets of each of the two facts."""
FEWEST_HOSTS = 16
"""Hosts of a bucket below which it has no choice of its own."""
POOL = 32
"""Candidates that each bucket chooses from."""


@dataclass(frozen=True, eq=False)
class Buckets:
    """Where one bucket of classes, or of samples, ends and the next begins."""

    classes: tuple[float, ...]
    samples: tuple[float, ...]

    @classmethod
    def of(cls, n_classes: Integers, n_samples: Integers) -> Buckets:
        """Return buckets with as many of these hosts in each, as far as that can be."""
        shares = np.arange(1, N_BUCKETS) / N_BUCKETS
        return cls(
            tuple(np.quantile(n_classes, shares).tolist()),
            tuple(np.quantile(n_samples, shares).tolist()),
        )

    def find(self, n_classes: Integers, n_samples: Integers) -> Integers:
        """Return the bucket of each host, ``[N]``, counted row by row of the table."""
        rows = np.searchsorted(self.classes, n_classes)
        return rows * N_BUCKETS + np.searchsorted(self.samples, n_samples)


@dataclass(frozen=True, kw_only=True, eq=False)
class ContextTable:
    """A choice for each bucket, and the one for all."""

    buckets: Buckets
    choices: dict[int, Choice]
    """By bucket; those that are missing take the choice for all."""
    overall: Choice
    n_runs: int
    """Host runs that all choices are from."""

    def choose(self, n_classes: Integers, n_samples: Integers) -> list[Choice]:
        """Return the choice of each host."""
        found: list[int] = self.buckets.find(n_classes, n_samples).tolist()
        return [self.choices.get(bucket, self.overall) for bucket in found]

    def words(self) -> str:
        """Return how many buckets have a choice of their own."""
        n_own = sum(choice != self.overall for choice in self.choices.values())
        return (
            f"{n_own} of {N_BUCKETS**2} kinds of hosts treated otherwise than by the best for all "
            f"({self.overall.words()})"
        )


def tune_contexts(
    runs: TuningRuns,
    families: Sequence[Tuned],
    *,
    price: float,
    budget: int,
    on_share: OnShare = lambda _: None,
) -> ContextTable:
    """Choose for each bucket among the best candidates of families that were tuned before.

    A bucket has a choice of its own where that is better than the best for all, on the same hosts
    of the bucket, by more than a standard error: a choice by few hosts is worse where nothing is
    to be gained.

    Args:
        runs: Where host runs are made.
        families: What was tuned on all hosts.
        price: Score that the reference run's FLOPs cost.
        budget: Host runs that may be spent on top of those of the families.
        on_share: Told how far it is.
    """
    n_classes, n_samples = runs.bench.contexts(range(N_DRAWS))
    buckets = Buckets.of(n_classes, n_samples)
    overall = best_of(runs, families, price)
    found, used = buckets.find(n_classes, n_samples), set[tuple[Candidate, int]]()
    used.update(*(tuned.runs for tuned in families))
    choices: dict[int, Choice] = {}
    present = [bucket for bucket in np.unique(found).tolist() if _size(found, bucket)]
    for number, bucket in enumerate(present):

        def tell(share: float, number: int = number) -> None:
            on_share((number + share) / len(present))

        hosts: list[int] = np.flatnonzero(found == bucket).tolist()
        own = budget // len(present)
        last = hosts[: max(2, own // 4)]
        tuned = halve(
            runs,
            pool_of(families),
            price=price,
            budget=max(2, own - 2 * len(last)),
            hosts=hosts,
            keep=overall.candidate,
            on_share=tell,
        )
        choices[bucket] = _own_or_overall(runs, tuned.best.candidate, overall, last, price)
        both = (tuned.best.candidate, overall.candidate)
        used |= tuned.runs | {(candidate, host) for candidate in both for host in last}
    return ContextTable(buckets=buckets, choices=choices, overall=overall, n_runs=len(used))


def best_of(runs: TuningRuns, families: Sequence[Tuned], price: float) -> Choice:
    """Return the best choice of several families, by the hosts that all of them were tried on."""
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
    """Return a candidate at its best stop if it stands out on these hosts, or the best for all."""
    scores, stops = _scores(runs, candidate, hosts, price), list(runs.bench.stops)
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
    """Return the best candidates of each family, as many of each, in turn."""
    size = -(-POOL // len(families))
    ranked = [tuned.ranking[:size] for tuned in families]
    turns = [rank[turn] for turn in range(size) for rank in ranked if turn < len(rank)]
    return list(dict.fromkeys(turns))[:POOL]


def _size(found: Integers, bucket: int) -> bool:
    """Return whether a bucket has enough hosts for a choice of its own."""
    return bool((found == bucket).sum() >= FEWEST_HOSTS)


FAMILIES = ("static", "fixed", "heuristic")
"""What is tuned for all hosts alike."""
CONTEXTS = {"context_table": ("static", "fixed"), "context_heuristic": ("heuristic",)}
"""What is tuned by the kind of host, and from which families."""
N_HEURISTICS = 64
"""Heuristics that are tried with a moderate budget; more with a large one."""

Tell = Callable[[str], OnShare]
"""Gives for each piece of work what is to be told how far it is."""


def count_heuristics(budget: int) -> int:
    """Return how many heuristics are worth trying with so many host runs."""
    return max(2, min(budget // 16, max(N_HEURISTICS, budget // 32)))


class TunedArms:
    """Chooses settings at a price, and runs what was chosen."""

    def __init__(
        self,
        tuning: Bench,
        evaluation: Bench,
        *,
        budget: int,
        cache: ResultCache,
        tell: Tell = lambda _: lambda _: None,
    ) -> None:
        """Get ready.

        Args:
            tuning: Where settings are chosen.
            evaluation: Where they are run then.
            budget: Host runs that may be spent on each family.
            cache: Where runs are kept.
            tell: Told what is done.
        """
        self._runs = TuningRuns(tuning, cache)
        self._bench, self._cache = evaluation, cache
        self._budget, self._tell = budget, tell
        self._tuned: dict[tuple[str, float], Tuned] = {}

    def run(self, arm: str, hosts: Sequence[int], price: float) -> ArmEnds:
        """Return how an arm did, tuned for this price."""
        if arm in FAMILIES:
            tuned = self.tune(arm, price)
            choices = [tuned.best] * len(hosts)
            words, n_runs = tuned.best.words(), len(tuned.runs)
        else:
            table = self.tune_contexts(arm, price)
            choices = table.choose(*self._bench.contexts(hosts))
            words = table.words()
            n_runs = table.n_runs
        runs = self._evaluate(arm, choices, hosts)
        return join_ends([ends_of(runs)], setting=words, tuning_runs=n_runs)

    def tune(self, family: str, price: float) -> Tuned:
        """Choose a setting of a family for all hosts."""
        key = family, price
        if key not in self._tuned:
            config = self._runs.bench.slot_config
            n_heuristics = count_heuristics(self._budget)
            candidates = {
                "static": lambda: static_candidates(config),
                "fixed": lambda: fixed_candidates(config, self._bench.task.budget.n_epochs),
                "heuristic": lambda: heuristic_candidates(config, n_heuristics),
            }[family]()
            self._tuned[key] = halve(
                self._runs,
                candidates,
                price=price,
                budget=self._budget,
                on_share=self._tell(f"tuning {family.replace('_', ' ')}"),
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
            on_share=self._tell(f"tuning {arm.replace('_', ' ')}"),
        )

    def _evaluate(self, arm: str, choices: list[Choice], hosts: Sequence[int]) -> HostRuns:
        """Run each host by its choice; hosts with the same choice lie side by side."""
        order = sorted(range(len(hosts)), key=lambda place: (str(choices[place]), place))
        pairs = [(choices[place].candidate, hosts[place]) for place in order]
        stops = np.array([choices[place].stop for place in order], np.int64)
        decided_by = {
            "treated": [[candidate.to_json(), host] for candidate, host in pairs],
            "stops": stops.tolist(),
        }
        tell = self._tell(arm.replace("_", " "))
        runs = self._cache.runs(
            decided_by, lambda: treat(self._bench, pairs, stops=stops, on_share=tell)
        )
        back = np.argsort(np.array(order))
        return runs.picked(back)
