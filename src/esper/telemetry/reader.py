"""Reading a run's telemetry, also while the run writes it."""

from __future__ import annotations

import hashlib
import heapq
import os
import sqlite3
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, cast, overload

from esper.errors import TelemetryError, did_you_mean
from esper.telemetry.metrics import Metrics, collect_metrics
from esper.telemetry.records import RECORD_TYPES, TABLES, RunRecord, SessionRecord
from esper.telemetry.schema import (
    FILE_NAME,
    Column,
    RecordType,
    all_columns_of,
    check_schema,
    columns_of,
    decoders,
    key_of,
)

R = TypeVar("R")
Columns = dict[str, list[Any]]

BUSY_SECONDS = 10.0
"""How long a writer may be in the way of a reader; it hardly ever is."""

_NOT_WRITABLE = {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def open_run(directory: str | os.PathLike[str]) -> RunTelemetry:
    """Open the telemetry of a run folder for reading. A run that writes it is not disturbed.

    What an earlier version did not store is None.

    Raises:
        TelemetryError: If there is none, or it is damaged or of a later version.
    """
    path = Path(directory) / FILE_NAME
    if not path.is_file():
        raise TelemetryError(f"{path} does not exist; name the folder of a run.")
    return RunTelemetry(path)


class RunTelemetry:
    """The telemetry of one run, read only.

    Each call sees every row that was stored when it began, and of rows in the order of writing it
    sees a beginning without holes. Calls inside ``with telemetry.snapshot():`` see the same rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        with self._errors_named():
            self._connection = _connect(path)
            try:
                self._version = check_schema(self._connection, path, oldest=1)
            except BaseException:
                self._connection.close()
                raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database; nothing can be read afterwards."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @property
    def schema_version(self) -> int:
        """The version of the tables and columns."""
        return int(self._query("PRAGMA user_version")[0][0])

    @property
    def run(self) -> RunRecord:
        """What the run is."""
        record = self.last(RunRecord)
        if record is None:
            raise TelemetryError(f"{self._path} does not say yet what the run is; try again later.")
        return record

    def sessions(self) -> list[SessionRecord]:
        """Return the processes that worked on the run, in order."""
        return self.rows(SessionRecord)

    @overload
    def rows(self, table: type[R], **equal: object) -> list[R]: ...
    @overload
    def rows(self, table: str, **equal: object) -> list[Any]: ...
    def rows(self, table: str | type[Any], **equal: object) -> list[Any]:
        """Return the records of a table in the order of writing.

        Args:
            table: A table's name, or a record type.
            equal: Values that columns must have, such as ``round=3``.
        """
        return list(self.stream(table, **equal))

    def stream(self, table: str | type[Any], **equal: object) -> Iterator[Any]:
        """Give the records of a table one after another, for tables too large for memory."""
        kind = self._kind(table)
        columns = columns_of(kind)
        names = [column.name for column in columns]
        for values in self._decoded(kind, columns, equal):
            yield kind(**dict(zip(names, values, strict=True)))

    def columns(self, table: str | type[Any], **equal: object) -> Columns:
        """Return a table as lists by the names of its columns, each row's number first."""
        names = [column.name for column in all_columns_of(self._kind(table))]
        lists: tuple[list[Any], ...] = tuple([] for _ in names)
        for values in self.stream_values(table, **equal):
            for one, value in zip(lists, values, strict=True):
                one.append(value)
        return dict(zip(names, lists, strict=True))

    def stream_values(self, table: str | type[Any], **equal: object) -> Iterator[list[Any]]:
        """Give the rows of a table one after another, each as its number and its values."""
        kind = self._kind(table)
        return self._decoded(kind, all_columns_of(kind), equal)

    def count(self, table: str | type[Any]) -> int:
        """Return how many rows a table has."""
        return int(self._query(f'SELECT count(*) FROM "{self._kind(table).table}"')[0][0])

    def last(self, table: type[R]) -> R | None:
        """Return the last record of a type, or None if there is none."""
        kind = self._kind(table)
        key = key_of(kind)
        found = self._query(f'SELECT max({key}) FROM "{kind.table}"')[0][0]
        return None if found is None else cast(R, next(self.stream(table, **{key: found})))

    def select(self, sql: str, **values: object) -> list[tuple[Any, ...]]:
        """Return the rows that a query gives, as the database keeps them.

        Args:
            sql: The query, with ``:name`` in the place of values.
            values: By name; those that the query does not name are of no effect.
        """
        return list(self._iterate(sql, values))

    def digest(self) -> str:
        """Return a hash of all rows but sessions, without what depends on the clock or the process.

        Two runs of the same digest decided, did and measured the same things in the same order.
        """
        total = hashlib.sha256()
        with self.snapshot():
            for row in heapq.merge(*map(self._digest_rows, RECORD_TYPES)):
                # Python writes a float so that it reads back as the same bits.
                total.update(ascii(row).encode())
        return total.hexdigest()

    def metrics(self) -> Metrics:
        """Return every metric by its name, as rounds and values."""
        with self.snapshot():
            return collect_metrics(self.stream)

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """Have all calls inside see the rows of one moment, whatever is written meanwhile."""
        connection = self._open_connection()
        if connection.in_transaction:
            yield
            return
        connection.execute("BEGIN")
        try:
            yield
        finally:
            connection.execute("COMMIT")

    def _digest_rows(self, kind: RecordType) -> Iterator[tuple[Any, ...]]:
        stored = [column for column in columns_of(kind) if column.since <= self._version]
        names = [self._sql(column) for column in stored if not column.is_clock]
        sql = f"SELECT seq, '{kind.table}', {', '.join(names)} FROM \"{kind.table}\" ORDER BY seq"
        return self._iterate(sql, ())

    def _decoded(
        self, kind: RecordType, columns: tuple[Column, ...], equal: dict[str, object]
    ) -> Iterator[list[Any]]:
        """Give the values of some columns of the rows that are asked for."""
        allowed = {column.name: self._sql(column) for column in all_columns_of(kind)}
        for name in equal:
            if name not in allowed:
                raise TelemetryError(
                    f"table {kind.table!r} has no column {name!r}.{did_you_mean(name, allowed)}"
                )
        chosen = ", ".join(map(self._sql, columns))
        where = " AND ".join(f"{allowed[name]} IS ?" for name in equal) or "1"
        sql = f'SELECT {chosen} FROM "{kind.table}" WHERE {where} ORDER BY {key_of(kind)}'
        todo = decoders(columns)
        for row in self._iterate(sql, tuple(equal.values())):
            values = list(row)
            for index, decode in todo.items():
                values[index] = decode(values[index])
            yield values

    def _sql(self, column: Column) -> str:
        """Return what a column is in a query: none if the database is too old to have it."""
        return f'"{column.name}"' if column.since <= self._version else "NULL"

    def _iterate(
        self, sql: str, values: tuple[object, ...] | dict[str, object]
    ) -> Iterator[tuple[Any, ...]]:
        with self._errors_named(), closing(self._open_connection().cursor()) as cursor:
            yield from cursor.execute(sql, cast(Any, values))

    def _query(self, sql: str) -> list[tuple[Any, ...]]:
        return list(self._iterate(sql, ()))

    def _kind(self, table: str | type[Any]) -> RecordType:
        name = table if isinstance(table, str) else getattr(table, "table", table.__name__)
        if name not in TABLES:
            raise TelemetryError(
                f"there is no table {name!r}; there are {', '.join(TABLES)}."
                f"{did_you_mean(name, TABLES)}"
            )
        return TABLES[name]

    def _open_connection(self) -> sqlite3.Connection:
        if self._connection is None:
            raise TelemetryError(f"{self._path} was closed; open the run again.")
        return self._connection

    @contextmanager
    def _errors_named(self) -> Generator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise TelemetryError(
                f"{self._path} cannot be read ({error}); it is damaged, locked or no database."
            ) from error


def _connect(path: Path) -> sqlite3.Connection:
    """Return a connection that only reads.

    In a folder that cannot be written, the files through which readers and a writer agree cannot be
    made. A database without them has no writer, and is read as it is.
    """
    place = path.resolve().as_uri()
    for options in ("mode=ro", "mode=ro&immutable=1"):
        connection = sqlite3.connect(
            f"{place}?{options}", uri=True, timeout=BUSY_SECONDS, isolation_level=None
        )
        try:
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
