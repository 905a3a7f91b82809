"""The command ``esper resume``: goes on with a run where its last checkpoint is."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import tyro

from esper.cli.ending import show_end
from esper.cli.following import follow
from esper.cli.parsing import parse
from esper.cli.views import View
from esper.training.run import Run, load_run

if TYPE_CHECKING:
    from esper.training.stopping import StopRequest


@dataclass(frozen=True, kw_only=True)
class Options:
    """Go on with a run that was interrupted, as if nothing had been."""

    run: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run's folder, or its name in the runs folder."""

    quiet: bool = False
    """Print nothing but one line at the end."""

    json: bool = False
    """Print a JSON object in each line."""

    dashboard: bool = False
    """Show it in a browser too, as long as it trains; the link is printed first."""


def run(words: Sequence[str]) -> int:
    """Go on with the run and return the exit code."""
    options = parse(Options, words, command="resume")
    found = load_run(options.run)
    if found.state == "done" and found.summary is not None:
        print(f"esper: {found.path} is done; nothing is left to do", file=sys.stderr)
        show_end(found, quiet=options.quiet, as_json=options.json)
        return 0

    with found.folder.locked():
        pass  # refuses a run that another process works on before PyTorch is loaded

    def work(view: View, stop: StopRequest) -> Run:
        from esper.training.runs import resume

        return resume(found, watchers=[view], stop=stop)

    return follow(
        work,
        found.config,
        begun=found,
        served=found.path.absolute().parent if options.dashboard else None,
        quiet=options.quiet,
        as_json=options.json,
    )
