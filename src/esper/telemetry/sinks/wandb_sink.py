"""Metrics for Weights & Biases. Whether it is online is up to its own environment variables."""

from __future__ import annotations

import os
from pathlib import Path

from esper.telemetry.metrics import is_measured, metrics_of
from esper.telemetry.records import Record
from esper.telemetry.sinks.sink import import_tracker, settings_of, tracker_id

PROJECT = "esper"


class WandbSink:
    """Sends metrics to a run of Weights & Biases, which a resumed run goes on with.

    It does not take points of a step that is past, so that rounds done again are not doubled.
    """

    def __init__(self, run_dir: Path, config_text: str) -> None:
        wandb = import_tracker("wandb", "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            id=tracker_id(run_dir),
            resume="allow",
            dir=str(run_dir),
            config=settings_of(config_text),
        )

    def write(self, record: Record) -> None:
        """Send a record's metrics at its round."""
        if is_measured(record):
            self._run.log(metrics_of(record), step=record.round)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()
