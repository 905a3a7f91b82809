"""Experiment trackers, and sinks that send a run's records to them besides its own database.

A tracker takes metrics at a step. A sink gets every record of a run and sends the metrics in it to
a tracker, with the round as the step. Tracker packages are optional and imported when a tracker is
created.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import tomllib
import uuid
from collections.abc import Mapping
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from esper.errors import ConfigError, StorageError, did_you_mean
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


def make_tracker(
    name: str, folder: Path, settings: Mapping[str, Any], *, first_step: int | None = None
) -> Tracker:
    """Create the tracker of a name, for training that starts or resumes.

    Args:
        name: ``tensorboard``, ``wandb`` or ``trackio``.
        folder: The run's folder; its name is the name of the run.
        settings: What to show as the run's configuration, as plain values.
        first_step: The first step that will be logged. Up to 1, training starts anew, and the
            folder's earlier run is not continued. None: that of the first metrics.

    Raises:
        ConfigError: If the name is unknown, or its package is not installed.
        StorageError: If the folder cannot be written.
    """
    if name not in _TRACKERS:
        raise ConfigError(
            f"the tracker is {name!r}; it must be one of {', '.join(_TRACKERS)}."
            f"{did_you_mean(name, _TRACKERS)}"
        )
    return _TRACKERS[name](Path(folder), settings, first_step)


def make_sink(name: str, run_dir: Path, config_text: str) -> Sink:
    """Create the sink that sends a run's records to the tracker of a name.

    Args:
        name: ``tensorboard``, ``wandb`` or ``trackio``.
        run_dir: The run folder, which exists.
        config_text: The run's configuration, as TOML.

    Raises:
        ConfigError: If the name is unknown, or its package is not installed.
    """
    return TrackerSink(name, Path(run_dir), config_text)


class TrackerSink:
    """Sends the metrics of records to a tracker."""

    def __init__(self, name: str, run_dir: Path, config_text: str) -> None:
        if name not in _TRACKERS:
            raise ConfigError(
                f"telemetry.sinks contains {name!r}; it must be one of {', '.join(_TRACKERS)}."
                f"{did_you_mean(name, _TRACKERS)}"
            )
        self._tracker = _TRACKERS[name](run_dir, tomllib.loads(config_text), None)

    def write(self, record: Record) -> None:
        """Send a record's metrics at its round."""
        if not is_measured(record):
            return
        if self._tracker.first_step is None:
            # A round's evaluation follows its other records. A run that is resumed between them
            # must not hide those.
            self._tracker.first_step = record.round + isinstance(record, EvaluationRecord)
        self._tracker.log(metrics_of(record), record.round)

    def close(self) -> None:
        """Send what is left."""
        self._tracker.close()


class TensorBoardTracker:
    """Writes event files to the folder ``tensorboard`` of the run.

    Resumed training hides the points that it is about to write again.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        self._package = _import_tracker("tensorboardX", "tensorboard")
        self._folder = folder / "tensorboard"
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

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        wandb = _import_tracker("wandb", "wandb")
        self.first_step = first_step
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.name,
            id=_run_id(folder / "wandb-id", first_step),
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


class TrackioTracker:
    """Sends metrics to Trackio, which stores them locally unless configured otherwise.

    Resumed training continues the same Trackio run. Trackio cannot delete points: repeated steps
    appear twice, with the same values.
    """

    def __init__(self, folder: Path, settings: Mapping[str, Any], first_step: int | None) -> None:
        self._trackio = _import_tracker("trackio", "trackio")
        self.first_step = first_step
        # Trackio prints to standard output, which is reserved for the run's lines or JSON.
        with redirect_stdout(sys.stderr):
            self._run = self._trackio.init(
                project=PROJECT,
                name=f"{folder.name}-{_run_id(folder / 'trackio-id', first_step)}",
                resume="allow",
                config=dict(settings),
                embed=False,
                auto_log_gpu=False,
                auto_log_cpu=False,
            )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Send metrics at a step."""
        self._run.log(dict(metrics), step=step)

    def close(self) -> None:
        """Send what is left."""
        with redirect_stdout(sys.stderr):
            self._trackio.finish()


_TRACKERS: dict[str, type[TensorBoardTracker] | type[WandbTracker] | type[TrackioTracker]] = {
    "tensorboard": TensorBoardTracker,
    "wandb": WandbTracker,
    "trackio": TrackioTracker,
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
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        if starts_anew or not path.exists():
            path.write_text(uuid.uuid4().hex[:12], encoding="ascii")
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({os.strerror(error.errno or 0)}); free disk space or make "
            "the folder writable."
        ) from error
