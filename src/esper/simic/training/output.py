"""Where the records of a run go: the run's own telemetry, and whoever else wants to see them."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Protocol

from esper.errors import EsperError
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record


class Watcher(Protocol):
    """Whoever is shown every record as it is made: a live view, a tracker."""

    def write(self, record: Record) -> None:
        """Look at a record."""
        ...

    def close(self) -> None:
        """Look at no more."""
        ...


class RecordOutput:
    """Hands records on; a watcher that fails is told about once and left out from then on."""

    def __init__(self, writer: TelemetryWriter, watchers: Sequence[Watcher] = ()) -> None:
        self.writer = writer
        self._watchers = list(watchers)

    def write(self, records: Sequence[Record]) -> None:
        """Give records to the telemetry and then to all watchers."""
        self.writer.write_many(records)
        for watcher in tuple(self._watchers):
            try:
                for record in records:
                    watcher.write(record)
            except EsperError:
                raise
            except Exception as error:  # a tracker's own failure must not end the run
                self._watchers.remove(watcher)
                name = type(watcher).__name__
                warnings.warn(
                    f"{name} failed and gets no more records: {error!r}", RuntimeWarning, 2
                )
