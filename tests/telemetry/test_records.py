"""Records are read as they were written, for any valid values."""

from __future__ import annotations

import math
import sqlite3
import tempfile
import typing
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from esper.errors import TelemetryError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import (
    RECORD_TYPES,
    TABLES,
    Record,
    RecordColumns,
    RoundRecord,
    StepRecord,
)
from tests.telemetry.samples import FILE, example, notice, step, written

VALUES: dict[Any, st.SearchStrategy[Any]] = {
    int: st.integers(-(2**63), 2**63 - 1),
    float: st.floats(allow_nan=True, allow_infinity=True),
    bool: st.booleans(),
    str: st.text(st.characters(exclude_categories=["Cs"])) | st.just("'\"; DROP TABLE steps;\0%"),
    bytes: st.binary(max_size=8),
    type(None): st.none(),
}


def records(kind: type[Any]) -> st.SearchStrategy[Any]:
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind,
        **{
            field.name: st.one_of(
                [VALUES[option] for option in typing.get_args(hints[field.name])]
                or [VALUES[hints[field.name]]]
            )
            for field in fields(kind)
        },
    )


def same(a: Any, b: Any) -> bool:
    if isinstance(a, float) and math.isnan(a):
        return isinstance(b, float) and math.isnan(b)
    return type(a) is type(b) and a == b


@settings(max_examples=25, deadline=None)
@given(st.lists(st.one_of([records(kind) for kind in RECORD_TYPES]), max_size=20))
def test_records_are_read_as_they_were_written(given_records: list[Record]) -> None:
    with tempfile.TemporaryDirectory() as folder, written(Path(folder), given_records) as telemetry:
        for kind in RECORD_TYPES:
            expected = [record for record in given_records if type(record) is kind]
            found = telemetry.rows(kind)
            assert len(found) == len(expected)
            for one, other in zip(expected, found, strict=True):
                for field in fields(kind):
                    assert same(getattr(one, field.name), getattr(other, field.name)), field.name
            numbers = [i + 1 for i, record in enumerate(given_records) if type(record) is kind]
            assert telemetry.columns(kind)["seq"] == numbers


def test_nan_and_none_are_different_in_optional_columns(tmp_path: Path) -> None:
    rows = [example(RoundRecord, ep_rew_mean=value) for value in (None, math.nan, math.inf, 0.0)]
    with written(tmp_path, rows) as telemetry:
        nothing, nan, inf, zero = (row.ep_rew_mean for row in telemetry.rows(RoundRecord))
        assert nothing is None
        assert math.isnan(nan)
        assert (inf, zero) == (math.inf, 0.0)
        read = telemetry.columns("rounds")["ep_rew_mean"]
        assert read[0] is None
        assert math.isnan(read[1])


def test_sql_can_compute_with_the_stored_numbers(tmp_path: Path) -> None:
    rows: list[Record] = [step(number) for number in range(100)]
    with written(tmp_path, [*rows, step(100, reward=math.nan)]):
        connection = sqlite3.connect(tmp_path / FILE)
        (mean,) = connection.execute("SELECT avg(reward) FROM steps").fetchone()
        (kinds,) = connection.execute("SELECT group_concat(DISTINCT typeof(env)) FROM steps")
        connection.close()
    assert mean == pytest.approx(sum(number * 0.1 for number in range(100)) / 100)
    assert kinds == ("integer",)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", np.int64(3)),
        ("env", 1.0),
        ("env", True),
        ("env", None),
        ("reward", np.float32(0.5)),
        ("reward", "0.5"),
        ("reward", None),
        ("reward", False),
        ("is_illegal", 1),
        ("is_illegal", np.bool_(True)),
        ("slots", None),
        ("slots", b"[]"),
        ("refusal", 3),
    ],
)
def test_a_value_of_the_wrong_type_is_rejected_by_write(
    tmp_path: Path, field: str, value: object
) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write(step(0))
        with pytest.raises(TelemetryError, match=rf"StepRecord\.{field} is .*; it must be"):
            writer.write(step(1, **{field: value}))
        writer.write(step(2))
    with open_run(tmp_path) as telemetry:
        assert [row.step for row in telemetry.rows(StepRecord)] == [0, 2]


@settings(max_examples=10, deadline=None)
@given(st.one_of([st.lists(records(kind), min_size=1, max_size=5) for kind in RECORD_TYPES]))
def test_records_by_column_are_stored_like_single_ones(given_records: list[Record]) -> None:
    kind = type(given_records[0])
    names = [field.name for field in fields(kind)]
    rows = [{name: getattr(record, name) for name in names} for record in given_records]
    together = RecordColumns.from_rows(kind, rows)
    assert repr(list(together.records())) == repr(given_records)
    found: list[list[tuple[Any, ...]]] = []
    entries: list[list[Any]] = [
        [notice(0), together, notice(1)],
        [notice(0), *given_records, notice(1)],
    ]
    for some in entries:
        with tempfile.TemporaryDirectory() as folder, written(Path(folder), some):
            connection = sqlite3.connect(Path(folder) / FILE)
            tables = {kind.table, "notices"}
            found.append(
                [row for table in tables for row in connection.execute(f"SELECT * FROM {table}")]
            )
            connection.close()
    assert repr(found[0]) == repr(found[1])


def test_a_value_of_the_wrong_type_in_a_column_is_rejected(tmp_path: Path) -> None:
    names = [field.name for field in fields(StepRecord)]
    rows = [{name: getattr(step(n), name) for name in names} for n in range(3)]
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many([RecordColumns.from_rows(StepRecord, rows)])
        rows[1]["reward"] = np.float32(0.5)
        with pytest.raises(TelemetryError, match=r"StepRecord\.reward is .*; it must be"):
            writer.write_many([RecordColumns.from_rows(StepRecord, rows)])
        assert writer.position == 3


def test_integers_and_numpy_floats_are_stored_as_floats(tmp_path: Path) -> None:
    with written(tmp_path, [step(0, reward=3, value=np.float64(0.1))]) as telemetry:
        (row,) = telemetry.rows(StepRecord)
    assert (type(row.reward), row.reward) == (float, 3.0)
    assert (type(row.value), row.value) == (float, 0.1)


@pytest.mark.parametrize("record", [step(0, env=2**63), notice(0, "half a character: \ud800")])
def test_a_value_sqlite_cannot_store_is_an_error(tmp_path: Path, record: Record) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write(notice(1))
        with pytest.raises(TelemetryError, match="cannot be stored"):
            writer.write(record)
    with open_run(tmp_path) as telemetry:
        assert telemetry.rows("notices") == [notice(1)]


def test_every_record_is_frozen_and_has_its_own_table() -> None:
    assert len(TABLES) == len(RECORD_TYPES) + 1
    for name, kind in TABLES.items():
        assert kind.table == name
        record = example(kind)
        with pytest.raises((AttributeError, TypeError)):
            setattr(record, fields(kind)[0].name, 1)
        assert replace(record) == record
