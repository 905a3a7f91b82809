"""``esper dashboard``: show runs in a browser, live or finished."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from esper.cli.arguments import Metavar, Positional, parse
from esper.cli.views import print_to_stderr
from esper.config.schema import shown
from esper.errors import RunError
from esper.invocation import program
from esper.storage.run_folder import runs_folder


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """Show runs in a browser, live or finished."""

    folder: Annotated[str | None, Positional("RUNS_DIR")] = None
    """Folder of the runs; by default $ESPER_RUNS, or else runs."""

    port: Annotated[int | None, Metavar("PORT")] = None
    """Port to listen on; by default 8765, or any free port if that is taken."""

    host: str = "127.0.0.1"
    """Address to listen on."""

    allow_remote: bool = False
    """Accept connections from other machines; they are not encrypted."""

    open: bool = False
    """Open the page in a browser."""


def run_dashboard(args: Sequence[str]) -> int:
    """Serve the dashboard until it is stopped by a signal."""
    options = parse(DashboardOptions, args, command="dashboard")
    place = runs_folder() if options.folder is None else Path(options.folder)
    if not os.path.isdir(place):
        advice = "" if options.folder is not None else f" Start a run with {program()} train."
        raise RunError(f"no folder {shown(str(place))}; give the folder of your runs.{advice}")

    from esper.dashboard.server import serving

    with serving(
        place,
        host=options.host,
        port=options.port,
        allow_remote=options.allow_remote,
        tell=print_to_stderr,
    ) as server:
        if options.allow_remote:
            print_to_stderr(
                "warning: anyone who can listen on the network can read the link and the pages"
            )
        print(f"Dashboard of {place}:\n\n  {server.link}\n\nPress Ctrl-C to stop.", flush=True)
        if options.open:
            server.open_browser(print_to_stderr)
        server.run()
    return 0
