"""The view of a run on a terminal: a panel that is drawn anew twice a second."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TextIO, cast

from rich.console import Console
from rich.live import Live

from esper.cli.panel import RunPanel
from esper.cli.view_state import ViewState
from esper.telemetry.records import Record

if TYPE_CHECKING:
    from esper.training.output import TrialProgress

_REFRESHES_PER_SECOND = 2
"""Enough to see it move; a drawing takes some milliseconds that training then lacks."""


class _Screen:
    """A terminal that may go away; what is drawn then is lost, and the run goes on."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def write(self, text: str) -> int:
        """Draw a text, if that can be."""
        with suppress(OSError):
            self._file.write(text)
        return len(text)

    def flush(self) -> None:
        """Show what is drawn, if that can be."""
        with suppress(OSError):
            self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)


class LiveView:
    """A sink of records that shows them in a panel; what is printed meanwhile appears above it."""

    def __init__(self, state: ViewState, console: Console | None = None) -> None:
        self._state = state
        self._live = Live(
            RunPanel(state),
            console=Console(file=cast(TextIO, _Screen(sys.stdout))) if console is None else console,
            refresh_per_second=_REFRESHES_PER_SECOND,
        )
        self._live.start(refresh=True)

    def write(self, record: Record) -> None:
        """Take a record; the next drawing shows it."""
        self._state.take(record)

    def watch_trial(self, trial: TrialProgress) -> None:
        """Take how far a trial is; the next drawing shows it."""
        self._state.take_trial(trial)

    def tell(self, message: str) -> None:
        """Show a message in the panel, where it cannot tear it apart."""
        self._state.messages.append(message)

    def close(self) -> None:
        """Draw the panel a last time and leave it there. Closing again does nothing."""
        if self._live.is_started:
            self._live.stop()
