"""A process killed while saving leaves intact checkpoints behind."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from esper.storage.checkpoint_folder import CheckpointFolder, load_checkpoint
from tests.storage import killed_overwrites, killed_saves
from tests.storage.states import exact, state_of

ROOT = Path(__file__).parents[2]
SOURCES = f"{ROOT / 'src'}{os.pathsep}{ROOT}"


def _run(*words: object, script: str = killed_saves.__file__) -> Any:
    done = subprocess.run(
        [sys.executable, script, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": SOURCES, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("stride", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_a_kill_at_any_system_call_leaves_the_old_or_the_new_checkpoint(
    stride: int, tmp_path: Path
) -> None:
    n_moments = _run("calls", tmp_path, str(stride))
    assert n_moments > 80
    seen: set[tuple[int, int]] = set()
    for moment in range(0, n_moments, stride):
        folder = CheckpointFolder(tmp_path / f"{moment:04d}", keep_last=1)
        n_done = folder.path.with_suffix(".done").stat().st_size
        saves = [*killed_saves.START, *killed_saves.PLAN]
        loaded = folder.latest()
        found = [
            save
            for save in saves[n_done - 1 : n_done + 1]
            if exact(loaded.state) == exact(state_of(10 * save[0] + save[1]))
        ]
        assert len(found) == 1, moment
        step, version = found[0]
        seen.add((step, version))
        assert all(load_checkpoint(folder.path / name) for name in folder.names())
        assert loaded.step == step
        folder.save(state_of(60), step=6)
        assert folder.latest().step == 6
        assert [path.name for path in folder.path.iterdir()] == ["step-000000006"]
    assert seen == {(3, 0), (4, 0), (4, 1), (5, 0)}


@pytest.mark.slow
def test_a_kill_while_anything_is_overwritten_leaves_the_old_or_the_new_one(tmp_path: Path) -> None:
    n_moments = _run(tmp_path, script=killed_overwrites.__file__)
    print(n_moments)
    assert len(n_moments) == 4
    assert min(n_moments.values()) > 8


@pytest.mark.slow
def test_kills_at_random_times_lose_no_completed_checkpoint(tmp_path: Path) -> None:
    assert _run("times", tmp_path) >= 15


def test_files_are_flushed_before_the_manifest_and_the_manifest_before_save_returns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(handle: int) -> None:
        name = os.readlink(f"/proc/self/fd/{handle}").rpartition("/")[2]
        events.append(("fsync", "temporary" if name.startswith(".manifest") else name))
        fsync(handle)

    def watched_replace(source: Path, target: Path) -> None:
        events.append(("replace", target.name))
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    CheckpointFolder(tmp_path / "checkpoints").save(state_of(1), step=1)
    assert events == [
        ("fsync", tmp_path.name),
        ("fsync", "checkpoints"),
        ("fsync", "state.safetensors"),
        ("fsync", "state.json"),
        ("fsync", "checkpoint.json"),
        ("fsync", "temporary"),
        ("replace", "manifest.json"),
        ("fsync", "step-000000001"),
    ]
