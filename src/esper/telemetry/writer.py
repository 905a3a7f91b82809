"""Writing a run's telemetry: records are queued here and stored by one thread behind.

Nothing is dropped and nothing piles up: when too many rows wait, writing waits as well.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from esper.config.checks import require_int, require_number
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
from esper.version import __version__

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


Outcome = Literal["done", "interrupted", "failed"]


class TelemetryWriter:
    """The one writer of a run's telemetry.

    A row is *given* when :meth:`write` returns and *acknowledged* when :meth:`flush` returns: from
    then on it survives the process's being killed and the machine's losing power. Rows are numbered
    over all tables in the order in which they are given, and whatever a reader sees is a beginning
    of that order. Rows are stored at least every ``flush_seconds``.

    Args:
        path: The database; made if it is not there.
        max_queued_rows: Rows that may be given and not yet stored; :meth:`write` waits beyond that.
        flush_seconds: How long a row waits to be stored, at most, while the disk keeps up.

    Raises:
        TelemetryError: If the file is not telemetry of this version, or damaged.
        StorageError: If it cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        max_queued_rows: int = 20_000,
        flush_seconds: float = 0.5,
    ) -> None:
        require_int("max_queued_rows", max_queued_rows, least=1)
        require_number("flush_seconds", flush_seconds, above=0.0)
        self._path = Path(path)
        self._max_rows = max_queued_rows
        self._flush_seconds = flush_seconds
        self._makers = {kind: RowMaker(kind) for kind in RECORD_TYPES}
        self._changed = threading.Condition()
        self._queue: deque[Row] = deque()
        self._n_given = 0
        self._n_stored = 0
        self._position = 0
        self._task: Callable[[WriterDatabase], Any] | None = None
        self._result: Any = None
        self._is_urgent = False
        self._is_closing = False
        self._is_ended = False
        self._failure: EsperError | None = None
        self._is_failure_told = False
        self._session: int | None = None
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()
        self._ask(lambda database: database.position)
        self._position = self._result

    @property
    def position(self) -> int:
        """The number of the last row that was given; 0 before the first."""
        return self._position

    def write(self, record: Record) -> None:
        """Give one row; wait if too many are on their way.

        Raises:
            StorageError: If a row given before could not be stored.
            TelemetryError: If a value is not of its field's type, or the writer is closed.
        """
        self.write_many((record,))

    def write_many(self, records: Iterable[Record]) -> None:
        """Give rows, in their order; wait whenever too many are on their way."""
        rows = [(type(record), self._makers[type(record)](record)) for record in records]
        with self._changed:
            for kind, values in rows:
                if self._n_given - self._n_stored >= self._max_rows:
                    self._hurry(lambda: self._n_given - self._n_stored < self._max_rows)
                if self._is_ended or self._is_closing:
                    self._complain()
                self._position += 1
                self._n_given += 1
                self._queue.append((kind, (self._position, *values)))
            # Not at every row: waking the thread costs more than storing what it would find.
            if self._n_given - self._n_stored > self._max_rows // 4 and not self._is_urgent:
                self._is_urgent = True
                self._changed.notify_all()

    def flush(self) -> None:
        """Return when every row that was given is acknowledged.

        Raises:
            StorageError: If a row could not be stored.
            TelemetryError: If a row could not be stored for what it holds.
        """
        with self._changed:
            target = self._n_given
            self._hurry(lambda: self._n_stored >= target)

    def rewind(self, seq: int) -> None:
        """Take back every row after number ``seq``, for a run that resumes from there.

        Raises:
            TelemetryError: If there is no such row: the telemetry is not what the caller knew.
        """
        require_int("seq", seq, least=0)
        if seq > self._position:
            raise TelemetryError(
                f"{self._path} ends at row {self._position} and row {seq} is needed; "
                "restore the file that belongs to the checkpoint."
            )
        self.flush()
        self._ask(lambda database: database.rewind(seq))
        self._position = seq

    def start_session(
        self, *, first_round: int, threads: int, torch_version: str, message: str | None = None
    ) -> None:
        """Record that this process works on the run from now on."""
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
        self._ask(lambda database: database.add_session(session))
        self._session = self._result

    def end_session(self, outcome: Outcome, message: str | None = None) -> None:
        """Record how this process's work ended; rows given before are acknowledged."""
        number = self._session
        assert number is not None, "a session must be started before it ends"
        self.flush()
        text = _storable(message)
        self._ask(lambda d: d.end_session(number, ended_at=_now(), outcome=outcome, message=text))

    def close(self) -> None:
        """Acknowledge every row and end the thread; a second call does nothing.

        Raises:
            StorageError: If a row could not be stored and no call before has said so.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None and not self._is_failure_told:
            self._complain()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, task: Callable[[WriterDatabase], Any]) -> None:
        """Have the thread do something, and wait for its result."""
        with self._changed:
            if self._is_closing:
                self._complain()
            self._task = task
            self._hurry(lambda: self._task is None)

    def _hurry(self, is_done: Callable[[], bool]) -> None:
        """Wake the thread and wait, holding the condition, until something is so or it failed."""
        if not is_done():
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: is_done() or self._is_ended)
        if not is_done() or self._failure is not None:
            self._complain()

    def _complain(self) -> None:
        self._is_failure_told = True
        if self._failure is None:
            raise TelemetryError(f"the writer of {self._path} is closed; open another one.")
        # A fresh one each time: an exception that is raised again collects tracebacks.
        raise type(self._failure)(str(self._failure)) from self._failure

    def _work(self) -> None:
        """Be the thread: store what is queued until the writer is closed or something fails."""
        database: WriterDatabase | None = None
        try:
            database = WriterDatabase(self._path)
            while self._take_turn(database):
                pass
        except Exception as error:
            self._failure = explain(error, self._path)
        finally:
            if database is not None:
                database.close()
            with self._changed:
                self._is_ended = True
                self._queue.clear()
                self._changed.notify_all()

    def _take_turn(self, database: WriterDatabase) -> bool:
        """Store what has come; return whether there may be more."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_urgent or self._is_closing, timeout=self._flush_seconds
            )
            self._is_urgent = False
            is_last = self._is_closing
            rows, task = list(self._queue), self._task
            self._queue.clear()
        if rows:
            database.insert(rows)
        result = task(database) if task is not None else None
        with self._changed:
            self._n_stored += len(rows)
            if task is not None:
                self._task, self._result = None, result
            self._changed.notify_all()
        return not is_last


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _storable(text: str | None) -> str | None:
    """Return a text without half characters, which names of files can bring into a message."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
