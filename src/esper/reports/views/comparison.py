"""A run's controller compared with others, from the files in its folder.

summary.json            the comparison at the end of training
evaluation.json         an evaluation, in the folder or directly below
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, cast

from esper.errors import RunError
from esper.reports.views.values import finite
from esper.storage.files import read_json, verified

if TYPE_CHECKING:
    from esper.statistics import Interval
    from esper.training.comparison import ArmSummary, Comparison, Difference

SUMMARY_FILE, EVALUATION_FILE = "summary.json", "evaluation.json"


class IntervalValues(TypedDict):
    """A mean over n hosts with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


class ArmView(TypedDict):
    """The result of one controller."""

    name: str
    ep_rew: IntervalValues
    score: IntervalValues
    flops: float | None
    n_epochs: float | None
    host_parameters: float | None
    seed_parameters: float | None
    grown_share: float | None


class DifferenceView(TypedDict):
    """The learned controller minus another one on the same hosts, in numbers and words."""

    against: str
    ep_rew: IntervalValues
    is_sure: bool
    """Whether the interval of the return excludes zero."""
    ep_rew_words: str
    score: IntervalValues
    score_words: str


class ArmDifference(TypedDict):
    """The score of the evaluated controller minus that of an arm, on the same hosts."""

    against: str
    label: str
    """The arm in words."""
    score: IntervalValues
    is_sure: bool
    """Whether it is shown to differ from zero, corrected for the number of comparisons."""


class EvaluationFile(TypedDict):
    """The result of an evaluation at one price, as stored in its file."""

    file: str
    """Relative to the run's folder."""
    task: str
    task_options: dict[str, Any]
    price: float
    runs: list[str]
    n_hosts: int
    split: str
    created: str
    command: str
    sentences: list[str]
    """The first is about the strongest opponent."""
    differences: list[ArmDifference]


class ComparisonView(TypedDict):
    """The results in a run's folder; without a summary its fields are empty or None."""

    n_hosts: int | None
    split: str | None
    arms: list[ArmView]
    differences: list[DifferenceView]
    sentences: list[str]
    """What the intervals support; the first is about the strongest opponent."""
    evaluations: list[EvaluationFile]
    problems: list[str]
    """Unreadable files, a sentence each."""


def comparison_view(run_path: str | os.PathLike[str]) -> ComparisonView | None:
    """Return how a run's controller compares with others, or None without results."""
    place, problems = Path(run_path), list[str]()
    summary = _read_summary(place / SUMMARY_FILE, problems)
    found = _read_evaluations(place, problems)
    if summary is None and not found and not problems:
        return None
    return {
        "n_hosts": None if summary is None else summary.n_hosts,
        "split": None if summary is None else summary.split,
        "arms": [] if summary is None else [_arm(one) for one in summary.arms],
        "differences": [] if summary is None else [_difference(d) for d in summary.differences],
        "sentences": [] if summary is None else list(summary.sentences),
        "evaluations": found,
        "problems": problems,
    }


def _read_summary(path: Path, problems: list[str]) -> Comparison | None:
    if not os.path.lexists(path):
        return None
    # This imports NumPy, and most runs have no summary yet.
    from esper.training.comparison import read_summary

    try:
        return read_summary(path)
    except (OSError, RunError):
        problems.append(f"{path.name} is damaged; delete it and resume the run.")
        return None


def _arm(arm: ArmSummary) -> ArmView:
    return {
        "name": arm.name,
        "ep_rew": _interval(arm.ep_rew),
        "score": _interval(arm.score),
        "flops": finite(arm.flops),
        "n_epochs": finite(arm.n_epochs),
        "host_parameters": finite(arm.host_parameters),
        "seed_parameters": finite(arm.seed_parameters),
        "grown_share": finite(arm.grown_share),
    }


def _difference(difference: Difference) -> DifferenceView:
    from esper.training.comparison import difference_in_words

    return {
        "against": difference.against,
        "ep_rew": _interval(difference.ep_rew),
        "is_sure": difference.ep_rew.excludes_zero,
        "ep_rew_words": difference_in_words(difference.ep_rew),
        "score": _interval(difference.score),
        "score_words": difference_in_words(difference.score),
    }


def arm_difference(finding: Mapping[str, Any]) -> ArmDifference:
    """Return the difference of score in a finding, as it is stored."""
    from esper.evidence.claims import is_sure_difference
    from esper.statistics import Interval

    score = Interval(**finding["score"])
    return {
        "against": str(finding["against"]),
        "label": str(finding["label"]),
        "score": _interval(score),
        "is_sure": is_sure_difference(score, finding["verdict"]),
    }


def _interval(interval: Interval) -> IntervalValues:
    values = asdict(interval)
    mean, low, high = (finite(values[name]) for name in ("mean", "low", "high"))
    return {"mean": mean, "low": low, "high": high, "n": interval.n}


def _read_evaluations(place: Path, problems: list[str]) -> list[EvaluationFile]:
    found: list[EvaluationFile] = []
    paths = [*place.glob(EVALUATION_FILE), *sorted(place.glob(f"*/{EVALUATION_FILE}"))]
    for path in paths:
        name = path.relative_to(place).as_posix()
        try:
            values = read_json(path)
            is_old = values["evidence_version"] == 1
            found += _entries(verified(values, may_lack=is_old), name)
        except (OSError, ValueError, KeyError, TypeError, IndexError):
            problems.append(f"{name} is damaged or of another version; run esper evaluate again.")
    return found


def _entries(values: dict[str, Any], file: str) -> list[EvaluationFile]:
    """Return each price of an evaluation with its stored verdict; computing it takes seconds."""
    pairs = zip(values["entries"], values["verdicts"], strict=True)
    return [
        {
            "file": file,
            "task": str(entry["task"]),
            "task_options": dict(cast("dict[str, Any]", entry["task_options"])),
            "price": float(entry["price"]),
            "runs": [str(run) for run in entry["runs"]],
            "n_hosts": len(entry["arms"][0]["accuracy"][0]),
            "split": str(entry["split"]),
            "created": str(entry["created"]),
            "command": str(entry["command"]),
            "sentences": [str(sentence) for sentence in verdict["sentences"]],
            "differences": [arm_difference(finding) for finding in verdict["findings"]],
        }
        for entry, verdict in pairs
    ]
