"""The database schema, derived from the record types, and the encoding of values.

SQLite stores NaN as NULL. In a column that always holds a number, NULL therefore means NaN. In an
optional column, where NULL means None, NaN is stored as the text ``NaN``.
"""

from __future__ import annotations

import math
import sqlite3
import sys
import typing
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache
from operator import attrgetter
from pathlib import Path
from typing import Any

from esper.errors import DamagedTelemetryError, TelemetryError
from esper.telemetry.records import (
    SCHEMA_VERSION,
    TABLES,
    Record,
    RecordColumns,
    SessionRecord,
)

FILE_NAME = "telemetry.sqlite"
"""The database's name in a run folder."""

APPLICATION_ID = 0x45737052
"""Marks a database as Esper telemetry, in its header."""

Value = int | float | str | bytes | None
"""A value as SQLite stores it."""

RecordType = type[Record] | type[SessionRecord]

_SQL_TYPES: dict[type, str] = {
    int: "INTEGER",
    bool: "INTEGER",
    float: "REAL",
    str: "TEXT",
    bytes: "BLOB",
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of a table: a field of its record type."""

    name: str
    kind: type
    """int, float, bool, str or bytes."""
    is_optional: bool
    """Whether None is allowed."""
    is_clock: bool
    """Whether it depends on time or on the process."""
    since: int = 1
    """The schema version that added it."""
    about: str = ""
    """What it holds, in a sentence."""

    @property
    def sql(self) -> str:
        """The column's definition in SQL."""
        may_be_null = self.is_optional or self.kind is float
        return f'"{self.name}" {_SQL_TYPES[self.kind]}{"" if may_be_null else " NOT NULL"}'

    def accepts(self, value: object) -> bool:
        """Return whether a value has the column's type."""
        if value is None:
            return self.is_optional
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, (int, float) if self.kind is float else self.kind)

    @property
    def stored_types(self) -> frozenset[type]:
        """The types of its values as SQLite returns them; a float column can hold no integers."""
        kind = int if self.kind is bool else self.kind
        types = {kind, type(None)} if self.is_optional or kind is float else {kind}
        return frozenset(types | {str} if self.is_optional and kind is float else types)

    @property
    def decode(self) -> Callable[[Any], Any] | None:
        """The function from a stored value to a record's value; None if they are the same."""
        if self.kind is bool:
            return _decode_optional_bool if self.is_optional else bool
        if self.kind is float:
            return _decode_optional_float if self.is_optional else _decode_float
        return None


def _decode_optional_bool(value: Any) -> bool | None:
    return None if value is None else bool(value)


def _decode_float(value: Any) -> float:
    return math.nan if value is None else value


def _decode_optional_float(value: Any) -> float | None:
    return math.nan if value == "NaN" else value


@cache
def columns_of(kind: RecordType) -> tuple[Column, ...]:
    """Return the columns of a record type, in the order of its fields."""
    hints = typing.get_type_hints(kind)
    columns: list[Column] = []
    for one in fields(kind):
        options = typing.get_args(hints[one.name]) or (hints[one.name],)
        (plain,) = [option for option in options if option is not type(None)]
        columns.append(
            Column(
                name=one.name,
                kind=plain,
                is_optional=len(options) > 1,
                is_clock=one.metadata["clock"],
                since=one.metadata["since"],
                about=one.metadata["about"],
            )
        )
    return tuple(columns)


class RowMaker:
    """Converts records of one type to rows, rejecting values of the wrong type."""

    def __init__(self, kind: RecordType) -> None:
        self._kind = kind
        self._columns = columns_of(kind)
        self._values: Callable[[Any], tuple[Any, ...]] = attrgetter(*(c.name for c in fields(kind)))
        self._known: set[tuple[type, ...]] = set()
        self._known_by_column: list[set[type]] = [set() for _ in self._columns]
        self._may_be_nan = [
            i for i, c in enumerate(self._columns) if c.is_optional and c.kind is float
        ]

    def __call__(self, record: Any) -> tuple[Any, ...]:
        """Return a record's values as SQLite takes them.

        Raises:
            TelemetryError: If a value does not have its field's type, such as a NumPy number.
        """
        values = self._values(record)
        # Most records of a type have values of the same types: check each combination once.
        types = tuple(map(type, values))
        if types not in self._known:
            self._check(values)
            self._known.add(types)
        for index in self._may_be_nan:
            value = values[index]
            if value is not None and value != value:
                values = (*values[:index], "NaN", *values[index + 1 :])
        return values

    def columns(self, records: RecordColumns) -> list[Sequence[Any]]:
        """Return the values of many records as SQLite takes them, by column.

        Raises:
            TelemetryError: If a value does not have its field's type.
        """
        columns = [records.columns[column.name] for column in self._columns]
        for column, values, known in zip(
            self._columns, columns, self._known_by_column, strict=True
        ):
            types = set(map(type, values))
            if not types <= known:
                for value in values:
                    self._check_value(column, value)
                known |= types
        for index in self._may_be_nan:
            columns[index] = ["NaN" if value != value else value for value in columns[index]]
        return columns

    def _check(self, values: tuple[Any, ...]) -> None:
        for column, value in zip(self._columns, values, strict=True):
            self._check_value(column, value)

    def _check_value(self, column: Column, value: object) -> None:
        if not column.accepts(value):
            needed = column.kind.__name__ + (" or None" if column.is_optional else "")
            raise TelemetryError(
                f"{self._kind.__name__}.{column.name} is {value!r}, a "
                f"{type(value).__name__}; it must be {needed}: convert it first."
            )


