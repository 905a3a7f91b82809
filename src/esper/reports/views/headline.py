"""How far a run is and how good its best controller, in a few numbers that are quick to read."""

from __future__ import annotations

from typing import Any, TypedDict

from esper.reports.views.facts import run_of, settings_of
from esper.reports.views.finding import last_position
from esper.reports.views.plain import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EvaluationRecord, RoundRecord


class Headline(TypedDict):
    """A run in a few numbers; None while one is unknown."""

    task: str | None
    task_options: dict[str, Any]
    rounds_done: int
    rounds: int | None
    env_steps: int
    steps_per_second: float | None
    seconds: float
    best_return: float | None
    fixed_return: float | None
    accuracy_gain: float | None
    best_score: float | None
    static_score: float | None
    host_parameters: float | None
    seed_parameters: float | None
    flops: float | None
    position: int


def headline(telemetry: RunTelemetry) -> Headline:
    """Return how far a run is, and how good its best controller is on held-out hosts.

    The best is the trial that the run kept its best checkpoint by. What is gained is against the
    same hosts left alone.
    """
    with telemetry.snapshot():
        run, last = run_of(telemetry), telemetry.last(RoundRecord)
        (seconds,) = telemetry.select("SELECT total(seconds) FROM rounds")[0]
        best = _trial(telemetry, "arm = 'learned' AND is_best ORDER BY seq DESC")
        static = _trial(telemetry, "arm = 'wait' ORDER BY seq")
        fixed = _trial(telemetry, "arm = 'fixed' ORDER BY seq")
        position = last_position(telemetry)
    settings = None if run is None else settings_of(run)
    best_score = None if best is None else finite(best.score_mean)
    static_score = None if static is None else finite(static.score_mean)
    return {
        "task": None if run is None else run.task,
        "task_options": {} if settings is None else dict(settings.task_options),
        "rounds_done": 0 if last is None else last.round,
        "rounds": None if settings is None else settings.rounds,
        "env_steps": 0 if last is None else last.env_steps,
        "steps_per_second": None if last is None else finite(last.steps_per_second),
        "seconds": finite(seconds) or 0.0,
        "best_return": None if best is None else finite(best.ep_rew_mean),
        "fixed_return": None if fixed is None else finite(fixed.ep_rew_mean),
        "accuracy_gain": (
            None if best_score is None or static_score is None else best_score - static_score
        ),
        "best_score": best_score,
        "static_score": static_score,
        "host_parameters": None if best is None else finite(best.host_parameters_mean),
        "seed_parameters": None if best is None else finite(best.seed_parameters_mean),
        "flops": None if best is None else finite(best.flops_mean),
        "position": position,
    }


def _trial(telemetry: RunTelemetry, which: str) -> EvaluationRecord | None:
    """Return the first trial in the course of the run that a condition and an order name."""
    sql = f"SELECT seq FROM evaluations WHERE purpose = 'tuning' AND {which} LIMIT 1"
    found = telemetry.select(sql)
    return telemetry.rows(EvaluationRecord, seq=found[0][0])[0] if found else None
