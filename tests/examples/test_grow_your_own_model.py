"""The example grows a model and hands it back, run as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tests.tamiyo.fresh_controllers import fresh_controller

from esper.tamiyo import save_controller

HEADING = "epoch  accuracy  FLOPs  added  decision                          seeds\n"
EXAMPLE = Path(__file__).parents[2] / "examples" / "grow_your_own_model.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_run_grows_saves_and_reloads(tmp_path: Path) -> None:
    controller = save_controller(fresh_controller(), tmp_path / "controller")
    done = run("--epochs", "9", "--controller", str(controller), "--out", str(tmp_path / "grown"))
    assert done.returncode == 0, done.stderr
    rows = re.findall(r"^ +(\d+) +\d+\.\d% ", done.stdout, flags=re.MULTILINE)
    assert [int(row) for row in rows[:9]] == list(range(1, 10))
    assert re.search(r"germinate \w+ (early|late)", done.stdout)
    assert "Accuracy on validation went from" in done.stdout

    # The file is what the table says it is: nobody but torch is needed to use it.
    model = torch.export.load(tmp_path / "grown" / "digits.pt2").module()
    images, labels = torch.load(tmp_path / "grown" / "test_images.pt", weights_only=True)
    accuracy = (model(images).argmax(1) == labels).double().mean().item()
    n_parameters = sum(parameter.numel() for parameter in model.parameters())
    row = re.search(r"^grown +(\d+\.\d)% +([\d,]+)", done.stdout, flags=re.MULTILINE)
    assert row is not None
    assert row[1] == f"{100 * accuracy:.1f}"
    assert int(row[2].replace(",", "")) == n_parameters
    assert accuracy > 0.5


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--epochs", "0"], "--epochs 0 is too few; at least 1 is needed"),
        (["--epochs", "many"], "--epochs: invalid whole_number value: 'many'"),
        (["--seed", "-1"], "--seed: -1 is not from 0 to 4294967295"),
        (["--controller", "nobody"], "A controller is the folder of a run or of a saved"),
        (["--out", str(EXAMPLE)], f"--out {EXAMPLE} cannot be used as a folder: File exists"),
    ],
    ids=["no epochs", "no number", "negative seed", "no controller", "no folder"],
)
def test_a_bad_argument_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not done.stdout.removeprefix(HEADING)
