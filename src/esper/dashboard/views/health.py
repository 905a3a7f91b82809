"""The health of a run: rollbacks, rejected updates, notices, speed, memory, and a conclusion."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Literal, TypedDict, get_args

from esper.config.checks import PositiveInt, check
from esper.config.memory import amount_of
from esper.dashboard.views.run import points_of, run_of, settings_of
from esper.dashboard.views.values import Row, finite, kept_points
from esper.formatting import many, share, whole
from esper.telemetry import RunTelemetry
from esper.telemetry.records import RoundRecord


def health(
    telemetry: RunTelemetry,
    limit: int = 200,
    *,
    after: int = 0,
    until: int | None = None,
    max_points: int | None = None,
) -> Row:
    """Return rollbacks, rejected updates, notices, speed and memory of a run.

    Events are newest first. ``governor`` has the rollbacks of hosts, ``refused_updates`` the
    updates that were undone, and ``early_stops`` those that the KL divergence stopped before their
    last epoch. ``throughput`` is in environment steps per second, ``memory`` in bytes, and
    ``seconds_by_part`` has the seconds of each of ``rounds`` for each of ``names``. ``workers`` are
    those after the last round, None if the run's own process did all the work: ``restarted``
    because they died, and the seconds that they ``waited`` for others.

    Args:
        telemetry: The run's telemetry.
        limit: The number of events of each kind to list, newest first.
        after: The series start after this round; counts and conclusion are of the whole run.
        until: The series end with this round; None for the last one.
        max_points: Longer series are thinned to about this number of points; None for all.

    Raises:
        ConfigError: If the limit is below 1.
    """
    check("limit", limit, PositiveInt)
    with telemetry.snapshot():
        rows = telemetry.select(
            "SELECT round, n_restored, n_illegal, n_refused, steps_per_second, rss_bytes, "
            "seconds_by_part, seconds FROM rounds ORDER BY seq",
        )
        stops = telemetry.select("SELECT round FROM updates WHERE stopped_early ORDER BY seq")
        columns = [list(column) for column in zip(*rows, strict=True)]
        rounds, restored, illegal, refused, speed, memory, parts, seconds = columns or [
            [] for _ in range(8)
        ]
        run = run_of(telemetry)
        grows = None if run is None else not settings_of(run).is_ppo_training
        counts = HealthCounts(
            episodes=0 if grows is False else telemetry.count("episodes"),
            updates=telemetry.count("updates"),
            restored=telemetry.count("governor_events"),
            rejected=telemetry.select("SELECT count(*) FROM updates WHERE was_refused")[0][0],
            stopped=len(stops),
            illegal=sum(illegal),
        )
        workers = _workers(telemetry)
        end = len(rounds) if until is None else bisect_right(rounds, until)
        part = slice(bisect_right(rounds, after), end)
        shown = rounds[part]
        return {
            "is_thinned": max_points is not None and len(shown) > max_points,
            "conclusion": conclude(
                counts,
                speeds=[finite(value) for value in speed],
                sizes=[finite(value) for value in memory],
                n_restarts=None if workers is None else workers["restarted"] or 0,
            ),
            "grows": grows,
            "governor": {
                "total": counts.restored,
                "by_round": points_of(shown, restored[part], max_points),
                "last": _newest(
                    telemetry, "round, env, episode, epoch, reason", "governor_events", limit
                ),
            },
            "refused_updates": _newest(
                telemetry, "round, refusal AS reason", "updates WHERE was_refused", limit
            ),
            "early_stops": {"total": len(stops), "rounds": [number for (number,) in stops]},
            "illegal": sum(illegal),
            "refused_by_gates": sum(refused),
            "notices": _newest(telemetry, "round, kind, message", "notices", limit),
            "throughput": points_of(shown, speed[part], max_points),
            "memory": points_of(shown, memory[part], max_points),
            "seconds_by_part": _parts(shown, parts[part], seconds[part], max_points),
            "workers": workers,
        }


def _parts(rounds: list[int], texts: list[str], seconds: list[Any], max_points: int | None) -> Row:
    """Return seconds by part, 0 for a part that a round does not have.

    Parts are stacked in a chart, so all of them keep the same rounds: the fastest and slowest.
    """
    kept = kept_points(seconds, max_points or len(seconds))
    rounds = [rounds[index] for index in kept]
    read: list[dict[str, Any]] = [json.loads(texts[index]) for index in kept]
    names = list(dict.fromkeys(name for one in read for name in one))
    values = [[finite(one.get(name, 0.0)) for one in read] for name in names]
    return {"names": names, "rounds": rounds, "values": values}


def _workers(telemetry: RunTelemetry) -> Row | None:
    last = telemetry.last(RoundRecord)
    if last is None or last.workers is None:
        return None
    waited = finite(last.seconds_waited)
    return {"alive": last.workers, "restarted": last.workers_restarted, "waited": waited}


def _newest(telemetry: RunTelemetry, columns: str, rows: str, limit: int) -> list[Row]:
    """Return columns of the last rows by name, newest first."""
    names = [column.split()[-1] for column in columns.split(", ")]
    sql = f"SELECT {columns} FROM {rows} ORDER BY seq DESC LIMIT :limit"
    return [dict(zip(names, row, strict=True)) for row in telemetry.select(sql, limit=limit)]


OFTEN_RESTORED = 0.05
"""Rollbacks per episode from which hosts are called unstable."""
OFTEN_STOPPED = 0.5
"""Share of updates stopped early from which the learning rate is called high."""
SLOWER, LARGER = 0.7, 1.5
"""Changes of speed and memory that are reported, last quarter of the rounds against the first."""
FEWEST_ROUNDS = 8
"""Rounds from which such changes are reported."""

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
        text = f"{amount_of(last)} lately, {amount_of(first)} at the beginning."
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
