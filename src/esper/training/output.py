"""Passing a run's records to its telemetry and to other watchers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from esper.errors import EsperError
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RecordColumns, StepRecord, each_record
from esper.telemetry.sinks import Sink


@dataclass(frozen=True, kw_only=True)
class TrialProgress:
    """The progress of a controller's trial; shown but not recorded."""

    arm: str
    """The controller's name in evaluation records."""
    purpose: str
    """The purpose of the trial, as in evaluation records, or "lessons"."""
    n_hosts: int
    """Number of hosts in the trial."""
    share: float
    """Share of the trial that is done, 0 to 1."""
    number: int = 1
    """Number of this trial among consecutive ones, from 1."""
    n_trials: int = 1
    """Number of consecutive trials."""


@runtime_checkable
class TrialWatcher(Protocol):
    """A watcher that is also shown the progress of trials, which take much longer than steps."""

    def watch_trial(self, trial: TrialProgress) -> None:
        """Show the progress of a trial."""
        ...


@runtime_checkable
class StepWatcher(Protocol):
    """A watcher that gets the number of each step instead of a record for each environment."""

    def watch_step(self, step: int) -> None:
        """Take the run's step that all environments have taken."""
        ...


@runtime_checkable
class WorkersWatcher(Protocol):
    """A watcher that is also told about worker processes."""

    def watch_workers(self, message: str) -> None:
        """Show a sentence about them."""
        ...


class RecordOutput:
    """Passes records on; a watcher that fails is reported once and then skipped."""

    def __init__(self, writer: TelemetryWriter, watchers: Sequence[Sink] = ()) -> None:
        self.writer = writer
        self._watchers = list(watchers)

    def write(self, records: Sequence[Record | RecordColumns]) -> None:
        """Pass records to the telemetry, then to all watchers."""
        self.writer.write_many(records)

        def pass_on(watcher: Sink) -> None:
            for entry in records:
                if (
                    isinstance(watcher, StepWatcher)
                    and isinstance(entry, RecordColumns)
                    and entry.kind is StepRecord
                ):
                    watcher.watch_step(entry.columns["step"][0])
                    continue
                for record in each_record([entry]):
                    watcher.write(record)

        self._for_each(pass_on)

    def show_trial(self, trial: TrialProgress) -> None:
        """Pass the progress of a trial to the watchers that show it."""

        def pass_on(watcher: Sink) -> None:
            if isinstance(watcher, TrialWatcher):
                watcher.watch_trial(trial)

        self._for_each(pass_on)

    def show_workers(self, message: str) -> None:
        """Pass a sentence about worker processes to the watchers that show it."""

        def pass_on(watcher: Sink) -> None:
            if isinstance(watcher, WorkersWatcher):
                watcher.watch_workers(message)

        self._for_each(pass_on)

    def _for_each(self, pass_on: Callable[[Sink], None]) -> None:
        for watcher in tuple(self._watchers):
            try:
                pass_on(watcher)
            except EsperError:
                raise
            except Exception as error:  # a failing watcher must not end the run
                self._watchers.remove(watcher)
                name = type(watcher).__name__
                warnings.warn(
                    f"{name} failed and gets no more records: {error!r}", RuntimeWarning, 3
                )
