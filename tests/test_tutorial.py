"""Every command and every line of Python of the tutorial works, with tiny numbers for training."""

import re
import shlex
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from esper.cli import progress as views
from esper.cli.main import COMMANDS, main
from tests.cli.conftest import TINY
from tests.cli.test_interrupting import SignalAt
from tests.tutorial_steps import TUTORIAL, tutorial_steps

SMALLER = TINY[TINY.index("--rounds") :]
"""What makes a run take a second, whatever it learns."""


def run_in_process(command: str) -> int:
    """Run a command of the tutorial; training ones with tiny numbers."""
    words, _, file = command.partition(" > ")
    name, *rest = shlex.split(words, comments=True)
    assert name == "esper"
    smaller = SMALLER if rest[0] == "train" and "--print-config" not in rest else []
    if not file:
        return main([*rest, *smaller])
    with open(file, "w") as printed, redirect_stdout(printed):
        return main([*rest, *smaller])


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
                printer = SignalAt("round 1/2", signal.SIGINT)
                patch.setattr(views, "LineWriter", lambda printer=printer: printer)
                assert run_in_process(step.text) == 130, step
        else:
            assert run_in_process(step.text) == 0, step
    printed = capsys.readouterr().out
    assert "rollout/ep_rew_mean" in printed
    assert (tmp_path / "grown/model.pt2").exists()


def test_the_tutorial_uses_the_commands_that_matter_to_a_beginner() -> None:
    used = {shlex.split(step.text)[1] for step in tutorial_steps() if step.kind == "command"}
    assert used >= {"doctor", "train", "resume", "show", "runs", "grow", "tasks"}
    assert used <= set(COMMANDS)


def test_what_make_is_asked_for_in_the_tutorial_is_there() -> None:
    targets = re.findall(r"^make ([\w-]+)", TUTORIAL.read_text(), flags=re.M)
    assert targets
    for target in targets:
        subprocess.run(
            ["make", "--dry-run", target],
            check=True,
            cwd=TUTORIAL.parents[1],
            stdout=subprocess.DEVNULL,
        )


def test_pages_that_the_tutorial_links_to_are_there() -> None:
    for link in re.findall(r"\]\(([^)#]+)", TUTORIAL.read_text()):
        assert (TUTORIAL.parent / link).exists(), link
