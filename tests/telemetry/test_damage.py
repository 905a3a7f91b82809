"""Damage to telemetry is reported in one line, as far as it is noticed at all."""

from __future__ import annotations

import os
import random
import shutil
import sqlite3
import struct
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from esper.cli.main import main
from esper.errors import DamagedTelemetryError
from esper.telemetry import TelemetryWriter, open_run
from esper.telemetry.damage import TelemetryWarning
from esper.telemetry.records import RECORD_TYPES, TABLES
from esper.training.run import Run
from esper.training.runs import resume
from tests.flipped_bits import flip_bits
from tests.telemetry.samples import FILE, example, step

PAGE = 4096


@pytest.fixture
def run(done_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done_run.path, tmp_path / "run"))


def read_all(folder: Path) -> Any:
    """Return everything that readers get from telemetry."""
    with open_run(folder) as telemetry:
        return repr([telemetry.metrics(), *(telemetry.rows(table) for table in TABLES)])


def test_flipped_bits_give_no_traceback(run: Path) -> None:
    outcomes = flip_bits(run / FILE, lambda: read_all(run), n_flips=60)
    # Only the structure and the types of values are checked.
    assert set(outcomes) <= {"refused", "equal", "changed"}
    assert outcomes["refused"] > 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("UPDATE steps SET reward = 'text'", r"steps.reward is 'text'"),
        ("UPDATE steps SET step = 0.5", r"steps.step is 0.5"),
        ("UPDATE notices SET message = x'00'", r"notices.message is b'\\x00'"),
        ("UPDATE updates SET entropy_by_head = '{'", "metric"),
        ("UPDATE updates SET entropy_by_head = '{\"op\": []}'", "metric"),
    ],
)
def test_a_value_of_another_type_is_refused(tmp_path: Path, change: str, words: str) -> None:
    with TelemetryWriter(tmp_path / FILE) as writer:
        writer.write_many([step(1), *(example(kind) for kind in RECORD_TYPES)])
    with closing(sqlite3.connect(tmp_path / FILE)) as connection:
        connection.execute(change)
        connection.commit()
    with pytest.raises(DamagedTelemetryError, match=f"{FILE} is damaged: .*{words}"):
        read_all(tmp_path)


@pytest.mark.parametrize("page", [1, 2, 5, 20, -1])
def test_a_damaged_page_gives_one_line(
    run: Path, page: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run / FILE).open("r+b") as file:
        file.seek(page * PAGE, os.SEEK_SET if page >= 0 else os.SEEK_END)
        file.write(random.Random(page).randbytes(PAGE))
    for words in (
        ["show", str(run)],
        ["runs", str(run.parent)],
        ["report", str(run)],
        ["export-telemetry", str(run)],
    ):
        code = main(words)
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) in ((0, 0), (2, 1)), lines


def write_journal(database: Path, names: Path) -> None:
    """Put a journal beside a database that tells SQLite to delete another file."""
    size = 1 << 12
    name, magic = os.fsencode(names), bytes.fromhex("d9d505f920a163d7")
    pages = database.stat().st_size // size
    header = magic + struct.pack(">5I", 0, 1, pages, 512, size)
    trailer = struct.pack(">II", len(name), sum(name)) + magic
    lock_page = struct.pack(">I", 0x40000000 // size + 1)
    journal = header.ljust(512, b"\0") + lock_page + name + trailer
    database.with_name(f"{database.name}-journal").write_bytes(journal)


def test_a_journal_cannot_make_sqlite_delete_another_file(run: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    write_journal(run / FILE, victim)
    with pytest.raises(DamagedTelemetryError, match=r"telemetry\.sqlite-journal"):
        TelemetryWriter(run / FILE)
    (run / "summary.json").unlink()
    with pytest.warns(TelemetryWarning, match="telemetry-damaged-1"):
        assert resume(run).state == "done"
    assert victim.read_text() == "precious"
    assert (run / "telemetry-damaged-1.sqlite-journal").exists()
