"""Metrics for Trackio, which keeps them on this machine unless its environment says otherwise."""

from __future__ import annotations

import sys
from contextlib import redirect_stdout
from pathlib import Path

from esper.telemetry.metrics import is_measured, metrics_of
from esper.telemetry.records import Record
from esper.telemetry.sinks.sink import import_tracker, settings_of, tracker_id

PROJECT = "esper"


class TrackioSink:
    """Sends metrics to a run of Trackio, which a resumed run goes on with.

    Trackio cannot take points back: rounds done again are there twice, with the same values.
    """

    def __init__(self, run_dir: Path, config_text: str) -> None:
        self._trackio = import_tracker("trackio", "trackio")
        # It talks on standard output, which belongs to whoever reads a run's lines or JSON.
        with redirect_stdout(sys.stderr):
            self._run = self._trackio.init(
                project=PROJECT,
                name=f"{run_dir.name}-{tracker_id(run_dir)}",
                resume="allow",
                config=settings_of(config_text),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def write(self, record: Record) -> None:
        """Send a record's metrics at its round."""
        if is_measured(record):
            self._run.log(metrics_of(record), step=record.round)

    def close(self) -> None:
        """Send what is left."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()
