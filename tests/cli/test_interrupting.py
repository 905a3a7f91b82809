"""Signals stop the command at every moment: exit code 130, and a line that says how to go on."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from esper.cli import progress as views
from esper.cli.launch import EarlySignals, early_signals
from esper.cli.main import main
from esper.cli.progress import QuietView
from esper.telemetry import open_run
from esper.telemetry.records import Record, UpdateRecord
from esper.training.signals import SIGNALS
from esper.training.stopping import StopRequest
from tests.cli.conftest import TINY


class SignalAt:
    """A printer of lines that sends this process a signal at a line."""

    def __init__(self, piece: str, number: signal.Signals) -> None:
        self._piece, self._number = piece, number
        self.sent_at: float | None = None

    def __call__(self, line: str) -> None:
        """Look at a line."""
        if self.sent_at is None and self._piece in line:
            self.sent_at = time.monotonic()
            os.kill(os.getpid(), self._number)


MOMENTS = [
    ("trying hosts left alone", [], signal.SIGINT),
    ('"event": "update"', ["--json"], signal.SIGTERM),
    ("held out after round 1, learned", [], signal.SIGINT),
    ("round 2/2", [], signal.SIGTERM),
    ("round 2: comparing", [], signal.SIGTERM),
    ("compared after round 2, wait", [], signal.SIGINT),
]


def test_a_run_that_is_interrupted_again_and_again_is_the_same_run(
    finished_run: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    folder = tmp_path / finished_run.name
    words = ["train", *TINY, "--run-dir", str(folder)]
    for piece, ways, number in MOMENTS:
        printer = SignalAt(piece, number)
        monkeypatch.setattr(views, "LineWriter", lambda printer=printer: printer)
        assert main([*words, *ways]) == 130
        assert printer.sent_at is not None
        assert time.monotonic() - printer.sent_at < 10
        first, last = capfd.readouterr().err.splitlines()
        assert first == f"esper: {number.name}: finishing the step, then saving"
        told, _, pasted = last.partition(": esper ")
        assert told == "esper: interrupted and saved; go on with"
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


def test_a_signal_while_pytorch_is_loaded_leaves_nothing(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "esper", "train", *TINY, "--run-dir", "run"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=tmp_path
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("training on spirals")
        time.sleep(0.2)  # now PyTorch is being loaded
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=60) == 130
        assert process.stderr.read().splitlines() == [
            "esper: SIGTERM: stopping as soon as PyTorch is loaded",
            "esper: interrupted before training began; nothing was saved",
        ]
    assert not (tmp_path / "run").exists()


def test_a_signal_before_a_run_goes_on_leaves_it_as_it_was(
    copied_run: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (copied_run / "summary.json").unlink()
    make = EarlySignals.make_stop_request

    def make_late(early: EarlySignals) -> StopRequest:
        os.kill(os.getpid(), signal.SIGINT)
        return make(early)

    monkeypatch.setattr(EarlySignals, "make_stop_request", make_late)
    assert main(["resume", str(copied_run)]) == 130
    told = capfd.readouterr().err.splitlines()
    assert told[-1].endswith(f"the run is as it was: esper resume {shlex.quote(str(copied_run))}")
    with open_run(copied_run) as telemetry:
        assert len(telemetry.sessions()) == 1


def test_signals_are_handled_as_before_afterwards() -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    with early_signals(print):
        assert signal.getsignal(signal.SIGTERM) != before[1]
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_any_command_ends_without_a_traceback(
    number: signal.Signals, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(
        "esper.cli.main.find_command", lambda _: lambda _: os.kill(os.getpid(), number)
    )
    assert main(["tasks"]) == 130
    assert capsys.readouterr().err == "esper: interrupted\n"


def test_signals_after_a_run_is_saved_change_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    class Closing(QuietView):
        def close(self) -> None:
            for number in SIGNALS:
                os.kill(os.getpid(), number)

        def write(self, record: Record) -> None:
            if isinstance(record, UpdateRecord):
                os.kill(os.getpid(), signal.SIGHUP)

    before = [signal.getsignal(number) for number in SIGNALS]
    monkeypatch.setattr(views, "QuietView", Closing)
    assert main(["train", *TINY, "--quiet", "--run-dir", "run"]) == 130
    told = capfd.readouterr().err.splitlines()
    assert told[-1] == "esper: interrupted and saved; go on with: esper resume run"
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_a_process_that_has_said_goodbye_hears_nothing_more(tmp_path: Path) -> None:
    script = (
        "import os, signal, sys\nfrom esper.cli import main as module\n"
        "from esper.training.signals import ignore_signals\n"
        "module.find_command = lambda _: lambda _: ignore_signals() or 130\n"
        "code = module.main()\nos.kill(os.getpid(), signal.SIGTERM)\nsys.exit(code)"
    )
    assert subprocess.run([sys.executable, "-c", script, "train"]).returncode == 130
