"""Reading a run: tables, filters, digests, older versions and wrong files."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from esper.errors import TelemetryError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.records import (
    RECORD_TYPES,
    SCHEMA_VERSION,
    EvaluationRecord,
    NoticeRecord,
    Record,
    RoundRecord,
    RunRecord,
    StepRecord,
)
from tests.telemetry.samples import FILE, example, notice, step, written

STEPS: list[Record] = [step(number) for number in range(100)]


def test_rows_can_be_filtered_by_column_values(tmp_path: Path) -> None:
    with written(tmp_path, [*STEPS, step(100, refusal="too young")]) as telemetry:
        assert telemetry.rows(StepRecord, env=1, round=2) == [
            step(33),
            step(37),
            step(41),
            step(45),
        ]
        assert telemetry.rows("steps", refusal="too young") == [step(100, refusal="too young")]
        assert len(telemetry.rows(StepRecord, refusal=None)) == 100
        assert len(telemetry.rows(StepRecord, is_illegal=False)) == 50
        assert telemetry.rows(StepRecord, seq=7) == [step(6)]
        assert telemetry.rows(StepRecord, env=99) == []
        assert telemetry.columns(StepRecord, round=6)["step"] == [96, 97, 98, 99, 100]


def test_run_last_record_and_counts(tmp_path: Path) -> None:
    run = example(RunRecord, name="a run")
    with written(tmp_path, [run, notice(3), notice(2)]) as telemetry:
        assert telemetry.run == run
        assert telemetry.last(NoticeRecord) == notice(2)
        assert telemetry.last(StepRecord) is None
        assert (telemetry.count("notices"), telemetry.count(StepRecord)) == (2, 0)
        assert telemetry.sessions() == []
        assert list(telemetry.columns("notices")) == ["seq", "round", "kind", "message"]


def test_the_run_record_is_an_error_before_it_is_written(tmp_path: Path) -> None:
    with written(tmp_path, []) as telemetry, pytest.raises(TelemetryError, match=FILE):
        _ = telemetry.run


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.rows("stepps"), "'stepps'.* Did you mean 'steps'"),
        (lambda t: t.count(int), "'int'"),
        (lambda t: t.rows("steps", rond=1), "no column 'rond'.* Did you mean 'round'"),
        (lambda t: t.rows("steps", **{'round" OR 1 --': 1}), "no column"),
    ],
)
def test_unknown_tables_and_columns_are_rejected(
    tmp_path: Path, ask: Callable[[Any], Any], message: str
) -> None:
    with written(tmp_path, []) as telemetry, pytest.raises(TelemetryError, match=message):
        ask(telemetry)


def test_reading_a_closed_reader_is_an_error(tmp_path: Path) -> None:
    with written(tmp_path, []) as telemetry:
        pass
    telemetry.close()
    with pytest.raises(TelemetryError, match="closed"):
        telemetry.count("steps")


def digest_of(folder: Path, records: list[Record]) -> str:
    folder.mkdir()
    with written(folder, records) as telemetry:
        return telemetry.digest()


@pytest.mark.parametrize("kind", RECORD_TYPES)
def test_the_digest_covers_every_field_except_clock_fields(tmp_path: Path, kind: type[Any]) -> None:
    record = example(kind)
    changes: dict[type, Any] = {int: 77, float: 0.1 + 0.2, bool: 0, str: "other", bytes: b"x"}
    with written(tmp_path, [record]) as telemetry:
        digests = {"": telemetry.digest()}
        for field in fields(kind):
            value = getattr(record, field.name)
            overwrite(tmp_path, kind.table, field.name, changes[type(value)])
            digests[field.name] = telemetry.digest()
            overwrite(tmp_path, kind.table, field.name, value)
        assert telemetry.digest() == digests[""]
    of_clock = {field.name for field in fields(kind) if field.metadata["clock"]}
    same = {name for name, digest in digests.items() if name and digest == digests[""]}
    assert same == of_clock
    assert len(set(digests.values())) == len(digests) - len(of_clock)


def overwrite(folder: Path, table: str, column: str, value: object) -> None:
    connection = sqlite3.connect(folder / FILE, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")
    connection.execute(f'UPDATE "{table}" SET "{column}" = ?', (value,))
    connection.close()


def test_the_digest_omits_only_fields_that_depend_on_clock_or_process() -> None:
    marked = {
        (kind, field.name)
        for kind in RECORD_TYPES
        for field in fields(kind)
        if field.metadata["clock"]
    }
    assert marked == {
        (RunRecord, "name"),
        (RunRecord, "esper_version"),
        (RunRecord, "created_at"),
        (RoundRecord, "seconds"),
        (RoundRecord, "steps_per_second"),
        (RoundRecord, "seconds_by_part"),
        (RoundRecord, "rss_bytes"),
        (RoundRecord, "workers"),
        (RoundRecord, "workers_restarted"),
        (RoundRecord, "seconds_waited"),
        (EvaluationRecord, "seconds"),
    }


def test_the_digest_depends_on_the_last_bit_and_on_the_order_of_rows(tmp_path: Path) -> None:
    plain = digest_of(tmp_path / "a", [step(1, reward=0.3), notice(1)])
    assert digest_of(tmp_path / "b", [step(1, reward=0.3), notice(1)]) == plain
    assert digest_of(tmp_path / "c", [step(1, reward=0.1 + 0.2), notice(1)]) != plain
    assert digest_of(tmp_path / "d", [notice(1), step(1, reward=0.3)]) != plain
    assert digest_of(tmp_path / "e", [step(1, reward=0.3)]) != plain


def test_a_folder_with_any_name_can_be_read(tmp_path: Path) -> None:
    folder = tmp_path / "50% ? of #1 & 'ü'"
    folder.mkdir()
    with written(folder, [notice(1)]) as telemetry:
        assert telemetry.count("notices") == 1


def make_foreign(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE steps (a)")
    connection.commit()
    connection.close()


def make_random(path: Path) -> None:
    path.write_bytes(bytes(index * 7919 % 251 for index in range(50_000)))


def make_telemetry(path: Path) -> None:
    with TelemetryWriter(path) as writer:
        writer.write_many(STEPS)


def make_truncated(path: Path) -> None:
    make_telemetry(path)
    os.truncate(path, path.stat().st_size // 2)


def make_older(path: Path) -> None:
    make_version(path, SCHEMA_VERSION - 1)


def make_newer(path: Path) -> None:
    make_version(path, SCHEMA_VERSION + 1)


def make_version(path: Path, version: int) -> None:
    make_telemetry(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {version}")
    connection.close()


def make_altered(path: Path) -> None:
    make_telemetry(path)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE steps RENAME COLUMN reward TO prize")
    connection.close()


WRONG = [
    (make_foreign, "is not Esper telemetry"),
    (make_random, "not a database"),
    (make_truncated, "malformed"),
    (make_older, rf"another version .*{SCHEMA_VERSION - 1}, not {SCHEMA_VERSION}"),
    (make_newer, rf"another version .*{SCHEMA_VERSION + 1}, not {SCHEMA_VERSION}"),
    (make_altered, "'steps' is not as Esper creates it"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_a_wrong_file_is_rejected_by_reader_and_writer_and_left_unchanged(
    tmp_path: Path, make: Callable[[Path], None], message: str
) -> None:
    path = tmp_path / FILE
    make(path)
    before = path.read_bytes()
    with pytest.raises(TelemetryError, match=message) as of_reader:
        open_run(tmp_path)
    with pytest.raises(TelemetryError, match=message) as of_writer:
        TelemetryWriter(path)
    for caught in (of_reader, of_writer):
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
        assert "record" not in str(caught.value)
    assert path.read_bytes() == before


def test_an_empty_file_can_be_written_but_not_read(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(TelemetryError, match="is not Esper telemetry"):
        open_run(tmp_path)
    TelemetryWriter(tmp_path / FILE).close()
    open_run(tmp_path).close()


def test_a_missing_file_is_named_and_not_created(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=rf"{FILE} does not exist"):
        open_run(tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_indexes_exist_and_queries_use_them(tmp_path: Path) -> None:
    with written(tmp_path, STEPS) as telemetry:
        found = {name for (name,) in telemetry.select("SELECT name FROM sqlite_master")}
        wanted = {"_".join((k.table, *index)) for k in RECORD_TYPES for index in k.indexes}
        assert wanted <= found
        for where in ("env IS 1 AND episode IS 0 ORDER BY seq", "step >= 3 ORDER BY step, seq"):
            ((*_, plan),) = telemetry.select(
                f"EXPLAIN QUERY PLAN SELECT * FROM steps WHERE {where}"
            )
            assert "USING INDEX" in plan


def test_metrics_can_start_at_a_round(tmp_path: Path) -> None:
    rows = [example(RoundRecord, round=n) for n in (1, 2, 3)]
    with written(tmp_path, rows) as telemetry:
        assert telemetry.metrics(2)["time/iterations"].rounds == [2, 3]
        assert telemetry.metrics(9) == {}
