"""The writer numbers rows, blocks when it is behind, rewinds and records sessions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from esper.errors import ConfigError, StorageError, TelemetryError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry import writer as database
from esper.telemetry.records import NoticeRecord, Record, StepRecord
from tests.telemetry.samples import FILE, notice, seqs, step, written


def lock(path: Path) -> sqlite3.Connection:
    """Return a connection that blocks all writers until it is closed."""
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_rows_are_numbered_over_all_tables_in_the_order_of_writing(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        assert writer.position == 0
        for number in range(10):
            writer.write(step(number) if number % 3 else notice(number))
        assert writer.position == 10
    with TelemetryWriter(tmp_path / FILE) as writer:
        assert writer.position == 10
        writer.write_many([notice(10), step(11)])
    with open_run(tmp_path) as telemetry:
        assert telemetry.columns(NoticeRecord)["seq"] == [1, 4, 7, 10, 11]
        assert telemetry.columns(StepRecord)["seq"] == [2, 3, 5, 6, 8, 9, 12]


def test_rows_are_stored_within_flush_seconds(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE, flush_seconds=0.05) as writer, open_run(tmp_path) as run:
        writer.write(notice(1))
        deadline = time.monotonic() + 10
        while run.count("notices") == 0:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_more_rows_than_fit_one_statement_are_stored_in_order(tmp_path: Path) -> None:
    n_rows = 2 * database.MAX_CHUNK_ROWS + 77
    with written(tmp_path, [step(number) for number in range(n_rows)]) as telemetry:
        assert [row.step for row in telemetry.rows(StepRecord)] == list(range(n_rows))


def test_statements_respect_the_variable_limit_of_sqlite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = sqlite3.connect

    def connect_limited(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connection = connect(*arguments, **options)
        connection.setlimit(sqlite3.SQLITE_LIMIT_VARIABLE_NUMBER, 999)
        return connection

    monkeypatch.setattr(sqlite3, "connect", connect_limited)
    with written(tmp_path, [step(number) for number in range(200)]) as telemetry:
        assert [row.step for row in telemetry.rows(StepRecord)] == list(range(200))


def test_transactions_are_synced_to_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def connect_carelessly(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **options))
        connections[-1].execute("PRAGMA synchronous = OFF")
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", connect_carelessly)
    for _ in range(2):  # a file that is made, and one that is there
        opened = database.WriterDatabase(tmp_path / FILE)
        assert connections[-1].execute("PRAGMA synchronous").fetchone() == (2,)  # FULL
        assert connections[-1].execute("PRAGMA journal_mode").fetchone() == ("wal",)
        opened.close()


def test_writing_blocks_while_the_queue_is_full(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path / FILE, max_queued_rows=50)
    blocker = lock(tmp_path / FILE)

    def write_all() -> None:
        for number in range(500):
            writer.write(notice(number))

    thread = threading.Thread(target=write_all)
    thread.start()
    time.sleep(0.5)
    assert thread.is_alive()
    assert writer.position == 50
    blocker.close()
    thread.join(timeout=20)
    assert not thread.is_alive()
    writer.close()
    with open_run(tmp_path) as telemetry:
        assert [row.round for row in telemetry.rows(NoticeRecord)] == list(range(500))


def test_a_batch_larger_than_the_queue_is_stored(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE, max_queued_rows=7) as writer:
        writer.write_many(notice(number) for number in range(100))
    with open_run(tmp_path) as telemetry:
        assert [row.round for row in telemetry.rows(NoticeRecord)] == list(range(100))


def test_rewinding_deletes_later_rows_and_numbering_continues(tmp_path: Path) -> None:
    records: list[Record] = [step(n) if n % 2 else notice(n) for n in range(100)]
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many(records)
        writer.rewind(40)
        assert writer.position == 40
        writer.write_many(records[40:])
        writer.rewind(100)
    with open_run(tmp_path) as telemetry:
        assert seqs(telemetry, (StepRecord, NoticeRecord)) == list(range(1, 101))
        digest = telemetry.digest()
    (tmp_path / "other").mkdir()
    with written(tmp_path / "other", records) as telemetry:
        assert telemetry.digest() == digest


def test_rewinding_to_a_missing_row_is_rejected(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write(notice(0))
        with pytest.raises(TelemetryError, match=r"row 1 .* row 2"):
            writer.rewind(2)
        with pytest.raises(ConfigError):
            writer.rewind(-1)


def test_sessions_survive_a_rewind_and_are_not_in_the_digest(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2.0")
        writer.write(notice(1))
        writer.end_session("interrupted", "by \ud800 hand")
    with open_run(tmp_path) as telemetry:
        digest = telemetry.digest()
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.rewind(0)
        writer.start_session(first_round=3, threads=2, torch_version="2.1", message="Fell back.")
        with open_run(tmp_path) as telemetry:
            assert telemetry.sessions()[1].outcome is None
        writer.write(notice(1))
        writer.end_session("done", "All rounds.")
    with open_run(tmp_path) as telemetry:
        first, second = telemetry.sessions()
        assert telemetry.digest() == digest
    assert (first.pid, first.first_round, first.threads) == (os.getpid(), 1, 1)
    assert (first.outcome, first.message) == ("interrupted", "by \\ud800 hand")
    assert (second.outcome, second.message) == ("done", "Fell back. All rounds.")
    assert second.ended_at is not None
    assert second.started_at <= second.ended_at


def test_a_session_without_an_end_message_keeps_its_first_message(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.start_session(first_round=1, threads=1, torch_version="2", message="Fell back.")
        writer.end_session("done")
    with open_run(tmp_path) as telemetry:
        assert telemetry.sessions()[0].message == "Fell back."


def test_a_closed_writer_can_only_be_closed_again(tmp_path: Path) -> None:
    writer = TelemetryWriter(tmp_path / FILE)
    writer.close()
    writer.close()
    for call in (lambda: writer.write(notice(0)), lambda: writer.rewind(0)):
        with pytest.raises(TelemetryError, match="is closed"):
            call()


def test_a_locked_database_stops_the_writer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    writer = TelemetryWriter(tmp_path / FILE)
    blocker = lock(tmp_path / FILE)
    writer.write(notice(0))
    with pytest.raises(StorageError, match=rf"{FILE} cannot be written \(database is locked\)"):
        writer.flush()
    with pytest.raises(StorageError, match="locked"):
        writer.write(notice(1))
    writer.close()
    blocker.close()


def test_closing_raises_a_failure_that_no_call_has_raised(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    writer = TelemetryWriter(tmp_path / FILE)
    blocker = lock(tmp_path / FILE)
    writer.write(notice(0))
    with pytest.raises(StorageError, match="locked"):
        writer.close()
    writer.close()
    blocker.close()


@pytest.mark.parametrize(
    "wrong", [{"max_queued_rows": 0}, {"flush_seconds": 0.0}, {"flush_seconds": float("nan")}]
)
def test_invalid_settings_are_rejected(tmp_path: Path, wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        TelemetryWriter(tmp_path / FILE, **wrong)  # pyright: ignore[reportArgumentType]
    assert not list(tmp_path.iterdir())


def test_telemetry_and_its_sinks_are_imported_without_torch_and_numpy() -> None:
    script = (
        "import sys, esper.telemetry, esper.telemetry.sinks, esper.telemetry.export\n"
        "print({'torch', 'numpy', 'tensorboardX', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
