"""What a list of runs shows of each run besides its headline: its curve, its gaps, its notes."""

from __future__ import annotations

import math
import os
from pathlib import Path

from esper.dashboard.views.comparison import NO_RESULTS, read_final_verdict
from esper.dashboard.views.run import run_of
from esper.dashboard.views.values import Row, finite
from esper.errors import ConfigError
from esper.storage.files import MALFORMED, open_file, parse_json, write_atomic
from esper.storage.run_folder import ACTIVITY_FILE
from esper.telemetry import RunTelemetry

NOTES_FILE = "notes.md"
"""Notes that a user keeps in a run's folder."""
MAX_CHARACTERS = 4000
"""Characters that are read of a file."""
MAX_POINTS = 60
"""Points of a curve in the list."""


def started_at(telemetry: RunTelemetry) -> str | None:
    """Return when a run started: its first process, or else its record; None before either."""
    sessions = telemetry.sessions()
    run = run_of(telemetry)
    if sessions:
        return sessions[0].started_at
    return None if run is None else run.created_at


def held_out_returns(telemetry: RunTelemetry) -> Row:
    """Return the controller's evaluations during training, evenly thinned out if there are many.

    ``fixed`` is the return of the fixed schedule on the same hosts.
    """
    of_arm = "SELECT round, ep_rew_mean FROM evaluations WHERE purpose = 'tuning' AND arm = :arm"
    rows = telemetry.select(f"{of_arm} ORDER BY seq", arm="learned")
    fixed = telemetry.select(f"{of_arm} ORDER BY seq LIMIT 1", arm="fixed")
    n = len(rows)
    if n > MAX_POINTS:
        last = MAX_POINTS - 1
        rows = [rows[round((n - 1) * place / last)] for place in range(MAX_POINTS)]
    return {
        "rounds": [number for number, _ in rows],
        "values": [finite(value) for _, value in rows],
        "fixed": finite(fixed[0][1]) if fixed else None,
    }


def final_gaps(run_path: str | os.PathLike[str]) -> Row:
    """Return the learned controller minus others on the same hosts, from a run's summary.

    In return to the fixed schedule, and in final score to no growth. A gap is sure if the verdict
    shows a difference and its interval excludes zero. A damaged summary has none, and its screen
    says why.
    """
    results = read_final_verdict(Path(run_path), []) or NO_RESULTS
    found = {one["against"]: one for one in results["differences"]}
    fixed, plain = found.get("fixed"), found.get("no-growth")
    return {
        "fixed_gap": None if fixed is None else _gap(fixed, "ep_rew"),
        "score_gap": None if plain is None else _gap(plain, "score"),
    }


def _gap(difference: Row, name: str) -> Row:
    interval = difference[name]
    low, high = (math.nan if interval[end] is None else interval[end] for end in ("low", "high"))
    is_sure = difference["verdict"] != "not shown" and (low > 0.0 or high < 0.0)
    return {**interval, "is_sure": is_sure}


_ACTIVITY = {
    "arm": str,
    "purpose": str,
    "share": float,
    "n_hosts": int,
    "number": int,
    "n_trials": int,
}
"""The fields of :class:`esper.training.output.TrialProgress`."""


def read_activity(run_path: str | os.PathLike[str]) -> Row | None:
    """Return the lessons or the trial that a running run is at, or None."""
    text = _read_text(Path(run_path) / ACTIVITY_FILE)
    try:
        found = parse_json(text or "null")
        read: Row = {name: kind(found[name]) for name, kind in _ACTIVITY.items()}
        return read | {"share": min(1.0, max(0.0, read["share"]))}
    except MALFORMED:
        return None


def read_notes(run_path: str | os.PathLike[str]) -> str | None:
    """Return the beginning of the notes in a run's folder, or None without any."""
    return _read_text(Path(run_path) / NOTES_FILE)


def write_notes(run_path: str | os.PathLike[str], text: str) -> None:
    """Replace the notes in a run's folder; without a text, remove them.

    Raises:
        ConfigError: If the text is too long, or the page does not show the present notes in full.
    """
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"notes have {len(text):,} characters; use at most {MAX_CHARACTERS:,}.")
    path = Path(run_path) / NOTES_FILE
    if os.path.lexists(path):
        try:
            with open_file(path) as file:
                is_whole = len(file.read(4 * MAX_CHARACTERS + 1).decode()) <= MAX_CHARACTERS
        except (OSError, UnicodeDecodeError):
            is_whole = False
        if not is_whole or path.is_symlink():
            raise ConfigError(f"{NOTES_FILE} is long or not plain text; edit it in its folder.")
    if text.strip():
        write_atomic(path, text)
    else:
        path.unlink(missing_ok=True)


def _read_text(path: Path) -> str | None:
    """Return the beginning of a file, or None if it is empty, missing or not a file."""
    try:
        with open_file(path) as file:
            text = file.read(4 * MAX_CHARACTERS).decode("utf-8", "replace")
            return text[:MAX_CHARACTERS].strip() or None
    except OSError:
        return None
