"""Damage to telemetry is detected where the file was finished, and never gives a traceback."""

from __future__ import annotations

import hashlib
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
from esper.telemetry import writer as writer_module
from esper.telemetry.damage import TelemetryWarning
from esper.telemetry.records import RECORD_TYPES, TABLES
from esper.training.run import Run
from esper.training.runs import resume
from tests.flipped_bits import flip_bits
from tests.telemetry.samples import FILE, example, notice, step

PAGE = 4096


@pytest.fixture
def run(done_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done_run.path, tmp_path / "run"))


def read_all(folder: Path, *, verify: bool) -> Any:
    """Return everything that readers get from telemetry."""
    with open_run(folder, verify=verify) as telemetry:
        return repr([telemetry.metrics(), *(telemetry.rows(table) for table in TABLES)])


def test_no_flipped_bit_of_finished_telemetry_is_accepted(run: Path) -> None:
    outcomes = flip_bits(run / FILE, lambda: read_all(run, verify=True), n_flips=60)
    assert outcomes == {"refused": 60}


def test_a_flipped_bit_of_the_hash_is_refused_too(run: Path) -> None:
    read = lambda: read_all(run, verify=True)  # noqa: E731
    assert flip_bits(run / "telemetry.sha256", read, n_flips=60) == {"refused": 60}


def test_flipped_bits_of_a_killed_runs_telemetry_give_no_traceback(run: Path) -> None:
    (run / "telemetry.sha256").unlink()
    outcomes = flip_bits(run / FILE, lambda: read_all(run, verify=True), n_flips=60)
    # Without a hash only the structure and the types of values are checked.
    assert set(outcomes) <= {"refused", "equal", "changed"}
    assert outcomes["refused"] > 0


def test_the_hash_is_that_of_sha256sum(run: Path) -> None:
    digest = hashlib.sha256((run / FILE).read_bytes()).hexdigest()
    assert (run / "telemetry.sha256").read_text() == f"{digest}  {FILE}\n"


def test_there_is_no_hash_while_telemetry_is_written(tmp_path: Path) -> None:
    hash_file = tmp_path / "telemetry.sha256"
    for number in (1, 2):
        with TelemetryWriter(tmp_path / FILE) as writer:
            writer.write(notice(number))
            writer.flush()
            assert not hash_file.exists()
            with open_run(tmp_path, verify=True) as telemetry:
                assert telemetry.count("notices") == number
        assert hash_file.exists()
        open_run(tmp_path, verify=True).close()


def test_there_is_no_hash_while_a_reader_keeps_the_log_from_being_merged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer_module, "MERGING_MILLISECONDS", 50)
    writer = TelemetryWriter(tmp_path / FILE)
    writer.write(notice(1))
    writer.flush()
    with open_run(tmp_path) as telemetry, telemetry.snapshot():
        assert telemetry.count("notices") == 1
        writer.write(notice(2))
        writer.close()
        assert not (tmp_path / "telemetry.sha256").exists()
    with open_run(tmp_path, verify=True) as telemetry:
        assert telemetry.count("notices") == 2


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
    (tmp_path / "telemetry.sha256").unlink()
    with pytest.raises(DamagedTelemetryError, match=f"{FILE} is damaged: .*{words}"):
        read_all(tmp_path, verify=True)


@pytest.mark.parametrize("page", [1, 2, 5, 20, -1])
@pytest.mark.parametrize("is_hashed", [True, False])
def test_a_damaged_page_gives_one_line(
    run: Path, page: int, is_hashed: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    with (run / FILE).open("r+b") as file:
        file.seek(page * PAGE, os.SEEK_SET if page >= 0 else os.SEEK_END)
        file.write(random.Random(page).randbytes(PAGE))
    if not is_hashed:
        (run / "telemetry.sha256").unlink()
    for words in (
        ["show", str(run)],
        ["runs", str(run.parent)],
        ["report", str(run), "--format", "json"],
        ["export-telemetry", str(run), "--csv"],
    ):
        code = main(words)
        lines = capsys.readouterr().err.splitlines()
        assert (code, len(lines)) in ((0, 0), (2, 1)), lines
        if is_hashed and words[0] != "runs":
            assert FILE in lines[0]


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
