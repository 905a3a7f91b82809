"""Writing a run's telemetry: records are queued and stored by a background thread.

Nothing is dropped and the queue is bounded: :meth:`TelemetryWriter.write` blocks while it is full.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Self

from esper.config.checks import require_int, require_number
from esper.errors import DamagedTelemetryError, EsperError, StorageError, TelemetryError
from esper.telemetry.damage import hash_file_of, require_own_journal, write_hash
from esper.telemetry.records import (
    RECORD_TYPES,
    SCHEMA_VERSION,
    Record,
    RecordColumns,
    RunRecord,
    SessionRecord,
)
from esper.telemetry.schema import (
    RowMaker,
    check_schema,
    columns_of,
    create_tables,
    insert_sql,
    is_blank,
    last_position,
)
from esper.version import __version__

BUSY_SECONDS = 10.0
"""How long to wait for another program's lock before writing fails."""

MERGING_MILLISECONDS = 1000
"""How long to wait at the end for readers, before the log is left unmerged."""

MAX_CHUNK_ROWS = 512
"""Largest number of rows per statement. Each statement releases the interpreter lock, which a busy
main thread is slow to return, so a statement per row would slow down both threads."""

Rows = tuple[type[Record], range, Sequence[Sequence[Any]]]
"""Consecutive records of one type: their row numbers, and their values by column."""

_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB}


