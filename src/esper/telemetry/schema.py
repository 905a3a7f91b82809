"""The database's tables, made from the record types, and how values go in and come out.

SQLite has no NaN: it keeps NULL instead. In a column that always holds a number, NULL is therefore
NaN. In a column where NULL means that there is no number, NaN is kept as the text ``NaN``.
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

from esper.errors import TelemetryError
from esper.telemetry.records import (
    SCHEMA_VERSION,
    TABLES,
    Record,
    SessionRecord,
    is_clock_field,
    version_of,
)

FILE_NAME = "telemetry.sqlite"
"""The database's name in a run folder."""

APPLICATION_ID = 0x45737052
"""Marks a database as one of ours, in its header."""

Value = int | float | str | bytes | None
"""What SQLite keeps."""

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
    """Whether it depends on the clock or the process."""
    since: int = 1
    """The schema version that added it."""

    @property
    def sql(self) -> str:
        """The column as a table's definition has it."""
        may_be_null = self.is_optional or self.kind is float
        return f'"{self.name}" {_SQL_TYPES[self.kind]}{"" if may_be_null else " NOT NULL"}'

    def accepts(self, value: object) -> bool:
        """Return whether a value is of the column's type."""
        if value is None:
            return self.is_optional
        if isinstance(value, bool):
            return self.kind is bool
        return isinstance(value, (int, float) if self.kind is float else self.kind)

    @property
    def decode(self) -> Callable[[Any], Any] | None:
        """What makes a record's value of a stored one; None if they are the same."""
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
                is_clock=is_clock_field(one),
                since=version_of(one),
            )
        )
    return tuple(columns)


class RowMaker:
    """Turns the records of one type into rows, refusing values of the wrong type."""

    def __init__(self, kind: RecordType) -> None:
        self._kind = kind
        self._columns = columns_of(kind)
        self._values: Callable[[Any], tuple[Any, ...]] = attrgetter(*(c.name for c in fields(kind)))
        self._known: set[tuple[type, ...]] = set()
        self._may_be_nan = [
            i for i, c in enumerate(self._columns) if c.is_optional and c.kind is float
        ]

    def __call__(self, record: Any) -> tuple[Any, ...]:
        """Return a record's values as SQLite takes them.

        Raises:
            TelemetryError: If a value is not of its field's type, such as a number of NumPy's.
        """
        values = self._values(record)
        # Almost all records of a type have values of the same few types: looked at only once.
        types = tuple(map(type, values))
        if types not in self._known:
            self._check(values)
            self._known.add(types)
        for index in self._may_be_nan:
            value = values[index]
            if value is not None and value != value:
                values = (*values[:index], "NaN", *values[index + 1 :])
        return values

    def _check(self, values: tuple[Any, ...]) -> None:
        for column, value in zip(self._columns, values, strict=True):
            if not column.accepts(value):
                needed = column.kind.__name__ + (" or None" if column.is_optional else "")
                raise TelemetryError(
                    f"{self._kind.__name__}.{column.name} is {value!r}, a "
                    f"{type(value).__name__}; it must be {needed}: convert it first."
                )


@cache
def insert_sql(kind: RecordType, n_rows: int = 1) -> str:
    """Return the statement that inserts some rows of a record type, each after its key."""
    row = f"({', '.join('?' * (len(columns_of(kind)) + 1))})"
    return f'INSERT INTO "{kind.table}" VALUES {", ".join([row] * n_rows)}'


def key_of(kind: RecordType) -> str:
    """Return the name of the table's key: the row's number, or the session's."""
    return "id" if kind is SessionRecord else "seq"


def all_columns_of(kind: RecordType) -> tuple[Column, ...]:
    """Return the columns of a table: its key, then those of its record type."""
    key = Column(name=key_of(kind), kind=int, is_optional=False, is_clock=False)
    return (key, *columns_of(kind))


def create_tables(connection: sqlite3.Connection) -> None:
    """Make an empty database one of ours; the caller has begun a transaction."""
    for kind in TABLES.values():
        names = [f"{key_of(kind)} INTEGER PRIMARY KEY", *(c.sql for c in columns_of(kind))]
        connection.execute(f'CREATE TABLE "{kind.table}" ({", ".join(names)})')
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


def is_blank(connection: sqlite3.Connection) -> bool:
    """Return whether a database holds nothing at all and belongs to nobody."""
    (n_things,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return not (n_things or _pragma(connection, "application_id"))


def check_schema(
    connection: sqlite3.Connection, path: Path, *, oldest: int = SCHEMA_VERSION
) -> int:
    """Return the version of a database; raise TelemetryError unless it is telemetry of ours.

    Args:
        connection: To the database.
        path: Where it is.
        oldest: The oldest version that is of use.
    """
    if _pragma(connection, "application_id") != APPLICATION_ID:
        raise TelemetryError(
            f"{path} is not telemetry of Esper; name a run folder, or move the file away."
        )
    version = _pragma(connection, "user_version")
    if not oldest <= version <= SCHEMA_VERSION:
        known = f"writes version {SCHEMA_VERSION} and reads those up to it"
        raise TelemetryError(
            f"{path} has schema version {version}; this Esper {known}: use the Esper that wrote it."
        )
    for kind in TABLES.values():
        found = [row[1] for row in connection.execute(f'PRAGMA table_info("{kind.table}")')]
        if found != [column.name for column in all_columns_of(kind) if column.since <= version]:
            raise TelemetryError(f"{path} is damaged: table {kind.table!r} is not as it was made.")
    return version


def last_position(connection: sqlite3.Connection) -> int:
    """Return the number of the last row of all tables, 0 if there is none."""
    kinds = (kind for kind in TABLES.values() if kind is not SessionRecord)
    parts = " UNION ALL ".join(f'SELECT max(seq) AS s FROM "{kind.table}"' for kind in kinds)
    return connection.execute(f"SELECT max(s) FROM ({parts})").fetchone()[0] or 0


def decoders(columns: Iterable[Column]) -> Mapping[int, Callable[[Any], Any]]:
    """Return what must be applied to the values of a row, by position."""
    return {i: column.decode for i, column in enumerate(columns) if column.decode is not None}


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


SCALE = 65534
ILLEGAL = 65535


def unpack_probabilities(packed: bytes, sizes: Sequence[int]) -> list[list[float | None]]:
    """Return the probabilities of each head's choices; None for a choice that was masked.

    Args:
        packed: The choices of all heads side by side.
        sizes: How many choices each head has.

    Raises:
        ValueError: If there are more or fewer numbers than choices.
    """
    numbers = array("H", packed)
    if sys.byteorder == "big":
        numbers.byteswap()
    if len(numbers) != sum(sizes):
        raise ValueError(f"there are {len(numbers)} probabilities and {sum(sizes)} choices.")
    values = iter([None if number == ILLEGAL else number / SCALE for number in numbers])
    return [[next(values) for _ in range(size)] for size in sizes]
