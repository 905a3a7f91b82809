"""A run folder is kept once the run can be resumed, and removed if it failed to start."""

import os
import re
import sys
from pathlib import Path

import pytest

from esper.errors import ConfigError, EsperError, RunError, StorageError
from esper.storage.run_folder import OWN_NAMES, RunFolder
from esper.training.runs import train
from tests.training.tiny import tiny_config


def start_and_fail(path: Path) -> RunFolder:
    """Return the folder of a run that failed to start while its telemetry was open."""
    folder = RunFolder.create(path, tiny_config())
    with folder.locked():
        for end in ("", "-wal", "-shm"):
            (path / f"telemetry.sqlite{end}").write_text("")
        folder.checkpoints.mkdir()
    return folder


def test_a_run_that_fails_to_start_leaves_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    path = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(ConfigError, match="wandb"):
            train(tiny_config(), run_dir=path, telemetry={"sinks": ("wandb",)})
        assert not path.exists()


def test_a_run_stopped_by_a_full_disk_can_be_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("esper.training.runs.Trainer.run", full)
    with pytest.raises(StorageError):
        train(tiny_config(), run_dir=tmp_path / "run")
    assert RunFolder(tmp_path / "run").holds_run


def test_discarding_removes_only_what_the_run_created(tmp_path: Path) -> None:
    start_and_fail(tmp_path / "new").discard()
    assert not (tmp_path / "new").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    start_and_fail(mine).discard()
    assert list(mine.iterdir()) == []
    (mine / "notes.txt").write_text("kept")
    start_and_fail(mine).discard()
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_a_run_with_a_checkpoint_or_in_use_is_not_discarded(tmp_path: Path) -> None:
    saved = start_and_fail(tmp_path / "saved")
    (saved.checkpoints / "step-000000001").mkdir()
    saved.discard()
    assert saved.holds_run
    used = start_and_fail(tmp_path / "used")
    with RunFolder(used.path).locked():
        used.discard()
    assert used.holds_run


@pytest.mark.parametrize("left", ["telemetry.sqlite", "checkpoints/step-000000001/state.json"])
def test_the_remains_of_a_run_are_not_overwritten(left: str, tmp_path: Path) -> None:
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("precious")
    name = re.escape(left.partition("/")[0])
    with pytest.raises(RunError, match=f"{name} .*config.toml"):
        train(tiny_config(), run_dir=tmp_path)
    assert (tmp_path / left).read_text() == "precious"
    assert not (tmp_path / "config.toml").exists()


def test_an_empty_folder_name_is_rejected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsperError, match="''"):
        train(tiny_config(), run_dir="")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", OWN_NAMES)
def test_a_link_in_the_place_of_a_runs_file_is_refused(name: str, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("kept")
    fresh = tmp_path / "fresh"
    fresh.mkdir()
    (fresh / name).symlink_to(victim)
    with pytest.raises(RunError, match="fresh"):
        RunFolder.create(fresh, tiny_config())
    folder = RunFolder.create(tmp_path / "run", tiny_config())
    (folder.path / name).unlink(missing_ok=True)
    (folder.path / name).symlink_to(victim)
    with pytest.raises(RunError, match=f"{name} is a link"), folder.locked():
        pass
    assert victim.read_text() == "kept"
    assert not folder.is_in_use


def test_a_run_is_reached_through_a_link(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_config())
    (tmp_path / "latest").symlink_to("run")
    with RunFolder(tmp_path / "latest").locked():
        assert folder.is_in_use


def test_a_pipe_in_the_place_of_the_lock_is_refused_at_once(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", tiny_config())
    os.mkfifo(folder.lock_file)
    assert not folder.is_in_use
    with pytest.raises(RunError, match="lock is not a file"), folder.locked():
        pass


def test_a_run_killed_while_its_settings_were_written_is_cleaned_up(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        os.replace = lambda *_: os._exit(0)  # type: ignore[assignment]
        RunFolder.create(None, tiny_config())
    os.waitpid(child, 0)
    (killed,) = tmp_path.iterdir()
    assert len(list(killed.iterdir())) == 1
    (tmp_path / "mine").mkdir()
    RunFolder.create(None, tiny_config())
    left = {path for path in tmp_path.iterdir() if path.is_dir()}
    assert (tmp_path / "mine") in left
    assert [path for path in left if any(path.glob(".config.toml-*"))] == []
    assert len(left) == 2