class WriterDatabase:
    """The writing side of the database, used by the thread that opened it.

    Every transaction is on disk when its call returns. Errors are those of :mod:`sqlite3`;
    :func:`explain` turns them into Esper's.
    """

    def __init__(self, path: Path) -> None:
        require_own_journal(path)
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
            _require_structure(connection, path)
        hash_file_of(path).unlink(missing_ok=True)
        (mode,) = connection.execute("PRAGMA journal_mode = WAL").fetchone()
        if mode != "wal":
            raise StorageError(
                f"{path} is on a file system that lacks WAL mode; put the run on a local disk."
            )
        connection.execute("PRAGMA synchronous = FULL")
        with self._transaction():
            if is_blank(connection):
                create_tables(connection)
            else:
                # Fail now rather than at the first row if the file is read-only.
                connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
        self.position = last_position(connection)

    def insert(self, entries: Iterable[Rows]) -> None:
        """Insert rows in one transaction."""
        by_type: dict[type[Record], list[Any]] = {}
        for kind, numbers, columns in entries:
            rows = zip(numbers, *columns, strict=True)
            by_type.setdefault(kind, []).extend(chain.from_iterable(rows))
        with self._transaction():
            for kind, values in by_type.items():
                self._insert_chunks(kind, values)

    def _insert_chunks(self, kind: type[Record], values: list[Any]) -> None:
        """Insert rows, given one after another, in chunks of power-of-two sizes.

        So few statements are compiled.
        """
        n_columns = len(columns_of(kind)) + 1
        most = min(MAX_CHUNK_ROWS, self._max_values // n_columns)
        start, n_rows = 0, len(values) // n_columns
        while start < n_rows:
            size = 1 << min(most, n_rows - start).bit_length() - 1
            chunk = values[start * n_columns : (start + size) * n_columns]
            self._connection.execute(insert_sql(kind, size), chunk)
            start += size

    def rewind(self, seq: int) -> None:
        """Delete every row after a row number."""
        with self._transaction():
            for kind in RECORD_TYPES:
                self._connection.execute(f'DELETE FROM "{kind.table}" WHERE seq > ?', (seq,))

    def add_session(self, session: SessionRecord) -> int:
        """Insert a session and return its number."""
        values = (None, *RowMaker(SessionRecord)(session))
        with self._transaction():
            return self._connection.execute(insert_sql(SessionRecord), values).lastrowid or 0

    def end_session(self, number: int, *, ended_at: str, outcome: str, message: str | None) -> None:
        """Record how a session ended; a message is appended to the one it started with."""
        with self._transaction():
            self._connection.execute(
                "UPDATE sessions SET ended_at = ?, outcome = ?, "
                "message = coalesce(message || ' ' || ?, ?, message) WHERE id = ?",
                (ended_at, outcome, message, message, number),
            )

    @property
    def describes_run(self) -> bool:
        """Whether the record of the run is stored."""
        (count,) = self._connection.execute(f'SELECT count(*) FROM "{RunRecord.table}"').fetchone()
        return count > 0

    def close(self) -> None:
        """Merge the log into the database, unless someone is reading, and close the connection."""
        with suppress(sqlite3.Error):
            self._connection.execute(f"PRAGMA busy_timeout = {MERGING_MILLISECONDS}")
            self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._connection.close()

    def _transaction(self) -> _Transaction:
        return _Transaction(self._connection)


def _require_structure(connection: sqlite3.Connection, path: Path) -> None:
    """Reject a database whose pages contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        reason = " ".join(found.split())
        raise DamagedTelemetryError(f"{path} is damaged: {reason}.")


class _Transaction:
    """A transaction that takes the write lock at once and is rolled back if it fails."""

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
    """Return the error to show the user for an error of the database."""
    if isinstance(error, EsperError):
        return error
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


Outcome = Literal["done", "interrupted", "failed"]


class TelemetryWriter:
    """The single writer of a run's telemetry.

    A row is *queued* when :meth:`write` returns and *acknowledged* when :meth:`flush` returns: from
    then on it survives ``kill -9`` and power loss. Rows are numbered over all tables in the order
    of writing, and a reader always sees a prefix of that order.

    Args:
        path: The database; created if missing.
        max_queued_rows: Rows that may be queued before :meth:`write` blocks.
        flush_seconds: The longest time that a row stays queued while the disk keeps up.

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
        self._queue: deque[Rows] = deque()
        self._n_queued = 0
        self._n_stored = 0
        self._position = 0
        self._task: Callable[[WriterDatabase], Any] | None = None
        self._result: Any = None
        self._is_urgent = False
        self._is_closing = False
        self._is_ended = False
        self._failure: EsperError | None = None
        self._has_raised = False
        self._session: int | None = None
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()
        self._ask(lambda database: database.position)
        self._position = self._result

    @property
    def position(self) -> int:
        """The number of the last row written; 0 before the first."""
        return self._position

    def write(self, record: Record) -> None:
        """Queue one row; block while the queue is full.

        Raises:
            StorageError: If an earlier row could not be stored.
            TelemetryError: If a value does not have its field's type, or the writer is closed.
        """
        self.write_many((record,))

    def write_many(self, records: Iterable[Record | RecordColumns]) -> None:
        """Queue rows in order; block while the queue is full."""
        batches = [self._by_column(entry) for entry in records]
        with self._changed:
            for kind, columns in batches:
                n_rows = len(columns[0])
                self._make_room(n_rows)
                if self._is_ended or self._is_closing:
                    self._raise_failure()
                numbers = range(self._position + 1, self._position + n_rows + 1)
                self._position += n_rows
                self._n_queued += n_rows
                self._queue.append((kind, numbers, columns))
            # Not for every row: waking the thread costs more than storing a row.
            if self._n_queued - self._n_stored > self._max_rows // 4 and not self._is_urgent:
                self._is_urgent = True
                self._changed.notify_all()

    def _by_column(
        self, entry: Record | RecordColumns
    ) -> tuple[type[Record], Sequence[Sequence[Any]]]:
        """Return the type and the checked columns of one or more records."""
        if isinstance(entry, RecordColumns):
            return entry.kind, self._makers[entry.kind].columns(entry)
        kind = type(entry)
        return kind, [(value,) for value in self._makers[kind](entry)]

    def _make_room(self, n_rows: int) -> None:
        """Wait until so many rows fit into the queue, or it is empty."""

        def has_room() -> bool:
            waiting = self._n_queued - self._n_stored
            return waiting == 0 or waiting + n_rows <= self._max_rows

        if not has_room():
            self._hurry(has_room)

    def flush(self) -> None:
        """Block until every queued row is stored.

        Raises:
            StorageError: If a row could not be written.
            TelemetryError: If a row's values could not be stored.
        """
        with self._changed:
            target = self._n_queued
            self._hurry(lambda: self._n_stored >= target)

    def rewind(self, seq: int) -> None:
        """Delete every row after number ``seq``, for a run that resumes from there.

        Empty telemetry goes on after that row; the earlier ones are missing.

        Raises:
            TelemetryError: If the telemetry ends before that row.
        """
        require_int("seq", seq, least=0)
        if 0 < self._position < seq:
            raise TelemetryError(
                f"{self._path} ends at row {self._position} and row {seq} is needed; restore the "
                "file that belongs to the checkpoint, or move it away to go on without it."
            )
        self.flush()
        self._ask(lambda database: database.rewind(seq))
        self._position = seq

    def describes_run(self) -> bool:
        """Return whether the record of the run is stored."""
        self.flush()
        self._ask(lambda database: database.describes_run)
        return self._result

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
        self._ask(lambda database: database.add_session(session))
        self._session = self._result

    def end_session(self, outcome: Outcome, message: str | None = None) -> None:
        """Store all rows and record how this process's work ended."""
        number = self._session
        assert number is not None, "a session must be started before it ends"
        self.flush()
        text = _storable(message)
        self._ask(lambda d: d.end_session(number, ended_at=_now(), outcome=outcome, message=text))

    def close(self) -> None:
        """Store all rows and end the thread; a second call does nothing.

        Raises:
            StorageError: If a row could not be stored and no earlier call has raised.
        """
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join()
        if self._failure is not None and not self._has_raised:
            self._raise_failure()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, task: Callable[[WriterDatabase], Any]) -> None:
        """Run a task in the thread and wait for its result."""
        with self._changed:
            if self._is_closing:
                self._raise_failure()
            self._task = task
            self._hurry(lambda: self._task is None)

    def _hurry(self, is_done: Callable[[], bool]) -> None:
        """Wake the thread and wait until a condition holds; raise if the thread has failed."""
        if not is_done():
            self._is_urgent = True
            self._changed.notify_all()
            self._changed.wait_for(lambda: is_done() or self._is_ended)
        if not is_done() or self._failure is not None:
            self._raise_failure()

    def _raise_failure(self) -> None:
        self._has_raised = True
        if self._failure is None:
            raise TelemetryError(f"the writer of {self._path} is closed; open another one.")
        # A new one each time: an exception that is raised again collects tracebacks.
        raise type(self._failure)(str(self._failure)) from self._failure

    def _work(self) -> None:
        """Store queued rows until the writer is closed or fails; the thread's main function."""
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
                if self._failure is None:
                    write_hash(self._path)
            with self._changed:
                self._is_ended = True
                self._queue.clear()
                self._changed.notify_all()

    def _take_turn(self, database: WriterDatabase) -> bool:
        """Store the queue; return False once the writer is closing."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._is_urgent or self._is_closing, timeout=self._flush_seconds
            )
            self._is_urgent = False
            is_last = self._is_closing
            entries, task = list(self._queue), self._task
            self._queue.clear()
        if entries:
            database.insert(entries)
        result = task(database) if task is not None else None
        with self._changed:
            self._n_stored += sum(len(numbers) for _, numbers, _ in entries)
            if task is not None:
                self._task, self._result = None, result
            self._changed.notify_all()
        return not is_last


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _storable(text: str | None) -> str | None:
    """Return a text without lone surrogates, which file names can bring into a message."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
