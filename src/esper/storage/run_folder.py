"""The folder of a run and its lock.

config.toml         the settings of the run
checkpoints/        states to resume from
telemetry.sqlite    what happened
summary.json        the final comparison, once the run is done
activity.json       the progress of lessons or a trial, while it lasts
lock                held by the process that is training the run
"""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import stat
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime
from pathlib import Path
from typing import IO

from esper.config.run import RunConfig
from esper.config.schema import shown
from esper.config.toml import write_toml
from esper.errors import RunError, StorageError, did_you_mean
from esper.invocation import program
from esper.storage.files import read_toml_file, remove_stale, what_else, write_atomic

LOCK_TRIES = 5
"""Attempts to take a lock before the run counts as in use."""

ACTIVITY_FILE = "activity.json"
"""What a run is doing while it makes no records."""

OWN_NAMES = (
    "config.toml",
    "checkpoints",
    "telemetry.sqlite",
    "telemetry.sqlite-wal",
    "telemetry.sqlite-shm",
    "telemetry.sqlite-journal",
    "summary.json",
    ACTIVITY_FILE,
    "lock",
    "tensorboard",
    "wandb",
    "wandb-id",
)
"""Everything that training writes in a run folder."""

LONGEST_NAME = 255

RUNS_VARIABLE = "ESPER_RUNS"
"""The environment variable that names the folder of all runs."""


def runs_folder() -> Path:
    """Return the default folder for runs: ``ESPER_RUNS``, or ``runs``."""
    return Path(os.environ.get(RUNS_VARIABLE) or "runs")


