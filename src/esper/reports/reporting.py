"""Reports on runs: a page that needs nothing else, Markdown, or the values behind them."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from esper.config.checks import require_choice
from esper.errors import EvidenceError, ReportError, StorageError, TelemetryError
from esper.invocation import training_command
from esper.reports.evidence_figures import DATA_FILE
from esper.reports.run_report import markdown, page
from esper.reports.run_report.document import make_document
from esper.reports.run_report.evaluation_part import FoundEvidence
from esper.reports.run_report.values import (
    REPORT_VERSION,
    ReportValues,
    RunValues,
    collect_values,
    evaluation_values,
)
from esper.storage.files import write_atomic
from esper.storage.run_folder import shell_word
from esper.version import __version__

if TYPE_CHECKING:
    from esper.training.run import Run

Format = Literal["html", "md", "json"]
"""What a report is written as."""
FORMATS: tuple[Format, ...] = get_args(Format)

_MARKS = (page.MARK, markdown.MARK, '"report_version"')
_MARKED = 200
"""Letters at the start of a report among which its mark is."""
_PAGE_FILES = (".js", ".css", ".html")


def report(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    *,
    format: Format = "html",  # noqa: A002 - the name that users know
    out: str | os.PathLike[str] | None = None,
    evaluation: str | os.PathLike[str] | None = None,
    png: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report on one run or several, also on runs that go on, and return its file.

    Args:
        runs: Runs, their folders, or their names in the runs folder.
        format: ``"html"`` for a page that needs nothing else, ``"md"`` or ``"json"``.
        out: The file; by default ``report.<format>`` in the folder of the only run, else here.
        evaluation: What ``esper evaluate`` wrote about them; by default what is in their folders.
        png: A folder for the charts as PNG; none are made if it is None.

    Raises:
        ConfigError: If the format is not one of these, or charts are wanted without matplotlib.
        RunError: If there is no such run.
        ReportError: If a run has recorded nothing, or the file is there and is no report.
        StorageError: If a file cannot be written.
    """
    chosen = require_choice("format", format, FORMATS)
    found = find_runs(runs)
    place = Path(out) if out is not None else _usual_file(found, chosen)
    require_report(place)
    made = Report(found, evaluation=evaluation)
    if png is not None:
        made.save_plots(Path(png))
    try:
        write_atomic(place, made.text(chosen))
    except OSError as error:
        raise StorageError(
            f"{place} cannot be written: {error.strerror or error}; choose another file."
        ) from error
    return place


class Report:
    """What is told of one run or several, as of the moment when it is made."""

    def __init__(
        self, runs: Sequence[Run], *, evaluation: str | os.PathLike[str] | None = None
    ) -> None:
        problems: list[str] = []
        self._evidence = _find_evidence(runs, evaluation, problems)
        self.values: ReportValues = {
            "report_version": REPORT_VERSION,
            "esper_version": __version__,
            "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
            "runs": [_run_values(run, name) for run, name in zip(runs, _names(runs), strict=True)],
            "evaluations": [evaluation_values(one.evidence, one.source) for one in self._evidence],
            "problems": problems,
        }
        """Everything that it tells, as JSON can hold it."""

    def text(self, format: Format) -> str:  # noqa: A002
        """Return it as HTML, Markdown or JSON."""
        if format == "json":
            return json.dumps(self.values, indent=1, allow_nan=False) + "\n"
        document = make_document(self.values, self._evidence)
        if format == "md":
            text = markdown.to_markdown(document)
        else:
            text = page.to_html(document, self.values, page_files())
        # The name of a folder can hold bytes that are no letters.
        return text.encode("utf-8", "replace").decode("utf-8")

    def save_plots(self, folder: Path) -> list[Path]:
        """Save its charts as PNG in a folder, and return the files."""
        from esper.reports.plots import save_plots

        return save_plots(self.values["runs"], folder)


