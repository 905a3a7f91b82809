"""Pipes, devices, links, folders and huge files in the place of files are read in time."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

import esper
from esper.cli.main import main
from esper.errors import EsperError
from esper.storage.run_folder import OWN_NAMES
from esper.tamiyo import save_controller
from esper.training.run import Run
from tests.tamiyo.fresh_controllers import fresh_controller

SECONDS = 20

KINDS: dict[str, Callable[[Path], object]] = {
    "pipe": os.mkfifo,
    "link to a pipe": lambda path: path.symlink_to(_made_pipe(path)),
    "endless": lambda path: path.symlink_to("/dev/zero"),
    "huge": lambda path: _make_sparse(path),
    "folder": Path.mkdir,
}
FILES = {*OWN_NAMES, "summary.json.sha256", "evaluation.json", "notes.md"}
FILES -= {"checkpoints", "tensorboard", "wandb", "wandb-id"}


def _made_pipe(path: Path) -> Path:
    pipe = path.with_name("a pipe")
    os.mkfifo(pipe)
    return pipe


def _make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**42)


@contextmanager
def bounded() -> Iterator[None]:
    """Fail if the block takes too long, also while it waits for a pipe."""

    def stop(*_: object) -> None:
        pytest.fail(f"it took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", sorted(FILES))
def test_a_run_with_such_a_file_is_read_in_time(
    name: str, kind: str, done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(done_run.path, tmp_path / "run"))
    (run / name).unlink(missing_ok=True)
    KINDS[kind](run / name)
    for words in (["runs", str(tmp_path)], ["show", str(run)], ["report", str(run)]):
        with bounded():
            code = main(words)
        told = capsys.readouterr().err
        assert code in (0, 2 if words[0] != "runs" else 0), told
        assert "Traceback" not in told
        assert len(told.splitlines()) <= 1 + (words[0] == "report"), told
    with bounded(), suppress(EsperError):
        assert esper.load_run(run).state in ("done", "empty")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "name", ["manifest.json", "controller.json", "controller.safetensors", "config.toml"]
)
def test_a_controller_or_configuration_that_is_no_file_is_refused(
    name: str, kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = save_controller(fresh_controller(), tmp_path / "c")
    (folder / name).unlink(missing_ok=True)
    KINDS[kind](folder / name)
    words = ["grow", "--controller", str(folder)]
    if name == "config.toml":
        words = ["train", "--config", str(folder / name)]
    with bounded():
        assert main(words) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert str(folder) in line


@pytest.mark.parametrize("name", ["lock", "telemetry.sqlite-wal", "telemetry.sqlite-shm"])
def test_a_hard_link_to_another_file_is_not_written(
    name: str, done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(shutil.copytree(done_run.path, tmp_path / "run"))
    (run / "summary.json").unlink()
    victim = tmp_path / "victim"
    victim.write_text("kept")
    (run / name).unlink(missing_ok=True)
    os.link(victim, run / name)
    for words in (["resume", str(run)], ["show", str(run)]):
        assert main(words) in (0, 2)
        lines = capsys.readouterr().err.splitlines()
        assert words[0] == "show" or (len(lines) == 1 and "another name of a file" in lines[0])
    assert victim.read_text() == "kept"


def test_a_figure_replaces_a_link(
    done_run: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim, figure = tmp_path / "victim", tmp_path / "curve.svg"
    victim.write_text("kept")
    figure.symlink_to(victim)
    assert main(["show", str(done_run.path), "--plot", str(figure)]) == 0
    assert victim.read_text() == "kept"
    assert "<svg" in figure.read_text()
    assert main(["show", str(done_run.path), "--plot", str(tmp_path / "curve.xyz")]) == 2
    assert "xyz" in capsys.readouterr().err
