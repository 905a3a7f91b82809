"""The data of a report: the views of each run and its evaluations, as JSON values."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, TypedDict

from esper.evidence.claims import verdict_json
from esper.evidence.results import Evidence
from esper.reports import views
from esper.reports.views.comparison import ArmDifference, arm_difference
from esper.telemetry import RunTelemetry

REPORT_VERSION = 1
"""Version of the data format."""
KINDS: tuple[Literal["typical", "best"], ...] = ("typical", "best")
"""Episodes shown: the one with the return nearest to the median, and the best."""


class EpisodeValues(TypedDict):
    """An episode shown step by step."""

    kind: Literal["typical", "best"]
    since: int
    """The first round it was selected from."""
    title: str
    detail: views.EpisodeDetail


class RunValues(TypedDict):
    """One run: its identity and its views."""

    name: str
    path: str
    state: str
    command: str
    """The command that trains with the same settings."""
    report_command: str
    """The command that writes the report again."""
    overview: views.Overview
    headline: views.Headline
    metrics: views.MetricSeries
    evaluations: list[views.Evaluation]
    comparison: views.ComparisonView | None
    learned: views.Learned
    health: views.Health
    episodes: list[EpisodeValues]


class EvaluationValues(TypedDict):
    """The results of an evaluation at one price."""

    source: str
    """The file it was read from."""
    task: str
    price: float
    runs: list[str]
    """Names of the evaluated training runs."""
    n_hosts: int
    verdict: dict[str, Any]
    differences: list[ArmDifference]


class ReportValues(TypedDict):
    """A whole report."""

    report_version: int
    esper_version: str
    made_at: str
    runs: list[RunValues]
    evaluations: list[EvaluationValues]
    problems: list[str]
    """One sentence for each file that could not be read."""


def collect_values(
    telemetry: RunTelemetry, *, path: Path, name: str, state: str, commands: tuple[str, str]
) -> RunValues:
    """Return all data about a run, read from one snapshot of its telemetry.

    Args:
        telemetry: The run's telemetry.
        path: The run's folder.
        name: The run's name in the report.
        state: The run's state: running, done, interrupted, ...
        commands: The commands that train with the same settings and write the report again.
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
    """Return the results of an evaluation, computed again from its measurements."""
    verdict = verdict_json(evidence)
    return {
        "source": source,
        "task": evidence.task,
        "price": evidence.price,
        "runs": list(evidence.runs),
        "n_hosts": evidence.n_hosts,
        "verdict": verdict,
        "differences": [arm_difference(one) for one in verdict["findings"]],
    }


def find_episodes(telemetry: RunTelemetry, learned: views.Learned) -> list[EpisodeValues]:
    """Return a typical and the best episode of the last part of training, once if they are one.

    Earlier episodes would show a controller that has not learned yet.
    """
    parts = [part for part in learned["parts"] if part["n_episodes"]]
    found = [_find_episode(telemetry, kind, parts[-1]["first_round"]) for kind in KINDS if parts]
    return found[: len({one["title"] for one in found})]


def episode_heading(episode: EpisodeValues) -> str:
    """Return which episode it is: ``Best episode since round 51``."""
    return f"{episode['kind'].capitalize()} episode since round {episode['since']}"


def _find_episode(
    telemetry: RunTelemetry, kind: Literal["typical", "best"], since: int
) -> EpisodeValues:
    found = views.episode_list(telemetry, order=kind, first_round=since, limit=1)
    (episode,) = found["episodes"]
    detail = views.episode_detail(telemetry, episode["env"], episode["episode"])
    assert detail is not None, "an episode in the list has details"
    title = f"Environment {episode['env']}, episode {episode['episode']}"
    return {"kind": kind, "since": since, "title": title, "detail": detail}