class RunFolder:
    """The paths of one run."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.config_file = self.path / "config.toml"
        self.checkpoints = self.path / "checkpoints"
        self.telemetry_file = self.path / "telemetry.sqlite"
        self.summary_file = self.path / "summary.json"
        self.activity_file = self.path / ACTIVITY_FILE
        self.lock_file = self.path / "lock"
        self._was_made = False

    @property
    def name(self) -> str:
        """The name of the run."""
        return self.path.resolve().name

    @property
    def holds_run(self) -> bool:
        """Whether the folder holds a run."""
        return os.path.isfile(self.config_file)  # unlike Path.is_file, never raises

    @property
    def is_closed(self) -> bool:
        """Whether this user may not look into the folder, so that it may hold a run."""
        try:
            self.config_file.stat()
        except PermissionError:
            return True
        except (OSError, ValueError):
            return False
        return False

    @classmethod
    def create(
        cls, path: str | os.PathLike[str] | None, config: RunConfig, settings: str = ""
    ) -> RunFolder:
        """Create the folder of a new run and write its settings, by default without sources.

        Raises:
            RunError: If the folder holds a run already, or its name is empty.
            StorageError: If it cannot be created.
        """
        if path is not None and not os.fspath(path):
            raise RunError("the run folder is ''; give a path, or None for a new one.")
        if path is None:
            _remove_abandoned(runs_folder())
        folder = cls(new_run_path(config) if path is None else path)
        folder.require_unused()
        folder.require_own_files()
        folder._was_made = not os.path.lexists(folder.path)
        try:
            folder.path.mkdir(parents=True, exist_ok=True)
            write_atomic(folder.config_file, settings or write_toml(config))
        except OSError as error:
            raise StorageError(
                f"{folder.path} cannot be written: {error.strerror or error}; "
                "choose another folder with --run-dir."
            ) from error
        return folder

    def require_unused(self) -> None:
        """Reject a folder that a new run cannot use.

        Raises:
            RunError: If it holds a run, or the remains of one.
        """
        if self.holds_run:
            raise RunError(
                f"{self.path} holds a run already; choose another folder or, if it is not done, "
                f"resume it: {program()} resume {shell_word(self.path)}"
            )
        for remains in (self.telemetry_file, self.checkpoints):
            if os.path.isfile(remains) or _has_entries(remains):
                raise RunError(
                    f"{self.path} has the {remains.name} of a run but no {self.config_file.name}; "
                    "choose another folder."
                )

    def require_own_files(self) -> None:
        """Reject a folder in which a name that training writes leads to another place.

        Raises:
            RunError: If there is one.
        """
        for name in OWN_NAMES:
            require_own(self.path / name)

    def discard(self) -> None:
        """Remove the files of a run that failed before its first checkpoint, and nothing else.

        The folder is removed if it was created for the run and is now empty. A run with a
        checkpoint, or in use by another process, is left unchanged.
        """
        if _has_entries(self.checkpoints):
            return
        with suppress(RunError, StorageError, OSError), self.locked():
            database = self.telemetry_file
            logs = [database.with_name(f"{database.name}{end}") for end in ("-wal", "-shm")]
            for file in (self.config_file, database, *logs, self.lock_file):
                file.unlink(missing_ok=True)
            if self.checkpoints.is_dir():
                self.checkpoints.rmdir()
            if self._was_made:
                self.path.rmdir()

    @classmethod
    def find(cls, run: str | os.PathLike[str]) -> RunFolder:
        """Return the folder of a run, given its path or its name in the runs folder.

        Raises:
            RunError: If there is no such run.
        """
        if not isinstance(run, (str, os.PathLike)):
            raise RunError(f"run is {run!r}; it must be a run's folder or name.")
        path = Path(run)
        for folder in (cls(path), cls(runs_folder() / path)):
            if folder.holds_run or folder.is_closed:
                return folder
        for folder in (path, runs_folder() / path):
            if holds_runs(folder):
                raise RunError(
                    f"{folder} is not a run but a folder of runs, as a study makes; list them with "
                    f"{program()} runs {shell_word(folder)}. A study's study.html shows all."
                )
        known = [found.name for found in list_folders()]
        hint = did_you_mean(path.name[:LONGEST_NAME], known) or " List all runs with: esper runs"
        raise RunError(f"there is no run {shown(str(run))}.{hint}")

    def read_config(self) -> RunConfig:
        """Return the settings of the run."""
        return read_toml_file(self.config_file)

    @property
    def is_in_use(self) -> bool:
        """Whether a process is training the run."""
        try:
            with os.fdopen(self._open_lock(os.O_RDONLY), "rb") as file:
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
        """Lock the run against other processes; a process that dies releases its lock.

        Raises:
            RunError: If another process is training the run, or a link is in the place of a file.
            StorageError: If the folder cannot be written.
        """
        self.require_own_files()
        try:
            lock = os.fdopen(self._open_lock(os.O_RDWR | os.O_CREAT), "r+")
        except OSError as error:
            raise StorageError(
                f"{self.path} cannot be written: {error.strerror or error}; "
                "make the folder writable."
            ) from error
        with lock as file:
            try:
                _take_lock(file)
            except BlockingIOError as error:
                file.seek(0)
                process = file.read().strip() or "unknown"
                raise RunError(
                    f"{self.path} is in use by process {process}; wait for it, or stop it first."
                ) from error
            with suppress(OSError):  # only the lock matters; the process id is for messages
                file.seek(0)
                file.truncate()
                file.write(str(os.getpid()))
                file.flush()
            yield

    def _open_lock(self, flags: int) -> int:
        """Open the lock without following a link or waiting for a pipe."""
        handle = os.open(self.lock_file, flags | os.O_NOFOLLOW | os.O_NONBLOCK, 0o666)
        status = os.fstat(handle)
        if stat.S_ISREG(status.st_mode) and status.st_nlink == 1:
            return handle
        os.close(handle)
        raise OSError(f"{self.lock_file.name} is not a file of its own")


def _take_lock(file: IO[str]) -> None:
    """Lock a file exclusively; retry, because :attr:`RunFolder.is_in_use` locks it briefly."""
    for _ in range(LOCK_TRIES - 1):
        with suppress(BlockingIOError):
            return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        time.sleep(0.05)
    return fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def require_own(path: Path) -> Path:
    """Return a path that can be written without changing another place.

    Raises:
        RunError: If it is a link, or a pipe or device.
    """
    if (kind := what_else(path)) is not None:
        raise RunError(
            f"{path} is {kind}, so writing to it would change another place; replace it by the "
            "file or folder itself."
        )
    return path


def shell_word(path: str | os.PathLike[str]) -> str:
    """Return a path quoted for a shell, and never mistaken for an option."""
    text = os.fspath(path)
    return shlex.quote(f"./{text}" if text.startswith("-") else text)


def list_folders(parent: str | os.PathLike[str] | None = None) -> list[RunFolder]:
    """Return the runs in a folder, oldest first; folders that may not be read come before them.

    Raises:
        RunError: If the folder itself may not be read.
    """
    if parent is not None and not isinstance(parent, (str, os.PathLike)):
        raise RunError(f"the folder of runs is {parent!r}; it must be a path.")
    root = runs_folder() if parent is None else Path(parent)
    found: list[RunFolder] = []
    try:
        found = [RunFolder(path) for path in root.iterdir()]
    except PermissionError as error:
        raise RunError(f"cannot read the folder {root}: {error.strerror}.") from error
    except (OSError, ValueError):
        pass  # there is no such folder
    found = [folder for folder in found if folder.holds_run or folder.is_closed]
    return sorted(found, key=lambda folder: (_changed_at(folder.config_file), folder.name))


def holds_runs(path: Path) -> bool:
    """Return whether a folder that is not a run holds runs, as that of a study does."""
    if RunFolder(path).holds_run:
        return False
    try:
        return any(RunFolder(inner).holds_run for inner in path.iterdir())
    except (OSError, ValueError):
        return False


def _changed_at(path: Path) -> float:
    """Return when a file was changed; 0 if it may not be read or was removed meanwhile."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _has_entries(path: Path) -> bool:
    """Return whether a path is a folder that is not empty."""
    try:
        return any(path.iterdir())
    except OSError:
        return False


def _remove_abandoned(root: Path) -> None:
    """Remove folders of runs whose process was killed while it wrote their settings."""
    with suppress(OSError):
        for path in list(root.iterdir()):
            folder = RunFolder(path)
            if path.is_symlink() or not path.is_dir() or folder.holds_run:
                continue
            if remove_stale(folder.config_file):
                with suppress(OSError):  # it holds something else
                    path.rmdir()


def new_run_path(config: RunConfig) -> Path:
    """Return an unused path in the runs folder, named after the task and the time."""
    task = re.sub(r"[^A-Za-z0-9_-]+", "-", config.task).strip("-") or "run"
    name = f"{task}-{datetime.now():%Y%m%d-%H%M%S}"
    path, number = runs_folder() / name, 1
    while os.path.lexists(path):
        number += 1
        path = runs_folder() / f"{name}-{number}"
    return path
