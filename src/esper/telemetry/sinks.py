"""Experiment trackers, and sinks that send a run's records to them besides its own database.

A tracker takes metrics at a step. A sink gets every record of a run and sends the metrics in it to
a tracker, with the round as the step. Tracker packages are optional and imported when a tracker is
created.
"""

from __future__ import annotations

import csv
import importlib
import io
import json
import os
import tomllib
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from esper.errors import ConfigError, StorageError, did_you_mean, message_of
from esper.storage.files import make_folder, read_file, storage_errors, write_atomic
from esper.telemetry.metrics import is_measured, metrics_of
from esper.telemetry.records import EvaluationRecord, Record

PROJECT = "esper"
"""The project that runs belong to at trackers."""


class Tracker(Protocol):
    """A receiver of metrics."""

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics at a step; steps never decrease."""
        ...

    def close(self) -> None:
        """Send what is left. No metrics follow."""
        ...


class Sink(Protocol):
    """A receiver of every record of a run, as it is written."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """Send what is left. No record follows."""
        ...


def require_tracker(name: str) -> None:
    """Raise ConfigError if there is no tracker of a name."""
    if name not in _TRACKERS:
        raise ConfigError(
            f"the tracker is {name!r}; it must be one of {', '.join(_TRACKERS)}."
            f"{did_you_mean(name, _TRACKERS)}"
        )


def make_tracker(
    name: str, folder: Path, settings: Mapping[str, Any], *, first_step: int | None = None
) -> Tracker:
    """Create the tracker of a name, for training that starts or resumes.

    Args:
        name: ``tensorboard``, ``wandb`` or ``csv``.
        folder: The run's folder; its name is the name of the run.
        settings: What to show as the run's configuration, as plain values.
        first_step: The first step that will be logged. Up to 1, training starts over, and the
            folder's earlier run is not continued. None: that of the first metrics.

    Raises:
        ConfigError: If the name is unknown, or its package is not installed.
        StorageError: If the folder cannot be written.
    """
    require_tracker(name)
    return _TRACKERS[name](Path(folder), settings, first_step)


def has_run(name: str, folder: str | Path) -> bool:
    """Return whether a folder holds what the tracker of a name wrote for a run."""
    place = Path(folder) / _TRACKERS[name].place
    return any(place.iterdir()) if place.is_dir() else place.exists()


class TrackerSink:
    """Sends the metrics of records to a tracker."""

    def __init__(self, tracker: TensorBoardTracker | WandbTracker | CsvTracker) -> None:
        self._tracker = tracker

    def write(self, record: Record) -> None:
        """Send a record's metrics at its round."""
        if not is_measured(record):
            return
        if self._tracker.first_step is None:
            # A round's evaluation follows its other records. A run that is resumed between them
            # must not hide those.
            self._tracker.first_step = record.round + isinstance(record, EvaluationRecord)
        self._tracker.log(metrics_of(record), record.round)

    def watch_step(self, step: int) -> None:
        """Ignore a step, which has no metrics."""

    def close(self) -> None:
        """Send what is left."""
        self._tracker.close()


def make_sink(name: str, run_dir: Path, config_text: str) -> Sink:
    """Create the sink that sends a run's records to the tracker of a name.

    Args:
        name: As for :func:`make_tracker`.
        run_dir: The run folder, which exists.
        config_text: The run's configuration, as TOML.

    Raises:
        ConfigError: If the name is unknown, or its package is not installed.
    """
    require_tracker(name)
    return TrackerSink(_TRACKERS[name](run_dir, tomllib.loads(config_text), None))


