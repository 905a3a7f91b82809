"""The folder of a run: what is in it, whose it is, and who works on it now.

config.toml         the settings that decided the run
checkpoints/        states that it goes on from
telemetry.sqlite    what happened
summary.json        what it came to, once it is done
lock                held by the process that works on it
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from esper.config.run import RunConfig
from esper.config.toml import read_toml_file, write_toml
from esper.errors import RunError, StorageError, did_you_mean
from esper.invocation import program
from esper.storage.files import write_atomic

LOCK_TRIES = 5
"""How often a lock is tried for before somebody is taken to work on the run."""

RUNS_VARIABLE = "ESPER_RUNS"
"""The environment variable that says where runs are kept."""


def runs_folder() -> Path:
    """Return where runs are kept that have no place of their own: ``runs``, or ESPER_RUNS."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs")


class RunFolder:
    """Paths of one run, and what can be done with them before anything is loaded."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"
        self.telemetry_file = self.path / "telemetry.sqlite"
        self.summary_file = self.path / "summary.json"
        self.lock_file = self.path / "lock"
        self._was_made = False

    @property
    def name(self) -> str:
        """What the run is called."""
        return self.path.resolve().name

    @property
    def holds_run(self) -> bool:
        """Whether there is a run in it."""
        return self.config_file.is_file()

    @classmethod
    def create(cls, path: str | os.PathLike[str] | None, config: RunConfig) -> RunFolder:
        """Make the folder of a run that begins, and write its settings.

        Raises:
            RunError: If there is a run in it already, or no folder is named.
            StorageError: If it cannot be made.
        """
        if path is not None and not os.fspath(path):
            raise RunError("the folder of a run is named ''; name one, or none at all.")
        folder = cls(_unused_path(config) if path is None else path)
        folder.require_unused()
        folder._was_made = not folder.path.exists()
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.config_file, write_toml(config))
        except OSError as error:
            raise StorageError(
                f"{folder.path} cannot be written: {error.strerror or error}; "
                "choose another folder with --run-dir."
            ) from error
        return folder

    def require_unused(self) -> None:
        """Refuse a folder that a run cannot begin in.

        Raises:
            RunError: If there is a run in it already, or what is left of one.
        """
        if self.holds_run:
            raise RunError(
                f"{self.path} holds a run already; go on with it ({program()} resume "
                f"{shell_word(self.path)}) or choose another folder."
            )
        for left in (self.telemetry_file, self.checkpoints):
            if left.is_file() or (left.is_dir() and any(left.iterdir())):
                raise RunError(
                    f"{self.path} has the {left.name} of a run and no {self.config_file.name}; "
                    "choose another folder."
                )

    def forget(self) -> None:
        """Remove what was made for a run that failed before it saved anything, and nothing else.

        The folder itself goes if it was made for the run and is empty then. A run that has a
        checkpoint, or that another process works on, is left as it is.
        """
        if self.checkpoints.is_dir() and any(self.checkpoints.iterdir()):
            return
        with suppress(RunError, StorageError, OSError), self.locked():
            records = self.telemetry_file
            beside = [records.with_name(f"{records.name}{end}") for end in ("-wal", "-shm")]
            for file in (self.config_file, records, *beside, self.lock_file):
                file.unlink(missing_ok=True)
            if self.checkpoints.is_dir():
                self.checkpoints.rmdir()
            if self._was_made:
                self.path.rmdir()

    @classmethod
    def find(cls, run: str | os.PathLike[str]) -> RunFolder:
        """Return the folder of a run that is named by its path, or by its name in the runs folder.

        Raises:
            RunError: If there is no such run.
        """
        place = Path(run)
        for folder in (cls(place), cls(runs_folder() / place)):
            if folder.holds_run:
                return folder
        known = [found.name for found in list_folders()]
        hint = did_you_mean(place.name, known) or " See esper runs for those there are."
        raise RunError(f"there is no run {str(run)!r}.{hint}")

    def read_config(self) -> RunConfig:
        """Return the settings that decided the run."""
        return read_toml_file(self.config_file)

    @property
    def is_in_use(self) -> bool:
        """Whether a process works on the run."""
        try:
            with open(self.lock_file, "rb") as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            return False
        except BlockingIOError:
            return True
        except OSError:
            return False
        return False

    @contextmanager
    def locked(self) -> Generator[None]:
        """Keep other processes from working on the run; a process that dies lets go.

        Raises:
            RunError: If another process works on it.
            StorageError: If the folder cannot be written.
        """
        try:
            lock = open(self.lock_file, "a+")  # noqa: SIM115 - closed below
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error.strerror or error}; "
                "a run goes on where it is."
            ) from error
        with lock as file:
            try:
                _take_lock(file)
            except BlockingIOError as error:
                file.seek(0)
                process = file.read().strip() or "unknown"
                raise RunError(
                    f"{self.path} is being worked on by process {process}; "
                    "wait for it, or stop it first."
                ) from error
            with suppress(OSError):  # the lock counts; who holds it is a courtesy
                file.seek(0)
                file.truncate()
                file.write(str(os.getpid()))
                file.flush()
            yield


def _take_lock(file: IO[str]) -> None:
    """Lock a file for this process alone; whoever only looks holds it for a moment."""
    for _ in range(LOCK_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def shell_word(path: str | os.PathLike[str]) -> str:
    """Return a path as it can be pasted into a shell, where it is no option either."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def list_folders(parent: str | os.PathLike[str] | None = None) -> list[RunFolder]:
    """Return the runs in a folder, the oldest first."""
    place = runs_folder() if parent is None else Path(parent)
    found: list[RunFolder] = []
    with suppress(FileNotFoundError, NotADirectoryError):
        found = [RunFolder(path) for path in place.iterdir()]
    found = [folder for folder in found if folder.holds_run]
    return sorted(found, key=lambda folder: (folder.config_file.stat().st_mtime, folder.name))


def _unused_path(config: RunConfig) -> Path:
    """Return a path in the runs folder that says what and when, and that is not taken."""
    task = re.sub(r"[^A-Za-z0-9_-]+", "-", config.task).strip("-") or "run"
    name = f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = runs_folder() / name, 1
    while path.exists():
        number += 1
        path = runs_folder() / f"{name}-{number}"
    return path
