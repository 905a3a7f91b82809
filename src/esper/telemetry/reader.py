"""Reading a run's telemetry, also while the run is writing it."""

from __future__ import annotations

import hashlib
import heapq
import math
import os
import sqlite3
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from contextvars import ContextVar
from itertools import islice
from pathlib import Path
from time import monotonic
from typing import Any, Self, TypeVar, cast, overload

from esper.errors import DamagedTelemetryError, TelemetryError, did_you_mean, message_of
from esper.storage.files import MALFORMED
from esper.telemetry.damage import require_own_logs
from esper.telemetry.metrics import Metrics, collect_metrics
from esper.telemetry.records import RECORD_TYPES, TABLES, RunRecord, SessionRecord
from esper.telemetry.schema import (
    FILE_NAME,
    Column,
    RecordType,
    all_columns_of,
    check_schema,
    columns_of,
    distrust,
    key_of,
    last_position,
)

R = TypeVar("R")
Columns = dict[str, list[Any]]

BUSY_SECONDS = 10.0
"""How long to wait for a writer's lock, which is rarely held."""

BLOCK_ROWS = 1000
"""Rows that are read at a time from tables too large for memory."""

STEP = 1000
"""Operations of SQLite between two checks of a query."""

MIN_WORK, WORK_PER_BYTE = 200_000, 4
"""Operations that a query may take: for any file, and for each byte of it."""

MOST_COMPRESSED = 4
"""How much smaller a file may be on disk; in a larger one are holes, which need no work."""

LAST_ROUND = 2**62
"""After the last round of any run."""

_NOT_WRITABLE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


_deadline = ContextVar("deadline", default=math.inf)


@contextmanager
def reading_within(seconds: float) -> Generator[None]:
    """Let everything that is read of telemetry in the context end in time, or raise an error."""
    token = _deadline.set(monotonic() + seconds)
    try:
        yield
    finally:
        _deadline.reset(token)


def open_run(directory: str | os.PathLike[str]) -> RunTelemetry:
    """Open the telemetry of a run folder for reading, also while the run writes it.

    Raises:
        TelemetryError: If it is missing, damaged or of another version.
    """
    path = Path(directory) / FILE_NAME
    if not os.path.isfile(path):
        raise TelemetryError(f"{path} does not exist; name the folder of a run.")
    require_own_logs(path)
    return RunTelemetry(path)


