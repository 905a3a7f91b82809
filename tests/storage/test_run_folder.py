"""A folder is taken by a run that can go on, and by nothing that failed before it began."""

import re
import sys
from pathlib import Path

import pytest

from esper.errors import ConfigError, EsperError, RunError, StorageError
from esper.storage.run_folder import RunFolder
from esper.training.runs import train
from tests.training.tiny import tiny_config


def begun(path: Path) -> RunFolder:
    """Return a folder as a start leaves it that failed while its telemetry was open."""
    folder = RunFolder.create(path, tiny_config())
    with folder.locked():
        for end in ("", "-wal", "-shm"):
            (path / f"telemetry.sqlite{end}").write_text("")
        folder.checkpoints.mkdir()
    return folder


def test_a_start_that_failed_leaves_nothing_in_the_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    path = tmp_path / "run"
    for _ in range(2):
        with pytest.raises(ConfigError, match="wandb"):
            train(tiny_config(), run_dir=path, telemetry={"sinks": ("wandb",)})
        assert not path.exists()


def test_a_run_that_could_not_be_written_can_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr("esper.training.runs.Trainer.run", full)
    with pytest.raises(StorageError):
        train(tiny_config(), run_dir=tmp_path / "run")
    assert RunFolder(tmp_path / "run").holds_run


def test_what_is_forgotten_is_what_was_made(tmp_path: Path) -> None:
    begun(tmp_path / "new").forget()
    assert not (tmp_path / "new").exists()
    mine = tmp_path / "mine"
    mine.mkdir()
    begun(mine).forget()
    assert list(mine.iterdir()) == []
    (mine / "notes.txt").write_text("kept")
    begun(mine).forget()
    assert [path.name for path in mine.iterdir()] == ["notes.txt"]


def test_a_run_with_a_checkpoint_or_in_use_is_not_forgotten(tmp_path: Path) -> None:
    saved = begun(tmp_path / "saved")
    (saved.checkpoints / "step-000000001").mkdir()
    saved.forget()
    assert saved.holds_run
    used = begun(tmp_path / "used")
    with RunFolder(used.path).locked():
        used.forget()
    assert used.holds_run


@pytest.mark.parametrize("left", ["telemetry.sqlite", "checkpoints/step-000000001/state.json"])
def test_what_is_left_of_a_run_is_not_written_over(left: str, tmp_path: Path) -> None:
    (tmp_path / left).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / left).write_text("precious")
    name = re.escape(left.partition("/")[0])
    with pytest.raises(RunError, match=f"has the {name} of a run and no config.toml"):
        train(tiny_config(), run_dir=tmp_path)
    assert (tmp_path / left).read_text() == "precious"
    assert not (tmp_path / "config.toml").exists()


def test_a_folder_without_a_name_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(EsperError, match="is named ''"):
        train(tiny_config(), run_dir="")
    assert list(tmp_path.iterdir()) == []
