"""Reading a run: tables, filters, digests, and files that cannot be right."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from dataclasses import fields, replace
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
    is_clock_field,
)
from tests.telemetry.samples import FILE, example, notice, step, written

STEPS: list[Record] = [step(number) for number in range(100)]


def test_rows_can_be_chosen_by_the_values_of_columns(tmp_path: Path) -> None:
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


def test_the_run_the_last_record_counts_and_the_version(tmp_path: Path) -> None:
    run = example(RunRecord, name="a run")
    with written(tmp_path, [run, notice(3), notice(2)]) as telemetry:
        assert telemetry.run == run
        assert telemetry.last(NoticeRecord) == notice(2)
        assert telemetry.last(StepRecord) is None
        assert (telemetry.count("notices"), telemetry.count(StepRecord)) == (2, 0)
        assert telemetry.schema_version == SCHEMA_VERSION
        assert telemetry.sessions() == []
        assert list(telemetry.columns("notices")) == ["seq", "round", "kind", "message"]


def test_a_run_that_has_not_said_what_it_is_cannot_be_asked(tmp_path: Path) -> None:
    with written(tmp_path, []) as telemetry, pytest.raises(TelemetryError, match="not say yet"):
        _ = telemetry.run


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda t: t.rows("stepps"), "no table 'stepps'.* Did you mean 'steps'"),
        (lambda t: t.count(int), "no table 'int'"),
        (lambda t: t.rows("steps", rond=1), "no column 'rond'.* Did you mean 'round'"),
        (lambda t: t.rows("steps", **{'round" OR 1 --': 1}), "no column"),
    ],
)
def test_what_there_is_not_is_named(
    tmp_path: Path, ask: Callable[[Any], Any], message: str
) -> None:
    with written(tmp_path, []) as telemetry, pytest.raises(TelemetryError, match=message):
        ask(telemetry)


def test_a_closed_reader_says_so(tmp_path: Path) -> None:
    with written(tmp_path, []) as telemetry:
        pass
    telemetry.close()
    with pytest.raises(TelemetryError, match="was closed"):
        telemetry.count("steps")


def digest_of(folder: Path, records: list[Record]) -> str:
    folder.mkdir()
    with written(folder, records) as telemetry:
        return telemetry.digest()


@pytest.mark.parametrize("kind", RECORD_TYPES)
def test_the_digest_sees_every_field_but_those_of_the_clock(
    tmp_path: Path, kind: type[Any]
) -> None:
    record = example(kind)
    digests: dict[str, str] = {"": digest_of(tmp_path / "plain", [record])}
    changes: dict[type, Any] = {int: 77, float: 0.1 + 0.2, bool: False, str: "other", bytes: b"x"}
    for field in fields(kind):
        value = changes[type(getattr(record, field.name))]
        changed = replace(record, **{field.name: value})
        digests[field.name] = digest_of(tmp_path / field.name, [changed])
    of_clock = {field.name for field in fields(kind) if is_clock_field(field)}
    same = {name for name, digest in digests.items() if name and digest == digests[""]}
    assert same == of_clock
    assert len(set(digests.values())) == len(digests) - len(of_clock)


def test_only_the_fields_that_a_clock_or_process_decides_are_left_out_of_the_digest() -> None:
    marked = {
        (kind, field.name)
        for kind in RECORD_TYPES
        for field in fields(kind)
        if is_clock_field(field)
    }
    assert marked == {
        (RunRecord, "name"),
        (RunRecord, "esper_version"),
        (RunRecord, "created_at"),
        (RoundRecord, "seconds"),
        (RoundRecord, "steps_per_second"),
        (RoundRecord, "seconds_by_part"),
        (RoundRecord, "rss_bytes"),
        (EvaluationRecord, "seconds"),
    }


def test_the_digest_sees_the_last_bit_and_the_order_of_rows(tmp_path: Path) -> None:
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


def make_newer(path: Path) -> None:
    make_telemetry(path)
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION + 1}")
    connection.close()


def make_altered(path: Path) -> None:
    make_telemetry(path)
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE steps RENAME COLUMN reward TO prize")
    connection.close()


WRONG = [
    (make_foreign, "is not telemetry of Esper"),
    (make_random, "not a database"),
    (make_truncated, "malformed"),
    (make_newer, rf"has schema version {SCHEMA_VERSION + 1}"),
    (make_altered, "table 'steps' is not as it was made"),
]


@pytest.mark.parametrize(("make", "message"), WRONG)
def test_a_file_that_cannot_be_right_is_refused_by_reader_and_writer_and_kept(
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


ADDED_IN_3 = [
    ("runs", "choices"),
    ("runs", "reads"),
    ("runs", "host"),
    ("steps", "probabilities"),
]


def test_what_an_earlier_version_did_not_store_is_none_and_nothing_is_written_to_it(
    tmp_path: Path,
) -> None:
    path, record = tmp_path / FILE, example(EvaluationRecord, fixed_reward=0.5)
    with TelemetryWriter(path) as writer:
        writer.write_many([record, notice(3)])
    connection = sqlite3.connect(path)
    connection.execute("ALTER TABLE evaluations DROP COLUMN fixed_reward")
    for table, column in ADDED_IN_3:
        connection.execute(f"ALTER TABLE {table} DROP COLUMN {column}")
    connection.execute("PRAGMA user_version = 1")
    connection.close()
    older = replace(record, fixed_reward=None)
    with open_run(tmp_path) as telemetry:
        assert telemetry.schema_version == 1
        assert telemetry.rows(EvaluationRecord) == [older]
        assert telemetry.rows(EvaluationRecord, fixed_reward=None) == [older]
        assert telemetry.rows(EvaluationRecord, fixed_reward=0.5) == []
        assert telemetry.columns("evaluations")["fixed_reward"] == [None]
        assert telemetry.rows(NoticeRecord) == [notice(3)]
        assert telemetry.digest()
    with pytest.raises(TelemetryError, match=r"schema version 1; this Esper writes version 3"):
        TelemetryWriter(path)


def test_an_empty_file_is_not_telemetry_to_a_reader_and_a_beginning_to_a_writer(
    tmp_path: Path,
) -> None:
    (tmp_path / FILE).touch()
    with pytest.raises(TelemetryError, match="is not telemetry"):
        open_run(tmp_path)
    TelemetryWriter(tmp_path / FILE).close()
    open_run(tmp_path).close()


def test_a_missing_file_is_named_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match=rf"{FILE} does not exist"):
        open_run(tmp_path)
    assert not list(tmp_path.iterdir())
