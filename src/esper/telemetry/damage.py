"""Damage to a run's telemetry: a hash of the finished database, and setting aside a broken one.

``telemetry.sha256`` is written when a process has finished with the database, in the format of
``sha256sum``, and removed before the next process changes it. While a run is in progress, and
after a process was killed, there is none.
"""

from __future__ import annotations

import hashlib
import os
from contextlib import suppress
from pathlib import Path

from esper.errors import DamagedTelemetryError
from esper.storage.files import write_atomic

LOGS = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps next to a database."""

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""How a rollback journal starts, and how it ends if it names another file."""


class TelemetryWarning(UserWarning):
    """Telemetry is damaged or missing; the run goes on without it."""


def hash_file_of(path: Path) -> Path:
    """Return the file with the hash of a database."""
    return path.with_suffix(".sha256")


def write_hash(path: Path) -> None:
    """Record the hash of a database that no process is writing, unless its log is not merged."""
    log = path.with_name(f"{path.name}-wal")
    with suppress(OSError):  # the hash only helps to detect damage
        if not log.exists() or log.stat().st_size == 0:
            write_atomic(hash_file_of(path), f"{_hash(path)}  {path.name}\n")


def has_changed(path: Path) -> bool:
    """Return whether a database differs from its recorded hash; False if none is recorded."""
    recorded = _recorded(path)
    if recorded is None:
        return False
    try:
        is_same = recorded == f"{_hash(path)}  {path.name}\n"
    except OSError:
        return False  # missing or unreadable, which other errors name better
    # A process that starts to write meanwhile removes the hash first.
    return not is_same and _recorded(path) == recorded


def require_unchanged(path: Path) -> None:
    """Reject a database that differs from its recorded hash.

    Raises:
        DamagedTelemetryError: If it does.
    """
    if has_changed(path):
        raise DamagedTelemetryError(
            f"{path} does not match {hash_file_of(path).name}, so it is damaged; restore a copy, "
            f"or delete {hash_file_of(path).name} to read it as it is."
        )


def require_own_journal(path: Path) -> None:
    """Reject a journal that names another file, which SQLite would delete after rolling back.

    Esper never writes to several databases at once, which is what such journals are for.

    Raises:
        DamagedTelemetryError: If there is such a journal next to the database.
    """
    journal = path.with_name(f"{path.name}-journal")
    with suppress(FileNotFoundError), journal.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_JOURNAL_MAGIC)))
        if file.read() == _JOURNAL_MAGIC:
            raise DamagedTelemetryError(
                f"{journal} names another file, which Esper's journals never do; delete it."
            )


def require_no_linked_log(path: Path) -> None:
    """Reject a link in the place of one of SQLite's own files, which SQLite does not follow.

    Raises:
        DamagedTelemetryError: If there is one, naming it; SQLite would name no file.
    """
    for end in LOGS:
        log = path.with_name(f"{path.name}{end}")
        if log.is_symlink():
            raise DamagedTelemetryError(
                f"{log} is a link; put the file itself in its place, or delete it."
            )


def set_aside(path: Path) -> Path:
    """Rename a broken database and its logs, so that a new one can take its place; return it."""
    number = 1
    while (kept := path.with_name(f"{path.stem}-damaged-{number}{path.suffix}")).exists():
        number += 1
    hash_file_of(path).unlink(missing_ok=True)
    with suppress(FileNotFoundError):
        path.rename(kept)
    for end in LOGS:
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").rename(kept.with_name(f"{kept.name}{end}"))
    return kept


def _recorded(path: Path) -> str | None:
    try:
        return hash_file_of(path).read_text("utf-8", "replace")
    except OSError:
        return None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
