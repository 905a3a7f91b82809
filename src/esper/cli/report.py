"""``esper report``: write a report on one or more runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

from esper.cli.arguments import Metavar, Positional, parse


@dataclass(frozen=True, kw_only=True)
class ReportOptions:
    """Write the dashboard's page on one or more runs to a single file that works offline.

    It has the verdict, charts, episodes step by step, and what the controller learned. A run may
    still be in progress.
    """

    runs: Annotated[tuple[str, ...], Positional("RUN")]
    """One or more runs: folders, or names in the runs folder."""

    out: Annotated[str | None, Metavar("FILE")] = None
    """File to write; by default report.html in the run's folder, or here for several runs."""

    evaluation: Annotated[str | None, Metavar("FILE")] = None
    """evaluation.json of esper evaluate; by default the one in or next to the run folders."""


def run_report(args: Sequence[str]) -> int:
    """Write the report and print its path; then name damaged files whose contents it lacks."""
    options = parse(ReportOptions, args, command="report")
    from esper.dashboard.report import write_report
    from esper.errors import ReportError

    place, problems = write_report(options.runs, out=options.out, evaluation=options.evaluation)
    print(place)
    if problems:
        raise ReportError(" ".join(problems))
    return 0
