"""Folders of simulated runs for tests of reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from esper.reports.run_report.values import ReportValues, RunValues, collect_values
from esper.reports.views import Evaluation
from esper.telemetry import open_run
from esper.training.comparison import ArmResults, compare_arms
from tests.reports.views.samples import config_text, write
from tests.reports.views.simulation import simulate


def make_run(folder: Path, *, n_rounds: int = 8, seed: int = 0, **options: Any) -> Path:
    """Return a folder with a simulated run that has no comparison at its end."""
    folder.mkdir(parents=True)
    record_steps = options.get("record_steps", True)
    (folder / "config.toml").write_text(config_text(record_steps=record_steps))
    return write(folder, simulate(n_rounds=n_rounds, seed=seed, **options))


def add_summary(folder: Path, *, gain: float = 0.1) -> None:
    """Add a comparison in which the learned controller gains the same on every host."""
    rng = np.random.default_rng(0)
    common = rng.normal(0.7, 0.05, 30)

    def arm(scores: Any) -> ArmResults:
        plain = np.ones(30)
        return ArmResults(
            returns=scores - 0.1,
            scores=scores,
            flops=0.5 * plain,
            n_epochs=6 * plain,
            host_parameters=100 * plain,
            seed_parameters=10 * plain,
        )

    others = {name: arm(common) for name in ("wait", "random", "fixed", "heuristic")}
    comparison = compare_arms({"learned": arm(common + gain), **others})
    (folder / "summary.json").write_text(json.dumps(comparison.to_json()))


def values_of(folder: Path, *, state: str = "done", name: str | None = None) -> RunValues:
    """Return the values of the run in a folder."""
    with open_run(folder) as telemetry:
        return collect_values(
            telemetry,
            path=folder,
            name=folder.name if name is None else name,
            state=state,
            commands=("esper train --preset spirals", "esper report run"),
        )


def report_of(*runs: RunValues) -> ReportValues:
    """Return the values of a report without evaluations."""
    return {
        "report_version": 1,
        "esper_version": "0.1.0",
        "made_at": "2030-01-02T03:04:05+00:00",
        "runs": list(runs),
        "evaluations": [],
        "problems": [],
    }


def trial(round_: int, ep_rew: float, **changes: Any) -> Evaluation:
    """Return an evaluation of the learned controller during training."""
    values: dict[str, Any] = {
        "round": round_,
        "arm": "learned",
        "purpose": "tuning",
        "split": "validation",
        "n_episodes": 64,
        "ep_rew_mean": ep_rew,
        "score_mean": 0.8,
        "flops_mean": 0.5,
        "host_parameters_mean": 100.0,
        "seed_parameters_mean": 1234.0,
        "is_best": False,
    }
    return Evaluation(**(values | changes))  # type: ignore[typeddict-item]
