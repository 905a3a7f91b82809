"""Choosing how a run is shown: a panel, a line for each round, one line in all, or JSON."""

from __future__ import annotations

import os
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Protocol

from esper.cli.plain_views import JsonView, LineView, QuietView
from esper.cli.view_state import ViewState
from esper.config.run import RunConfig
from esper.telemetry.records import Record
from esper.training.run import Run

_SIMPLE_TERMINALS = ("dumb", "unknown")
"""Terminals that cannot draw a panel anew."""


class View(Protocol):
    """A sink of records that shows them to a person or a program."""

    def write(self, record: Record) -> None:
        """Take a record."""
        ...

    def tell(self, message: str) -> None:
        """Say at once what becomes of a signal."""
        ...

    def close(self) -> None:
        """Show what is left to be shown. Closing again does nothing."""
        ...


class LineWriter:
    """Prints lines at once; when none can be written, nothing more, and the run goes on."""

    def __init__(self) -> None:
        self._has_output = True

    def __call__(self, line: str) -> None:
        """Print a line."""
        if not self._has_output:
            return
        try:
            print(line, flush=True)
        except OSError:
            self._has_output = False


@contextmanager
def make_view(
    config: RunConfig, *, quiet: bool, json: bool, begun: Run | None = None
) -> Generator[View]:
    """Give the view that suits where the output goes, and close it in the end.

    Args:
        config: The run's settings.
        quiet: Nothing.
        json: One JSON object in each line.
        begun: The run, if there is one already.
    """
    view = _view(config, begun, quiet=quiet, json=json)
    try:
        yield view
    finally:
        view.close()


def _view(config: RunConfig, begun: Run | None, *, quiet: bool, json: bool) -> View:
    if json:
        return JsonView(LineWriter())
    if quiet:
        return QuietView()
    state = ViewState(config)
    if begun is not None:
        state.recall(begun)
    if not sys.stdout.isatty() or os.environ.get("TERM") in _SIMPLE_TERMINALS:
        return LineView(state, LineWriter())
    from esper.cli.live_view import LiveView

    return LiveView(state)
