"""The trials of a run: controllers on hosts that nobody learned from."""

from __future__ import annotations

from typing import TypedDict

from esper.reports.views.plain import finite
from esper.telemetry import RunTelemetry
from esper.telemetry.records import EvaluationRecord


class Evaluation(TypedDict):
    """How one controller did in one trial."""

    round: int
    arm: str
    purpose: str
    split: str
    n_episodes: int
    ep_rew_mean: float | None
    score_mean: float | None
    flops_mean: float | None
    host_parameters_mean: float | None
    seed_parameters_mean: float | None
    is_best: bool


def evaluations(telemetry: RunTelemetry) -> list[Evaluation]:
    """Return every trial of a run, in order."""
    return [
        {
            "round": one.round,
            "arm": one.arm,
            "purpose": one.purpose,
            "split": one.split,
            "n_episodes": one.n_episodes,
            "ep_rew_mean": finite(one.ep_rew_mean),
            "score_mean": finite(one.score_mean),
            "flops_mean": finite(one.flops_mean),
            "host_parameters_mean": finite(one.host_parameters_mean),
            "seed_parameters_mean": finite(one.seed_parameters_mean),
            "is_best": one.is_best,
        }
        for one in telemetry.rows(EvaluationRecord)
    ]
