"""Finding and reading the runs that the dashboard shows."""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from esper.dashboard import views
from esper.dashboard.access import json_text
from esper.errors import EsperError, RunError, message_of
from esper.storage.files import MALFORMED, plain_reason
from esper.storage.run_folder import RunFolder
from esper.telemetry import RunTelemetry, open_run
from esper.telemetry.reader import reading_within

READ_FILES = (
    "config.toml",
    "telemetry.sqlite",
    "telemetry.sqlite-wal",
    "summary.json",
    "evaluation.json",
    views.ACTIVITY_FILE,
    views.NOTES_FILE,
)
"""The files read in a run's folder."""

SETTLING_SECONDS = 5.0
"""Age of a run's newest file after which its data is cached."""

ROW_SECONDS, VIEW_SECONDS = 2.0, 10.0
"""How long reading a run may take, for the list and for one view of it."""

SLOW_SECONDS, KEPT_FACTOR = 1.0, 10
"""For how many times as long as it took a row is kept, if that was longer than this."""

MAX_CACHED = 64
"""Cached responses."""

Value = TypeVar("Value")
Row = dict[str, Any]
"""A run in the list: name, state, dates and headline."""

_HEAD = ("state", "rounds_done", "position", "learns", "grows", "activity")
_Version = tuple[object, ...]


class RunReader:
    """Reads the runs in a folder, or the one run if the folder itself is a run.

    A requested name is looked up among the folders and never becomes part of a path. Symbolic links
    that lead out of the folder are not followed. Runs that are not in use are cached until a file
    changes: a hundred finished runs cost no more than checking their dates. No file stays open
    between calls. Thread-safe.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._real = Path(os.path.realpath(self.root))
        self._rows: dict[str, tuple[_Version | None, Row, float]] = {}
        self._cache: dict[tuple[str, object], tuple[_Version, Any]] = {}
        self._lock = threading.Lock()

    def folders(self) -> dict[str, RunFolder]:
        """Return the folders of runs by name, the oldest first."""
        if RunFolder(self.root).holds_run:
            return {shown_name(self._real.name): RunFolder(self.root)}
        found: list[tuple[float, str, RunFolder]] = []
        with suppress(OSError):
            for name in os.listdir(self.root):
                folder = RunFolder(self.root / name)
                stat = _stat(folder.config_file)
                if stat and folder.holds_run and self._is_inside(folder.path):
                    found.append((stat.st_mtime, shown_name(name), folder))
        return {name: folder for _, name, folder in sorted(found, key=lambda one: one[:2])}

    def rows(self) -> list[Row]:
        """Return a row for each run, the oldest first.

        One that took a second or more is kept for a while, so that a run that is slow to read
        leaves time for the others.
        """
        with self._lock:
            cached, self._rows = self._rows, {}
            for name, folder in self.folders().items():
                version, start = _version(folder), time.monotonic()
                known, row, until = cached.get(name, (None, None, 0.0))
                if row is None or ((version is None or version != known) and start >= until):
                    row = _row(name, folder)
                    taken, known = time.monotonic() - start, version
                    until = start + KEPT_FACTOR * taken if taken > SLOW_SECONDS else 0.0
                self._rows[name] = (known, row, until)
            return [row for _, row, _ in self._rows.values()]

    def heads(self) -> dict[str, Row]:
        """Return the state and progress of each run, by name."""
        return {row["id"]: {name: row[name] for name in _HEAD} for row in self.rows()}

    def detail(self, name: str) -> Row:
        """Return one run with its overview and comparison.

        Raises:
            RunError: If the run does not exist.
        """
        folder = self._folder(name)
        detail = _row(name, folder) | {"overview": None, "comparison": None}
        with suppress(RunError), _reading(name), open_run(folder.path) as telemetry:
            overview = views.overview(telemetry)
            json_text(overview)  # finds numbers that are not finite, which JSON lacks
            detail["overview"] = overview
        with suppress(RunError), _reading(name):
            detail["comparison"] = views.comparison_view(folder.path)
        return detail

    def notes(self, name: str, text: str | None = None) -> str | None:
        """Return the notes on a run, after replacing them by a text if one is given.

        Raises:
            ConfigError: If the text is too long, or the present notes cannot be shown in full.
            RunError: If the run does not exist or the file cannot be written.
        """
        folder = self._folder(name)
        if text is not None:
            try:
                views.write_notes(folder.path, text)
            except OSError as error:
                raise RunError(f"cannot write the notes: {message_of(error)}") from error
        return views.read_notes(folder.path)

    def view(self, name: str, key: object, make: Callable[[RunTelemetry], Value]) -> Value:
        """Return a view of a run's telemetry, cached until one of its files changes.

        Args:
            name: The run.
            key: Identifies the view and its arguments in the cache.
            make: Makes the view.

        Raises:
            RunError: If the run does not exist or cannot be read now.
        """
        folder = self._folder(name)
        version = _version(folder)  # before reading, so that a change meanwhile is noticed
        cached = self._cache.get((name, key))
        if cached is not None and cached[0] == version:
            return cached[1]
        with _reading(name), open_run(folder.path) as telemetry:
            made = make(telemetry)
        if version is not None:
            with self._lock:
                self._cache[name, key] = (version, made)
                while len(self._cache) > MAX_CACHED:
                    del self._cache[next(iter(self._cache))]
        return made

    def _folder(self, name: str) -> RunFolder:
        folder = self.folders().get(name)
        if folder is None:
            raise RunError("no such run.")
        return folder

    def _is_inside(self, path: Path) -> bool:
        """Return whether a run's folder and all files read in it are inside the root."""
        links = (path / name for name in READ_FILES if os.path.islink(path / name))
        real = (Path(os.path.realpath(one)) for one in (path, *links))
        return all(one.is_relative_to(self._real) for one in real)


