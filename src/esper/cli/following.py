"""Working on a run while showing how it goes; the same for a new run and for one that goes on."""

from __future__ import annotations

import sys
from collections.abc import Callable

from esper.cli.ending import show_end
from esper.cli.views import View, make_view
from esper.config.run import RunConfig
from esper.runs.run import Run

INTERRUPTED = 130


def follow(work: Callable[[View], Run], config: RunConfig, *, quiet: bool, as_json: bool) -> int:
    """Do the work with a view on it, say what came of it, and return the exit code.

    Args:
        work: Takes the view and works on the run.
        config: The run's settings.
        quiet: Say one line in the end.
        as_json: Print a JSON object in each line.
    """
    from esper.runs.training import RunInterrupted

    try:
        with make_view(config, quiet=quiet, json=as_json) as view:
            run = work(view)
    except RunInterrupted as interrupted:
        path = interrupted.run.path
        print(f"esper: interrupted and saved; go on with: esper resume {path}", file=sys.stderr)
        return INTERRUPTED
    show_end(run, quiet=quiet, as_json=as_json)
    return 0
