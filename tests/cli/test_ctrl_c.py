"""A signal at any moment stops the command with exit code 130 and prints how to resume."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.cli import views
from esper.cli.launch import EarlySignals
from esper.cli.main import main
from esper.cli.views import View
from esper.telemetry import open_run
from esper.telemetry.records import Record, UpdateRecord
from esper.training.signals import SIGNALS, StopRequest, handling
from tests.cli.conftest import TINY


class SignalAt:
    """A line writer that sends this process a signal when a line contains a text."""

    def __init__(self, piece: str, number: signal.Signals) -> None:
        self._piece, self._number = piece, number
        self.sent_at: float | None = None

    def __call__(self, line: str) -> None:
        """Check a line."""
        if self.sent_at is None and self._piece in line:
            self.sent_at = time.monotonic()
            os.kill(os.getpid(), self._number)


MOMENTS = [
    ("no growth on 2 held-out hosts", [], signal.SIGINT),
    ('"event": "update"', ["--json"], signal.SIGTERM),
    ("learned on 2 held-out hosts", [], signal.SIGINT),
    ("    2 ", [], signal.SIGTERM),
    ("round 2: comparing", [], signal.SIGTERM),
    ("no growth on 4 held-out hosts", [], signal.SIGINT),
]


def test_a_run_interrupted_many_times_equals_an_uninterrupted_one(
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / finished_run.name
    words = ["train", *TINY, "--run-dir", str(folder)]
    for piece, options, number in MOMENTS:
        printer = SignalAt(piece, number)
        monkeypatch.setattr(views, "LineWriter", lambda printer=printer: printer)
        assert main([*words, *options]) == 130
        assert printer.sent_at is not None
        assert time.monotonic() - printer.sent_at < 10
        told = capfd.readouterr().err.splitlines()
        first, last = (line for line in told if line.startswith("esper: "))
        assert first == f"esper: {number.name}: finishing the step, then saving"
        message, _, pasted = last.partition(": esper ")
        assert message == "esper: interrupted and saved; resume with"
        words = shlex.split(pasted)
        assert words == ["resume", str(folder)]
    monkeypatch.undo()
    assert main([*words, "--quiet"]) == 0
    with open_run(folder) as telemetry, open_run(finished_run) as reference:
        assert telemetry.digest() == reference.digest()
        assert [session.outcome for session in telemetry.sessions()] == [
            *["interrupted"] * len(MOMENTS),
            "done",
        ]
    assert (folder / "summary.json").read_bytes() == (finished_run / "summary.json").read_bytes()


def test_a_signal_while_pytorch_loads_leaves_no_run(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "esper", "train", *TINY, "--run-dir", "run"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("training on spirals")
        time.sleep(0.2)  # PyTorch is loading now
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
        lines = process.stderr.read().splitlines()  # with progress if PyTorch loads slowly
        assert [line for line in lines if line.startswith("esper: ")] == [
            "esper: SIGTERM: stopping as soon as PyTorch is loaded",
            "esper: interrupted before training began; nothing was saved",
        ]
    assert not (tmp_path / "run").exists()


def test_a_signal_before_resuming_leaves_the_run_unchanged(
    copied_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    make = EarlySignals.make_stop_request

    def make_late(early: EarlySignals) -> StopRequest:
        os.kill(os.getpid(), signal.SIGINT)
        return make(early)

    monkeypatch.setattr(EarlySignals, "make_stop_request", make_late)
    assert main(["resume", str(copied_run)]) == 130
    printed = capfd.readouterr().err.splitlines()
    assert printed[-1].endswith(f"esper resume {shlex.quote(str(copied_run))}")
    with open_run(copied_run) as telemetry:
        assert len(telemetry.sessions()) == 1


def test_signal_handlers_are_restored() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with handling(EarlySignals(print).handle):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_command_prints_no_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "esper.cli.main.find_command", lambda _: lambda _: os.kill(os.getpid(), number)
    )
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == "esper: interrupted\n"


def test_signals_after_saving_are_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Closing(View):
        def close(self) -> None:
            for number in SIGNALS:
                os.kill(os.getpid(), number)

        def write(self, record: Record) -> None:
            if isinstance(record, UpdateRecord):
                os.kill(os.getpid(), signal.SIGHUP)

    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(views, "View", Closing)
    assert main(["train", *TINY, "--quiet", "--run-dir", "run"]) == 130
    printed = capfd.readouterr().err.splitlines()
    assert printed[-1] == "esper: interrupted and saved; resume with: esper resume run"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_that_is_exiting_ignores_signals(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom esper.cli import main as module\n"
        "from esper.training.signals import ignore_signals\n"
        "module.find_command = lambda _: lambda _: ignore_signals() or 130\n"
        "code = module.main()\nos.kill(os.getpid(), signal.SIGTERM)\nsys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", script, "train"]).returncode == 130
