"""Reports on runs: the dashboard's page with its data inside, as one file."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from esper.dashboard import views
from esper.dashboard.access import json_text
from esper.dashboard.offline_page import MARK, make_page
from esper.dashboard.runs import RunReader
from esper.errors import (
    EsperWarning,
    EvidenceError,
    ReportError,
    StorageError,
    TelemetryError,
)
from esper.formatting import listed
from esper.storage.files import MALFORMED, open_file, plain_reason, write_atomic
from esper.version import __version__

if TYPE_CHECKING:
    from esper.training.run import Run

_MARKED = 200
"""Characters at the start of a report that include its mark."""


def report(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    evaluation: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report on one or more runs, finished or not, and return its path.

    It is the dashboard's page as one HTML file, with its data inside. Emits an
    :class:`EsperWarning` for each damaged file whose contents the report lacks.

    Args:
        runs: Runs, their folders, or their names in the runs folder.
        out: The file to write; by default ``report.html`` in the folder of the only run, or in the
            working folder for several runs.
        evaluation: An ``evaluation.json`` of ``esper evaluate``; by default those in the folders.

    Raises:
        RunError: If a run does not exist.
        ReportError: If a run has no records, or the file exists and is not a report.
        TelemetryError: If the records of a run are damaged.
        StorageError: If a file cannot be written.

    Examples:
        >>> path = esper.report("runs/my-run")
        >>> path.name
        'report.html'
    """
    place, problems = write_report(runs, out=out, evaluation=evaluation)
    for problem in problems:
        warnings.warn(problem, EsperWarning, stacklevel=2)
    return place


def write_report(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    *,
    out: str | os.PathLike[str] | None = None,
    evaluation: str | os.PathLike[str] | None = None,
) -> tuple[Path, list[str]]:
    """Write a report as :func:`report` does, and return its path and all problems.

    A problem is a sentence that names a damaged file whose contents the report lacks.
    """
    found = find_runs(runs)
    folder = Path() if len(found) > 1 else next(iter(found.values())).path
    place = folder / "report.html" if out is None else Path(out)
    require_replaceable(place)
    data = collect_data(found, evaluation)
    try:
        write_atomic(place, make_page(data, f"{listed(list(found))} · Esper"))
    except OSError as error:
        raise StorageError(f"cannot write {place}: {error.strerror or error}.") from error
    problems = [
        f"{run.path}/{problem}"
        for run, values in zip(found.values(), data["runs"], strict=True)
        for problem in (values["run"]["comparison"] or views.NO_RESULTS)["problems"]
    ]
    return place, problems


def find_runs(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
) -> dict[str, Run]:
    """Return the given runs by name, or by folder where two names are the same.

    Raises:
        RunError: If a run does not exist.
        ReportError: If no run is given, or one is given twice.
    """
    from esper.training.run import Run, load_run

    many = [runs] if isinstance(runs, (Run, str, os.PathLike)) else list(runs)
    found = [one if isinstance(one, Run) else load_run(one) for one in many]
    if not found:
        raise ReportError("no run is given; give one or more runs.")
    places = [run.path.resolve() for run in found]
    names = [run.name for run in found]
    for run, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise ReportError(f"{run.path} is given twice; give each run once.")
    return {str(run.path) if names.count(run.name) > 1 else run.name: run for run in found}


def require_replaceable(path: Path) -> None:
    """Check that writing a report would not overwrite another kind of file.

    Raises:
        ReportError: If it would.
        StorageError: If the file cannot be read.
    """
    if os.path.isdir(path):
        raise ReportError(f"{path} is a folder; choose a file for the report.")
    try:
        with open_file(path) as file:
            start = file.read(_MARKED).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error
    if start and MARK not in start:
        raise ReportError(f"{path} exists and is not a report; choose another file.")


def collect_data(
    runs: Mapping[str, Run], evaluation: str | os.PathLike[str] | None = None
) -> dict[str, Any]:
    """Return what a report shows, as JSON values.

    ``runs`` has for each run the same values that the dashboard's API gives.

    Args:
        runs: The runs by name.
        evaluation: An ``evaluation.json``; None for those in or next to the folders of the runs.
    """
    collected = [_collect_run(run, name, str(k)) for k, (name, run) in enumerate(runs.items())]
    found = _find_evaluations(list(runs.values()), evaluation)
    if len(runs) == 1 and found:
        # The page shows the results of a run with its verdict.
        own = collected[0]["run"]
        own["comparison"] = (own["comparison"] or views.NO_RESULTS) | {"evaluations": found}
        found = []
    return {
        "esper_version": __version__,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "runs": collected,
        "evaluations": found,
    }


def _collect_run(run: Run, name: str, id_: str) -> dict[str, Any]:
    """Return all that the page shows of a run, by the name in the dashboard's API."""
    reader = RunReader(run.path)
    (own_name,) = reader.folders()
    try:
        detail = reader.detail(own_name)
        with run.telemetry() as telemetry, telemetry.snapshot():
            values = {
                "metrics": views.metric_series(telemetry, -1, without=views.WITHOUT_CHART),
                "learned": views.learned(telemetry),
                "health": views.health(telemetry),
                "episodes": views.shown_episodes(telemetry),
            }
            json_text(values)  # finds numbers that are not finite, which JSON lacks
    except TelemetryError as error:
        if run.folder.telemetry_file.exists():
            raise
        raise ReportError(f"{run.path} has no records: {error}") from error
    except MALFORMED as error:
        raise ReportError(
            f"the records of {run.path} are damaged ({plain_reason(error)}); restore a copy of its "
            "telemetry."
        ) from error
    if detail["overview"] is None or detail["overview"]["task"] is None:
        reason = detail["problem"] or "no records yet"
        raise ReportError(f"{run.path} cannot be shown: {reason}; try again later.")
    return {"id": id_, "run": detail | {"id": id_, "name": name}, **values}


def _find_evaluations(
    runs: Sequence[Run], evaluation: str | os.PathLike[str] | None
) -> list[views.EvaluationView]:
    """Return the given evaluation, or those in or next to the folders of the runs.

    Files that cannot be read are skipped: the view of a run names those in its folder, and a file
    next to the runs need not be about them.
    """
    if evaluation is not None:
        place = Path(evaluation)
        return _read_evaluation(place / views.EVALUATION_FILE if os.path.isdir(place) else place)
    folder, names = runs[0].path, {run.name for run in runs}
    if len(runs) > 1:
        parents = {run.path.resolve().parent for run in runs}
        if len(parents) > 1:
            return []
        (folder,) = parents
    found: list[views.EvaluationView] = []
    for path in views.evaluation_files(folder):
        try:
            found += _read_evaluation(path)
        except EvidenceError:
            continue
    return [one for one in found if len(runs) == 1 or names <= set(one["runs"])]


def _read_evaluation(path: Path) -> list[views.EvaluationView]:
    from esper.results.files import read_verdicts

    try:
        return [views.evaluation_view(*pair, str(path)) for pair in read_verdicts(path)]
    except (OSError, *MALFORMED) as error:
        is_system = isinstance(error, OSError)
        reason = error.strerror or error if is_system else plain_reason(error)
        raise EvidenceError(
            f"cannot read {path}: {reason}; give an evaluation.json of esper evaluate."
        ) from error