class RunTelemetry:
    """The telemetry of one run, read only.

    Each call sees all rows up to some moment, without gaps in the order of writing. Calls inside
    ``with telemetry.snapshot():`` all see the same moment.

    A query may take the work that its file can need, because someone else may have made the file:
    pages that contain each other have rows without end.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._work = 0
        with self._errors_named():
            self._connection = _connect(path)
            self._connection.set_progress_handler(self._is_too_much, STEP)
            self._allow_work()
            try:
                check_schema(self._connection, path)
            except BaseException:
                self._connection.close()
                raise

    def __repr__(self) -> str:
        return f"RunTelemetry({str(self._path)!r})"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def position(self) -> int:
        """The number of the last row over all tables, 0 without rows."""
        with self._errors_named():
            return last_position(self._open_connection())

    @property
    def run(self) -> RunRecord:
        """The record that describes the run."""
        record = self.last(RunRecord)
        if record is None:
            raise TelemetryError(f"{self._path} does not describe its run yet; try again later.")
        return record

    def sessions(self) -> list[SessionRecord]:
        """Return the sessions of the run, oldest first."""
        return self.rows(SessionRecord)

    @overload
    def rows(self, table: type[R], **equal: object) -> list[R]: ...
    @overload
    def rows(self, table: str, **equal: object) -> list[Any]: ...
    def rows(self, table: str | type[Any], **equal: object) -> list[Any]:
        """Return the records of a table in the order of writing.

        Args:
            table: A table's name, or a record type.
            equal: Required values of columns, such as ``round=3``.
        """
        return list(self.stream(table, **equal))

    def stream(self, table: str | type[Any], **equal: object) -> Iterator[Any]:
        """Yield the records of a table one at a time, for tables too large for memory."""
        kind = self._kind(table)
        names = [column.name for column in columns_of(kind)]
        where = self._condition(kind, equal)
        rows = self._decoded(kind, columns_of(kind), where, tuple(equal.values()))
        return (kind(**dict(zip(names, row, strict=True))) for row in rows)

    def columns(self, table: str | type[Any], **equal: object) -> Columns:
        """Return a table as lists by column name, starting with the row numbers."""
        kind = self._kind(table)
        where, columns = self._condition(kind, equal), all_columns_of(kind)
        lists = self._decoded_columns(kind, columns, where, tuple(equal.values()))
        return {column.name: list(values) for column, values in zip(columns, lists, strict=True)}

    def stream_values(self, table: str | type[Any], **equal: object) -> Iterator[tuple[Any, ...]]:
        """Yield the rows of a table one at a time, each as its number and its values."""
        kind = self._kind(table)
        where = self._condition(kind, equal)
        return self._decoded(kind, all_columns_of(kind), where, tuple(equal.values()))

    def count(self, table: str | type[Any]) -> int:
        """Return the number of rows of a table."""
        return int(self.select(f'SELECT count(*) FROM "{self._kind(table).table}"')[0][0])

    def last(self, table: type[R]) -> R | None:
        """Return the last record of a type, or None without any."""
        kind = self._kind(table)
        key = key_of(kind)
        found = self.select(f'SELECT max({key}) FROM "{kind.table}"')[0][0]
        return None if found is None else cast(R, next(self.stream(table, **{key: found})))

    def select(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows of a query, with values as the database stores them.

        Args:
            sql: The query, with ``:name`` placeholders.
            values: By name; those that the query does not use are ignored.
        """
        return list(self._iterate(sql, values))

    def digest(self) -> str:
        """Return a hash of all rows except sessions, without columns that depend on the clock.

        Two runs with the same digest decided, did and measured the same things in the same order.
        """
        total = hashlib.sha256()
        with self.snapshot():
            for row in heapq.merge(*map(self._digest_rows, RECORD_TYPES)):
                # Python writes a float so that it reads back as the same bits.
                total.update(ascii(row).encode())
        return total.hexdigest()

    def metrics(
        self, first_round: int = 0, last_round: int | None = None, *, without: Collection[str] = ()
    ) -> Metrics:
        """Return metrics by name, as rounds and values.

        Args:
            first_round: The first round.
            last_round: The last round; None for that of the run.
            without: Metrics to leave out, such as ``train/approx_kl/<head>``.
        """

        def read(kind: RecordType, names: Sequence[str]) -> list[Sequence[Any]]:
            columns = {column.name: column for column in columns_of(kind)}
            chosen = tuple(columns[name] for name in names)
            if first_round == 0 and last_round is None:
                return self._decoded_columns(kind, chosen, "1", ())
            bounds = (first_round, LAST_ROUND if last_round is None else last_round)
            # Rounds never decrease from row to row: this order is also that of writing.
            where = "round BETWEEN ? AND ?"
            return self._decoded_columns(kind, chosen, where, bounds, "round, seq")

        with self.snapshot():
            try:
                return collect_metrics(read, without)
            except MALFORMED as error:
                raise self._damaged(f"a metric is not a number ({error})") from error

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Make all calls inside the context see the rows of the same moment."""
        connection = self._open_connection()
        if connection.in_transaction:
            yield
            return
        with self._errors_named():
            connection.execute("BEGIN")
        try:
            yield
        finally:
            with self._errors_named():
                connection.execute("COMMIT")

    def _digest_rows(self, kind: RecordType) -> Iterator[tuple[Any, ...]]:
        names = [f'"{column.name}"' for column in columns_of(kind) if not column.is_clock]
        sql = f"SELECT seq, '{kind.table}', {', '.join(names)} FROM \"{kind.table}\" ORDER BY seq"
        return self._iterate(sql, ())

    def _decoded(
        self, kind: RecordType, columns: tuple[Column, ...], where: str, values: tuple[object, ...]
    ) -> Iterator[tuple[Any, ...]]:
        """Yield the decoded values of some columns of the rows that meet a condition."""
        rows = self._iterate(self._row_sql(kind, columns, where), values)
        while block := list(islice(rows, BLOCK_ROWS)):
            yield from zip(*self._decode(kind, columns, block), strict=True)

    def _decoded_columns(
        self,
        kind: RecordType,
        columns: tuple[Column, ...],
        where: str,
        values: tuple[object, ...],
        order: str = "",
    ) -> list[Sequence[Any]]:
        """Return what :meth:`_decoded` yields, by column."""
        rows = self._iterate(self._row_sql(kind, columns, where, order), values)
        return self._decode(kind, columns, rows)

    def _decode(
        self, kind: RecordType, columns: tuple[Column, ...], rows: Iterable[tuple[Any, ...]]
    ) -> list[Sequence[Any]]:
        """Return the decoded values of rows by column, which is faster than row by row.

        Raises:
            DamagedTelemetryError: If a value has a type that its column cannot have.
        """
        found: list[Sequence[Any]] = list(zip(*rows, strict=True)) or [()] * len(columns)
        for index, column in enumerate(columns):
            values = found[index]
            types = set(map(type, values))
            if not types <= column.stored_types:
                value = next(value for value in values if type(value) not in column.stored_types)
                what = f"{kind.table}.{column.name} is {value!r}"
                raise self._damaged(f"{what[:80]} in a row")
            if column.decode is not None and types - {column.kind}:
                found[index] = list(map(column.decode, values))
        return found

    def _row_sql(
        self, kind: RecordType, columns: tuple[Column, ...], where: str, order: str = ""
    ) -> str:
        chosen, order = ", ".join(f'"{one.name}"' for one in columns), order or key_of(kind)
        return f'SELECT {chosen} FROM "{kind.table}" WHERE {where} ORDER BY {order}'

    def _condition(self, kind: RecordType, equal: dict[str, object]) -> str:
        """Return the SQL condition that columns have given values."""
        allowed = [column.name for column in all_columns_of(kind)]
        for name in equal:
            if name not in allowed:
                raise TelemetryError(
                    f"table {kind.table!r} has no column {name!r}.{did_you_mean(name, allowed)}"
                )
        return " AND ".join(f'"{name}" IS ?' for name in equal) or "1"

    def _iterate(
        self, sql: str, values: tuple[object, ...] | dict[str, object]
    ) -> Iterator[tuple[Any, ...]]:
        with self._errors_named(), closing(self._open_connection().cursor()) as cursor:
            self._allow_work()
            yield from cursor.execute(sql, cast(Any, values))

    def _allow_work(self) -> None:
        """Let a query begin: it may take as many operations as the file can need."""
        self._require_time()
        size = 0
        for end in ("", "-wal"):
            with suppress(FileNotFoundError):
                found = os.stat(f"{self._path}{end}")
                size += min(found.st_size, MOST_COMPRESSED * 512 * found.st_blocks)
        self._work = MIN_WORK + WORK_PER_BYTE * size

    def _require_time(self) -> None:
        if monotonic() > _deadline.get():
            raise TelemetryError(f"{self._path} takes too long to read.")

    def _is_too_much(self) -> bool:
        """Return whether SQLite must give up its query; it asks every :data:`STEP` operations."""
        self._work -= STEP
        return self._work < 0 or monotonic() > _deadline.get()

    def _kind(self, table: str | type[Any]) -> RecordType:
        name = table if isinstance(table, str) else getattr(table, "table", table.__name__)
        if name not in TABLES:
            raise TelemetryError(
                f"unknown table {name!r}; the tables are {', '.join(TABLES)}."
                f"{did_you_mean(name, TABLES)}"
            )
        return TABLES[name]

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise TelemetryError(f"{self._path} is closed; open the run again.")
        return self._connection

    def _damaged(self, reason: str) -> DamagedTelemetryError:
        return DamagedTelemetryError(f"{self._path} is damaged: {reason}; restore a copy.")

    @contextmanager
    def _errors_named(self) -> Generator[None]:
        try:
            yield
        except UnicodeDecodeError as error:  # in SQLite's own message about a damaged name
            raise self._damaged("a name or text is not UTF-8") from error
        except sqlite3.Error as error:
            if self._work < 0:
                raise self._damaged("its rows do not end") from error
            self._require_time()
            raise TelemetryError(
                f"{self._path} cannot be read ({message_of(error)}); it is damaged, locked or "
                "not a database."
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Return a read-only connection.

    SQLite cannot create its shared-memory file in a read-only folder. A database there without a
    write-ahead log has no writer, so it is opened as immutable.
    """
    place = path.resolve().as_uri()
    timeout = min(BUSY_SECONDS, max(0.0, _deadline.get() - monotonic()))
    for options in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{place}?{options}", uri=True, timeout=timeout, isolation_level=None
        )
        try:
            distrust(connection)
            connection.execute("SELECT 1 FROM sqlite_master").fetchone()
            return connection
        except sqlite3.OperationalError as error:
            connection.close()
            if (
                error.sqlite_errorcode & 0xFF not in _NOT_WRITABLE
                or path.with_name(f"{path.name}-wal").exists()
            ):
                raise
        except BaseException:
            connection.close()
            raise
    raise sqlite3.OperationalError("unable to open database file")
