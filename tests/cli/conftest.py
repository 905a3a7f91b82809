"""One small finished run, shared by all tests of this folder."""

import shutil
from pathlib import Path

import pytest

from esper.cli.main import main

_OPTIONS = (
    "--task spirals --task-options batches_per_epoch=1 --rounds 2 --envs 4 --n-steps 6 "
    "--budget.n-epochs 6 --policy.feature-size 12 --policy.lstm-size 8 --ppo.n-epochs 2 "
    "--ppo.n-minibatches 1 --first-policy cautious "
    "--evaluation.eval-freq 1 --evaluation.n-eval-episodes 2 --evaluation.n-final-episodes 4"
)
TINY = _OPTIONS.split()
"""Options of a run that takes a second or two."""


@pytest.fixture(scope="session")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a finished run, which tests must not change."""
    path = tmp_path_factory.mktemp("shared") / "first run"
    assert main(["train", *TINY, "--quiet", "--run-dir", str(path)]) == 0
    return path


@pytest.fixture
def copied_run(finished_run: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run that a test may change."""
    return Path(shutil.copytree(finished_run, tmp_path / "copied run"))


@pytest.fixture(autouse=True)
def _own_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run each test in its own folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ESPER_RUNS", raising=False)
