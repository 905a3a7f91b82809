"""What a sink is, and what sinks of trackers have in common."""

from __future__ import annotations

import importlib
import os
import tomllib
import uuid
from pathlib import Path
from typing import Any, Protocol

from esper.errors import ConfigError, StorageError
from esper.telemetry.records import Record

ID_FILE = "tracker-id"
"""Where a run folder keeps the name under which trackers know the run."""


class Sink(Protocol):
    """Something that gets every record of a run, as it is written."""

    def write(self, record: Record) -> None:
        """Take one record."""
        ...

    def close(self) -> None:
        """Send what is left; nothing comes after."""
        ...


def import_tracker(package: str, sink: str) -> Any:
    """Return an optional package.

    Raises:
        ConfigError: If it is not installed, with the command that installs it.
    """
    try:
        return importlib.import_module(package)
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"telemetry.sinks names {sink!r} and {error.name} is not installed; "
            f'run: pip install "esper-lite[{sink}]"'
        ) from error


def tracker_id(run_dir: Path) -> str:
    """Return what a run is called by trackers: the same whenever it is resumed, wherever it is."""
    path = run_dir / ID_FILE
    try:
        if not path.exists():
            path.write_text(uuid.uuid4().hex[:12], encoding="ascii")
        return path.read_text(encoding="ascii")
    except OSError as error:
        raise StorageError(
            f"{path} cannot be written ({os.strerror(error.errno or 0)}); free space on the disk "
            "or make the folder writable."
        ) from error


def settings_of(config_text: str) -> dict[str, Any]:
    """Return a configuration as trackers show it: settings by name, in sections."""
    return tomllib.loads(config_text)
