"""What the health of a run amounts to: a sentence, and what to look at."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Literal, TypedDict, get_args

from esper.formatting import many, memory, share, whole

OFTEN_RESTORED = 0.05
"""Rollbacks per episode from which hosts count as unstable."""
OFTEN_STOPPED = 0.5
"""Share of updates stopped early from which the learning rate counts as high."""
SLOWER, LARGER = 0.7, 1.5
"""Changes of speed and memory that count, last quarter of the rounds against the first."""
FEWEST_ROUNDS = 8
"""Rounds from which such a change is looked for."""

Level = Literal["ok", "warn", "bad"]


class Finding(TypedDict):
    """One conclusion about a run's health, in a sentence."""

    level: Level
    text: str


class Conclusion(TypedDict):
    """What the health of a run amounts to."""

    level: Level
    """The worst level of the findings."""
    summary: str
    findings: list[Finding]
    """The worst first."""


_LEVELS: tuple[Level, ...] = get_args(Level)


@dataclass(frozen=True, kw_only=True)
class HealthCounts:
    """How often something happened in a run."""

    episodes: int
    updates: int
    restored: int
    """Hosts rolled back."""
    rejected: int
    """Updates rejected."""
    stopped: int
    """Updates stopped early."""
    illegal: int
    """Illegal actions."""


def conclude(
    counts: HealthCounts,
    *,
    speeds: Sequence[float | None],
    sizes: Sequence[float | None],
    n_restarts: int | None,
) -> Conclusion:
    """Return what the health of a run amounts to.

    Args:
        counts: How often something happened.
        speeds: Environment steps per second of each round.
        sizes: Bytes of memory after each round.
        n_restarts: Workers that died and were replaced; None if there are no workers.
    """
    found = _judge(counts, speeds, sizes, n_restarts)
    findings: list[Finding] = [{"level": level, "text": text} for level, text in found]
    findings.sort(key=lambda one: _LEVELS.index(one["level"]), reverse=True)
    level = findings[0]["level"] if findings else "ok"
    n_wrong = sum(one["level"] != "ok" for one in findings)
    summary = f"{many(n_wrong, 'thing')} to look at." if n_wrong else "Nothing is wrong."
    if not findings:
        summary = "Nothing to judge yet."
    return {"level": level, "summary": summary, "findings": findings}


def _judge(
    counts: HealthCounts,
    speeds: Sequence[float | None],
    sizes: Sequence[float | None],
    n_restarts: int | None,
) -> Iterator[tuple[Level, str]]:
    """Yield the level and the sentence of each finding."""
    if counts.illegal:
        yield "bad", f"Illegal actions, which masks should prevent: {whole(counts.illegal)}."
    if counts.updates:
        yield _judge_updates(counts)
    if counts.episodes:
        text = f"{many(counts.restored, 'rollback')} in {many(counts.episodes, 'episode')}."
        is_often = counts.restored > OFTEN_RESTORED * counts.episodes
        if is_often:
            yield "warn", f"Hosts are often unstable: {text}"
        else:
            yield "ok", f"Hosts are stable: {text}"
    if n_restarts:
        number = whole(n_restarts)
        yield "warn", f"Workers that died and were replaced, their work repeated: {number}."
    elif n_restarts == 0:
        yield "ok", "No worker died."
    for first, last in _ends(speeds):
        text = f"{whole(last)} steps per second lately, {whole(first)} at the beginning."
        is_slower = last < SLOWER * first
        yield ("warn", f"Training became slower: {text}") if is_slower else ("ok", f"Speed: {text}")
    for first, last in _ends(sizes):
        text = f"{memory(last)} lately, {memory(first)} at the beginning."
        is_larger = last > LARGER * first
        yield ("warn", f"Memory keeps growing: {text}") if is_larger else ("ok", f"Memory: {text}")


def _judge_updates(counts: HealthCounts) -> tuple[Level, str]:
    of = f"of {many(counts.updates, 'update')}"
    if counts.rejected:
        text = f"Rejected because a value was not finite: {whole(counts.rejected)} {of}."
        return "bad", f"{text} A lower ppo.learning_rate may prevent it."
    stopped = counts.stopped / counts.updates
    if stopped > OFTEN_STOPPED:
        text = f"Stopped early at the KL limit: {share(stopped)} {of}."
        return "warn", f"{text} A lower ppo.learning_rate changes less at once."
    return "ok", f"No update was rejected; {share(stopped)} {of} stopped early."


def _ends(values: Sequence[float | None]) -> list[tuple[float, float]]:
    """Return the medians of the first and of the last quarter, nothing of a short run."""
    known = [value for value in values if value is not None]
    if len(known) < FEWEST_ROUNDS:
        return []
    size = len(known) // 4
    return [(median(known[:size]), median(known[-size:]))]
