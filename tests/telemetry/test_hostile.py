"""Databases made to harm their readers are refused in one line, and never read without end."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.dashboard.runs import RunReader
from esper.errors import DamagedTelemetryError, TelemetryError
from esper.telemetry import TelemetryWarning, TelemetryWriter, open_run
from esper.telemetry.reader import reading_within
from esper.telemetry.records import EpisodeRecord
from esper.training.run import Run
from esper.training.runs import resume
from tests.dashboard.made_runs import make_run
from tests.telemetry.hostile import BY_SCHEMA, nest_pages

SECONDS = 20.0
"""Far more than anything here takes, and far less than a query without end."""


@pytest.fixture
def run(done_run: Run, tmp_path: Path) -> Path:
    return Path(shutil.copytree(done_run.path, tmp_path / "run"))


@pytest.mark.parametrize("harm", BY_SCHEMA)
def test_definitions_of_someone_else_are_refused(
    harm: Callable[[Path], None], run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = run / "telemetry.sqlite"
    with open_run(run) as telemetry:
        n_episodes = telemetry.count(EpisodeRecord)
    harm(file)
    start = time.monotonic()
    for open_it in (lambda: open_run(run), lambda: TelemetryWriter(file)):
        with pytest.raises(DamagedTelemetryError, match="is not as Esper creates it"):
            open_it()
    assert main(["show", str(run)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert time.monotonic() - start < SECONDS
    assert n_episodes > 0


def test_a_resumed_run_sets_a_database_with_a_trigger_aside(run: Path) -> None:
    BY_SCHEMA[0](run / "telemetry.sqlite")
    (run / "summary.json").unlink()  # what is left to do
    with pytest.warns(TelemetryWarning, match="kept in telemetry-damaged-1.sqlite"):
        resume(run)
    assert (run / "telemetry-damaged-1.sqlite").exists()
    open_run(run).close()


@pytest.mark.parametrize("size", [None, pytest.param(2**40, marks=pytest.mark.slow)])
def test_rows_without_end_are_damage(
    size: int | None, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    nest_pages(run / "telemetry.sqlite")
    if size is not None:  # most of it is a hole
        os.truncate(run / "telemetry.sqlite", size)
    start = time.process_time()
    with open_run(run) as telemetry:
        for read in (telemetry.rows, telemetry.columns):
            with pytest.raises(DamagedTelemetryError, match="its rows do not end"):
                read(EpisodeRecord)
    assert main(["report", str(run)]) in (0, 2)
    assert "Traceback" not in capsys.readouterr().err
    assert time.process_time() - start < SECONDS


def test_reading_ends_in_time(run: Path) -> None:
    with reading_within(0.0), pytest.raises(TelemetryError, match="takes too long to read"):
        open_run(run)


@pytest.mark.parametrize("harm", [*BY_SCHEMA, nest_pages])
def test_a_hostile_run_holds_up_no_other(harm: Callable[[Path], None], tmp_path: Path) -> None:
    make_run(tmp_path / "good")
    hostile = make_run(tmp_path / "hostile")
    harm(hostile.telemetry_file)
    reader, start = RunReader(tmp_path), time.monotonic()
    rows = {row["id"]: row for row in reader.rows()}
    assert rows["good"]["rounds_done"] == 4
    assert reader.detail("good")["overview"] is not None
    reader.detail("hostile")
    assert time.monotonic() - start < SECONDS


def test_a_run_that_is_slow_to_read_is_kept_in_the_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "a run")
    reader = RunReader(tmp_path)
    monkeypatch.setattr("esper.dashboard.runs.SLOW_SECONDS", 0.0)
    monkeypatch.setattr("esper.dashboard.runs.KEPT_FACTOR", 1e6)
    first = reader.rows()
    os.utime(tmp_path / "a run" / "telemetry.sqlite")
    assert reader.rows()[0] is first[0]
    monkeypatch.setattr("esper.dashboard.runs.SLOW_SECONDS", 60.0)
    assert RunReader(tmp_path).rows()[0] is not first[0]
