"""The connection that writes: rows in transactions, taking rows back, sessions."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from esper.errors import EsperError, StorageError, TelemetryError
from esper.telemetry.records import RECORD_TYPES, SCHEMA_VERSION, Record, SessionRecord
from esper.telemetry.schema import (
    RowMaker,
    check_schema,
    create_tables,
    insert_sql,
    is_blank,
    last_position,
)

BUSY_SECONDS = 10.0
"""How long another program may hold the database locked before writing fails."""

MAX_CHUNK_ROWS = 512
"""Rows that one statement inserts, at most. The interpreter is handed over at each statement, and
a busy one is slow to come back, so that a statement for each row would hold up both threads."""

Row = tuple[type[Record], tuple[Any, ...]]
"""A record's type, and its number followed by its values."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class WriterDatabase:
    """A database that is written by the thread that opened it.

    Every transaction is on the disk when its call returns. Errors are those of :mod:`sqlite3`;
    :func:`explain` makes them ours.
    """

    def __init__(self, path: Path) -> None:
        self._connection = sqlite3.connect(
            path, timeout=BUSY_SECONDS, isolation_level=None, cached_statements=256
        )
        self._max_values = self._connection.getlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER)
        try:
            self._prepare(path)
        except BaseException:
            self._connection.close()
            raise

    def _prepare(self, path: Path) -> None:
        connection = self._connection
        if not is_blank(connection):
            check_schema(connection, path)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{path} cannot be read while it is written on this file system; "
                "put the run on a local disk."
            )
        connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            if is_blank(connection):
                create_tables(connection)
            else:
                # What cannot be written is to be noticed now, not with the first row.
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.position = last_position(connection)

    def insert(self, rows: Sequence[Row]) -> None:
        """Insert rows in one transaction: all are there afterwards, or none."""
        by_type: dict[type[Record], list[tuple[Any, ...]]] = {}
        for kind, values in rows:
            by_type.setdefault(kind, []).append(values)
        with self._transaction():
            for kind, some in by_type.items():
                self._insert_chunks(kind, some)

    def _insert_chunks(self, kind: type[Record], rows: list[tuple[Any, ...]]) -> None:
        """Insert rows by statements of sizes that are powers of two: few are ever compiled."""
        n_values = len(rows[0])
        most = min(MAX_CHUNK_ROWS, self._max_values // n_values)
        start = 0
        while start < len(rows):
            size = 1 << min(most, len(rows) - start).bit_length() - 1
            flat = [value for row in rows[start : start + size] for value in row]
            self._connection.execute(insert_sql(kind, size), flat)
            start += size

    def rewind(self, seq: int) -> None:
        """Delete every row after the one of a number."""
        with self._transaction():
            for kind in RECORD_TYPES:
                self._connection.execute(f'DELETE FROM "{kind.table}" WHERE seq > ?', (seq,))

    def add_session(self, session: SessionRecord) -> int:
        """Insert a session and return its number."""
        values = (None, *RowMaker(SessionRecord)(session))
        with self._transaction():
            return self._connection.execute(insert_sql(SessionRecord), values).lastrowid or 0

    def end_session(self, number: int, *, ended_at: str, outcome: str, message: str | None) -> None:
        """Say how a session ended; a message is put after the one that it began with."""
        with self._transaction():
            self._connection.execute(
                "UPDATE sessions SET ended_at = ?, outcome = ?, "
                "message = coalesce(message || ' ' || ?, ?, message) WHERE id = ?",
                (ended_at, outcome, message, message, number),
            )

    def close(self) -> None:
        """Close the connection; the log is folded into the database if nobody reads it."""
        self._connection.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)


class _Transaction:
    """A transaction that takes the right to write at once, and leaves nothing if it fails."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection

    def __enter__(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._connection.execute("COMMIT")
        elif self._connection.in_transaction:
            self._connection.execute("ROLLBACK")


def explain(error: Exception, path: Path) -> EsperError:
    """Return what to tell the user of an error that the database gave."""
    if isinstance(error, EsperError):
        return error
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    if code in _DAMAGED:
        return TelemetryError(
            f"{path} is damaged or no database ({error}); move it away or restore a copy."
        )
    if isinstance(error, sqlite3.IntegrityError):
        return TelemetryError(
            f"{path} is written by another process as well ({error}); let only one work on a run."
        )
    if isinstance(error, (sqlite3.OperationalError, OSError)):
        return StorageError(
            f"{path} cannot be written ({error}); free space on the disk or make the folder "
            "writable, then resume."
        )
    return TelemetryError(f"a record cannot be stored in {path} ({type(error).__name__}: {error}).")
