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
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path
from typing import Any

from esper.errors import DamagedTelemetryError, TelemetryError, shown
from esper.telemetry.records import (
    SCHEMA_VERSION,
    TABLES,
    Record,
    RecordColumns,
    SessionRecord,
)

MAX_VALUE_BYTES = 2**24
"""The longest value that is read or written."""

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
    about: str = ""
    """What it holds, in a sentence."""

    @property
    def sql(self) -> str:
        """The column's definition in SQL."""
        may_be_null = self.is_optional or self.kind is float
        return f'"{self.name}" {_SQL_TYPES[self.kind]}{"" if may_be_null else " NOT NULL"}'

    def accepts(self, kind: type) -> bool:
        """Return whether values of a type may be stored."""
        if kind is type(None):
            return self.is_optional
        if kind is bool:
            return self.kind is bool
        return issubclass(kind, (int, float) if self.kind is float else self.kind)

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
                about=one.metadata["about"],
            )
        )
    return tuple(columns)


def stored_columns(records: RecordColumns) -> list[Sequence[Any]]:
    """Return the values of records as SQLite takes them, by column.

    Raises:
        TelemetryError: If a value does not have its field's type, such as a NumPy number.
    """
    stored: list[Sequence[Any]] = []
    for column in columns_of(records.kind):
        values = records.columns[column.name]
        for kind in set(map(type, values)):
            if not column.accepts(kind):
                value = next(value for value in values if type(value) is kind)
                needed = column.kind.__name__ + (" or None" if column.is_optional else "")
                raise TelemetryError(
                    f"{records.kind.__name__}.{column.name} is {value!r}, a {kind.__name__}; "
                    f"it must be {needed}: convert it first."
                )
        if column.is_optional and column.kind is float:
            values = ["NaN" if value != value else value for value in values]
        stored.append(values)
    return stored


@cache
def insert_sql(kind: RecordType) -> str:
    """Return the statement that inserts a row of a record type, starting with its key."""
    return f'INSERT INTO "{kind.table}" VALUES ({", ".join("?" * (len(columns_of(kind)) + 1))})'


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


def check_schema(connection: sqlite3.Connection, path: Path) -> None:
    """Reject a database that is not telemetry of this version; ``path`` is its file.

    Its schema must be exactly what :func:`create_tables` makes: triggers, views and constraints of
    someone else would run with every query.

    Raises:
        TelemetryError: If it is not Esper telemetry, or of another version, or damaged.
    """
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise DamagedTelemetryError(
            f"{path} is not Esper telemetry; name a run folder, or move the file away."
        )
    expected = _own_schema()
    found = connection.execute(f"{_SCHEMA_SQL} LIMIT {len(expected) + 1}").fetchall()
    wrong = sorted(expected.symmetric_difference(found), key=str)
    version = _pragma(connection, "user_version")
    if version != SCHEMA_VERSION:  # with the same tables, only the number is not what was written
        raise (TelemetryError if wrong else DamagedTelemetryError)(
            f"{path} was made by another version of Esper (schema version {version}, not "
            f"{SCHEMA_VERSION}); use that version."
        )
    if wrong:
        name = shown(wrong[0][1])
        raise DamagedTelemetryError(f"{path} is damaged: {name} is not as Esper creates it.")


_SCHEMA_SQL = "SELECT type, name, tbl_name, sql FROM sqlite_master"


@cache
def _own_schema() -> frozenset[tuple[Any, ...]]:
    """Return what the schema table of telemetry of this version holds."""
    with closing(sqlite3.connect(":memory:")) as connection:
        create_tables(connection)
        return frozenset(connection.execute(_SCHEMA_SQL))


def distrust(connection: sqlite3.Connection) -> None:
    """Let a connection call no function that the schema of a foreign database names."""
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA cell_size_check = ON")
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)


def last_position(connection: sqlite3.Connection) -> int:
    """Return the number of the last row over all tables, 0 without rows."""
    kinds = (kind for kind in TABLES.values() if kind is not SessionRecord)
    parts = " UNION ALL ".join(f'SELECT max(seq) AS s FROM "{kind.table}"' for kind in kinds)
    return connection.execute(f"SELECT max(s) FROM ({parts})").fetchone()[0] or 0


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
