"""The command ``esper dashboard``: runs in a browser, while they go on and afterwards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from esper.cli.parsing import parse
from esper.errors import RunError
from esper.invocation import program
from esper.storage.run_folder import runs_folder


@dataclass(frozen=True, kw_only=True)
class DashboardOptions:
    """Watch runs in a browser: those that go on, and those that are done."""

    folder: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[RUNS_DIR]")] = None
    """Where the runs are; by default the folder runs, or what ESPER_RUNS says."""

    port: int | None = None
    """The port to listen at; by default 8765, or any free one if that is taken."""

    host: str = "127.0.0.1"
    """The address to listen at."""

    allow_remote: bool = False
    """Let other machines reach it, over a connection that is not encrypted."""

    open: bool = False
    """Open it in a browser."""


def run_dashboard(words: Sequence[str]) -> int:
    """Serve the dashboard until a signal ends it."""
    options = parse(DashboardOptions, words, command="dashboard")
    place = runs_folder() if options.folder is None else Path(options.folder)
    if not place.is_dir():
        begin = (
            f"; start a run with {program()} train, or name" if options.folder is None else "; name"
        )
        raise RunError(f"there is no folder {str(place)!r}{begin} one that holds runs.")

    from esper.dashboard.server import serving

    with serving(
        place,
        host=options.host,
        port=options.port,
        allow_remote=options.allow_remote,
        tell=_tell,
    ) as made:
        if options.allow_remote:
            _tell("warning: whoever can listen on the network can read the link and all it shows")
        print(f"The dashboard of {place} is at\n\n  {made.link}\n\nCtrl-C ends it.", flush=True)
        if options.open:
            made.open_browser(_tell)
        made.run()
    return 0


def _tell(message: str) -> None:
    print(f"esper: {message}", file=sys.stderr)
