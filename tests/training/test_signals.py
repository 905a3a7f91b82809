"""Signals and full disks stop a run without loss, and it resumes as the same run."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.storage.checkpoint_folder import CheckpointFolder
from esper.telemetry import TelemetryWriter
from esper.telemetry.records import Record, StepRecord
from esper.training.run import Run, load_run
from esper.training.runs import RunInterrupted, resume, train
from esper.training.signals import SIGNALS, StopRequest, signals_ask
from tests.training import signalled
from tests.training.tiny import Seen, liveliness, run_digests, tiny_config

ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'src'}{os.pathsep}{ROOT}"


def start(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, signalled.__file__, folder, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
    )


def wait_for(process: subprocess.Popen[str], line: str) -> None:
    assert process.stdout is not None
    for found in process.stdout:
        if found.strip() == line:
            return
    raise AssertionError(process.communicate()[1])


def finish(folder: Path) -> dict[str, str]:
    with liveliness():
        assert resume(folder).state == "done"
    return run_digests(folder)


def test_a_signal_saves_the_run_and_a_second_one_changes_nothing(
    tmp_path: Path, done_run: Run, capfd: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "done"

    def signal_twice(record: Record) -> None:
        if isinstance(record, StepRecord) and (record.step, record.env) == (8, 0):
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGTERM)

    with liveliness(), pytest.raises(RunInterrupted):
        train(tiny_config(), run_dir=folder, watchers=[Seen(signal_twice)])
    assert capfd.readouterr().err.count("finishing the step, then saving") == 1
    assert load_run(folder).state == "interrupted"
    assert CheckpointFolder(folder / "checkpoints").latest().step == 8
    assert finish(folder) == run_digests(done_run.path)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_of_another_process_saves_the_run(
    number: signal.Signals, tmp_path: Path, done_run: Run
) -> None:
    folder = tmp_path / "done"
    with start(folder) as process:
        wait_for(process, "step 8")
        began = time.monotonic()
        process.send_signal(number)
        process.send_signal(signal.SIGTERM)
        _, errors = process.communicate(timeout=60)
    assert time.monotonic() - began < 10.0
    assert process.returncode == 130, errors
    assert "finishing the step, then saving" in errors
    assert load_run(folder).state == "interrupted"
    assert CheckpointFolder(folder / "checkpoints").latest().step >= 8
    assert finish(folder) == run_digests(done_run.path)


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.003, 0.01, 0.03, 0.1, 0.3])
def test_three_signals_in_a_row_damage_nothing(delay: float, tmp_path: Path, done_run: Run) -> None:
    folder = tmp_path / "done"
    with start(folder) as process:
        wait_for(process, "step 8")
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
            if process.poll() is None:
                process.send_signal(number)
            time.sleep(delay)
        process.communicate(timeout=60)
    # After train, the default handlers are back, which kill the process.
    assert process.returncode in (130, 0, -signal.SIGTERM, -signal.SIGINT)
    assert load_run(folder).state in ("interrupted", "killed", "done")
    assert finish(folder) == run_digests(done_run.path)


def limit_for(what: str, run: Run, folder: Path) -> int:
    """Return a size that the checkpoints or the telemetry reach after some steps."""
    newest = CheckpointFolder(run.path / "checkpoints").latest().path
    if what == "checkpoint":
        (weights,) = newest.glob("state*.safetensors")
        return weights.stat().st_size - 2000
    with TelemetryWriter(folder / "telemetry.sqlite") as writer:
        writer.start_session(first_round=1, threads=1, torch_version="")
        empty = sum(path.stat().st_size for path in folder.glob("telemetry.sqlite*"))
    return empty + 150_000


@pytest.mark.slow
@pytest.mark.parametrize("what", ["checkpoint", "telemetry"])
def test_a_full_disk_stops_the_run_and_leaves_the_last_checkpoint_intact(
    what: str, tmp_path: Path, done_run: Run
) -> None:
    folder, limit = tmp_path / "done", limit_for(what, done_run, tmp_path)
    with start(folder, what, str(limit)) as process:
        output, errors = process.communicate(timeout=120)
    assert process.returncode == 3, errors
    lines = output.splitlines()
    message = next(line for line in lines if line.startswith("StorageError: "))
    assert ("telemetry.sqlite" if what == "telemetry" else "step-0") in message
    assert lines[0] == "step 1"
    assert lines[-1] == run_digests(done_run.path)["telemetry"]
    assert run_digests(folder) == run_digests(done_run.path)
    with load_run(folder).telemetry() as telemetry:
        assert [session.outcome for session in telemetry.sessions()][-1] == "done"
        assert len(telemetry.sessions()) == 2


def test_ignored_and_foreign_signal_handlers_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stop = StopRequest(tell=lambda _: None)
    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr("esper.training.signals.SIGNALS", (signal.SIGUSR1, signal.SIGUSR2))
    kept = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        with monkeypatch.context() as patch:
            patch.setattr(signal, "getsignal", {signal.SIGUSR1: signal.SIG_IGN}.get)
            with signals_ask(stop):
                os.kill(os.getpid(), signal.SIGUSR1)
        assert stop.reason is None
        assert signal.getsignal(signal.SIGUSR2) is signal.SIG_DFL
    finally:
        signal.signal(signal.SIGUSR1, kept)
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_closed_terminal_requests_a_stop() -> None:
    stop = StopRequest(tell=lambda _: None)
    before = signal.getsignal(signal.SIGHUP)
    with signals_ask(stop):
        os.kill(os.getpid(), signal.SIGHUP)
    assert stop.reason == "SIGHUP"
    assert signal.getsignal(signal.SIGHUP) is before
