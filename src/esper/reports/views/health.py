"""The health of a run: rollbacks, rejected updates, notices, speed and memory."""

from __future__ import annotations

import json
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, TypedDict

from esper.config.checks import require_int
from esper.reports.views.run import Points, Session, points_of, run_of, sessions_of, settings_of
from esper.reports.views.thinning import kept_points
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import RoundRecord

if TYPE_CHECKING:
    from esper.reports.views.health_conclusion import Conclusion


class Restored(TypedDict):
    """A host that the governor rolled back."""

    round: int
    env: int
    episode: int
    epoch: int
    reason: str


class Governor(TypedDict):
    """Rollbacks by the governor."""

    total: int
    by_round: Points
    last: list[Restored]
    """Newest first."""


class RefusedUpdate(TypedDict):
    """An update that was undone because a value was not finite."""

    round: int
    reason: str | None


class EarlyStops(TypedDict):
    """Updates that the KL divergence stopped before their last epoch."""

    total: int
    rounds: list[int]


class Notice(TypedDict):
    """Something the user should know."""

    round: int
    kind: str
    message: str


class Parts(TypedDict):
    """Time spent in each part of a round: for each name, the seconds of each round."""

    names: list[str]
    rounds: list[int]
    values: list[list[float | None]]


class Workers(TypedDict):
    """The worker processes after the last round."""

    alive: int
    restarted: int | None
    """Workers replaced because they died."""
    waited: float | None
    """Seconds that workers had nothing to do while others were busy."""


class Health(TypedDict):
    """The health of a run, apart from what it learns."""

    is_thinned: bool
    """Whether points of the series were left out."""
    conclusion: Conclusion
    grows: bool | None
    """Whether hosts are grown in the run, which can be rolled back."""
    governor: Governor
    refused_updates: list[RefusedUpdate]
    """Newest first."""
    early_stops: EarlyStops
    illegal: int
    """Steps whose action was illegal in the host's state."""
    refused_by_gates: int
    """Steps whose action a gate refused."""
    notices: list[Notice]
    """Newest first."""
    throughput: Points
    """Environment steps per second."""
    memory: Points
    """Memory of the process, in bytes."""
    seconds_by_part: Parts
    workers: Workers | None
    """None if the run's own process did all the work."""
    sessions: list[Session]


def health(
    telemetry: RunTelemetry,
    limit: int = 200,
    *,
    after: int = 0,
    until: int | None = None,
    most_points: int | None = None,
) -> Health:
    """Return rollbacks, rejected updates, notices, speed and memory of a run.

    Args:
        telemetry: The run's telemetry.
        limit: The number of events of each kind to list, newest first.
        after: The series start after this round; counts and conclusion are of the whole run.
        until: The series end with this round; None for the last one.
        most_points: Longer series are thinned to about this number of points; None for all.

    Raises:
        ConfigError: If the limit is below 1.
    """
    # This imports NumPy, which the dashboard does not need before its first run.
    from esper.reports.views.health_conclusion import HealthCounts, conclude

    require_int("limit", limit, least=1)
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
            rejected=_count(telemetry, "updates WHERE was_refused"),
            stopped=len(stops),
            illegal=sum(illegal),
        )
        workers = _workers(telemetry)
        end = len(rounds) if until is None else bisect_right(rounds, until)
        part = slice(bisect_right(rounds, after), end)
        shown = rounds[part]
        return {
            "is_thinned": most_points is not None and len(shown) > most_points,
            "conclusion": conclude(
                counts,
                speeds=[finite(value) for value in speed],
                sizes=[finite(value) for value in memory],
                n_restarts=None if workers is None else workers["restarted"] or 0,
            ),
            "grows": grows,
            "governor": {
                "total": telemetry.count("governor_events"),
                "by_round": points_of(shown, restored[part], most_points),
                "last": _last_restored(telemetry, limit),
            },
            "refused_updates": _refused_updates(telemetry, limit),
            "early_stops": {"total": len(stops), "rounds": [number for (number,) in stops]},
            "illegal": sum(illegal),
            "refused_by_gates": sum(refused),
            "notices": _notices(telemetry, limit),
            "throughput": points_of(shown, speed[part], most_points),
            "memory": points_of(shown, memory[part], most_points),
            "seconds_by_part": _parts(shown, parts[part], seconds[part], most_points),
            "workers": workers,
            "sessions": sessions_of(telemetry),
        }


def _count(telemetry: RunTelemetry, what: str) -> int:
    ((number,),) = telemetry.select(f"SELECT count(*) FROM {what}")
    return number


def _parts(
    rounds: list[int], texts: list[str], seconds: list[Any], most_points: int | None
) -> Parts:
    """Return seconds by part, 0 for a part that a round does not have.

    Parts are stacked in a chart, so all of them keep the same rounds: the fastest and slowest.
    """
    kept = kept_points(seconds, most_points or len(seconds))
    rounds = [rounds[index] for index in kept]
    read: list[dict[str, Any]] = [json.loads(texts[index]) for index in kept]
    names = list(dict.fromkeys(name for one in read for name in one))
    values = [[finite(one.get(name, 0.0)) for one in read] for name in names]
    return {"names": names, "rounds": rounds, "values": values}


def _workers(telemetry: RunTelemetry) -> Workers | None:
    last = telemetry.last(RoundRecord)
    if last is None or last.workers is None:
        return None
    waited = finite(last.seconds_waited)
    return {"alive": last.workers, "restarted": last.workers_restarted, "waited": waited}


def _last_restored(telemetry: RunTelemetry, limit: int) -> list[Restored]:
    sql = "SELECT round, env, episode, epoch, reason FROM governor_events"
    return [
        {"round": number, "env": env, "episode": episode, "epoch": epoch, "reason": reason}
        for number, env, episode, epoch, reason in _newest(telemetry, sql, limit)
    ]


def _refused_updates(telemetry: RunTelemetry, limit: int) -> list[RefusedUpdate]:
    sql = "SELECT round, refusal FROM updates WHERE was_refused"
    return [{"round": n, "reason": reason} for n, reason in _newest(telemetry, sql, limit)]


def _notices(telemetry: RunTelemetry, limit: int) -> list[Notice]:
    sql = "SELECT round, kind, message FROM notices"
    return [
        {"round": number, "kind": kind, "message": message}
        for number, kind, message in _newest(telemetry, sql, limit)
    ]


def _newest(telemetry: RunTelemetry, sql: str, limit: int) -> list[tuple[Any, ...]]:
    return telemetry.select(f"{sql} ORDER BY seq DESC LIMIT :limit", limit=limit)
