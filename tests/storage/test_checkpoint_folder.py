"""A checkpoint folder restores what was saved and keeps the right checkpoints."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from esper.errors import CheckpointError, ConfigError
from esper.storage.checkpoint_folder import CheckpointFolder, CheckpointWarning
from tests.storage.states import exact, state_of


def test_views_and_shared_tensors_are_restored_as_plain_tensors(
    tmp_path: Path,
) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    named = {
        "base": base,
        "again": base,
        "column": base[:, 1],
        "spread": torch.ones(1).expand(5),
        "conj": torch.tensor([1 + 2j], dtype=torch.complex64).conj(),
        "channels_last": torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last),
        "parameter": nn.Parameter(torch.ones(2)),
        "scalar": torch.tensor(3, dtype=torch.int16),
        "none": torch.zeros(0, 3),
    }
    folder = CheckpointFolder(tmp_path)
    folder.save(named, step=0)
    loaded = folder.latest().state
    assert exact({name: t.detach().resolve_conj() for name, t in named.items()}) == exact(loaded)
    assert all(type(t) is Tensor and t.is_contiguous() for t in loaded.values())
    loaded["base"].zero_()
    assert exact(loaded["again"]) == exact(base)


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"a": torch.zeros(2).to_sparse()}, "'a' .*sparse"),
        ({"a": torch.zeros(2, dtype=torch.complex128)}, "torch.complex128"),
        ({"a": torch.zeros(2, device="meta")}, "meta"),
        ({"a": 2**5000}, "'a' .*4096 bits"),
    ],
)
def test_a_state_that_cannot_be_restored_is_rejected_before_anything_is_written(
    tmp_path: Path, state: dict[str, Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        CheckpointFolder(tmp_path / "new").save(state, step=0)
    assert not (tmp_path / "new").exists()


def test_the_latest_checkpoint_has_the_highest_step(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path / "run" / "checkpoints")
    for step in [9, 10, 100]:
        folder.save(state_of(step), step=step)
    loaded = folder.latest()
    assert folder.names() == ["step-000000009", "step-000000010", "step-000000100"]
    assert (loaded.step, loaded.path, loaded.skipped) == (
        100,
        tmp_path / "run/checkpoints/step-000000100",
        (),
    )
    assert exact(loaded.state) == exact(state_of(100))
    assert loaded.about["made_with"]["torch"] == torch.__version__


@pytest.mark.parametrize("exists", [False, True])
def test_loading_from_a_folder_without_checkpoints_is_an_error(
    tmp_path: Path, exists: bool
) -> None:
    folder = CheckpointFolder(tmp_path if exists else tmp_path / "nowhere")
    assert folder.names() == []
    with pytest.raises(CheckpointError, match="holds no checkpoints"):
        folder.latest()


def test_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    kept: list[list[int]] = []
    for step in range(1, 6):
        folder.save(state_of(step), step=step)
        kept.append([int(name.removeprefix("step-")) for name in folder.names()])
    assert kept == [[1], [1, 2], [1, 2, 3], [2, 3, 4], [3, 4, 5]]
    assert sorted(path.name for path in tmp_path.iterdir()) == folder.names()


def test_a_single_checkpoint_can_be_kept(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    for step in range(3):
        folder.save(state_of(step), step=step)
    assert folder.names() == ["step-000000002"]


def test_saving_a_step_again_replaces_its_checkpoint(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(state_of(1), step=5)
    folder.save(state_of(2), step=5)
    assert exact(folder.latest().state) == exact(state_of(2))
    for name in ("state-2.json", "manifest.json"):
        (tmp_path / "step-000000005" / name).write_bytes(b"damaged")
        folder.save(state_of(3), step=5)
        assert exact(folder.latest().state) == exact(state_of(3))
        assert len(list((tmp_path / "step-000000005").iterdir())) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["step-000000005"]


def test_saving_removes_damaged_checkpoints_of_later_steps(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    for step in (10, 20, 30):
        folder.save(state_of(step), step=step)
    for step in (20, 30):
        (tmp_path / f"step-0000000{step}" / "state.json").write_bytes(b"damaged")
    with pytest.warns(CheckpointWarning, match="is damaged"):
        assert folder.latest().step == 10
    folder.save(state_of(11), step=11)
    assert folder.latest().step == 11
    assert folder.names() == ["step-000000010", "step-000000011"]


def test_saving_removes_intact_checkpoints_of_later_steps(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=4)
    for step in (10, 12, 20, 30):
        folder.save(state_of(step), step=step)
    folder = CheckpointFolder(tmp_path, keep_last=2)
    folder.save(state_of(15), step=15)
    assert folder.names() == ["step-000000012", "step-000000015"]


def test_damaged_checkpoints_do_not_count_as_newest(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=2)
    folder.save(state_of(1), step=1)
    folder.save(state_of(2), step=2)
    (tmp_path / "step-000000002" / "state.json").write_bytes(b"damaged")
    folder.save(state_of(3), step=3)
    assert folder.names() == ["step-000000001", "step-000000002", "step-000000003"]
    folder.save(state_of(4), step=4)
    assert folder.names() == ["step-000000003", "step-000000004"]


def test_other_files_and_folders_are_never_removed(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path, keep_last=1)
    others = ["notes.txt", "step-1", "step-0000000001", ".step-000000001", "step-x"]
    for name in others[1:]:
        (tmp_path / name).mkdir()
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "step-000000000").mkdir()
    (tmp_path / "step-000000000" / "thesis.txt").write_text("mine")
    for step in (1, 2):
        (folder.save(state_of(step), step=step) / "notes.txt").write_text("mine")
    found = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*"))
    kept = ["step-000000000", "step-000000000/thesis.txt", "step-000000001"]
    kept += ["step-000000001/notes.txt", "step-000000002", "step-000000002/notes.txt"]
    files = [*("checkpoint.json", "manifest.json", "state.json", "state.safetensors")]
    assert found == sorted([*others, *kept, *(f"step-000000002/{name}" for name in files)])


@pytest.mark.parametrize("step", [-1, True, 1.0, "3"])
def test_an_invalid_step_is_rejected(tmp_path: Path, step: Any) -> None:
    with pytest.raises(ConfigError, match="step is"):
        CheckpointFolder(tmp_path).save({}, step=step)


def test_keep_last_must_be_at_least_one(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="keep_last is 0"):
        CheckpointFolder(tmp_path, keep_last=0)


def test_another_number_of_threads_is_warned_about(tmp_path: Path) -> None:
    folder = CheckpointFolder(tmp_path)
    folder.save(state_of(1), step=1)
    threads = torch.get_num_threads()
    torch.set_num_threads(threads + 1)
    try:
        message = f"threads {threads}, now {threads + 1}"
        with pytest.warns(CheckpointWarning, match=message):
            folder.latest()
    finally:
        torch.set_num_threads(threads)
    folder.latest()


def test_a_checkpoint_can_be_read_without_esper(tmp_path: Path) -> None:
    from safetensors.torch import load_file

    path = CheckpointFolder(tmp_path).save(state_of(3), step=3)
    tree = json.loads((path / "state.json").read_text())["state"]
    named = load_file(path / "state.safetensors")
    tree["policy"] = {name: named[one["$tensor"]] for name, one in tree["policy"].items()}
    assert exact(tree) == exact(state_of(3))
