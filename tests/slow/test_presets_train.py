"""Every preset trains to the final comparison, here with fewer rounds and hosts."""

from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.config.toml import preset_names
from esper.training import expectations

pytestmark = pytest.mark.slow

_WORDS = (
    "--rounds 1 --envs 2 --lesson-hosts 6 --ppo.n-minibatches 1 "
    "--evaluation.n-eval-episodes 2 --evaluation.n-final-episodes 2"
)


@pytest.mark.parametrize("name", preset_names())
def test_a_preset_trains(
    name: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(expectations, "N_HOSTS", 6)
    folder = tmp_path / name
    assert main(["train", "--preset", name, *_WORDS.split(), "--run-dir", str(folder)]) == 0
    assert esper.load_run(folder).state == "done"
    assert "esper: " not in capsys.readouterr().err  # only progress
