"""Sinks: experiment trackers that receive a run's metrics besides its own database.

A sink gets every record and sends the metrics in it, with the round as the step. Tracker packages
are optional and imported when a sink is created.
"""

from __future__ import annotations

import importlib
import os
import sys
import tomllib
import uuid
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any, Protocol

from esper.errors import ConfigError, StorageError, did_you_mean
from esper.telemetry.metrics import Measured, is_measured, metrics_of
from esper.telemetry.records import EvaluationRecord, Record, RoundRecord

ID_FILE = "tracker-id"
"""The file in a run folder that holds the run's ID at trackers."""

PROJECT = "esper"
"""The project that runs belong to at trackers."""


class Sink(Protocol):
    """A receiver of every record of a run, as it is written."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """Send what is left. No record follows."""
        ...


def make_sink(name: str, run_dir: Path, config_text: str) -> Sink:
    """Create the sink of a name, for a run that starts or resumes.

    Args:
        name: ``tensorboard``, ``wandb`` or ``trackio``.
        run_dir: The run folder, which exists.
        config_text: The run's configuration, as TOML.

    Raises:
        ConfigError: If the name is unknown, or its package is not installed.
    """
    if name not in _SINKS:
        raise ConfigError(
            f"telemetry.sinks contains {name!r}; it must be one of {', '.join(_SINKS)}."
            f"{did_you_mean(name, _SINKS)}"
        )
    return _SINKS[name](Path(run_dir), config_text)


class TensorBoardSink:
    """Writes event files to the folder ``tensorboard`` of the run.

    A resumed run hides the points that it is about to write again.
    """

    def __init__(self, run_dir: Path, config_text: str) -> None:
        self._package = _import_tracker("tensorboardX", "tensorboard")
        self._folder = run_dir / "tensorboard"
        self._config_text = config_text
        self._writer: Any = None

    def write(self, record: Record) -> None:
        """Write a record's metrics at its round."""
        if not is_measured(record):
            return
        if self._writer is None:
            self._writer = self._start(record)
        for name, value in metrics_of(record).items():
            self._writer.add_scalar(name, value, record.round)
        if isinstance(record, RoundRecord):
            self._writer.flush()

    def close(self) -> None:
        """Write what is left."""
        if self._writer is not None:
            self._writer.close()

    def _start(self, record: Measured) -> Any:
        """Return the writer of an event file that hides later points of earlier files.

        A round's evaluation follows its other records. A run that is resumed between them must not
        hide those.
        """
        # Names of event files contain the second; a count keeps two of the same second apart.
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


class WandbSink:
    """Sends metrics to Weights & Biases, online or offline as its environment variables say.

    A resumed run continues the same W&B run, which ignores points of past steps: repeated rounds
    are not duplicated.
    """

    def __init__(self, run_dir: Path, config_text: str) -> None:
        wandb = _import_tracker("wandb", "wandb")
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=run_dir.name,
            id=_tracker_id(run_dir),
            resume="allow",
            dir=str(run_dir),
            config=tomllib.loads(config_text),
        )

    def write(self, record: Record) -> None:
        """Send a record's metrics at its round."""
        if is_measured(record):
            self._run.log(metrics_of(record), step=record.round)

    def close(self) -> None:
        """Send what is left."""
        self._run.finish()


class TrackioSink:
    """Sends metrics to Trackio, which stores them locally unless configured otherwise.

    A resumed run continues the same Trackio run. Trackio cannot delete points: repeated rounds
    appear twice, with the same values.
    """

    def __init__(self, run_dir: Path, config_text: str) -> None:
        self._trackio = _import_tracker("trackio", "trackio")
        # Trackio prints to standard output, which is reserved for the run's lines or JSON.
        with redirect_stdout(sys.stderr):
            self._run = self._trackio.init(
                project=PROJECT,
                name=f"{run_dir.name}-{_tracker_id(run_dir)}",
                resume="allow",
                config=tomllib.loads(config_text),
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


_SINKS: dict[str, type[TensorBoardSink] | type[WandbSink] | type[TrackioSink]] = {
    "tensorboard": TensorBoardSink,
    "wandb": WandbSink,
    "trackio": TrackioSink,
}


def _import_tracker(package: str, sink: str) -> Any:
    """Import an optional package, or raise ConfigError with the command that installs it."""
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"telemetry.sinks contains {sink!r}, but {error.name} is not installed; "
            f'run: pip install "esper-lite[{sink}]"'
        ) from error


def _tracker_id(run_dir: Path) -> str:
    """Return the run's ID at trackers, which stays the same when it resumes or moves."""
    path = run_dir / ID_FILE
    try:
        if not path.exists():
            path.write_text(uuid.uuid4().hex[:12], encoding="ascii")
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({os.strerror(error.errno or 0)}); free disk space or make "
            "the folder writable."
        ) from error
