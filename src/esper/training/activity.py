"""What a run is doing while it makes no records, in a small file that the dashboard reads."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path

from esper.storage.files import write_atomic
from esper.telemetry.records import Record
from esper.training.output import TrialProgress

WRITE_SECONDS = 1.0
"""Shortest time between two writes of the same trial's progress."""


class ActivityFile:
    """Keeps the progress of lessons and trials in a file, which exists only during them.

    A disk that cannot be written must not end a run, so errors are ignored.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._path, self._clock = path, clock
        self._written: tuple[str, str, float] | None = None
        self._remove()  # a killed process may have left it

    def write(self, record: Record) -> None:
        """Remove the file: a record ends the trial before it."""
        self._clear()

    def watch_step(self, step: int) -> None:
        """Remove the file: the trial is over when hosts take steps."""
        self._clear()

    def watch_trial(self, trial: TrialProgress) -> None:
        """Write the progress of a trial, unless that was done less than a second ago."""
        now = self._clock()
        if self._written is not None:
            purpose, arm, moment = self._written
            if (purpose, arm) == (trial.purpose, trial.arm) and now - moment < WRITE_SECONDS:
                return
        self._written = (trial.purpose, trial.arm, now)
        with suppress(OSError):
            write_atomic(self._path, json.dumps(asdict(trial)))

    def close(self) -> None:
        """Remove the file."""
        self._clear()

    def _clear(self) -> None:
        if self._written is not None:
            self._written = None
            self._remove()

    def _remove(self) -> None:
        with suppress(OSError):
            self._path.unlink(missing_ok=True)
