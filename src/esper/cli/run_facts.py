"""What there is to say about a run in a line, read without torch."""

from __future__ import annotations

from typing import Any

from esper.errors import EsperError
from esper.storage.run_folder import RunFolder
from esper.training.run import Run


def _has_nothing(folder: RunFolder) -> bool:
    """Return whether a run had written nothing but its settings when it was stopped."""
    file = folder.telemetry_file
    has_records = file.exists() and file.stat().st_size > 0
    return not has_records and not folder.summary_file.exists()


def facts_of(folder: RunFolder) -> dict[str, Any]:
    """Return a run's name, state, task, progress and newest held-out results; None is unknown.

    A run that cannot be read is one whose state says why.
    """
    facts: dict[str, Any] = {"run": str(folder.path), "name": folder.name}
    names = ("task", "rounds", "rounds_done", "ep_rew", "score", "static_score")
    try:
        run = Run(folder)
        metrics = {} if _has_nothing(folder) else run.metrics()
        facts |= {
            "state": run.state,
            "task": run.config.task,
            "rounds": run.config.rounds,
            "rounds_done": run.rounds_done,
        }
    except EsperError as error:
        return facts | dict.fromkeys(names) | {"state": "unreadable", "problem": str(error)}
    for name, metric in (
        ("ep_rew", "eval/mean_reward"),
        ("score", "eval/score"),
        ("static_score", "growth/static_score"),
    ):
        facts[name] = metrics[metric].values[-1] if metric in metrics else None
    return facts
