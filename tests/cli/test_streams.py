"""A closed, full, lost or ASCII-only output never costs a run or prints a traceback."""

import json
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.cli.views import make_view
from esper.config.toml import load_preset
from tests.cli.conftest import TINY
from tests.cli.sample_records import round_record

ROOT = Path(__file__).parents[2]
COMMAND = f"{shlex.quote(sys.executable)} -m esper"
ASCII = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}


def run(words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        f"{COMMAND} {words}",
        shell=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **environment},
    )


@pytest.mark.parametrize(
    ("where", "why"), [(">&-", "it is closed"), (">/dev/full", "No space left on device")]
)
@pytest.mark.parametrize("words", ["--help", "train --print-config"])
def test_an_unwritable_output_is_reported_in_one_line(words: str, where: str, why: str) -> None:
    done = run(f"{words} {where}")
    assert done.returncode == 1
    assert done.stderr == f"esper: error: cannot write the output: {why}\n"


@pytest.mark.slow
def test_a_run_continues_when_its_output_is_full() -> None:
    done = run(f"train {shlex.join(TINY)} --run-dir run >/dev/full")
    assert done.returncode == 1
    *_, line = done.stderr.splitlines()  # after the progress
    assert "cannot write the output" in line
    assert esper.load_run("run").state == "done"


def test_a_closed_stderr_is_ignored() -> None:
    done = run("nothing 2>&-")
    assert (done.returncode, done.stdout, done.stderr) == (2, "", "")


def test_unencodable_characters_are_escaped(finished_run: Path, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/ünï").symlink_to(finished_run)
    done = run("runs", **ASCII)
    assert (done.returncode, done.stderr) == (0, "")
    assert "runs/ünï" in done.stdout  # file names are printed as bytes
    (facts,) = json.loads(run("runs --json", **ASCII).stdout)
    assert os.fsencode(facts["run"]) == "runs/ünï".encode()


def test_a_run_survives_a_closed_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    with open(theirs, "w") as terminal, monkeypatch.context() as patch:
        patch.setattr(sys, "stdout", terminal)
        patch.setattr(sys, "stderr", terminal)
        with make_view(load_preset("quick"), quiet=False, json=False) as view:
            os.close(ours)
            with pytest.raises(OSError, match="Input/output error"):
                os.write(theirs, b"x")
            view.write(round_record(1))
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, theirs)
        os.close(nowhere)


def test_an_interrupted_run_with_a_full_output_still_reports_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("esper.training.runs.train", interrupt)
    monkeypatch.setattr("esper.cli.launch.print_end_event", full)
    assert main(["train", *TINY, "--json"]) == 130
    assert "nothing was saved" in capsys.readouterr().err
