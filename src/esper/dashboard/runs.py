"""The runs that the dashboard shows, by the names under which the page may ask for them."""

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

from esper.errors import EsperError, RunError
from esper.reports import views
from esper.storage.run_folder import RunFolder
from esper.telemetry import RunTelemetry, open_run

READ_FILES = (
    "config.toml",
    "telemetry.sqlite",
    "telemetry.sqlite-wal",
    "summary.json",
    "evaluation.json",
)
"""What is read of a run's folder."""


class RunListing:
    """The runs in a folder, or the one run that the folder is.

    A name is looked up among those there are and never becomes part of a path, and a link that
    leads out of the folder is not followed.
    """

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(root).absolute()
        self._real = Path(os.path.realpath(self.root))

    def folders(self) -> dict[str, RunFolder]:
        """Return the folders of runs by name, the oldest first; one that vanishes is left out."""
        if RunFolder(self.root).holds_run:
            return {_shown(self._real.name): RunFolder(self.root)}
        found: list[tuple[float, str, RunFolder]] = []
        try:
            names = os.listdir(self.root)
        except OSError:
            return {}
        for name in names:
            folder = RunFolder(self.root / name)
            try:
                if folder.holds_run and self._is_inside(folder.path):
                    age = folder.config_file.stat().st_mtime
                    found.append((age, _shown(name), folder))
            except OSError:
                continue
        return {name: folder for _, name, folder in sorted(found, key=lambda one: one[:2])}

    def find(self, name: str) -> RunFolder | None:
        """Return the folder of a run; None if there is no such run."""
        return self.folders().get(name)

    def _is_inside(self, path: Path) -> bool:
        """Return whether a run's folder, and all that is read of it, is within the folder."""
        if not self._leads_inside(path):
            return False
        return all(
            self._leads_inside(path / name) for name in READ_FILES if os.path.islink(path / name)
        )

    def _leads_inside(self, path: Path) -> bool:
        return Path(os.path.realpath(path)).is_relative_to(self._real)


def _shown(name: str) -> str:
    """Return a folder's name as text; bytes that are none are written as escapes."""
    return name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")


Value = TypeVar("Value")
Row = dict[str, Any]
"""A run in the list: its name, state and dates, and its headline."""

SETTLING_SECONDS = 5.0
"""How old the newest file of a run must be before what is read of it is kept."""

MOST_KEPT = 64
"""Answers that are kept."""

_HEAD = ("state", "rounds_done", "position")
_Mark = tuple[object, ...]


class RunReader:
    """Reads the runs of a listing; every call opens what it reads and closes it again.

    What is read of a run that nobody works on is kept until one of its files changes, so that a
    hundred runs that are done cost no more than looking at their dates. Calls may come from several
    threads.
    """

    def __init__(self, listing: RunListing) -> None:
        self.listing = listing
        self._rows: dict[str, tuple[_Mark | None, Row]] = {}
        self._kept: dict[tuple[str, object], tuple[_Mark, Any]] = {}
        self._lock = threading.Lock()

    def rows(self) -> list[Row]:
        """Return a line for each run, the oldest first."""
        with self._lock:
            kept, self._rows = self._rows, {}
            for name, folder in self.listing.folders().items():
                mark = _mark(folder)
                before, row = kept.get(name, (None, None))
                if row is None or mark is None or mark != before:
                    row = _row(name, folder)
                self._rows[name] = (mark, row)
            return [row for _, row in self._rows.values()]

    def heads(self) -> dict[str, dict[str, Any]]:
        """Return what may change of each run, by its name."""
        return {row["id"]: {name: row[name] for name in _HEAD} for row in self.rows()}

    def detail(self, name: str) -> dict[str, Any]:
        """Return what one run is and how far it is.

        Raises:
            RunError: If there is no such run.
        """
        folder = self._folder(name)
        nothing: Row = {"overview": None, "comparison": None, "evaluations": []}
        answer = _row(name, folder) | nothing
        with suppress(RunError), _problems_named(name), open_run(folder.path) as telemetry:
            answer["overview"] = views.overview(telemetry)
            answer["evaluations"] = views.evaluations(telemetry)
        with suppress(RunError), _problems_named(name):
            answer["comparison"] = views.comparison_view(folder.path)
        return answer

    def view(self, name: str, key: object, make: Callable[[RunTelemetry], Value]) -> Value:
        """Return what a function makes of a run's telemetry, kept until one of its files changes.

        Args:
            name: The run.
            key: What the function and its arguments are known by.
            make: The function.

        Raises:
            RunError: If there is no such run, or it cannot be read now.
        """
        folder = self._folder(name)
        mark = _mark(folder)  # before reading: what changes meanwhile is read again
        kept = self._kept.get((name, key))
        if kept is not None and kept[0] == mark:
            return kept[1]
        with _problems_named(name), open_run(folder.path) as telemetry:
            made = make(telemetry)
        if mark is None:
            return made
        self._kept[name, key] = (mark, made)
        while len(self._kept) > MOST_KEPT:
            with suppress(KeyError, StopIteration, RuntimeError):  # another thread was faster
                del self._kept[next(iter(self._kept))]
        return made

    def _folder(self, name: str) -> RunFolder:
        folder = self.listing.find(name)
        if folder is None:
            raise RunError("there is no such run.")
        return folder


