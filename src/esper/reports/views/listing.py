"""What a list of runs shows of each run besides its headline: its curve, its gaps, its notes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from esper.errors import RunError
from esper.reports.views.comparison import SUMMARY_FILE
from esper.reports.views.run import Points, run_of
from esper.reports.views.values import finite
from esper.telemetry import RunTelemetry

if TYPE_CHECKING:
    from esper.statistics import Interval

NOTES_FILE = "notes.md"
"""Notes that a user keeps in a run's folder."""
MOST_NOTES = 4000
"""Characters of notes that are read."""
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


def started_at(telemetry: RunTelemetry) -> str | None:
    """Return when a run started: its first process, or else its record; None before either."""
    sessions = telemetry.sessions()
    run = run_of(telemetry)
    if sessions:
        return sessions[0].started_at
    return None if run is None else run.created_at


def held_out_returns(telemetry: RunTelemetry) -> Points:
    """Return the controller's evaluations during training, evenly thinned out if there are many."""
    rows = telemetry.select(
        "SELECT round, ep_rew_mean FROM evaluations "
        "WHERE purpose = 'tuning' AND arm = 'learned' ORDER BY seq"
    )
    n = len(rows)
    if n > MOST_POINTS:
        last = MOST_POINTS - 1
        rows = [rows[round((n - 1) * place / last)] for place in range(MOST_POINTS)]
    return {
        "rounds": [number for number, _ in rows],
        "values": [finite(value) for _, value in rows],
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


def read_notes(run_path: str | os.PathLike[str]) -> str | None:
    """Return the beginning of the notes in a run's folder, or None without any."""
    path = Path(run_path) / NOTES_FILE
    if not path.is_file():  # reading anything else, such as a pipe, may never end
        return None
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(MOST_NOTES).strip() or None
    except OSError:
        return None
