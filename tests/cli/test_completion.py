"""Completion scripts work in the installed shells."""

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

from esper.cli.completion import script
from esper.cli.main import COMMANDS, main
from esper.config.catalogue import CONTROLLERS, TASKS


@cache
def bash_script() -> str:
    """Return the script, which takes a while to make."""
    return script("bash")


def complete_in_bash(*words: str) -> set[str]:
    """Return the completions that bash offers for the last word."""
    quoted = " ".join(f"'{word}'" for word in words)
    lines = f"""
{bash_script()}
function=$(complete -p esper | sed 's/.*-F \\([^ ]*\\).*/\\1/')
COMP_WORDS=({quoted}); COMP_CWORD={len(words) - 1}; COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
$function esper "${{COMP_WORDS[COMP_CWORD]}}" "${{COMP_WORDS[COMP_CWORD-1]}}"
printf '%s\\n' "${{COMPREPLY[@]}}"
"""
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_bash_completes_commands_flags_and_presets() -> None:
    assert complete_in_bash("esper", "tr") == {"train"}
    assert set(COMMANDS) <= complete_in_bash("esper", "")
    assert complete_in_bash("esper", "train", "--ppo.learn") == {"--ppo.learning-rate"}
    assert complete_in_bash("esper", "grow", "--contr") == {"--controller"}
    assert complete_in_bash("esper", "export-telemetry", "--") >= {"--csv", "--parquet", "--out"}
    assert complete_in_bash("esper", "resume", "--q") == {"--quiet"}
    assert complete_in_bash("esper", "show", "--p") == {"--plot"}
    assert {"quick", "text"} <= complete_in_bash("esper", "train", "--preset", "")


def test_bash_completes_runs_tasks_and_controllers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("first", "second"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "config.toml").touch()
    (tmp_path / "runs" / "not-a-run").mkdir()
    monkeypatch.chdir(tmp_path)
    assert {"first", "second"} <= complete_in_bash("esper", "show", "")
    assert complete_in_bash("esper", "report", "first", "sec") == {"second"}
    assert complete_in_bash("esper", "show", "no") == set()
    assert complete_in_bash("esper", "show", "runs/fi") == {"runs/first"}
    assert complete_in_bash("esper", "compare", "first", "sh") == {"shipped"}
    assert complete_in_bash("esper", "grow", "--controller", "") == {
        "first",
        "second",
        "shipped",
        *CONTROLLERS,
    }
    assert complete_in_bash("esper", "headroom", "--task", "") == set(TASKS)
    monkeypatch.setenv("ESPER_RUNS", str(tmp_path))
    assert "first" not in complete_in_bash("esper", "show", "")


def test_the_printed_script_registers_with_bash(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "bash"]) == 0
    lines = f"{capsys.readouterr().out}\ncomplete -p esper"
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith(" esper")
    assert done.stderr == ""


@pytest.mark.parametrize("shell", ["zsh", "tcsh", "fish"])
def test_scripts_of_other_shells_are_valid(shell: str) -> None:
    text = script(shell)  # type: ignore[arg-type]
    assert all(name in text for name in COMMANDS)
    assert "ppo.learning-rate" in text
    if shutil.which(shell):
        done = subprocess.run([shell, "-n"], input=text, capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")
