"""The example grows a model and hands it back, run as a user runs it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

EXAMPLE = Path(__file__).parents[2] / "examples" / "grow_your_own_model.py"


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", str(EXAMPLE), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_short_run_grows_saves_exports_and_reloads(tmp_path: Path) -> None:
    done = run("--epochs", "10", "--out", str(tmp_path / "grown"))
    assert done.returncode == 0, done.stderr
    for part in (
        "late: feature map [B, C, H, W], width 16; widening merges into the block",
        "late: widen_large germinates",
        "saved and loaded half-blended: the same outputs to the bit",
        "Exported as a plain module: its outputs are the same.",
    ):
        assert part in done.stdout
    assert re.search(r"late: widen_large (kept|pruned); \d+\.\d% with it", done.stdout)

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
        (["--out", str(EXAMPLE)], f"--out {EXAMPLE} cannot be used as a folder: File exists"),
    ],
    ids=["no epochs", "no number", "negative seed", "no folder"],
)
def test_a_bad_argument_is_refused_in_one_line(arguments: list[str], said: str) -> None:
    done = run(*arguments)
    assert done.returncode == 2
    assert said in done.stderr.splitlines()[-1]
    assert not done.stdout
