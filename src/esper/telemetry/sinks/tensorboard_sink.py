"""Metrics for TensorBoard, in the folder ``tensorboard`` of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from esper.telemetry.metrics import Measured, is_measured, metrics_of
from esper.telemetry.records import EvaluationRecord, Record, RoundRecord
from esper.telemetry.sinks.sink import import_tracker

FOLDER = "tensorboard"


class TensorBoardSink:
    """Writes event files. A resumed run hides the points that it is about to write again."""

    def __init__(self, run_dir: Path, config_text: str) -> None:
        self._package = import_tracker("tensorboardX", "tensorboard")
        self._folder = run_dir / FOLDER
        self._config_text = config_text
        self._writer: Any = None

    def write(self, record: Record) -> None:
        """Write a record's metrics at its round."""
        if not is_measured(record):
            return
        if self._writer is None:
            self._writer = self._start(record)
        writer = self._writer
        for name, value in metrics_of(record).items():
            writer.add_scalar(name, value, record.round)
        if isinstance(record, RoundRecord):
            writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def _start(self, record: Measured) -> Any:
        """Return a writer of an event file that hides later points of the files before it.

        A round's evaluation comes last. A run that is resumed between the two must not hide what
        the round wrote before.
        """
        # Names of event files have seconds in them; a count tells apart those of the same second.
        n_files = len(list(self._folder.glob("*")))
        first = record.round + isinstance(record, EvaluationRecord)
        writer = self._package.SummaryWriter(
            str(self._folder),
            purge_step=first if n_files else None,
            filename_suffix=f".{n_files}",
            flush_secs=10,
        )
        if not n_files:
            writer.add_text("config", f"```toml\n{self._config_text}\n```")
        return writer