def shown_name(name: str) -> str:
    """Return a folder's name with escapes for bytes that are not valid UTF-8."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


def _row(name: str, folder: RunFolder) -> Row:
    """Return a run's row, with a problem if it cannot be read."""
    from esper.training.run import Run  # imports NumPy, which is not needed before the first run

    config, *others = _stats(folder)
    unknown = ("problem", "activity", "returns", "fixed_gap", "score_gap")
    row: Row = dict.fromkeys(unknown) | views.NO_HEADLINE
    row |= {"id": name, "name": name, "state": "unreadable", "learns": True, "grows": True}
    row |= {"rounds_done": 0, "position": 0, "notes": views.read_notes(folder.path)}
    row |= {"created_at": _newest(config), "updated_at": _newest(config, *others)}
    try:
        with _reading(name, ROW_SECONDS):
            run = Run(folder)
            row |= {"task": run.config.task, "task_options": dict(run.config.task_options)}
            row |= {"rounds": run.config.rounds, "learns": not run.config.is_own_training}
            row |= {"grows": not run.config.is_ppo_training}
            if others[0]:  # the database
                with open_run(folder.path) as telemetry:
                    headline = views.headline(telemetry)
                    row |= {key: value for key, value in headline.items() if value is not None}
                    row["returns"] = views.held_out_returns(telemetry)
                    # The date of a file changes when the folder is copied.
                    row["created_at"] = views.started_at(telemetry) or row["created_at"]
                    json_text(headline)
            row |= views.final_gaps(folder.path)
            row["state"] = run.state
            if row["state"] == "running":
                row["activity"] = views.read_activity(folder.path)
    except RunError as error:
        row["problem"] = str(error)
    return row


@contextmanager
def _reading(name: str, seconds: float = VIEW_SECONDS) -> Generator[None]:
    """Read a run's folder in time, and turn any error into a one-line RunError."""
    try:
        with reading_within(seconds):
            yield
    except EsperError as error:
        raise RunError(message_of(error)) from error
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"cannot read {name} now: {message_of(error)}") from error
    except MALFORMED as error:  # the files of one run must not hide the others
        raise RunError(f"{name} is damaged: {plain_reason(error)}.") from error


def _version(folder: RunFolder) -> _Version | None:
    """Return a value that differs after any change of a run's files; None while they may change.

    Readers see a write some time after the file's date, so what was read of a file that has just
    changed may be outdated.
    """
    stats = _stats(folder)
    newest = max((stat.st_mtime for stat in stats if stat), default=0.0)
    if folder.is_in_use or time.time() - newest < SETTLING_SECONDS:
        return None
    return tuple((s.st_mtime_ns, s.st_size, s.st_ino) if s else None for s in stats)


def _stats(folder: RunFolder) -> list[os.stat_result | None]:
    """Return the stats of a run's files; None if empty, because readers create an empty log."""
    stats = [_stat(folder.path / name) for name in READ_FILES]
    return [stat if stat and stat.st_size > 0 else None for stat in stats]


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _newest(*stats: os.stat_result | None) -> str | None:
    """Return the date of the newest file, in ISO 8601; None without any."""
    times = [stat.st_mtime for stat in stats if stat]
    return (
        datetime.fromtimestamp(max(times), UTC).isoformat(timespec="milliseconds")
        if times
        else None
    )