class TensorBoardTracker:
    """Writes event files to the folder ``tensorboard`` of the run.

    Resumed training hides the points that it is about to write again.
    """

    place = "tensorboard"

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        self._package = _import_tracker("tensorboardX", "tensorboard")
        self._folder = folder / self.place
        self._settings = settings
        self._writer: Any = None
        self.first_step = first_step

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write metrics at a step."""
        if self._writer is None:
            self._writer = self._start(step if self.first_step is None else self.first_step)
        for name, value in metrics.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def _start(self, first_step: int) -> Any:
        """Return the writer of an event file that hides later points of earlier files."""
        # Names of event files contain the second; a count keeps two of the same second apart.
        n_files = len(list(self._folder.glob("*")))
        writer = self._package.SummaryWriter(
            str(self._folder),
            purge_step=first_step if n_files else None,
            filename_suffix=f".{n_files}",
            flush_secs=10,
        )
        if not n_files:
            text = json.dumps(self._settings, indent=2, default=str)
            writer.add_text("config", f"```json\n{text}\n```")
        return writer


class WandbTracker:
    """Sends metrics to Weights & Biases, online or offline as its environment variables say.

    Resumed training continues the same W&B run, which ignores points of past steps: repeated steps
    are not duplicated.
    """

    place = "wandb-id"

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        wandb = _import_tracker("wandb", "wandb")
        self.first_step = first_step
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=_run_id(folder / self.place, first_step),
            resume="allow",
            dir=str(folder),
            config=dict(settings),
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics at a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class CsvTracker:
    """Writes ``progress.csv`` in the run's folder: a row for each step, a column for each metric.

    Resumed training removes the rows that it is about to write again.
    """

    place = "progress.csv"

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        self._path = folder / self.place
        self.first_step = first_step
        self._columns: list[str] = []
        self._rows: list[dict[str, str]] = []

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Write a row; metrics of a step that has one already are added to it."""
        row = {"step": str(step), **{name: repr(float(v)) for name, v in metrics.items()}}
        with storage_errors(self._path):
            if not self._columns:
                self._rows = self._earlier_rows(step)
            is_same_step = bool(self._rows) and self._rows[-1]["step"] == row["step"]
            if is_same_step:
                row = {**self._rows.pop(), **row}
            self._rows.append(row)
            if is_same_step or not row.keys() <= set(self._columns):
                self._write_all()
                return
            with self._path.open("a", newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._columns).writerow(row)

    def close(self) -> None:
        """Do nothing: every row is written already."""

    def _earlier_rows(self, step: int) -> list[dict[str, str]]:
        """Return the rows of the run that is resumed."""
        first = step if self.first_step is None else self.first_step
        if first <= 1 or not self._path.exists():
            return []
        try:
            lines = io.StringIO(read_file(self._path, max_bytes=None).decode(), newline="")
            # A process that was killed may leave part of a row.
            whole = [row for row in csv.DictReader(lines) if None not in row.values()]
        except (ValueError, csv.Error) as error:
            raise StorageError(
                f"{self._path} is damaged: {message_of(error)}; move it away."
            ) from error
        rows = [{name: value for name, value in row.items() if value} for row in whole]
        return [row for row in rows if row["step"].isdigit() and int(row["step"]) < first]

    def _write_all(self) -> None:
        self._columns = list(dict.fromkeys(name for row in self._rows for name in row))
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, self._columns)
        writer.writeheader()
        writer.writerows(self._rows)
        make_folder(self._path.parent)
        write_atomic(self._path, text.getvalue())


_TRACKERS: dict[str, type[TensorBoardTracker] | type[WandbTracker] | type[CsvTracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "csv": CsvTracker,
}


def _import_tracker(package: str, tracker: str) -> Any:
    """Import an optional package, or raise ConfigError with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"the tracker {tracker!r} cannot be used, because {error.name} is not installed; "
            f'run: pip install "esper-lite[{tracker}]"'
        ) from error


def _run_id(path: Path, first_step: int | None) -> str:
    """Return the run's ID at a tracker, which stays the same when it resumes or moves."""
    starts_anew = first_step is not None and first_step <= 1
    with storage_errors(path):
        make_folder(path.parent)
        if starts_anew or not path.exists():
            write_atomic(path, uuid.uuid4().hex[:12])
        return read_file(path).decode("ascii")
