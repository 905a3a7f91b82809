"""The writer numbers rows, syncs what it is asked to, rewinds and records sessions."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from esper.errors import ConfigError, StorageError, TelemetryError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry import writer as database
from esper.telemetry.records import NoticeRecord, Record, StepRecord
from tests.telemetry.samples import FILE, notice, seqs, step, written


def lock(path: Path) -> sqlite3.Connection:
    """Return a connection that blocks all writers until it is closed."""
    connection = sqlite3.connect(path, isolation_level=None)
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


def test_a_row_is_visible_to_readers_when_its_call_returns(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer, open_run(tmp_path) as run:
        writer.write(notice(1))
        assert run.count("notices") == 1


def test_flushes_and_sessions_are_synced_to_disk(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        statements: list[str] = []
        connection = writer._connection  # pyright: ignore[reportPrivateUsage]
        assert connection is not None
        connection.set_trace_callback(statements.append)
        for call, mode in (
            (lambda: writer.start_session(first_round=1, threads=1, torch_version="2"), "FULL"),
            (lambda: writer.write(notice(1)), "NORMAL"),
            (writer.flush, "FULL"),
            (lambda: writer.rewind(1), "FULL"),
            (lambda: writer.end_session("done"), "FULL"),
        ):
            statements.clear()
            call()
            assert statements[0] == f"PRAGMA synchronous = {mode}"
            assert statements[-1] == "COMMIT"
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_call_that_fails_stores_nothing(tmp_path: Path) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        with pytest.raises(TelemetryError):
            writer.write_many([notice(0), replace(notice(1), round=2**80)])
        assert writer.position == 0
        writer.write(notice(2))
    with open_run(tmp_path) as telemetry:
        assert telemetry.columns(NoticeRecord)["seq"] == [1]


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


def test_a_locked_database_is_a_storage_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "BUSY_SECONDS", 0.1)
    writer = TelemetryWriter(tmp_path / FILE)
    blocker = lock(tmp_path / FILE)
    for call in (lambda: writer.write(notice(0)), writer.flush):
        with pytest.raises(StorageError, match=rf"{FILE} cannot be written \(database is locked\)"):
            call()
    blocker.close()
    writer.write(notice(0))
    assert writer.position == 1
    writer.close()


def test_telemetry_and_its_sinks_are_imported_without_torch_and_numpy() -> None:
    script = (
        "import sys, esper.telemetry, esper.telemetry.sinks, esper.telemetry.export\n"
        "print({'torch', 'numpy', 'tensorboardX', 'wandb'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("set()\n", "")
