"""A run's controller compared with others, from the files in its folder.

summary.json            the comparison at the end of training
evaluation.json         an evaluation, in the folder or directly below
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from esper.dashboard.views.values import Row, finite
from esper.storage.files import MALFORMED

SUMMARY_FILE, EVALUATION_FILE = "summary.json", "evaluation.json"


ComparisonView = EvaluationView = Row
"""The results in a run's folder, and those of one evaluation at one price.

``sentences`` are what the intervals support: the first is about the best baseline. ``differences``
are the learned controller minus each other one on the same hosts, and ``problems`` are sentences
about unreadable files.
"""

NO_RESULTS: ComparisonView = {
    "n_hosts": None,
    "split": None,
    "arms": [],
    "differences": [],
    "sentences": [],
    "notes": [],
    "evaluations": [],
    "problems": [],
}


def comparison_view(run_path: str | os.PathLike[str]) -> ComparisonView | None:
    """Return how a run's controller compares with others, or None without results."""
    place, problems = Path(run_path), list[str]()
    summary = read_final_verdict(place, problems)
    found = _read_evaluations(place, problems)
    if summary is None and not found and not problems:
        return None
    return {**(summary or NO_RESULTS), "evaluations": found, "problems": problems}


def evaluation_files(folder: Path) -> list[Path]:
    """Return the results of evaluations in a folder and directly below."""
    return [*folder.glob(EVALUATION_FILE), *sorted(folder.glob(f"*/{EVALUATION_FILE}"))]


def read_final_verdict(place: Path, problems: list[str]) -> ComparisonView | None:
    """Return the stored results of a run; None, and the reason in ``problems``, without any."""
    path = place / SUMMARY_FILE
    if not os.path.lexists(path):
        return None
    # This imports NumPy, and most runs have no summary yet.
    from esper.results.files import read_verdicts

    try:
        verdict = read_verdicts(path)[0][1]
        return {
            **NO_RESULTS,
            "n_hosts": int(verdict["n_hosts"]),
            "split": str(verdict["split"]),
            "arms": [_arm(one) for one in verdict["arms"]],
            "differences": [_difference(one) for one in verdict["findings"]],
            "sentences": [str(one) for one in verdict["sentences"]],
            "notes": [str(one) for one in verdict["notes"]],
        }
    except (OSError, *MALFORMED):
        problems.append(f"{path.name} is damaged; delete it and resume the run.")
        return None


def _arm(arm: Mapping[str, Any]) -> Row:
    grown = arm["grown_parameters"]
    return {
        "name": arm["name"],
        "ep_rew": _interval_values(arm["returns"]),
        "score": _interval_values(arm["score"]),
        **{name: finite(arm[name]) for name in ("flops", "n_epochs", "grown_share")},
        "host_parameters": finite(arm["parameters"] - grown),
        "seed_parameters": finite(grown),
    }


def _difference(finding: Mapping[str, Any]) -> Row:
    return {
        **{name: str(finding[name]) for name in ("against", "label", "verdict", "sentence")},
        "ep_rew": _interval_values(finding["returns"]),
        "score": _interval_values(finding["score"]),
        "is_sure": bool(finding["is_sure"]),
    }


def _interval_values(interval: Mapping[str, Any]) -> Row:
    """Return an interval as it is stored, with None for what is not finite."""
    ends = {name: finite(interval[name]) for name in ("mean", "low", "high")}
    return {**ends, "n": int(interval["n"])}


def _read_evaluations(place: Path, problems: list[str]) -> list[EvaluationView]:
    found: list[EvaluationView] = []
    for path in evaluation_files(place):
        from esper.results.files import read_verdicts  # imports NumPy; most runs have none

        name = path.relative_to(place).as_posix()
        try:
            found += [evaluation_view(*pair, name) for pair in read_verdicts(path)]
        except (OSError, *MALFORMED):
            problems.append(f"{name} is damaged or of another version; run esper evaluate again.")
    return found


def evaluation_view(
    entry: Mapping[str, Any], verdict: Mapping[str, Any], file: str
) -> EvaluationView:
    """Return one price of an evaluation with its verdict, both as plain values."""
    return {
        "file": file,
        **{name: str(entry[name]) for name in ("task", "created", "command")},
        "task_options": dict(cast("dict[str, Any]", entry["task_options"])),
        "price": entry["price"],
        "runs": [str(run) for run in entry["runs"]],
        "n_hosts": int(verdict["n_hosts"]),
        "split": str(verdict["split"]),
        "sentences": [str(sentence) for sentence in verdict["sentences"]],
        "differences": [_difference(finding) for finding in verdict["findings"]],
    }
