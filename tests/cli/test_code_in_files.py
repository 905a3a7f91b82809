"""A file that names code does not run it, unless the user allows it."""

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import esper
from esper.cli.main import main
from esper.config.checks import CodeWarning
from esper.config.toml import override, write_toml
from esper.errors import TaskError
from esper.storage.checkpoint_folder import CheckpointFolder
from esper.storage.files import read_toml_file
from esper.tamiyo import save_controller
from tests.cli.conftest import TINY
from tests.cli.test_run_commands import refused
from tests.tamiyo.fresh_controllers import fresh_controller

pytestmark = pytest.mark.filterwarnings("always::esper.config.checks.CodeWarning")

NAME, MARK = "os:mkdir", "made-by-code"
CALL = f"os:mkdir(path='{MARK}')"
"""Creates a folder in the working folder, so that a test sees whether it was called."""


@pytest.fixture
def controller(tmp_path: Path) -> Path:
    origin = {"task": NAME, "task_options": {"path": MARK}}
    return save_controller(replace(fresh_controller(), origin=origin), tmp_path / "controller")


@pytest.fixture
def run(copied_run: Path) -> Path:
    """Return a run whose settings name code, and whose comparison is still to be made."""
    shutil.copy(copied_run / "summary.json", "kept.json")
    (copied_run / "summary.json").unlink()
    rewrite(copied_run / "config.toml", copied_run / "config.toml")
    return copied_run


def rewrite(source: Path, target: Path) -> Path:
    changes = {"task": NAME, "task_options": {"path": MARK}}
    target.write_text(write_toml(override(read_toml_file(source), changes)))
    return target


COMMANDS: dict[str, Callable[[Path, Path], list[str]]] = {
    "grow": lambda controller, _: ["grow", "--controller", str(controller)],
    "evaluate": lambda controller, _: ["evaluate", str(controller), "--hosts", "2"],
    "compare": lambda controller, _: ["compare", str(controller), "no-growth", "--hosts", "2"],
    "resume": lambda _, run: ["resume", str(run)],
    "train": lambda _, run: ["train", "--config", str(run / "config.toml")],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_runs_code_of_a_file_only_if_allowed(
    command: str, controller: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = COMMANDS[command](controller, run)
    assert CALL in refused(words, capsys)
    assert not Path(MARK).exists()
    # os.mkdir returns no task, so the command fails once it has run.
    assert main([*words, "--allow-code"]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert Path(MARK).is_dir()
    assert [line for line in lines if CALL in line and "warning" in line] == [lines[0]]


def test_python_runs_code_of_a_file_only_if_allowed(controller: Path, run: Path) -> None:
    calls: list[Callable[..., Any]] = [
        lambda **how: esper.evaluate(controller, n_hosts=2, **how),
        lambda **how: esper.compare([controller, "no-growth"], n_hosts=2, **how),
        lambda **how: esper.resume(run, **how),
        lambda **how: esper.train(run / "config.toml", **how),
        lambda **how: finished(run).best_host(**how),
    ]
    for call in calls:
        with pytest.raises(TaskError, match=r"os:mkdir\(path='made-by-code'\)"):
            call()
        assert not Path(MARK).exists()
        with (
            pytest.warns(CodeWarning, match=r"os:mkdir\(path='made-by-code'\)") as warned,
            pytest.raises(TaskError, match="'os:mkdir' returned a NoneType"),
        ):
            call(allow_code=True)
        assert {one.filename for one in warned if one.category is CodeWarning} == {__file__}
        Path(MARK).rmdir()


def finished(run: Path) -> esper.Run:
    shutil.copy("kept.json", run / "summary.json")
    return esper.load_run(run)


def test_a_typed_task_runs_whatever_the_file_names(
    controller: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = str(run / "config.toml")
    for words in (
        ["train", "--config", config, "--task", NAME],
        ["train", f"--task={NAME}", "--config", config],
        ["evaluate", str(controller), "--task", NAME, "--hosts", "2"],
    ):
        assert "'os:mkdir'" in refused(words, capsys)
        Path(MARK).rmdir()
    with pytest.raises(TaskError, match="returned a NoneType"):
        esper.train(run / "config.toml", task=NAME)


def test_commands_that_a_run_prints_allow_its_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    code = "from esper.tasks import make_task\ndef make(**options):\n"
    (tmp_path / "own_task.py").write_text(code + "    return make_task('spirals', **options)\n")
    words = [word if word != "spirals" else "own_task:make" for word in TINY]
    assert main(["train", *words, "--run-dir", "own"]) == 0
    printed = capsys.readouterr().out
    assert "grow --controller own --allow-code" in printed
    assert esper.load_run("own").resume_command.endswith("resume own --allow-code")
    monkeypatch.setattr("esper.growing.grown._save_program", lambda *_: None)
    assert "own_task:make(batches_per_epoch=1)" in refused(["grow", "--controller", "own"], capsys)
    assert main(["grow", "--controller", "own", "--allow-code"]) == 0


def test_a_controller_whose_origin_is_no_table_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for origin in ({"task": ["os:mkdir"]}, {"task": "digits", "task_options": [1]}):
        save_controller(replace(fresh_controller(), origin=origin), tmp_path / "c")
        assert "origin.task" in refused(["grow", "--controller", str(tmp_path / "c")], capsys)


def test_loading_the_controller_of_a_run_runs_no_code(copied_run: Path) -> None:
    rewrite(copied_run / "config.toml", copied_run / "config.toml")
    with_code = CheckpointFolder(copied_run / "checkpoints")
    loaded = with_code.latest()
    state = loaded.state | {"config": (copied_run / "config.toml").read_text("utf-8")}
    with_code.save(state, step=loaded.state["progress"]["step"] + 1)
    esper.find_controller(copied_run, esper.make_env("spirals", num_envs=1, autoreset=False))
    assert not Path(MARK).exists()


def test_the_module_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    for name in ("json", "sqlite3", "argparse", "torch", "numpy"):
        (tmp_path / f"{name}.py").write_text(f"open('ran-{name}', 'w').close()\n")
    done = subprocess.run(
        [sys.executable, "-m", "esper", "runs"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert not list(tmp_path.glob("ran-*"))
