"""Damage to a run's telemetry: files that SQLite must not use, and setting aside a database."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from esper.errors import DamagedTelemetryError
from esper.storage.files import open_file, what_else

LOGS = ("-wal", "-shm", "-journal")
"""Endings of the files that SQLite keeps next to a database."""

_JOURNAL_MAGIC = bytes.fromhex("d9d505f920a163d7")
"""How a rollback journal starts, and how it ends if it names another file."""


class TelemetryWarning(UserWarning):
    """Telemetry is damaged or missing; the run continues without it."""


def require_own_logs(path: Path) -> None:
    """Reject files next to a database with which SQLite would change another place, or wait.

    Those are links, pipes, devices and folders, and a journal that names another file: SQLite would
    delete that after rolling back. Esper never writes to several databases at once, which is what
    such journals are for.

    Raises:
        DamagedTelemetryError: If there is one, naming it.
    """
    for end in LOGS:
        log = path.with_name(f"{path.name}{end}")
        kind = what_else(log) or ("a folder" if log.is_dir() else None)
        if kind is not None:
            raise DamagedTelemetryError(
                f"{log} is {kind}; put the file itself in its place, or delete it."
            )
    journal = path.with_name(f"{path.name}{LOGS[-1]}")
    with suppress(FileNotFoundError), open_file(journal) as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - len(_JOURNAL_MAGIC)))
        if file.read() == _JOURNAL_MAGIC:
            raise DamagedTelemetryError(
                f"{journal} names another file, which Esper's journals never do; delete it."
            )


def set_aside(path: Path) -> Path:
    """Rename a broken database and its logs, so that a new one can take its place; return it."""
    number = 1
    while (kept := path.with_name(f"{path.stem}-damaged-{number}{path.suffix}")).exists():
        number += 1
    with suppress(FileNotFoundError):
        path.rename(kept)
    for end in LOGS:
        with suppress(FileNotFoundError):
            path.with_name(f"{path.name}{end}").rename(kept.with_name(f"{kept.name}{end}"))
    return kept
