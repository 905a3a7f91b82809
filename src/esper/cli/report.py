"""``esper report``: write a report on one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from esper.cli.parsing import UsageError, optional, parse, required


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Report on runs: verdict, charts, episodes step by step, what the controller learned.

    The HTML page is a single file that works offline. A run may still be in progress.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, required("RUN")]
    """One or more runs: folders, or names in the runs folder."""

    format: Literal["html", "md", "json"] = "html"
    """HTML page, Markdown, or JSON; md and json are printed unless --out is given."""

    out: Annotated[str | None, optional("FILE")] = None
    """File to write; by default report.html in the run's folder, or here for several runs."""

    evaluation: Annotated[str | None, optional("FILE")] = None
    """evaluation.json of esper evaluate; by default the one in or next to the run folders."""

    png: Annotated[str | None, optional("FOLDER")] = None
    """Folder to save the charts in as PNG; needs matplotlib."""


def run_report(args: Sequence[str]) -> int:
    """Print the report, or write it and print its path; then name damaged files it lacks."""
    options = parse(ReportOptions, args, command="report")
    if not options.runs:
        raise UsageError("RUN is missing; give one or more runs. See esper report --help.")
    from esper.errors import ReportError
    from esper.reports.reporting import Report, find_runs, report_file

    found = find_runs(options.runs)
    is_printed = options.format != "html" and options.out is None
    place = None if is_printed else report_file(found, options.format, options.out)
    made = Report(found, evaluation=options.evaluation)
    if options.png is not None:
        made.save_plots(Path(options.png))
    if place is None:
        print(made.text(options.format), end="")
    else:
        made.write(place, options.format)
        print(place)
    if made.problems:
        raise ReportError(" ".join(made.problems))
    return 0
