"""What a list of runs shows of each run besides its headline: its curve, its gaps, its notes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from esper.errors import RunError
from esper.reports.views.comparison import SUMMARY_FILE
from esper.reports.views.run import Points, run_of
from esper.reports.views.values import finite
from esper.storage.run_folder import ACTIVITY_FILE
from esper.telemetry import RunTelemetry

if TYPE_CHECKING:
    from esper.statistics import Interval

NOTES_FILE = "notes.md"
"""Notes that a user keeps in a run's folder."""
MOST_CHARACTERS = 4000
"""Characters that are read of a file."""
MOST_POINTS = 60
"""Points of a curve in the list."""


class Gap(TypedDict):
    """The learned controller minus another one on the same hosts, with its 95 % interval."""

    mean: float | None
    low: float | None
    high: float | None
    n: int
    is_sure: bool
    """Whether the interval is from enough hosts and excludes zero."""


class Gaps(TypedDict):
    """Gaps in the comparison at the end of a run; None without one."""

    fixed_gap: Gap | None
    """In return, to the fixed schedule."""
    score_gap: Gap | None
    """In final score, to the same hosts without growth."""


class Activity(TypedDict):
    """Lessons or a trial in progress, as in :class:`esper.training.output.TrialProgress`."""

    arm: str
    purpose: str
    n_hosts: int
    share: float
    number: int
    n_trials: int


def started_at(telemetry: RunTelemetry) -> str | None:
    """Return when a run started: its first process, or else its record; None before either."""
    sessions = telemetry.sessions()
    run = run_of(telemetry)
    if sessions:
        return sessions[0].started_at
    return None if run is None else run.created_at


class Returns(Points):
    """Evaluations on held-out hosts during training."""

    fixed: float | None
    """The return of the fixed schedule on the same hosts."""


def held_out_returns(telemetry: RunTelemetry) -> Returns:
    """Return the controller's evaluations during training, evenly thinned out if there are many."""
    of_arm = "SELECT round, ep_rew_mean FROM evaluations WHERE purpose = 'tuning' AND arm = :arm"
    rows = telemetry.select(f"{of_arm} ORDER BY seq", arm="learned")
    fixed = telemetry.select(f"{of_arm} ORDER BY seq LIMIT 1", arm="fixed")
    n = len(rows)
    if n > MOST_POINTS:
        last = MOST_POINTS - 1
        rows = [rows[round((n - 1) * place / last)] for place in range(MOST_POINTS)]
    return {
        "rounds": [number for number, _ in rows],
        "values": [finite(value) for _, value in rows],
        "fixed": finite(fixed[0][1]) if fixed else None,
    }


def final_gaps(run_path: str | os.PathLike[str]) -> Gaps:
    """Return the gaps in a run's summary; a damaged one has none, and its screen says why."""
    path = Path(run_path) / SUMMARY_FILE
    if not path.is_file():
        return {"fixed_gap": None, "score_gap": None}
    # This imports NumPy, and most runs have no summary yet.
    from esper.training.comparison import read_summary

    try:
        found = {one.against: one for one in read_summary(path).differences}
    except (OSError, RunError):
        found = {}
    fixed, wait = found.get("fixed"), found.get("wait")
    return {
        "fixed_gap": None if fixed is None else _gap(fixed.ep_rew),
        "score_gap": None if wait is None else _gap(wait.score),
    }


def _gap(interval: Interval) -> Gap:
    return {
        "mean": finite(interval.mean),
        "low": finite(interval.low),
        "high": finite(interval.high),
        "n": interval.n,
        "is_sure": interval.excludes_zero,
    }


def read_activity(run_path: str | os.PathLike[str]) -> Activity | None:
    """Return the lessons or the trial that a running run is at, or None."""
    text = _read_text(Path(run_path) / ACTIVITY_FILE)
    try:
        found = json.loads(text or "null")
        return {
            "arm": str(found["arm"]),
            "purpose": str(found["purpose"]),
            "n_hosts": int(found["n_hosts"]),
            "share": min(1.0, max(0.0, float(found["share"]))),
            "number": int(found["number"]),
            "n_trials": int(found["n_trials"]),
        }
    except (ValueError, TypeError, KeyError, OverflowError):
        return None


def read_notes(run_path: str | os.PathLike[str]) -> str | None:
    """Return the beginning of the notes in a run's folder, or None without any."""
    return _read_text(Path(run_path) / NOTES_FILE)


def _read_text(path: Path) -> str | None:
    """Return the beginning of a file, or None if it is empty, missing or not a file."""
    if not path.is_file():  # reading anything else, such as a pipe, may never end
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_CHARACTERS).strip() or None
    except OSError:
        return None
