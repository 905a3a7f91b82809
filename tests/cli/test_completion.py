"""Shells complete commands, flags, runs, tasks and controllers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from esper.cli.completion import complete
from esper.cli.main import COMMANDS, main
from esper.config.catalogue import CONTROLLERS, TASKS


def test_commands_flags_and_choices_are_completed() -> None:
    assert complete("esper tr") == ["train"]
    assert complete("esper ") == sorted(COMMANDS)
    assert complete("esper train --ppo.learn") == ["--ppo.learning-rate"]
    assert complete("esper grow --contr") == ["--controller"]
    assert {"--out", "--help"} <= set(complete("esper export-controller RUN --"))
    assert complete("esper resume --q") == ["--quiet"]
    assert {"quick", "text"} <= set(complete("esper train --preset "))
    assert complete("esper train --ppo.clip j") == ["joint"]
    assert complete("esper completion f") == ["fish"]
    assert complete("esper nothing ") == []


def test_runs_tasks_and_controllers_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "runs" / "not-a-run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert complete("esper show ") == ["first", "second"]
    assert complete("esper report first sec") == ["second"]
    assert complete("esper show no") == []
    assert complete("esper show runs/fi") == ["runs/first"]
    assert complete("esper compare first le") == ["learned"]
    known = sorted(["first", "second", "learned", *CONTROLLERS])
    assert complete("esper grow --controller ") == known
    assert complete("esper grow --task ") == sorted(TASKS)
    monkeypatch.setenv("ESPER_RUNS", str(tmp_path))
    assert "first" not in complete("esper show ")


def test_bash_asks_esper_for_the_line_up_to_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    script = capsys.readouterr().out
    lines = f"{script}\ncomplete -p esper"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(" -C 'esper completion' esper")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("COMP_LINE", "esper tra --quiet")
        patch.setenv("COMP_POINT", "9")
        assert main(["completion", "esper", "tra", "esper"]) == 0  # as bash calls it
    assert capsys.readouterr().out == "train\n"


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish"])
def test_scripts_of_other_shells_are_valid(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    text = capsys.readouterr().out
    assert "esper completion" in text
    if shutil.which(shell):
        done = subprocess.run(
            [shell, "-n"], input=text, capture_output=True, text=True, env=dict(os.environ)
        )
        assert (done.returncode, done.stderr) == (0, "")
