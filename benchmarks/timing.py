"""Time calls side by side: all candidates take turns in every round and share its noise."""

from __future__ import annotations

import gc
import statistics
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import repeat
from time import perf_counter, process_time

Call = Callable[[], object]


@dataclass(frozen=True, kw_only=True)
class Effort:
    """How long to measure."""

    rounds: int
    """Number of rounds; every candidate is sampled once per round. A power of two."""

    sample_seconds: float
    """A short call is repeated until a sample takes about this long."""

    budget_seconds: float
    """A candidate that would take longer than this in total is sampled in fewer rounds."""

    counts_cpu: bool = False
    """Whether CPU seconds count instead of those of the clock, for whole runs on a busy machine."""


FULL = Effort(rounds=64, sample_seconds=4e-3, budget_seconds=12.0)
QUICK = Effort(rounds=2, sample_seconds=2e-4, budget_seconds=0.0)

MIN_SAMPLES = 4
# A longer call needs no untimed call before it: warming up does not change its time noticeably.
LONG_CALL_SECONDS = 0.05


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, numbers: list[float]) -> Spread:
        """Summarise at least one number."""
        if len(numbers) == 1:
            return cls(numbers[0], numbers[0], numbers[0])
        low, median, high = statistics.quantiles(numbers, n=4, method="inclusive")
        return cls(median, low, high)


class Timings:
    """Seconds per call of each candidate, by round."""

    def __init__(self, samples: Mapping[str, Mapping[int, float]]) -> None:
        self._samples = samples

    def __contains__(self, name: str) -> bool:
        return name in self._samples

    def seconds(self, name: str) -> float:
        """Return the median over all rounds."""
        return statistics.median(self._samples[name].values())

    def n_samples(self, name: str) -> int:
        """Return the number of rounds in which a candidate was sampled."""
        return len(self._samples[name])

    def ratio(self, slower: str, faster: str) -> Spread:
        """Return ``slower / faster``, formed within each round that sampled both."""
        above, below = self._samples[slower], self._samples[faster]
        return Spread.of([above[n] / below[n] for n in above if n in below])


@dataclass(frozen=True)
class _Plan:
    repeats: int
    """Calls per sample."""
    stride: int
    """Rounds between samples: a power of two, so that any two candidates share rounds."""
    is_long: bool


def time_side_by_side(calls: Mapping[str, Call], effort: Effort) -> Timings:
    """Sample every call in each round, rotating which one goes first."""
    names = list(calls)
    plans = {name: _plan(call, effort) for name, call in calls.items()}
    samples: dict[str, dict[int, float]] = {name: {} for name in names}
    with _without_garbage_collection():
        for number in range(effort.rounds):
            first = number % len(names)
            for name in names[first:] + names[:first]:
                if number % plans[name].stride == 0:
                    samples[name][number] = _sample(calls[name], plans[name], effort)
            gc.collect()
    return Timings(samples)


def _plan(call: Call, effort: Effort) -> _Plan:
    """Plan the samples of a call from how long it takes; its first call may compile or allocate."""
    seconds = _time(call, 1, effort)
    if seconds < LONG_CALL_SECONDS:
        seconds = min(_time(call, 1, effort) for _ in range(3))
    repeats = max(1, round(effort.sample_seconds / max(seconds, 1e-9)))
    stride, maximum = 1, max(1, effort.rounds // MIN_SAMPLES)
    while stride < maximum and seconds * repeats * effort.rounds / stride > effort.budget_seconds:
        stride *= 2
    return _Plan(repeats, stride, seconds >= LONG_CALL_SECONDS)


def _sample(call: Call, plan: _Plan, effort: Effort) -> float:
    if not plan.is_long:
        call()
    return _time(call, plan.repeats, effort) / plan.repeats


def _time(call: Call, repeats: int, effort: Effort) -> float:
    clock = process_time if effort.counts_cpu else perf_counter
    start = clock()
    for _ in repeat(None, repeats):
        call()
    return clock() - start


@contextmanager
def _without_garbage_collection() -> Generator[None]:
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
