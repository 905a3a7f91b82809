"""The tutorial on training a controller works as a whole, with tiny numbers for training."""

import shlex
import signal
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from esper.cli import views
from esper.cli.main import main
from tests.cli.test_ctrl_c import SignalAt
from tests.tutorial_steps import TUTORIAL, tutorial_steps

_WORDS = (
    "--rounds 2 --envs 2 --n-steps 3 --lesson-hosts 4 --budget.n-epochs 3 --policy.feature-size 8 "
    "--policy.lstm-size 8 --ppo.n-epochs 1 --ppo.n-minibatches 1 "
    "--evaluation.eval-freq 2 --evaluation.n-eval-episodes 1 --evaluation.n-final-episodes 2"
)
TINY = _WORDS.split()


def run_in_process(command: str) -> int:
    """Run a command of the tutorial, with tiny numbers if it trains; return its exit code."""
    words, _, file = command.partition(" > ")
    name, *rest = shlex.split(words, comments=True)
    assert name == "esper"
    tiny = TINY if rest[0] == "train" and "--print-config" not in rest else []
    if not file:
        return main([*rest, *tiny])
    with open(file, "w") as printed, redirect_stdout(printed):
        return main([*rest, *tiny])


@pytest.mark.slow
@pytest.mark.usefixtures("fresh_shipped")
def test_the_tutorial_works_from_its_first_step_to_its_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    scope: dict[str, object] = {}
    for step in tutorial_steps():
        if step.kind == "file":
            (tmp_path / step.name).write_text(step.text)
        elif step.kind == "python":
            exec(compile(step.text, TUTORIAL.name, "exec"), scope)
        elif step.is_interrupted:
            with monkeypatch.context() as patch:
                printer = SignalAt("    1 ", signal.SIGINT)
                patch.setattr(views, "LineWriter", lambda printer=printer: printer)
                assert run_in_process(step.text) == 130, step
        else:
            assert run_in_process(step.text) == 0, step
    printed = capsys.readouterr().out
    assert "rollout/ep_rew_mean" in printed
    assert (tmp_path / "grown/model.pt2").exists()
