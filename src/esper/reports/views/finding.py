"""Finding rows without reading tables: rows are numbered in the order in which things happened.

Neither rounds nor steps ever fall from one row of a table to the next, so that the first row of a
round or a step is found by halving the numbers. No table has an index but that of its numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeVar

from esper.telemetry import RunTelemetry
from esper.telemetry.records import RECORD_TYPES, Record
from esper.telemetry.schema import columns_of, decoders

R = TypeVar("R", bound=Record)


def last_position(telemetry: RunTelemetry) -> int:
    """Return the number of the last row of all tables, 0 if there is none."""
    parts = [f'(SELECT max(seq) FROM "{kind.table}")' for kind in RECORD_TYPES]
    return max(number or 0 for number in telemetry.select(f"SELECT {', '.join(parts)}")[0])


def first_number(
    telemetry: RunTelemetry, kind: type[Record], column: Literal["round", "step"], least: int
) -> int:
    """Return the number from which on the rows of a table have at least a value in a column.

    Args:
        telemetry: Of the run.
        kind: The table's record type.
        column: What never falls from row to row.
        least: The value.
    """
    place = f'FROM "{kind.table}"'
    low, high = 0, (telemetry.select(f"SELECT max(seq) {place}")[0][0] or 0) + 1
    probe = f"SELECT seq, {column} {place} WHERE seq >= :middle ORDER BY seq LIMIT 1"
    while low < high:
        middle = (low + high) // 2
        found = telemetry.select(probe, middle=middle)
        if found and found[0][1] < least:
            low = found[0][0] + 1
        else:
            high = middle
    return low


def numbers_of_steps(
    telemetry: RunTelemetry, kind: type[Record], first: int, last: int | None = None
) -> range:
    """Return the numbers between which a table's rows of some steps are.

    Args:
        telemetry: Of the run.
        kind: The table's record type.
        first: The first step.
        last: The last step; None for all that follow.
    """
    start = first_number(telemetry, kind, "step", first)
    if last is None:
        return range(start, last_position(telemetry) + 1)
    return range(start, first_number(telemetry, kind, "step", last + 1))


def records_among(
    telemetry: RunTelemetry, kind: type[R], numbers: range, **equal: int
) -> Iterator[R]:
    """Give the records of a table whose numbers are in a range, in order.

    Args:
        telemetry: Of the run.
        kind: The record type.
        numbers: Without holes.
        equal: Values that columns must have.
    """
    version, columns = telemetry.schema_version, columns_of(kind)
    chosen = ", ".join(f'"{c.name}"' if c.since <= version else "NULL" for c in columns)
    where = " AND ".join(
        ("seq >= :start", "seq < :stop", *(f'"{name}" = :{name}' for name in equal))
    )
    sql = f'SELECT {chosen} FROM "{kind.table}" WHERE {where} ORDER BY seq'
    names, todo = [column.name for column in columns], decoders(columns)
    for row in telemetry.select(sql, start=numbers.start, stop=numbers.stop, **equal):
        values = list(row)
        for place, decode in todo.items():
            values[place] = decode(values[place])
        yield kind(**dict(zip(names, values, strict=True)))
