"""Writing a run's telemetry: records are queued and stored by a background thread.

Nothing is dropped and the queue is bounded: :meth:`TelemetryWriter.write` blocks while it is full.
"""

from __future__ import annotations

import os
import platform
import sqlite3
import threading
from collections.abc import Callable, Generator, Iterable, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from datetime import UTC, datetime
from itertools import chain
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Literal, Self

from esper.config.checks import NonNegativeInt, PositiveFloat, PositiveInt, check
from esper.errors import DamagedTelemetryError, EsperError, StorageError, TelemetryError
from esper.telemetry.damage import require_own_journal
from esper.telemetry.records import (
    RECORD_TYPES,
    SCHEMA_VERSION,
    Record,
    RecordColumns,
    RunRecord,
    SessionRecord,
)
from esper.telemetry.schema import (
    RecordType,
    check_schema,
    columns_of,
    create_tables,
    insert_sql,
    is_blank,
    last_position,
    stored_columns,
)
from esper.version import __version__

BUSY_SECONDS = 10.0
"""How long to wait for another program's lock before writing fails."""

MAX_CHUNK_ROWS = 512
"""Largest number of rows per statement. Each statement releases the interpreter lock, which a busy
main thread is slow to return, so a statement per row would slow down both threads."""

Rows = tuple[RecordType, range, Sequence[Sequence[Any]]]
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
        by_type: dict[RecordType, list[Any]] = {}
        for kind, numbers, columns in entries:
            rows = zip(numbers, *columns, strict=True)
            by_type.setdefault(kind, []).extend(chain.from_iterable(rows))
        with self._transaction():
            for kind, values in by_type.items():
                self._insert_chunks(kind, values)

    def _insert_chunks(self, kind: RecordType, values: list[Any]) -> None:
        """Insert rows, given one after another, in chunks of power-of-two sizes.

        So few statements are compiled.
        """
        n_columns = len(columns_of(kind)) + 1
        maximum = min(MAX_CHUNK_ROWS, self._max_values // n_columns)
        start, n_rows = 0, len(values) // n_columns
        while start < n_rows:
            size = 1 << min(maximum, n_rows - start).bit_length() - 1
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
        columns = stored_columns(RecordColumns.of(session))
        values = (None, *(value for (value,) in columns))
        with self._transaction():
            return self._connection.execute(insert_sql(SessionRecord), values).lastrowid or 0

    def end_session(self, number: int, outcome: str, message: str | None) -> None:
        """Record how a session ended; a message is appended to the one it started with."""
        with self._transaction():
            self._connection.execute(
                "UPDATE sessions SET ended_at = ?, outcome = ?, "
                "message = coalesce(message || ' ' || ?, ?, message) WHERE id = ?",
                (_now(), outcome, message, message, number),
            )

    @property
    def describes_run(self) -> bool:
        """Whether the record of the run is stored."""
        (count,) = self._connection.execute(f'SELECT count(*) FROM "{RunRecord.table}"').fetchone()
        return count > 0

    def close(self) -> None:
        """Close the connection, which merges the log into the database unless someone reads."""
        self._connection.close()

    @contextmanager
    def _transaction(self) -> Generator[None]:
        """Take the write lock at once, and roll back if the context fails."""
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")


def _require_structure(connection: sqlite3.Connection, path: Path) -> None:
    """Reject a database whose pages contradict each other."""
    (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if found != "ok":
        reason = " ".join(found.split())
        raise DamagedTelemetryError(f"{path} is damaged: {reason}.")


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
        check("max_queued_rows", max_queued_rows, PositiveInt)
        check("flush_seconds", flush_seconds, PositiveFloat)
        self._path = Path(path)
        self._max_rows = max_queued_rows
        self._flush_seconds = flush_seconds
        self._lock = threading.Lock()
        self._queue: list[Rows] = []
        self._n_queued = 0
        self._is_urgent = threading.Event()
        self._is_closed = False
        self._failure: EsperError | None = None
        self._has_raised = False
        self._session: int | None = None
        self._tasks: SimpleQueue[tuple[Callable[[], Any], Future[Any]] | None] = SimpleQueue()
        # A daemon, which an interpreter that exits ends only after its exit handlers.
        self._thread = threading.Thread(target=self._work, name="telemetry", daemon=True)
        self._thread.start()
        try:
            self._database: WriterDatabase = self._ask(lambda: WriterDatabase(self._path))
        except EsperError:
            self.close()
            raise
        self._position = self._database.position

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
        entries = [r if isinstance(r, RecordColumns) else RecordColumns.of(r) for r in records]
        batches = [(entry.kind, stored_columns(entry)) for entry in entries]
        for kind, columns in batches:
            n_rows = len(columns[0])
            if self._n_queued and self._n_queued + n_rows > self._max_rows:
                self.flush()
            self._require_open()
            numbers = range(self._position + 1, self._position + n_rows + 1)
            self._position += n_rows
            with self._lock:
                if not self._queue:
                    self._submit(self._store)
                self._queue.append((kind, numbers, columns))
                self._n_queued += n_rows
        # Not for every row: waking the thread costs more than storing a row.
        if self._n_queued > self._max_rows // 4:
            self._is_urgent.set()

    def flush(self) -> None:
        """Block until every queued row is stored.

        Raises:
            StorageError: If a row could not be written.
            TelemetryError: If a row's values could not be stored.
        """
        self._ask(lambda: None)

    def rewind(self, seq: int) -> None:
        """Delete every row after number ``seq``, for a run that resumes from there.

        Empty telemetry goes on after that row; the earlier ones are missing.

        Raises:
            TelemetryError: If the telemetry ends before that row.
        """
        check("seq", seq, NonNegativeInt)
        if 0 < self._position < seq:
            raise TelemetryError(
                f"{self._path} ends at row {self._position} and row {seq} is needed; restore the "
                "file that belongs to the checkpoint, or move it away to go on without it."
            )
        self._ask(lambda: self._database.rewind(seq))
        self._position = seq

    def describes_run(self) -> bool:
        """Return whether the record of the run is stored."""
        return self._ask(lambda: self._database.describes_run)

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
        self._session = self._ask(lambda: self._database.add_session(session))

    def end_session(self, outcome: Outcome, message: str | None = None) -> None:
        """Store all rows and record how this process's work ended."""
        number = self._session
        assert number is not None, "a session must be started before it ends"
        text = _storable(message)
        self._ask(lambda: self._database.end_session(number, outcome, text))

    def close(self) -> None:
        """Store all rows and end the thread; a second call does nothing.

        Raises:
            StorageError: If a row could not be stored and no earlier call has raised.
        """
        if not self._is_closed:
            self._is_closed = True
            self._is_urgent.set()
            self._tasks.put(None)
            self._thread.join()
        if self._failure is not None and not self._has_raised:
            self._require_open()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _submit(self, task: Callable[[], Any]) -> Future[Any]:
        """Let the thread run a task after all earlier ones."""
        future: Future[Any] = Future()
        self._tasks.put((task, future))
        return future

    def _ask(self, task: Callable[[], Any]) -> Any:
        """Run a task in the thread once all queued rows are stored, and return its result."""
        self._require_open()
        future = self._submit(task)
        if self._queue:
            self._is_urgent.set()
        result = future.result()
        self._require_open()
        return result

    def _require_open(self) -> None:
        if self._failure is not None:
            self._has_raised = True
            # A new one each time: an exception that is raised again collects tracebacks.
            raise type(self._failure)(str(self._failure)) from self._failure
        if self._is_closed:
            raise TelemetryError(f"the writer of {self._path} is closed; open another one.")

    def _work(self) -> None:
        """Run tasks until the writer is closed, but none after a failure; runs in the thread."""
        while (entry := self._tasks.get()) is not None:
            task, future = entry
            result = None
            try:
                if self._failure is None:
                    result = task()
            except Exception as error:
                self._failure = explain(error, self._path)
            future.set_result(result)
        if hasattr(self, "_database"):  # otherwise it could not be opened
            self._database.close()

    def _store(self) -> None:
        """Store the queue after a while, or as soon as something waits for it."""
        self._is_urgent.wait(self._flush_seconds)
        with self._lock:
            self._is_urgent.clear()
            entries, self._queue = self._queue, []
        self._database.insert(entries)
        with self._lock:
            self._n_queued -= sum(len(numbers) for _, numbers, _ in entries)


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _storable(text: str | None) -> str | None:
    """Return a text without lone surrogates, which file names can bring into a message."""
    return None if text is None else text.encode("utf-8", "backslashreplace").decode()
