"""Where the records of a run go: the run's own telemetry, and whoever else wants to see them."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from esper.errors import EsperError
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record
from esper.telemetry.sinks import Sink


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """How far the trial of a controller is; this is shown and not recorded."""

    arm: str
    """The controller, as evaluations call it."""
    purpose: str
    """Why it is tried, as in the records of evaluations."""
    n_hosts: int
    """Hosts that it is tried on."""
    share: float
    """How much of the trial is done, 0 to 1."""
    number: int = 1
    """Which one it is of those in a row, counted from 1."""
    n_trials: int = 1
    """Trials in a row."""


@runtime_checkable
class TrialWatcher(Protocol):
    """A watcher that is also shown how far trials are, which take long beside steps."""

    def watch_trial(self, trial: TrialProgress) -> None:
        """Look at how far a trial is."""
        ...


class RecordOutput:
    """Hands records on; a watcher that fails is told about once and left out from then on."""

    def __init__(self, writer: TelemetryWriter, watchers: Sequence[Sink] = ()) -> None:
        self.writer = writer
        self._watchers = list(watchers)

    def write(self, records: Sequence[Record]) -> None:
        """Give records to the telemetry and then to all watchers."""
        self.writer.write_many(records)

        def give(watcher: Sink) -> None:
            for record in records:
                watcher.write(record)

        self._for_each(give)

    def show_trial(self, trial: TrialProgress) -> None:
        """Tell those watchers that want to know how far a trial is."""

        def give(watcher: Sink) -> None:
            if isinstance(watcher, TrialWatcher):
                watcher.watch_trial(trial)

        self._for_each(give)

    def _for_each(self, give: Callable[[Sink], None]) -> None:
        for watcher in tuple(self._watchers):
            try:
                give(watcher)
            except EsperError:
                raise
            except Exception as error:  # a tracker's own failure must not end the run
                self._watchers.remove(watcher)
                name = type(watcher).__name__
                warnings.warn(
                    f"{name} failed and gets no more records: {error!r}", RuntimeWarning, 3
                )
