"""Writing reports on runs as HTML, Markdown or JSON."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, get_args

from esper.config.checks import require_choice
from esper.errors import (
    EsperWarning,
    EvidenceError,
    ReportError,
    StorageError,
    TelemetryError,
    escape_for_data,
)
from esper.invocation import training_command
from esper.reports.evidence_figures import DATA_FILE
from esper.reports.run_report import markdown, page
from esper.reports.run_report.document import FoundEvidence, make_document
from esper.reports.run_report.values import (
    REPORT_VERSION,
    ReportValues,
    RunValues,
    collect_values,
    evaluation_values,
)
from esper.storage.files import plain_reason, write_atomic
from esper.storage.run_folder import shell_word
from esper.telemetry.damage import hash_file_of
from esper.version import __version__

if TYPE_CHECKING:
    from esper.training.run import Run

Format = Literal["html", "md", "json"]
"""The format of a report."""
FORMATS: tuple[Format, ...] = get_args(Format)

_MARKS = (page.MARK, markdown.MARK, '"report_version"')
_MARKED = 200
"""Characters at the start of a report that include its mark."""
_PAGE_FILES = (".js", ".css", ".html")


def report(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
    *,
    format: Format = "html",  # noqa: A002 - the name that users know
    out: str | os.PathLike[str] | None = None,
    evaluation: str | os.PathLike[str] | None = None,
    png: str | os.PathLike[str] | None = None,
) -> Path:
    """Write a report on one or more runs, finished or not, and return its path.

    Emits an :class:`EsperWarning` for each damaged file whose contents the report lacks.

    Args:
        runs: Runs, their folders, or their names in the runs folder.
        format: ``"html"`` for a self-contained page, ``"md"`` or ``"json"``.
        out: The file to write; by default ``report.<format>`` in the folder of the only run, or in
            the working folder for several runs.
        evaluation: An ``evaluation.json`` of ``esper evaluate``; by default those in the folders.
        png: A folder to save the charts in as PNG; None for no charts.

    Raises:
        ConfigError: If the format is unknown, or charts are requested without matplotlib.
        RunError: If a run does not exist.
        ReportError: If a run has no records, or the file exists and is not a report.
        TelemetryError: If the records of a run are damaged.
        StorageError: If a file cannot be written.

    Examples:
        >>> path = esper.report("runs/my-run", format="md")
        >>> path.suffix
        '.md'
    """
    chosen = require_choice("format", format, FORMATS)
    found = find_runs(runs)
    place = report_file(found, chosen, out)
    made = Report(found, evaluation=evaluation)
    if png is not None:
        made.save_plots(Path(png))
    made.write(place, chosen)
    for problem in made.problems:
        warnings.warn(problem, EsperWarning, stacklevel=2)
    return place


class Report:
    """A report on one or more runs, as of the moment it is created."""

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
        """The data of the report, as JSON values."""

    def text(self, format: Format) -> str:  # noqa: A002
        """Return the report as HTML, Markdown or JSON."""
        if format == "json":
            text = json.dumps(self.values, indent=1, allow_nan=False) + "\n"
            return escape_for_data(text)
        document = make_document(self.values, self._evidence)
        if format == "md":
            text = markdown.to_markdown(document)
        else:
            text = page.to_html(document, self.values, page_files())
        # A folder's name can contain bytes that are not valid UTF-8.
        return text.encode("utf-8", "replace").decode("utf-8")

    @property
    def problems(self) -> list[str]:
        """One sentence for each file of the runs that is damaged, with its path."""
        found = [
            f"{run['path']}/{problem}"
            for run in self.values["runs"]
            for problem in (run["comparison"] or {"problems": []})["problems"]
        ]
        names_evaluation = any(DATA_FILE in problem for problem in found)
        return found if names_evaluation else [*found, *self.values["problems"]]

    def write(self, path: Path, format: Format) -> None:  # noqa: A002
        """Write the report to a file.

        Raises:
            StorageError: If it cannot be written.
        """
        try:
            write_atomic(path, self.text(format))
        except OSError as error:
            raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error

    def save_plots(self, folder: Path) -> list[Path]:
        """Save the charts as PNG in a folder and return their paths."""
        from esper.reports.plots import save_plots

        return save_plots(self.values["runs"], folder)


def find_runs(
    runs: Run | str | os.PathLike[str] | Sequence[Run | str | os.PathLike[str]],
) -> list[Run]:
    """Return the given runs, loading those given by path or name.

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
    for run, place in zip(found, places, strict=True):
        if places.count(place) > 1:
            raise ReportError(f"{run.path} is given twice; give each run once.")
    return found


def report_file(
    runs: Sequence[Run],
    format: Format,  # noqa: A002
    out: str | os.PathLike[str] | None,
) -> Path:
    """Return the file to write a report to, the default one if none is given.

    Raises:
        ReportError: If there is another kind of file in its place.
    """
    name = f"report.{format}"
    default = runs[0].path / name if len(runs) == 1 else Path(name)
    place = default if out is None else Path(out)
    require_replaceable(place)
    return place


def require_replaceable(path: Path) -> None:
    """Check that writing a report would not overwrite another kind of file.

    Raises:
        ReportError: If it would.
        StorageError: If the file cannot be read.
    """
    if os.path.isdir(path):
        raise ReportError(f"{path} is a folder; choose a file for the report.")
    try:
        with path.open("rb") as file:
            start = file.read(_MARKED).decode("utf-8", "replace")
    except FileNotFoundError:
        return
    except OSError as error:
        raise StorageError(f"cannot write {path}: {error.strerror or error}.") from error
    if start and not any(mark in start for mark in _MARKS):
        raise ReportError(f"{path} exists and is not a report; choose another file.")


def page_files() -> dict[str, str]:
    """Return the text of each static file of the dashboard by its path, with slashes."""
    return dict(_text_files(files("esper").joinpath("dashboard", "static"), ""))


def _text_files(folder: Traversable, prefix: str) -> list[tuple[str, str]]:
    found: list[tuple[str, str]] = []
    for one in folder.iterdir() if folder.is_dir() else ():
        if one.is_dir():
            found += _text_files(one, f"{prefix}{one.name}/")
        elif one.name.endswith(_PAGE_FILES):
            found.append((f"{prefix}{one.name}", one.read_text("utf-8")))
    return found


def _names(runs: Sequence[Run]) -> list[str]:
    """Return the names of runs, or their folders where two names are the same."""
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
        if run.folder.telemetry_file.exists():
            raise
        raise ReportError(f"{run.path} has no records: {error}") from error
    except (ValueError, LookupError, TypeError) as error:
        if hash_file_of(run.folder.telemetry_file).exists():
            raise  # the records are those that were written, so this is a bug
        raise ReportError(
            f"the records of {run.path} are damaged ({plain_reason(error)}); restore a copy of its "
            "telemetry."
        ) from error
    if values["overview"]["task"] is None:
        raise ReportError(f"{run.path} has no records yet; try again later.")
    return values


def _find_evidence(
    runs: Sequence[Run], evaluation: str | os.PathLike[str] | None, problems: list[str]
) -> list[FoundEvidence]:
    """Return the given evaluation, or those in or next to the folders of the runs."""
    if evaluation is not None:
        place = Path(evaluation)
        return _read_evidence(place / DATA_FILE if os.path.isdir(place) else place)
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
            continue  # a file next to the runs need not be about them
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
            f"cannot read {path}: {reason}; give an evaluation.json of esper evaluate."
        ) from error
    entries = EvidenceFile.from_text(text, name=str(path)).entries
    return [FoundEvidence(source=str(path), evidence=entry) for entry in entries]
