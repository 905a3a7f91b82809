"""Passing a run's records to its telemetry and to other watchers."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from esper.errors import EsperError
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, RecordColumns, StepRecord
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


class RecordOutput:
    """Passes records on; a watcher that fails is reported once and then skipped.

    A watcher may also have methods ``watch_step(step)``, called once for a step of all environments
    instead of with a record of each; ``watch_trial(trial)``, for the :class:`TrialProgress` of
    trials, which take much longer than steps; and ``watch_workers(message)``, for sentences about
    worker processes.
    """

    def __init__(self, writer: TelemetryWriter, watchers: Sequence[Sink] = ()) -> None:
        self.writer = writer
        self._watchers = list(watchers)

    def write(self, records: Sequence[Record | RecordColumns]) -> None:
        """Pass records to the telemetry, then to all watchers."""
        self.writer.write_many(records)

        def pass_on(watcher: Sink) -> None:
            watch_step = getattr(watcher, "watch_step", None)
            for entry in records:
                if not isinstance(entry, RecordColumns):
                    watcher.write(entry)
                elif entry.kind is StepRecord and watch_step is not None:
                    watch_step(entry.columns["step"][0])
                else:
                    for record in entry.records():
                        watcher.write(record)

        self._for_each(pass_on)

    def show_trial(self, trial: TrialProgress) -> None:
        """Pass the progress of a trial to the watchers that show it."""
        self._show("watch_trial", trial)

    def show_workers(self, message: str) -> None:
        """Pass a sentence about worker processes to the watchers that show it."""
        self._show("watch_workers", message)

    def _show(self, method: str, value: object) -> None:
        def pass_on(watcher: Sink) -> None:
            if (call := getattr(watcher, method, None)) is not None:
                call(value)

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