def _row(name: str, folder: RunFolder) -> Row:
    """Return a run's line; one that cannot be read says why."""
    from esper.training.run import Run  # brings numpy, which nothing needs before the first run

    row: Row = {"id": name, "name": name, "state": "unreadable", "problem": None}
    row |= {"created_at": _date(folder.config_file), "updated_at": _updated_at(folder)}
    row |= dict.fromkeys(views.Headline.__annotations__) | {"rounds_done": 0, "position": 0}
    try:
        with _problems_named(name):
            run = Run(folder)
            row |= {"task": run.config.task, "task_options": dict(run.config.task_options)}
            row |= {"rounds": run.config.rounds}
            if _has_telemetry(folder):
                with open_run(folder.path) as telemetry:
                    told = views.headline(telemetry)
                    row |= {key: value for key, value in told.items() if value is not None}
            row["state"] = run.state
    except RunError as error:
        row["problem"] = str(error)
    except (ValueError, KeyError, TypeError) as error:
        # Others in the list are to be seen whatever is in the files of this one.
        row["problem"] = f"{name} holds what is not understood: {error!r}"
    return row


def _has_telemetry(folder: RunFolder) -> bool:
    """Return whether the database is more than begun."""
    file = folder.telemetry_file
    return file.is_file() and file.stat().st_size > 0


@contextmanager
def _problems_named(name: str) -> Generator[None]:
    """Turn whatever a folder in any state may cause into an error in a line."""
    try:
        yield
    except EsperError as error:
        raise RunError(" ".join(str(error).split())) from error
    except (OSError, sqlite3.Error) as error:
        raise RunError(f"{name} cannot be read now: {' '.join(str(error).split())}") from error


def _mark(folder: RunFolder) -> _Mark | None:
    """Return what differs once anything of a run has changed; None while it may be changing.

    Readers see what was written only when it is safely on the disk, some time after the file's
    date: what is read of a file that has just changed need not be what it holds.
    """
    stats = _stats(folder)
    newest = max((stat.st_mtime for stat in stats if stat), default=0.0)
    if folder.is_in_use or time.time() - newest < SETTLING_SECONDS:
        return None
    return tuple((s.st_mtime_ns, s.st_size, s.st_ino) if s else None for s in stats)


def _updated_at(folder: RunFolder) -> str | None:
    times = [stat.st_mtime for stat in _stats(folder) if stat]
    return _iso(max(times)) if times else None


def _stats(folder: RunFolder) -> list[os.stat_result | None]:
    """Return how the files of a run are; None for one that is empty, as readers make the log."""
    stats = [_stat(folder.path / name) for name in READ_FILES]
    return [stat if stat and stat.st_size > 0 else None for stat in stats]


def _date(path: Path) -> str | None:
    stat = _stat(path)
    return _iso(stat.st_mtime) if stat else None


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
