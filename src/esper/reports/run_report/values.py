"""Everything that a report tells, as plain values: the views of each run, and its evaluations."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict

from esper.evidence.claims import verdict_json
from esper.evidence.results import Evidence
from esper.reports import views
from esper.telemetry import RunTelemetry

REPORT_VERSION = 1
"""Version of the form of these values."""
KINDS: tuple[Literal["typical", "best"], ...] = ("typical", "best")
"""Episodes that are shown: the return nearest to the median, and the highest."""


class EpisodeValues(TypedDict):
    """One episode that is shown step by step."""

    kind: Literal["typical", "best"]
    since: int
    """The first of the rounds that it was chosen from."""
    title: str
    detail: views.EpisodeDetail


class RunValues(TypedDict):
    """One run: who it is, and its views."""

    name: str
    path: str
    state: str
    command: str
    """What trains with the same settings again."""
    report_command: str
    """What makes a report on it again."""
    overview: views.Overview
    headline: views.Headline
    metrics: views.MetricSeries
    evaluations: list[views.Evaluation]
    comparison: views.ComparisonView | None
    learned: views.Learned
    health: views.Health
    episodes: list[EpisodeValues]


class EvaluationValues(TypedDict):
    """What an evaluation at one price showed."""

    source: str
    """The file that it was read from."""
    task: str
    price: float
    runs: list[str]
    """Names of the training runs that it is about."""
    n_hosts: int
    verdict: dict[str, Any]


class ReportValues(TypedDict):
    """A whole report."""

    report_version: int
    esper_version: str
    made_at: str
    runs: list[RunValues]
    evaluations: list[EvaluationValues]
    problems: list[str]
    """Files that should have been part of it and cannot be read, a sentence each."""


def collect_values(
    telemetry: RunTelemetry, *, path: Path, name: str, state: str, commands: tuple[str, str]
) -> RunValues:
    """Return everything about one run, as of one moment.

    Args:
        telemetry: Of the run.
        path: Its folder.
        name: What it is called.
        state: How it is: running, done, interrupted, ...
        commands: What trains with the same settings again, and what reports on it again.
    """
    with telemetry.snapshot():
        learned = views.learned(telemetry)
        return {
            "name": name,
            "path": str(path),
            "state": state,
            "command": commands[0],
            "report_command": commands[1],
            "overview": views.overview(telemetry),
            "headline": views.headline(telemetry),
            "metrics": views.metric_series(telemetry, after=-1),
            "evaluations": views.evaluations(telemetry),
            "comparison": views.comparison_view(path),
            "learned": learned,
            "health": views.health(telemetry),
            "episodes": find_episodes(telemetry, learned),
        }


def evaluation_values(evidence: Evidence, source: str) -> EvaluationValues:
    """Return what an evaluation showed, computed again from what it measured."""
    return {
        "source": source,
        "task": evidence.task,
        "price": evidence.price,
        "runs": list(evidence.runs),
        "n_hosts": evidence.n_hosts,
        "verdict": verdict_json(evidence),
    }


def find_episodes(telemetry: RunTelemetry, learned: views.Learned) -> list[EpisodeValues]:
    """Return a typical episode of the last part of training, and the best of the same part.

    Earlier ones would show a controller that had yet to learn.
    """
    parts = [part for part in learned["parts"] if part["n_episodes"]]
    return [_find_episode(telemetry, kind, parts[-1]["first_round"]) for kind in KINDS if parts]


def _find_episode(
    telemetry: RunTelemetry, kind: Literal["typical", "best"], since: int
) -> EpisodeValues:
    found = views.episode_list(telemetry, order=kind, first_round=since, limit=1)
    (episode,) = found["episodes"]
    detail = views.episode_detail(telemetry, episode["env"], episode["episode"])
    assert detail is not None, "an episode that ended is there"
    title = f"Environment {episode['env']}, episode {episode['episode']}"
    return {"kind": kind, "since": since, "title": title, "detail": detail}