@cache
def insert_sql(kind: RecordType, n_rows: int = 1) -> str:
    """Return the statement that inserts rows of a record type, each starting with its key."""
    row = f"({', '.join('?' * (len(columns_of(kind)) + 1))})"
    return f'INSERT INTO "{kind.table}" VALUES {", ".join([row] * n_rows)}'


def key_of(kind: RecordType) -> str:
    """Return the name of a table's primary key."""
    return "id" if kind is SessionRecord else "seq"


def all_columns_of(kind: RecordType) -> tuple[Column, ...]:
    """Return the columns of a table: its key, then those of its record type."""
    about = "The session's number." if kind is SessionRecord else "The row's number in the run."
    key = Column(name=key_of(kind), kind=int, is_optional=False, is_clock=False, about=about)
    return (key, *columns_of(kind))


def create_tables(connection: sqlite3.Connection) -> None:
    """Create all tables and indexes in an empty database, inside the caller's transaction."""
    for kind in TABLES.values():
        names = [f"{key_of(kind)} INTEGER PRIMARY KEY", *(c.sql for c in columns_of(kind))]
        connection.execute(f'CREATE TABLE "{kind.table}" ({", ".join(names)})')
        for index in kind.indexes:
            name, columns = "_".join((kind.table, *index)), ", ".join(f'"{c}"' for c in index)
            connection.execute(f'CREATE INDEX "{name}" ON "{kind.table}" ({columns})')
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_blank(connection: sqlite3.Connection) -> bool:
    """Return whether a database is empty and not marked as another program's."""
    (n_things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not (n_things or _pragma(connection, "application_id"))


def check_schema(
    connection: sqlite3.Connection, path: Path, *, oldest: int = SCHEMA_VERSION
) -> int:
    """Return the schema version of a database.

    Args:
        connection: To the database.
        path: Its file, for messages.
        oldest: The oldest version that the caller accepts.

    Raises:
        TelemetryError: If it is not Esper telemetry, or of another version, or damaged.
    """
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise DamagedTelemetryError(
            f"{path} is not Esper telemetry; name a run folder, or move the file away."
        )
    version = _pragma(connection, "user_version")
    if not oldest <= version <= SCHEMA_VERSION:
        raise TelemetryError(
            f"{path} has schema version {version}; this Esper writes version {SCHEMA_VERSION} and "
            "reads versions up to it: use the Esper that wrote it."
        )
    for kind in TABLES.values():
        found = [row[1] for row in connection.execute(f'PRAGMA table_info("{kind.table}")')]
        if found != [column.name for column in all_columns_of(kind) if column.since <= version]:
            raise DamagedTelemetryError(
                f"{path} is damaged: table {kind.table!r} has the wrong columns."
            )
    return version


def last_position(connection: sqlite3.Connection) -> int:
    """Return the number of the last row over all tables, 0 without rows."""
    kinds = (kind for kind in TABLES.values() if kind is not SessionRecord)
    parts = " UNION ALL ".join(f'SELECT max(seq) AS s FROM "{kind.table}"' for kind in kinds)
    return connection.execute(f"SELECT max(s) FROM ({parts})").fetchone()[0] or 0


def decoders(columns: Iterable[Column]) -> Mapping[int, Callable[[Any], Any]]:
    """Return the decoders that the values of a row need, by position."""
    return {i: column.decode for i, column in enumerate(columns) if column.decode is not None}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


SCALE = 65534
"""Steps between probabilities 0 and 1 in a packed probability."""
ILLEGAL = 65535
"""The packed probability of a masked choice."""


def unpack_probabilities(packed: bytes, sizes: Sequence[int]) -> list[list[float | None]]:
    """Return the probabilities of each head's choices, None for masked choices.

    Args:
        packed: Two bytes for each choice, heads one after another.
        sizes: The number of choices of each head.

    Raises:
        ValueError: If the number of probabilities is not the number of choices.
    """
    numbers = array("H", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != sum(sizes):
        raise ValueError(f"{len(numbers)} probabilities for {sum(sizes)} choices.")
    values = iter([None if number == ILLEGAL else number / SCALE for number in numbers])
    return [[next(values) for _ in range(size)] for size in sizes]
