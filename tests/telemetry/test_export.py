"""Exports have the same rows as the database."""

from __future__ import annotations

import csv
import math
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from esper.errors import StorageError, TelemetryError
from esper.telemetry import TelemetryWriter
from esper.telemetry.export import export_csv
from esper.telemetry.records import RECORD_TYPES, TABLES, Record, RoundRecord
from tests.telemetry.samples import FILE, example, notice, step

TEXT = 'a "quoted", line\nand another; ü'
ROWS: list[Record] = [
    *[example(kind) for kind in RECORD_TYPES],
    notice(1, TEXT),
    step(6, probabilities=b"\x00\x0a\xff"),
    step(7, reward=math.nan, value=-math.inf, score=0.1 + 0.2),
    example(RoundRecord, ep_rew_mean=None, ep_len_mean=math.nan),
]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2")
        writer.write_many(ROWS)
    return tmp_path


def raw(run: Path, table: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    connection = sqlite3.connect(run / FILE)
    cursor = connection.execute(f"SELECT * FROM {table}")
    result = [name for name, *_ in cursor.description], cursor.fetchall()
    connection.close()
    return result


def test_csv_files_have_every_table(run: Path) -> None:
    paths = export_csv(run, run / "out" / "csv")
    assert {path.name for path in paths} == {f"{name}.csv" for name in TABLES}
    for name, kind in TABLES.items():
        with (run / "out" / "csv" / f"{name}.csv").open(encoding="utf-8", newline="") as file:
            header, *rows = csv.reader(file)
        names, expected = raw(run, name)
        assert header == names
        assert [row[0] for row in rows] == [str(values[0]) for values in expected], kind
    with (run / "out" / "csv" / "notices.csv").open(encoding="utf-8", newline="") as file:
        assert [row["message"] for row in csv.DictReader(file)] == ["{}", TEXT]
    with (run / "out" / "csv" / "steps.csv").open(encoding="utf-8", newline="") as file:
        *_, before, last = csv.DictReader(file)
    assert (before["probabilities"], last["probabilities"]) == ("000aff", "")
    assert (last["reward"], last["value"], float(last["score"])) == ("nan", "-inf", 0.1 + 0.2)
    assert (last["refusal"], last["is_illegal"]) == ("", "False")
    with (run / "out" / "csv" / "rounds.csv").open(encoding="utf-8", newline="") as file:
        last = list(csv.DictReader(file))[-1]
    assert (last["ep_rew_mean"], last["ep_len_mean"]) == ("", "nan")


def test_a_folder_that_cannot_be_written_is_reported(run: Path) -> None:
    (run / "file").touch()
    with pytest.raises(StorageError, match="file cannot be written"):
        export_csv(run, run / "file")
    (run / "taken" / "runs.csv").mkdir(parents=True)
    with pytest.raises(StorageError, match=r"runs\.csv cannot be written"):
        export_csv(run, run / "taken")


def test_a_run_without_telemetry_is_reported(tmp_path: Path) -> None:
    with pytest.raises(TelemetryError, match="does not exist"):
        export_csv(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_link_in_the_place_of_a_table_is_not_followed(run: Path) -> None:
    victim = run / "victim"
    victim.write_text("kept")
    (run / "out").mkdir()
    (run / "out" / "rounds.csv").symlink_to(victim)
    export_csv(run, run / "out")
    assert victim.read_text() == "kept"
    assert (run / "out" / "rounds.csv").read_text().startswith("seq,round,")
