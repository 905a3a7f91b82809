"""Writing a run's telemetry: every call is one transaction of the database."""

from __future__ import annotations

import os
import platform
import sqlite3
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, Self

from esper.config.checks import NonNegativeInt, check
from esper.errors import DamagedTelemetryError, EsperError, StorageError, TelemetryError
from esper.telemetry.damage import require_own_logs
from esper.telemetry.records import (
    RECORD_TYPES,
    SCHEMA_VERSION,
    Record,
    RecordColumns,
    RunRecord,
    SessionRecord,
)
from esper.telemetry.schema import (
    check_schema,
    create_tables,
    distrust,
    insert_sql,
    is_blank,
    last_position,
    stored_columns,
)
from esper.version import __version__

BUSY_SECONDS = 10.0
"""How long to wait for another program's lock before writing fails."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}

Outcome = Literal["done", "interrupted", "failed"]


class TelemetryWriter:
    """The single writer of a run's telemetry.

    A row survives ``kill -9`` when :meth:`write` returns, and a power loss when :meth:`flush` does.
    Rows are numbered over all tables in the order of writing, and a reader always sees a prefix of
    that order.

    Args:
        path: The database; created if missing.

    Raises:
        TelemetryError: If the file is not telemetry of this version, or damaged.
        StorageError: If it cannot be written.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._session: int | None = None
        self._connection: sqlite3.Connection | None = None
        with self._errors_named():
            require_own_logs(self._path)
            # One thread at a time writes, but not always the same one.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare(self._connection)
            except BaseException:
                self.close()
                raise
            self._position = last_position(self._connection)

    def _prepare(self, connection: sqlite3.Connection) -> None:
        distrust(connection)
        if not is_blank(connection):
            check_schema(connection, self._path)
            _require_structure(connection, self._path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{self._path} is on a file system that lacks WAL mode; put the run on a local "
                "disk."
            )
        with self._transaction():
            if is_blank(connection):
                create_tables(connection)
            else:
                # Fail now rather than at the first row if the file is read-only.
                _touch(connection)

    @property
    def position(self) -> int:
        """The number of the last row written; 0 before the first."""
        return self._position

    def write(self, record: Record) -> None:
        """Store one row.

        Raises:
            StorageError: If it cannot be stored.
            TelemetryError: If a value does not have its field's type, or the writer is closed.
        """
        self.write_many((record,))

    def write_many(self, records: Iterable[Record | RecordColumns]) -> None:
        """Store rows in order: all of them or, if that fails, none."""
        entries = [r if isinstance(r, RecordColumns) else RecordColumns.of(r) for r in records]
        batches = [(entry.kind, stored_columns(entry)) for entry in entries]
        position = self._position
        with self._transaction() as connection:
            for kind, columns in batches:
                n_rows = len(columns[0])
                numbers = range(position + 1, position + n_rows + 1)
                connection.executemany(insert_sql(kind), zip(numbers, *columns, strict=True))
                position += n_rows
        self._position = position

    def flush(self) -> None:
        """Block until every row is on disk.

        Raises:
            StorageError: If the disk fails.
        """
        with self._transaction(is_synced=True) as connection:
            _touch(connection)

    def rewind(self, seq: int) -> None:
        """Delete every row after number ``seq``, for a run that resumes from there.

        Empty telemetry continues after that row; the earlier ones are missing.

        Raises:
            TelemetryError: If the telemetry ends before that row.
        """
        check("seq", seq, NonNegativeInt)
        if 0 < self._position < seq:
            raise TelemetryError(
                f"{self._path} ends at row {self._position} and row {seq} is needed; restore the "
                "file that belongs to the checkpoint, or move it away to continue without it."
            )
        with self._transaction(is_synced=True) as connection:
            for kind in RECORD_TYPES:
                connection.execute(f'DELETE FROM "{kind.table}" WHERE seq > ?', (seq,))
        self._position = seq

    def describes_run(self) -> bool:
        """Return whether the record of the run is stored."""
        with self._transaction() as connection:
            (count,) = connection.execute(f'SELECT count(*) FROM "{RunRecord.table}"').fetchone()
        return count > 0

    def start_session(
        self, *, first_round: int, threads: int, torch_version: str, message: str | None = None
    ) -> None:
        """Record that this process starts to work on the run."""
        session = SessionRecord(
            pid=os.getpid(),
            started_at=_now(),
            ended_at=None,
            outcome=None,
            message=_storable(message),
            first_round=first_round,
            threads=threads,
            torch_version=torch_version,
            python_version=platform.python_version(),
            esper_version=__version__,
            platform=platform.platform(),
        )
        values = (None, *(value for (value,) in stored_columns(RecordColumns.of(session))))
        with self._transaction(is_synced=True) as connection:
            self._session = connection.execute(insert_sql(SessionRecord), values).lastrowid

    def end_session(self, outcome: Outcome, message: str | None = None) -> None:
        """Record how this process's work ended; a message is appended to that of the start."""
        assert self._session is not None, "a session must be started before it ends"
        text = _storable(message)
        with self._transaction(is_synced=True) as connection:
            connection.execute(
                "UPDATE sessions SET ended_at = ?, outcome = ?, "
                "message = coalesce(message || ' ' || ?, ?, message) WHERE id = ?",
                (_now(), outcome, text, text, self._session),
            )

    def close(self) -> None:
        """Close the database, which merges its log unless someone reads; again does nothing."""
        if self._connection is not None:
            connection, self._connection = self._connection, None
            with self._errors_named():
                connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @contextmanager
    def _transaction(self, *, is_synced: bool = False) -> Generator[sqlite3.Connection]:
        """Take the write lock at once, and roll back if the context fails."""
        connection = self._connection
        if connection is None:
            raise TelemetryError(f"the writer of {self._path} is closed; open another one.")
        with self._errors_named():
            # What is not synced is in the log, which outlives the process but not the machine.
            connection.execute(f"PRAGMA synchronous = {'FULL' if is_synced else 'NORMAL'}")
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise

    @contextmanager
    def _errors_named(self) -> Generator[None]:
        """Turn errors of the database into those to show the user."""
        try:
            yield
        except EsperError:
            raise
        except Exception as error:
            raise explain(error, self._path) from error


def _touch(connection: sqlite3.Connection) -> None:
    """Write a page that stays as it is, so that a transaction has something to commit."""
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def _require_structure(connection: sqlite3.Connection, path: Path) -> None:
    """Reject a database whose pages contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        reason = " ".join(found.split())
        raise DamagedTelemetryError(f"{path} is damaged: {reason}.")


def explain(error: Exception, path: Path) -> EsperError:
    """Return the error to show the user for an error of the database."""
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGED or isinstance(error, UnicodeDecodeError):
        return DamagedTelemetryError(
            f"{path} is damaged or not a database ({error}); move it away or restore a copy."
        )
    if isinstance(error, sqlite3.IntegrityError):
        return TelemetryError(
            f"{path} is also written by another process ({error}); let only one work on a run."
        )
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return StorageError(
            f"{path} cannot be written ({error}); free disk space or make the folder writable, "
            "then resume."
        )
    return TelemetryError(f"a record cannot be stored in {path} ({type(error).__name__}: {error}).")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _storable(text: str | None) -> str | None:
    """Return a text without lone surrogates, which file names can bring into a message."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
