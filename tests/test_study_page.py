"""The tutorial of a study works from the own task to the table, with tiny numbers for training."""

import re
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

from esper.cli.main import main
from esper.config.checks import CodeWarning
from esper.evidence.study import read_study

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/study.md"
TINY = """first_policy = "cautious"
envs = 4
n_steps = 4
policy = { feature_size = 12, lstm_size = 8 }
ppo.n_minibatches = 1
evaluation = { eval_freq = 1, n_eval_episodes = 2, n_final_episodes = 4 }
"""


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", PAGE.read_text(), flags=re.M | re.DOTALL)


@pytest.mark.filterwarnings("always::esper.config.checks.CodeWarning")
def test_the_tutorial_of_a_study_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("ESPER_RUNS", "runs")
    (task, table), (study, more, search) = blocks("python"), blocks("toml")
    (tmp_path / "rings.py").write_text(task)
    tiny = study.replace("rounds = 40\n", f"rounds = 1\n{TINY}").replace("seeds = 5", "seeds = 2")
    assert tiny != study
    assert len(read_study(tomllib.loads(more)).configurations) == 2
    (tmp_path / "rings.toml").write_text(tiny)
    for line in "".join(blocks("console")).splitlines():
        assert main(line.removeprefix("$ esper ").split()) == 0
    assert "12 epochs" not in capsys.readouterr().err
    config = (tmp_path / "runs/rings/no-shaping-s1/config.toml").read_text()
    assert "n_epochs = 12  # task rings:make_task" in config
    assert "shaping = 0.0  # rings.toml" in config
    if find_spec("pandas") is not None:
        with pytest.warns(CodeWarning, match="rings:make_task") as warned:
            exec(compile(table, PAGE.name, "exec"), {"__name__": "page"})
        assert {one.filename for one in warned if one.category is CodeWarning} == {PAGE.name}
        assert "full" in capsys.readouterr().out
    (tmp_path / "search.toml").write_text(search)
    assert set(read_study("search.toml").search) == {"ppo.learning_rate", "rewards.reward"}


def test_the_study_of_the_first_run_is_the_quick_preset() -> None:
    study = read_study(ROOT / "examples/studies/first_run.toml")
    (settings,) = study.configurations.values()
    assert (settings.base, len(study.seeds)) == ("preset quick", 5)
