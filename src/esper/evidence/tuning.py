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

from esper.arrays import Floats
from esper.evidence.bench import Bench, OnShare, treat
from esper.evidence.cache import ResultCache
from esper.evidence.candidates import Candidate

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