def find_runs(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
) -> list[Run]:
    """Return the runs that are named, each once.

    Raises:
        RunError: If there is no such run.
        ReportError: If none is named, or one is twice.
    """
    from esper.training.run import Run, load_run

    many = [runs] if isinstance(runs, (Run, str, os.PathLike)) else list(runs)
    found = [one if isinstance(one, Run) else load_run(one) for one in many]
    if not found:
        raise ReportError("no run is given; name the folder of one or several.")
    places = [run.path.resolve() for run in found]
    for run, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise ReportError(f"{run.path} is given twice; name each run once.")
    return found


def require_report(path: Path) -> None:
    """Refuse a file that is there and is no report.

    Raises:
        ReportError: If what is there would be lost.
        StorageError: If it cannot be read.
    """
    if path.is_dir():
        raise ReportError(f"{path} is a folder; name a file for the report.")
    try:
        with path.open("rb") as file:
            start = file.read(_MARKED).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written: {error.strerror or error}; choose another file."
        ) from error
    if start and not any(mark in start for mark in _MARKS):
        raise ReportError(f"{path} is there already and is no report; choose another file.")


def page_files() -> dict[str, str]:
    """Return the text of each file of the dashboard's page, by its path with slashes."""
    return dict(_text_files(files("esper").joinpath("dashboard", "static"), ""))


def _text_files(folder: Traversable, before: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.is_dir():
            found += _text_files(one, f"{before}{one.name}/")
        elif one.name.endswith(_PAGE_FILES):
            found.append((f"{before}{one.name}", one.read_text("utf-8")))
    return found


def _usual_file(runs: Sequence[Run], format: Format) -> Path:  # noqa: A002
    name = f"report.{format}"
    return runs[0].path / name if len(runs) == 1 else Path(name)


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, and their folders where two have the same name."""
    names = [run.name for run in runs]
    return [
        str(run.path) if names.count(name) > 1 else name
        for run, name in zip(runs, names, strict=True)
    ]


def _run_values(run: Run, name: str) -> RunValues:
    try:
        with run.telemetry() as telemetry:
            values = collect_values(
                telemetry,
                path=run.path,
                name=name,
                state=run.state,
                commands=(training_command(run.config), f"esper report {shell_word(run.path)}"),
            )
    except TelemetryError as error:
        raise ReportError(f"there is nothing to report on {run.path}: {error}") from error
    if values["overview"]["task"] is None:
        raise ReportError(f"{run.path} has recorded nothing yet; report on it later.")
    return values


def _find_evidence(
    runs: Sequence[Run], evaluation: str | os.PathLike[str] | None, problems: list[str]
) -> list[FoundEvidence]:
    """Return the evaluation that is named, or those that the runs' folders hold."""
    if evaluation is not None:
        place = Path(evaluation)
        return _read_evidence(place / DATA_FILE if place.is_dir() else place)
    if len(runs) == 1:
        found: list[FoundEvidence] = []
        for path in _evaluation_files(runs[0].path):
            try:
                found += _read_evidence(path)
            except EvidenceError as error:
                problems.append(str(error))
        return found
    parents = {run.path.resolve().parent for run in runs}
    names = {run.name for run in runs}
    found = []
    for path in _evaluation_files(parents.pop()) if len(parents) == 1 else ():
        try:
            some = _read_evidence(path)
        except EvidenceError:
            continue  # what lies beside runs need not be about them
        found += [one for one in some if names <= set(one.evidence.runs)]
    return found


def _evaluation_files(folder: Path) -> list[Path]:
    return sorted([*folder.glob(DATA_FILE), *folder.glob(f"*/{DATA_FILE}")])


def _read_evidence(path: Path) -> list[FoundEvidence]:
    from esper.evidence.files import EvidenceFile

    try:
        text = path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise EvidenceError(
            f"{path} cannot be read: {reason}; name the evaluation.json that esper evaluate wrote."
        ) from error
    entries = EvidenceFile.from_text(text, name=str(path)).entries
    return [FoundEvidence(source=str(path), evidence=entry) for entry in entries]
