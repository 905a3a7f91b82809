"""The command ``esper report``: what runs came to and how, as a page to keep or to pass on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from esper.cli.parsing import UsageError, parse


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Report on runs: verdict, charts, episodes step by step, what the controller learned.

    The page is one file that needs no network. Runs that go on are reported on as they are.
    """

    runs: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """Runs: their folders, or their names in the runs folder."""

    format: Literal["html", "md", "json"] = "html"
    """A page, Markdown, or all values; the last two are printed unless --out names a file."""

    out: str | None = None
    """The file; by default report.html in the run's folder, or here if there are several runs."""

    evaluation: str | None = None
    """The evaluation.json of esper evaluate; by default what is in the run's folder, or beside
    several runs."""

    png: str | None = None
    """Also save the charts as PNG in this folder; needs matplotlib."""


def run_report(words: Sequence[str]) -> int:
    """Make the report; print it, or where it is."""
    options = parse(ReportOptions, words, command="report")
    if not options.runs:
        raise UsageError("no run is given; name the folder of one or several.")
    from esper.reports.reporting import Report, find_runs, report

    if options.format != "html" and options.out is None:
        made = Report(find_runs(options.runs), evaluation=options.evaluation)
        if options.png is not None:
            made.save_plots(Path(options.png))
        print(made.text(options.format), end="")
        return 0
    path = report(
        options.runs,
        format=options.format,
        out=options.out,
        evaluation=options.evaluation,
        png=options.png,
    )
    print(path)
    return 0
